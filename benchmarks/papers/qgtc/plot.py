"""Draw QGTC's Figures 7a, 7b and 8 from the records of ``papers/qgtc/program.py``.

    python3 benchmarks/papers/qgtc/plot.py [FILE] [--out docs/qgtc-figures.png]

7a and 7b: the speed-up of our epochs over PyTorch Geometric's in float32, by graph and number of bits. 8: the share of 8 x 128 tiles that
are processed if those without an edge are skipped. Figures without records are left out. Needs Matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2]
TITLES = {
    "figure-7a": "7a: Cluster GCN, 3 x 16",
    "figure-7b": "7b: batched GIN, 3 x 64",
    "figure-8": "8: tiles processed",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read records and draw the figures."""
    parser = argparse.ArgumentParser(description="Draw QGTC's Figures 7a, 7b and 8 again.")
    parser.add_argument(
        "file", nargs="?", type=Path, default=BENCHMARKS / "results" / "h200" / "qgtc.jsonl", metavar="FILE"
    )
    parser.add_argument("--out", type=Path, default=BENCHMARKS.parent / "docs" / "qgtc-figures.png", metavar="FILE")
    options = parser.parse_args(arguments)
    found = panels(json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines())
    if not found:
        print(f"{options.file} has no records of {', '.join(TITLES)}", file=sys.stderr)
        return 1
    try:
        draw(found, options.out)
    except ImportError as error:
        print(f"drawing needs Matplotlib, which cannot be imported ({error})", file=sys.stderr)
        return 1
    return 0


def panels(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """The heights of bars by their labels, for each figure and graph."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        facts = record["params"]
        part = facts["part"]
        if part not in TITLES:
            continue
        bars = found.setdefault(part, {}).setdefault(facts["graph"], {})
        if part == "figure-8":
            bars["processed"] = 100 * facts["processed"] / facts["tiles"]
        else:
            bars[f"{facts['bits']} bit{'s' if facts['bits'] > 1 else ''}"] = record["ratio"]
    return {part: found[part] for part in TITLES if part in found}


def draw(found: dict[str, dict[str, dict[str, float]]], out: Path) -> None:
    """Draw one row of axes for each figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(found), 1, figsize=(8, 3 * len(found)), squeeze=False, layout="constrained")
    for axes, (part, graphs) in zip(rows[:, 0], found.items(), strict=True):
        labels = list(dict.fromkeys(label for bars in graphs.values() for label in bars))
        width = 0.8 / len(labels)
        for i, label in enumerate(labels):
            heights = [bars.get(label, 0.0) for bars in graphs.values()]
            places = [place + (i - (len(labels) - 1) / 2) * width for place in range(len(graphs))]
            drawn = axes.bar(places, heights, width, label=label)
            if len(labels) == 1:
                axes.bar_label(drawn, [f"{height:.1f}" for height in heights], fontsize=8)
        axes.set_xticks(range(len(graphs)), list(graphs), rotation=20, ha="right", fontsize=8)
        axes.set_title(TITLES[part])
        axes.set_ylabel("% of tiles" if part == "figure-8" else "times PyTorch Geometric, fp32")
        if len(labels) > 1:
            axes.axhline(1.0, color="black", linewidth=0.8)
            axes.legend(fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
