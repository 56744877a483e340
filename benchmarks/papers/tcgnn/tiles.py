"""Figure 7 of TC-GNN for ``papers/tcgnn/program.py``: tiles before and after condensing columns, counted on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.cases.graphs import graph
from bitsparse.bench import Machine, Record
from bitsparse.graph import tile_statistics

__all__ = ["GRAPHS", "measurements"]

#: Graphs of the paper's Table 4 in its order, as far as their sizes are known; the kind in the first column.
GRAPHS = {
    "citeseer": "I",
    "cora": "I",
    "pubmed": "I",
    "ppi": "I",
    "PROTEINS_full": "II",
    "OVCAR-8H": "II",
    "Yeast": "II",
    "DD": "II",
    "YeastH": "II",
    "amazon0505": "III",
    "artist": "III",
    "com-amazon": "III",
    "soc-BlogCatalog": "III",
    "amazon0601": "III",
}
#: Window and width of a tile of SpMM, whose left operand it is, and of SDDMM, whose result it is.
TILES = {"spmm": (16, 8), "sddmm": (16, 16)}


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """A name and a count for each graph; ``repetitions`` make no difference to counts."""
    for name in GRAPHS:
        yield f"{part}-{name}", partial(counted, part, name, commit)


def counted(part: str, name: str, commit: str | None) -> dict[str, Any]:
    """Tiles of one graph."""
    data, source = graph(name)
    params: dict[str, Any] = {"part": part, "graph": name, "kind": GRAPHS[name], "source": source}
    params |= {"nodes": data.num_nodes, "entries": data.num_edges}
    for use, (window, width) in TILES.items():
        found = tile_statistics(data.adjacency, window=window, width=width)
        params[use] = {"before": int(found.before), "after": int(found.after), "reduction": float(found.reduction)}
    return Record.counted("tcgnn", f"{part}-{name}", params, Machine.of_cpu(1, commit)).flat()
