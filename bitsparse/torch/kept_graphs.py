"""Graphs of the edge lists with which layers are called, kept as long as the lists, so that each is converted once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from bitsparse.torch.buffers import state_of
from bitsparse.torch.graph import Graph

_GRAPHS: Any = WeakTensorKeyDictionary()


def as_graph(edges: Any, num_nodes: int | tuple[int, int]) -> Graph:
    """Return `edges` as a graph: edge lists in tensors are converted once until they are written to, all else at every call."""
    if isinstance(edges, Graph):
        return edges
    # PyTorch does not count writes to tensors of inference mode, nor to the parts of sparse ones.
    if not isinstance(edges, Tensor) or edges.is_inference() or edges.layout != torch.strided:
        return Graph(edges, num_nodes)
    key = (num_nodes, state_of(edges))
    kept = _GRAPHS.setdefault(edges, {})
    made = kept.get(key)
    if made is None:
        kept.clear()
        made = kept[key] = Graph(edges, num_nodes)
    return made  # which another thread may have replaced meanwhile
