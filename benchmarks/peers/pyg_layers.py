"""Networks of PyTorch Geometric for training: its layers, whose parameters have the same names as those of :mod:`bitsparse.torch`.

They are written as users write them for fast epochs: GCN caches its normalised adjacency (``cached=True``), and the graph of attention by
cosines contains the loops, which the layers would otherwise add in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from benchmarks.peers import pyg, torch_gnn

__all__ = ["layers", "operand"]


def layers(kind: str, widths: Sequence[int], *, cached: bool = True) -> list[nn.Module]:
    """The layers of a network: convolutions, or attention by cosines between two linear maps."""
    found = pyg.geometric().nn
    if kind == "gcn":
        return [found.GCNConv(*pair, cached=cached) for pair in pairwise(widths)]
    attention = [found.AGNNConv(add_self_loops=False) for _ in widths[2:-1]]
    return [torch_gnn.Dense(*widths[:2]), *attention, torch_gnn.Dense(*widths[-2:])]


def operand(kind: str, indptr: Tensor, indices: Tensor, path: str) -> Any:
    """The graph in the form that the layers take, a sparse tensor or a list of edges, from CSR arrays without loops."""
    if kind == "agnn":
        pattern = torch_gnn.Pattern(indptr, indices, loops=True)
        indptr, indices = pattern.indptr, pattern.columns
    return pyg.adjacency(indptr, indices, path)
