"""Edges of graphs: lists and adjacencies of any library become a pattern, weights, and counts of repeated edges, and graphs lists again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitsparse import interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.inside import working
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DeviceError, ShapeError
from bitsparse.graph import edge_lists
from bitsparse.graph.edge_lists import asked_for, of_list, of_sparse


def tensor(array: Any) -> Tensor:
    """A tensor over the memory of an array that this library made."""
    return interop.from_array(array, interop.TORCH, "Graph")


def on_stream_of(edges: Any) -> AbstractContextManager[Any]:
    """Work on the device and stream on which the input of a graph is computed: for tensors, PyTorch's current stream.

    Building the graph must run there as a whole, because CuPy arrays over tensors do not show that the memory is PyTorch's.
    """
    given = getattr(edges, "edge_index", edges)
    if isinstance(given, BitArray):
        return working(given)
    on_gpu = isinstance(given, Tensor) and given.is_cuda
    return interop.working_on(f"cuda:{given.device.index}" if on_gpu else "cpu", interop.TORCH)


class Edges(NamedTuple):
    """The input of a graph: a pattern (targets, sources), weights, and, if any edge is repeated, how often each edge occurs."""

    adjacency: SparseArray
    weight: Tensor | None
    counts: Tensor | None = None


def read(edges: Any, num_nodes: Any, weight: Any) -> Edges:
    """Interpret the arguments of :class:`bitsparse.torch.Graph`."""
    asked = asked_for("Graph", edges, num_nodes, weight)
    edges, shape, weight = asked
    array = isinstance(edges, (list, tuple)) or (hasattr(edges, "__dlpack__") and not isinstance(edges, SparseArray))
    dense = edges.layout == torch.strided if isinstance(edges, Tensor) else array
    if not dense:
        return _as_tensors(of_sparse("Graph", asked, "edge_weight", _adjacency))
    given = None if weight is None else _without_gradient("edge_weight", torch.as_tensor(weight))
    return _as_tensors(of_list("Graph", edges, shape, given, "edge_weight"))


def _as_tensors(found: edge_lists.Edges) -> Edges:
    weight, counts = (None if part is None else tensor(interop.contiguous(part)) for part in found[1:])
    return Edges(found.adjacency, weight, counts)


def _adjacency(edges: Any) -> SparseArray:
    """Convert another library's sparse array to one of ours."""
    if isinstance(edges, Tensor):
        if edges.ndim != 2 or edges.dense_dim():
            raise ShapeError(
                f"Graph: the sparse tensor has shape {tuple(edges.shape)} with {edges.dense_dim()} dense dimensions, but an adjacency is "
                f"(targets, sources) with one value per edge; pass others as values of spmm"
            )
        coo = _without_gradient("the sparse tensor", edges).to_sparse_coo().coalesce()
        size = (int(coo.shape[0]), int(coo.shape[1]))
        return TCTiledCSR.from_edges(coo.indices()[0], coo.indices()[1], size, values=coo.values())
    return TCTiledCSR(edges)


def _without_gradient(name: str, weight: Tensor) -> Tensor:
    if weight.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"Graph: {name} requires a gradient, which would be lost; make the graph without it and pass it to spmm, "
            f"bst.spmm(graph, x, values=graph.edge_values(edge_index, edge_weight)), or detach() it"
        )
    return weight.detach()


def edges_of(graph: Any) -> tuple[Tensor, Tensor | None]:
    """The edge list of a graph, and its weights or repetition counts, multiplied by its factors if it has any."""
    if graph.indptr.is_meta:
        raise DeviceError(
            "Graph: it is on meta, where its edges are not known, and a layer wants another graph of them; call the layer once before "
            "graph.to('meta')"
        )
    weight, edges = (
        graph.multiplicity if graph.weight is None else graph.weight,
        torch.stack([graph.indices.long(), graph.rows()]),
    )
    if graph.scale is not None:
        factors = graph.scale[edges].prod(dim=0)
        weight = factors if weight is None else weight * factors
    return edges, weight


def with_loops(graph: Any, edges: Tensor, weight: Tensor | None, loop_weight: float) -> tuple[Tensor, Tensor | None]:
    """Add to an edge list the missing edges from nodes to themselves."""
    own = edges[0] == edges[1]
    alone = torch.ones(min(graph.num_targets, graph.num_sources), dtype=torch.bool, device=edges.device)
    alone[edges[0, own]] = False
    loops = alone.nonzero()[:, 0]
    if graph.weight is None and weight is not None:  # a repeated loop counts once
        weight = weight.masked_fill(own, 1)
    if weight is not None or loop_weight != 1:
        before = torch.ones(edges.shape[1], device=edges.device) if weight is None else weight
        weight = torch.cat([before, before.new_full((len(loops),), loop_weight)])
    return torch.cat([edges, torch.stack([loops, loops])], 1), weight
