"""Networks of PyTorch Geometric that are trained: its layers, whose parameters have the names of :mod:`bitsparse.torch`'s.

As its users write them where epochs are to be quick: GCN keeps its normalised adjacency (``cached=True``), and the loops of attention by
cosines stand in the graph, where the layers would add them again in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from benchmarks.peers import pyg, torch_gnn

__all__ = ["layers", "operand"]


def layers(kind: str, widths: Sequence[int], *, cached: bool = True) -> list[nn.Module]:
    """Convolutions, or attention by cosines between two linear maps."""
    found = pyg.geometric().nn
    if kind == "gcn":
        return [found.GCNConv(*pair, cached=cached) for pair in pairwise(widths)]
    attention = [found.AGNNConv(add_self_loops=False) for _ in widths[2:-1]]
    return [torch_gnn.Dense(*widths[:2]), *attention, torch_gnn.Dense(*widths[-2:])]


def operand(kind: str, indptr: Tensor, indices: Tensor, path: str) -> Any:
    """What they take as their graph, from CSR arrays without loops: a sparse tensor, or a list of edges."""
    if kind == "agnn":
        pattern = torch_gnn.Pattern(indptr, indices, loops=True)
        indptr, indices = pattern.indptr, pattern.columns
    return pyg.adjacency(indptr, indices, path)
