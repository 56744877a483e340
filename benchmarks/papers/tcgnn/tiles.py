"""Count the tiles of TC-GNN's Figure 7 for ``papers/tcgnn/program.py``: before and after condensing columns, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.cases.graphs import graph
from bitsparse.bench import Machine, Record
from bitsparse.graph import tile_statistics

__all__ = ["GRAPHS", "TILES", "Data", "measurements"]


class Data(NamedTuple):
    """One line of the paper's Table 4: a graph's kind, its number of feature columns, and its number of classes."""

    kind: str
    columns: int
    classes: int


#: The graphs of the paper's Table 4, in its order.
GRAPHS = {
    "citeseer": Data("I", 3703, 6),
    "cora": Data("I", 1433, 7),
    "pubmed": Data("I", 500, 3),
    "ppi": Data("I", 50, 121),
    "PROTEINS_full": Data("II", 29, 2),
    "OVCAR-8H": Data("II", 66, 2),
    "Yeast": Data("II", 74, 2),
    "DD": Data("II", 89, 2),
    "YeastH": Data("II", 75, 2),
    "amazon0505": Data("III", 96, 22),
    "artist": Data("III", 100, 12),
    "com-amazon": Data("III", 96, 22),
    "soc-BlogCatalog": Data("III", 128, 39),
    "amazon0601": Data("III", 96, 22),
}
#: Window (rows) and width of a tile, for SpMM, where it is the left operand, and for SDDMM, where it is the result.
TILES = {"spmm": (16, 8), "sddmm": (16, 16)}


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield a name and a count for each graph; ``repetitions`` has no effect on counts."""
    for name in GRAPHS:
        yield f"{part}-{name}", partial(counted, part, name, commit)


def counted(part: str, name: str, commit: str | None) -> dict[str, Any]:
    """Count the tiles of one graph."""
    data, source = graph(name)
    params: dict[str, Any] = {"part": part, "graph": name, "kind": GRAPHS[name].kind, "source": source}
    params |= {"nodes": data.num_nodes, "entries": data.num_edges}
    for use, (window, width) in TILES.items():
        found = tile_statistics(data.adjacency, window=window, width=width)
        params[use] = {"before": int(found.before), "after": int(found.after), "reduction": float(found.reduction)}
    return Record.counted("tcgnn", f"{part}-{name}", params, Machine.of_cpu(1, commit)).flat()
