"""Draw Figures 5 and 6 of AES-SpMM from the records of ``papers/aes/program.py``.

    python3 benchmarks/papers/aes/plot.py [--records FILE] [--out FILE]

Above: for every width, the share of nodes with edges that keep at most a given share of their edges under AES. Below: test accuracy by
width, for every strategy in float32 with rescaled sums, for AES without rescaling (dotted), and for AES with 8- and 4-bit features; the
grey line is float32 over all edges.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2]
_Rows = list[dict[str, Any]]
STRATEGIES = ("aes", "afs", "sfs", "uniform")
MODELS = {"gcn": "GCN", "sage": "GraphSAGE"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read records and draw the figures."""
    parser = argparse.ArgumentParser(description="Draw Figures 5 and 6 of AES-SpMM from records.")
    parser.add_argument("--records", type=Path, default=BENCHMARKS / "results" / "h200" / "aes.jsonl", metavar="FILE")
    parser.add_argument("--out", type=Path, default=BENCHMARKS.parent / "docs" / "aes-figures.png", metavar="FILE")
    options = parser.parse_args(arguments)
    rows = [json.loads(line)["params"] for line in options.records.read_text(encoding="utf-8").splitlines()]
    figure = draw(
        [row for row in rows if row["part"] == "figure-5"], [row for row in rows if row["part"] == "figure-6"]
    )
    figure.savefig(options.out, dpi=72)
    print(f"wrote {options.out}")
    return 0


def draw(rates: _Rows, accuracies: _Rows) -> Any:
    """Draw a figure with a row of sampling rates and rows of accuracies."""
    from matplotlib.figure import Figure

    graphs = list(dict.fromkeys(row["graph"] for row in rates))
    tasks = list(dict.fromkeys((row["graph"], row["model"]) for row in accuracies))
    columns = max(len(graphs), -(-len(tasks) // 2), 1)
    figure = Figure(figsize=(3.1 * columns, 9.0), layout="constrained")
    axes = figure.subplots(3, columns, squeeze=False)
    for at, graph in enumerate(graphs):
        _rates(axes[0][at], [row for row in rates if (row["graph"], row["strategy"]) == (graph, "aes")])
    names = list(dict.fromkeys(graph for graph, _ in tasks))
    for graph, model in tasks:
        ax = axes[1 + list(MODELS).index(model)][names.index(graph)]
        _accuracies(ax, [row for row in accuracies if (row["graph"], row["model"]) == (graph, model)])
    for ax in axes.flat:
        ax.set_visible(ax.has_data())
    axes[0][0].legend(fontsize="x-small")
    axes[1][0].legend(fontsize="x-small")
    return figure


def _rates(ax: Any, rows: _Rows) -> None:
    for row in rows:
        steps = [100 * i / (len(row["cdf"]) - 1) for i in range(len(row["cdf"]))]
        ax.step(steps, row["cdf"], where="post", label=f"W = {row['width']}", linewidth=1)
    mark = "" if rows[0]["source"].endswith(".npz") else " *"
    ax.set_title(f"{rows[0]['graph']}{mark}", fontsize="medium")
    ax.set_xlabel("sampling rate, per cent")
    ax.set_ylabel("share of the nodes")


def _accuracies(ax: Any, rows: _Rows) -> None:
    for row in rows:
        cells = {(s, w, b): accuracy for s, w, b, accuracy, *_ in row["cells"]}
        widths = sorted({w for _, w, _ in cells if w is not None})
        lines = [("aes", 32, "C0:", "aes, not rescaled")]
        if row["rescale"]:
            lines = [(name, 32, f"C{i}-", name) for i, name in enumerate(STRATEGIES)]
            lines += [("aes", bits, style, f"aes, {bits} bits") for bits, style in ((8, "C0--"), (4, "C0-."))]
        for name, bits, style, label in lines:
            if (name, widths[0], bits) in cells:
                ax.plot(widths, [cells[name, w, bits] for w in widths], style, label=label, linewidth=1, marker=".")
    ax.axhline(rows[0]["cells"][0][3], color="0.6", linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_title(f"{rows[0]['graph']}, {MODELS[rows[0]['model']]}", fontsize="medium")
    ax.set_xlabel("W")
    ax.set_ylabel("accuracy, per cent")


if __name__ == "__main__":
    raise SystemExit(main())
