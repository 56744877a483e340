"""Draw a roofline of suite ``spmm``: the rates of products against the bytes that they must move and those that they gather.

python3 benchmarks/roofline.py FILE [FILE ...] [--out docs/roofline-spmm.svg] [--precision fp32]

Every product appears at two intensities (operations per byte) with one rate: relative to the bytes of its operands and result (filled; the
roof is the memory's 4 TB/s), and relative to a row of features for each edge (hollow; the roof is the 9 TB/s at which rows come from the
L2). A point above its roof reads fewer bytes than are counted, because a closer cache serves rows that are used several times. Needs
Matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Bytes per second of the memory and of gathers from the L2.
MEMORY_ROOF, GATHER_ROOF = 4.0e12, 9.0e12


class Point(NamedTuple):
    """A product: its operations per byte moved and per byte gathered, and its operations per second."""

    graph: str
    columns: int
    compulsory: float
    gathered: float
    rate: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Read records and draw the figure."""
    parser = argparse.ArgumentParser(description="Draw a roofline of suite spmm.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records, one JSON object a line")
    default = Path(__file__).resolve().parents[1] / "docs" / "roofline-spmm.svg"
    parser.add_argument("--out", type=Path, default=default, metavar="FILE", help="of any kind that Matplotlib writes")
    parser.add_argument("--precision", default="fp32", help="of the products (default: fp32)")
    options = parser.parse_args(arguments)
    records = [json.loads(line) for path in options.files for line in path.read_text(encoding="utf-8").splitlines()]
    found = points(records, options.precision)
    if not found:
        print(f"no product of precision {options.precision} among {len(records)} records", file=sys.stderr)
        return 1
    try:
        draw(found, options.precision, options.out)
    except ImportError as error:
        print(f"drawing needs Matplotlib, which cannot be imported ({error})", file=sys.stderr)
        return 1
    return 0


def points(records: Iterable[dict[str, Any]], precision: str) -> list[Point]:
    """The points of all products with weights."""
    found = []
    for record in records:
        facts = record["params"]
        if record["suite"] != "spmm" or not record["case"].startswith(f"spmm-{precision}-"):
            continue
        flops = facts["flops"]
        gathered = flops / facts["gathered"]
        found.append(
            Point(facts["graph"], facts["D"], flops / record["bytes"], gathered, 1e3 * flops / record["ours_ms"])
        )
    return found


def draw(found: Sequence[Point], precision: str, out: Path) -> None:
    """Write the figure."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6))
    colours = plt.get_cmap("tab20")
    graphs = list(dict.fromkeys(point.graph for point in found))
    for i, graph in enumerate(graphs):
        mine = [point for point in found if point.graph == graph]
        rates = [point.rate / 1e12 for point in mine]
        axes.scatter([p.compulsory for p in mine], rates, color=colours(i % 20), label=graph, s=28)
        axes.scatter([p.gathered for p in mine], rates, facecolors="none", edgecolors=colours(i % 20), s=28)
    intensities = [x for point in found for x in (point.compulsory, point.gathered)]
    ends = [min(intensities) / 1.5, max(intensities) * 1.5]
    for roof, style, name in ((MEMORY_ROOF, "-", "memory, 4 TB/s"), (GATHER_ROOF, "--", "rows from L2, 9 TB/s")):
        axes.plot(ends, [x * roof / 1e12 for x in ends], style, color="black", linewidth=1, label=name)
    axes.set(
        xscale="log", yscale="log", xlabel="operations a byte (filled: compulsory, hollow: gathered)", ylabel="TFLOP/s"
    )
    axes.set_title(f"Sparse products, {precision}")
    axes.legend(fontsize="small", loc="lower right")
    axes.grid(visible=True, which="both", linewidth=0.3)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
