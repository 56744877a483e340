"""Edge lists and adjacencies for training graphs, read as a pattern, edge weights, and counts of repeated edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays.indices import matrix_shape, rows_of
from bitsparse.arrays.inside import scales_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops import aggregate_edges

Array = NDArray[Any]


class Edges(NamedTuple):
    """The edges of a graph for training.

    Attributes
    ----------
    adjacency : SparseArray (targets, sources)
        Only its pattern counts; its values are ignored.
    weight : array (nnz,) of float32 or float64, or None
        Weights of the edges, in the order of the CSR arrays.
    counts : array (nnz,) of float32, or None
        How often each edge occurs; None if every edge occurs once.
    """

    adjacency: SparseArray
    weight: Array | None
    counts: Array | None = None


class Asked(NamedTuple):
    """The arguments from which a graph for training is made.

    Attributes
    ----------
    edges : an edge list, or a sparse array of any library
    shape : (targets, sources), or None
    weight : array or None
    """

    edges: Any
    shape: tuple[int, int] | None
    weight: Any


def asked_for(function: str, edges: Any, num_nodes: Any, weight: Any) -> Asked:
    """Normalise arguments: PyTorch Geometric data supplies weights and node counts; `num_nodes` is a number or (sources, targets).

    Examples
    --------
    >>> asked_for("f", [[0, 1], [1, 0]], (3, 2), None).shape
    (2, 3)
    """
    if hasattr(edges, "edge_index"):
        weight = getattr(edges, "edge_weight", None) if weight is None else weight
        num_nodes = interop.nodes_of_data(edges) if num_nodes is None else num_nodes
        edges = edges.edge_index
    if num_nodes is None:
        return Asked(edges, None, weight)
    several = isinstance(num_nodes, (tuple, list)) or getattr(num_nodes, "ndim", 0) != 0
    pair = tuple(num_nodes) if several else (num_nodes, num_nodes)
    if len(pair) != 2:
        raise ShapeError(
            f"{function}: num_nodes is {_check.shown(num_nodes)}; pass a number, or those of sources and of targets"
        )
    sources, targets = (_check.integer(function, "num_nodes", one, 0) for one in pair)
    return Asked(edges, matrix_shape(function, (targets, sources)), weight)


def of_list(function: str, edges: Any, shape: tuple[int, int] | None, weight: Any, name: str = "weight") -> Edges:
    """The edges of an edge list (2, E) of sources and targets, with one weight for each edge, if any.

    Examples
    --------
    >>> of_list("f", np.array([[0, 1, 1], [1, 0, 0]]), None, None).counts
    array([2., 1.], dtype=float32)
    """
    array, family = interop.as_array(edges, function, "edges")
    if array.ndim != 2 or array.shape[0] != 2:
        raise ShapeError(
            f"{function}: edges has shape {array.shape}, but an edge list is (2, E); pass edge_index, or a sparse array"
        )
    # For tensors, this is PyTorch's current stream, so that the graph is made after the work that computes them.
    with interop.working_on(interop.device_of(array), family):
        return _of_list(function, array, shape, weight, name)


def _of_list(function: str, array: Any, shape: tuple[int, int] | None, weight: Any, name: str) -> Edges:
    space: Any = interop.namespace(array)
    if weight is None:
        made = TCTiledCSR.from_edges(array[1], array[0], shape)
        if not made.had_duplicates:
            return Edges(made, None)
        both = space.ones((array.shape[1], 1), np.float32)
    else:
        given = interop.as_array(weight, function, name)[0]
        if given.shape != (array.shape[1],):
            raise ShapeError(
                f"{function}: {name} has shape {given.shape}, but there are {array.shape[1]} edges; pass one weight for each, and others "
                f"as values of spmm"
            )
        given = precise(function, given)
        both = space.stack([given, space.ones_like(given)], 1)
    made = TCTiledCSR.from_edges(array[1], array[0], shape, values=both)
    sums = made.csr_arrays()[2]
    assert sums is not None
    counts = sums[:, -1].astype(np.float32) if made.had_duplicates else None
    return Edges(made, None if weight is None else sums[:, 0].copy(), counts)


def of_sparse(
    function: str, asked: Asked, name: str = "weight", convert: Callable[[Any], SparseArray] = TCTiledCSR
) -> Edges:
    """The edges of a sparse array of any library, whose values are the weights.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> of_sparse("f", Asked(sp.eye_array(2, format="csr"), None, None)).adjacency.shape
    (2, 2)
    """
    edges, shape, weight = asked
    if weight is not None:
        raise ValueError(
            f"{function}: {name} goes with an edge list, but edges is a {type(edges).__name__}; make the weights its values"
        )
    adjacency = edges if isinstance(edges, SparseArray) else convert(edges)
    if shape is not None and tuple(adjacency.shape) != shape:
        raise ShapeError(
            f"{function}: num_nodes asks for shape {shape}, but the adjacency has {adjacency.shape}; leave num_nodes out"
        )
    return of_adjacency(function, adjacency)


def of_adjacency(function: str, adjacency: SparseArray) -> Edges:
    """The edges of an adjacency; its values and scales are the weights, unless all are 1.

    Examples
    --------
    >>> of_adjacency("f", bs.TCTiledCSR(np.array([[0.0, 2.0], [1.0, 0.0]]))).weight
    array([2., 1.])
    """
    values = adjacency.csr_arrays()[2]
    if values is not None and values.ndim == 2:
        raise ShapeError(
            f"{function}: the adjacency has values of shape {tuple(values.shape)}, but weights are {(values.shape[0],)}; pass them as "
            f"values of spmm, and the pattern here, A.with_values(None)"
        )
    if any(scale is not None for scale in scales_of(adjacency)):
        adjacency = TCTiledCSR(adjacency.tocsr())
        values = adjacency.csr_arrays()[2]
    if values is None or bool((values == 1).all()):
        return Edges(adjacency, None)
    return Edges(adjacency, precise(function, values))


def precise(function: str, weight: Array) -> Array:
    """A copy of weights, in float64 if they have that dtype or need its precision, else in float32.

    Examples
    --------
    >>> precise("f", np.array([1, 2])).dtype, precise("f", np.array([2**24 + 1])).dtype
    (dtype('float32'), dtype('float64'))
    """
    if weight.dtype.kind == "c":
        raise DTypeError(f"{function}: weights are {weight.dtype}; pass real ones")
    if weight.dtype.kind not in "biu":
        kind = np.dtype(np.float64 if weight.dtype == np.float64 else np.float32)
        return interop.converted(weight, kind, copy=True)
    narrow = weight.astype(np.float32)
    return narrow if bool((narrow.astype(np.float64) == weight).all()) else weight.astype(np.float64)


def with_loops(edges: Edges, loop_weight: float = 1.0) -> Edges:
    """The same edges, plus one of weight `loop_weight` from every node to itself that has no such edge yet.

    In a graph without weights, a loop that the edge list repeats counts once. A bipartite graph gets edges from source i to target i.

    Examples
    --------
    >>> with_loops(of_list("f", np.array([[0, 1], [0, 0]]), None, None)).adjacency.toarray()
    array([[1, 1],
           [0, 1]], dtype=uint8)
    """
    indptr, indices, _ = edges.adjacency.csr_arrays()
    space: Any = interop.namespace(indices)
    targets = rows_of(indptr)
    own = targets == indices
    shape = edges.adjacency.shape
    alone = space.ones(min(shape), bool)
    alone[indices[own]] = False
    loops = space.flatnonzero(alone).astype(indices.dtype)
    both = space.stack([space.concatenate([part.astype(indices.dtype), loops]) for part in (indices, targets)])
    plain = edges.weight is None and edges.counts is None and loop_weight == 1
    made = TCTiledCSR.from_edges(
        both[1], both[0], shape, values=None if plain else _looped(edges, own, loops, loop_weight)
    )
    sums = made.csr_arrays()[2]
    if sums is None:
        return Edges(made, None)
    if edges.weight is None and loop_weight == 1:
        counts = sums[:, -1]
        return Edges(made, None, counts if bool((counts != 1).any()) else None)
    return Edges(made, sums[:, 0].copy())


def _looped(edges: Edges, own: Array, loops: Array, loop_weight: float) -> Array:
    """The weights (or counts) of the edges, followed by those of the new loops."""
    space: Any = interop.namespace(loops)
    weight = edges.weight
    if weight is None:
        weight = space.ones(own.shape, np.float32) if edges.counts is None else space.where(own, 1, edges.counts)
    behind = space.full(loops.shape, loop_weight, weight.dtype)
    return space.concatenate([weight, behind])[:, None]


def degrees(edges: Edges, *, weighted: bool) -> Array:
    """The sum of each target's edge weights, or its number of edges, in float64.

    Examples
    --------
    >>> degrees(of_list("f", np.array([[0, 1], [1, 1]]), None, None), weighted=True)
    array([0., 2.])
    """
    values = edges.weight if weighted and edges.weight is not None else edges.counts
    if values is None:
        indptr = edges.adjacency.csr_arrays()[0]
        return (indptr[1:] - indptr[:-1]).astype(np.float64)
    return aggregate_edges(edges.adjacency, values.astype(np.float64))
