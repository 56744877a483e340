"""What graphs are made of: edge lists and adjacencies of every library as a pattern, weights, and how often edges are repeated."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitsparse import interop
from bitsparse.arrays.inside import scales_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError


def tensor(array: Any) -> Tensor:
    """An array of this library's as a tensor over its memory."""
    made: Tensor = interop.from_array(array, interop.TORCH, "Graph")
    return made


class Edges(NamedTuple):
    """What a graph is made of: a pattern (targets, sources), weights, and how often an edge occurs where one does more than once."""

    adjacency: SparseArray
    weight: Tensor | None
    counts: Tensor | None = None


def read(edges: Any, num_nodes: Any, weight: Any) -> Edges:
    """What the arguments of :class:`bitsparse.torch.Graph` mean."""
    if hasattr(edges, "edge_index"):
        weight = getattr(edges, "edge_weight", None) if weight is None else weight
        edges, num_nodes = edges.edge_index, edges.num_nodes if num_nodes is None else num_nodes
    shape = None
    if num_nodes is not None:
        sources, targets = (num_nodes, num_nodes) if isinstance(num_nodes, int) else num_nodes
        shape = (targets, sources)
    dense = edges.layout == torch.strided if isinstance(edges, Tensor) else hasattr(edges, "__dlpack__")
    if dense:
        return _of_lists(edges, shape, weight)
    if weight is not None:
        raise ValueError(
            f"Graph: edge_weight goes with an edge list, but edges is a {type(edges).__name__}; make the weights its values"
        )
    adjacency = _adjacency(edges)
    if shape is not None and tuple(adjacency.shape) != tuple(shape):
        raise ShapeError(
            f"Graph: num_nodes asks for shape {shape}, but the adjacency has {adjacency.shape}; leave num_nodes out"
        )
    values = adjacency.csr_arrays()[2]
    if values is not None and values.ndim == 2:
        raise ShapeError(
            f"Graph: the adjacency has values of shape {tuple(values.shape)}, but weights are {(values.shape[0],)}; pass them as values of "
            f"spmm, and the pattern here, A.with_values(None)"
        )
    if any(scale is not None for scale in scales_of(adjacency)):
        adjacency = TCTiledCSR(adjacency.tocsr())
        values = adjacency.csr_arrays()[2]
    if values is None or bool((values == 1).all()):
        return Edges(adjacency, None)
    return Edges(adjacency, _precise(tensor(interop.contiguous(values))))


def _adjacency(edges: Any) -> SparseArray:
    """A sparse array of any library as one of ours."""
    if isinstance(edges, Tensor):
        if edges.ndim != 2 or edges.dense_dim():
            raise ShapeError(
                f"Graph: the sparse tensor has shape {tuple(edges.shape)} with {edges.dense_dim()} dense dimensions, but an adjacency is "
                f"(targets, sources) with one value per edge; pass others as values of spmm"
            )
        coo = _without_gradient("the sparse tensor", edges).to_sparse_coo().coalesce()
        size = (int(coo.shape[0]), int(coo.shape[1]))
        return TCTiledCSR.from_edges(coo.indices()[0], coo.indices()[1], size, values=coo.values())
    return edges if isinstance(edges, SparseArray) else TCTiledCSR(edges)


def _of_lists(edges: Any, shape: tuple[int, int] | None, weight: Any) -> Edges:
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise ShapeError(
            f"Graph: edges has shape {tuple(edges.shape)}, but an edge list is (2, E); pass edge_index, or a sparse array"
        )
    if weight is None:
        made = TCTiledCSR.from_edges(edges[1], edges[0], shape)
        if not made.had_duplicates:
            return Edges(made, None)
        both = torch.ones((edges.shape[1], 1), device=made.device)
    else:
        weight = _without_gradient("edge_weight", torch.as_tensor(weight))
        if weight.shape != (edges.shape[1],):
            raise ShapeError(
                f"Graph: edge_weight has shape {tuple(weight.shape)}, but there are {edges.shape[1]} edges; pass one weight for each, and "
                f"others as values of spmm"
            )
        weight = _precise(weight)
        both = torch.stack([weight, torch.ones_like(weight)], 1)
    made = TCTiledCSR.from_edges(edges[1], edges[0], shape, values=both)
    sums = tensor(made.csr_arrays()[2])
    counts = sums[:, -1].float() if made.had_duplicates else None
    return Edges(made, None if weight is None else sums[:, 0].clone(), counts)


def _precise(weight: Tensor) -> Tensor:
    """A copy of weights, in float64 if they are or need it, else in float32."""
    if weight.is_complex():
        raise DTypeError(f"Graph: weights are {weight.dtype}; pass real ones")
    wide, narrow = (weight.to(dtype, copy=True) for dtype in (torch.float64, torch.float32))
    exact = weight.dtype != torch.float64 and (weight.is_floating_point() or torch.equal(narrow.double(), wide))
    return narrow if exact else wide


def _without_gradient(name: str, weight: Tensor) -> Tensor:
    if weight.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"Graph: {name} requires a gradient, which would be lost; make the graph without it and pass it to spmm, "
            f"bst.spmm(graph, x, values=graph.edge_values(edge_index, edge_weight)), or detach() it"
        )
    return weight.detach()
