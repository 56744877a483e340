"""Conversion of any graph to a canonical CSR pattern, and checks of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays import BitTensor, sparse_forms
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.sparse_convert import scipy_csr
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.backends.params import TILE_COLS, TILE_ROWS
from bitsparse.errors import DTypeError, ShapeError

#: The call that makes an adjacency matrix from an edge list, for messages.
_FROM_EDGES = "TCTiledCSR.from_edge_index(edge_index, num_nodes)"


def pattern_of(function: str, graph: Any, *, anywhere: bool = False) -> Pattern:
    """The stored entries of any sparse array, of a dense array, or of a square graph given as an object with `indptr` and `indices`.

    Arrays on a GPU are refused unless `anywhere` is set.
    """
    if hasattr(graph, "indptr") and hasattr(graph, "indices") and not hasattr(graph, "shape"):
        nodes = len(graph.indptr) - 1
        pattern = sparse_forms.from_csr(function, graph.indptr, graph.indices, (nodes, nodes))
    else:
        pattern = sparse_forms.read(function, graph, wanted=sparse_forms.Wanted(pattern=True))
    if not anywhere:
        _check.on_cpu(function, "the graph", interop.device_of(pattern.indptr))
    return replace(pattern, values=None)


def check_square(function: str, shape: tuple[int, ...], name: str = "the graph") -> None:
    """Refuse a shape that is not square."""
    if len(shape) != 2 or shape[0] != shape[1]:
        remedy = f"pad it, or, if it is an edge list, pass {_FROM_EDGES}" if len(shape) == 2 == shape[0] else "pad it"
        raise ShapeError(f"{function}: {name} has shape {shape}, but a graph has as many rows as columns; {remedy}")


def per_node(function: str, name: str, shape: Sequence[int], nodes: int, ndim: int = 2) -> None:
    """Refuse an array without one row (or, of one dimension, one value) for each node of a graph."""
    if len(shape) != ndim or shape[0] != nodes:
        one = "row" if ndim > 1 else "value"
        raise ShapeError(
            f"{function}: {name} has shape {tuple(shape)}, but the graph has {nodes} nodes; pass one {one} for each"
        )


def refuse_edge_list(function: str, graph: Any) -> None:
    """Refuse a dense array of integers (2, E) with a value above 1, which is an edge list and not an adjacency matrix.

    Examples
    --------
    >>> refuse_edge_list("f", np.array([[0, 1, 1], [1, 0, 1]]))
    >>> refuse_edge_list("f", np.array([[0, 1, 2], [1, 2, 0]]))
    Traceback (most recent call last):
        ...
    ValueError: f: the graph is an array of integers (2, 3) up to 2, as edge lists are; pass TCTiledCSR.from_edge_index(edge_index, \
num_nodes), or a dense adjacency of two targets as a csr_array
    """
    is_array = hasattr(graph, "__dlpack__") and not isinstance(graph, SparseArray | BitTensor)
    if not isinstance(graph, list) and (not is_array or interop.read_graph(graph, function) is not None):
        return
    array = interop.as_array(graph, function, "the graph")[0]
    if array.dtype.kind in "iu" and array.shape[:1] == (2,) and array.size and (largest := int(array.max())) > 1:
        raise ValueError(
            f"{function}: the graph is an array of integers {array.shape} up to {largest}, as edge lists are; pass {_FROM_EDGES}, or a "
            f"dense adjacency of two targets as a csr_array"
        )


def square_pattern(function: str, graph: Any, *, anywhere: bool = False) -> Pattern:
    """:func:`pattern_of`, with as many rows as columns."""
    pattern = pattern_of(function, graph, anywhere=anywhere)
    check_square(function, pattern.shape)
    return pattern


def square_sparse(function: str, adjacency: Any, name: str = "adjacency") -> Any:
    """A square sparse array of SciPy; an array of this library is converted to one.

    Raises
    ------
    DTypeError, ShapeError, DeviceError
        The argument is not a sparse array of SciPy or of this library, is not square, or is on a GPU.

    Examples
    --------
    >>> square_sparse("f", bs.TCTiledCSR(np.eye(2))).format
    'csr'
    """
    from scipy import sparse

    if isinstance(adjacency, SparseArray):
        _check.on_cpu(function, name, adjacency.device)
        adjacency = adjacency.tocsr()
    if not sparse.issparse(adjacency):
        raise DTypeError(
            f"{function}: {name} must be a sparse array of SciPy or of bitsparse, got {type(adjacency).__name__}; wrap it in "
            f"scipy.sparse.csr_array or in TCTiledCSR"
        )
    check_square(function, adjacency.shape, name)
    return adjacency


def refuse_weights(function: str, graph: Any) -> None:
    """Refuse a graph whose entries are not all 1, for networks that count every stored entry as one edge.

    Raises
    ------
    ValueError
        An entry has another value, or rows or columns have scales.

    Examples
    --------
    >>> refuse_weights("f", (np.ones(2), ([0, 1], [1, 0])))
    >>> refuse_weights("f", (np.array([1.0, 0.5]), ([0, 1], [1, 0])))
    Traceback (most recent call last):
        ...
    ValueError: f: the graph has edge weights (0.5 to 1.0), which networks on bits cannot use; set them to 1 to count every stored \
entry as one edge, or run the network in full precision
    """
    for name in ("row_scale", "col_scale"):
        if getattr(graph, name, None) is not None:
            raise ValueError(
                f"{function}: the graph has {name}, which networks on bits cannot use; pass the pattern alone, since they normalise it "
                f"themselves, or run the network in full precision"
            )
    stored = _stored_values(function, graph)
    values = None if stored is None else interop.as_host(stored, function, "the graph's values")
    if values is not None and not bool((values == 1).all()):
        zeros = "" if values.all() else " (stored zeros go with eliminate_zeros() of a csr_array)"
        raise ValueError(
            f"{function}: the graph has edge weights ({values.min()} to {values.max()}), which networks on bits cannot use; set them to 1 "
            f"to count every stored entry as one edge{zeros}, or run the network in full precision"
        )


def _stored_values(function: str, graph: Any) -> Any:
    """The values of the entries as given, before repeated entries are merged; None if they are all 1."""
    if hasattr(graph, "indptr") and hasattr(graph, "indices") and not hasattr(graph, "shape"):
        return getattr(graph, "weights", None)
    if hasattr(graph, "csr_arrays"):
        return graph.csr_arrays()[2]
    if isinstance(graph, tuple) and len(graph) in (2, 3):
        return None if all(isinstance(part, (int, np.integer)) for part in graph) else graph[0]
    if not isinstance(graph, BitTensor) and hasattr(graph, "nnz") and hasattr(graph, "tocsr"):
        return (graph if getattr(graph, "format", None) in ("csr", "csc", "coo") else graph.tocsr()).data
    return sparse_forms.read(function, graph).values


def tiles_with_entries(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[tuple[int, int], Any, Any]:
    """The grid of 8 x 128 tiles over a pattern, the ascending numbers of the non-empty tiles, and the number of entries in each."""
    grid = (-(-shape[0] // TILE_ROWS), -(-shape[1] // TILE_COLS))
    numbers = np.repeat(np.arange(shape[0], dtype=np.int64) // TILE_ROWS * grid[1], np.diff(indptr))
    return grid, *np.unique(numbers + indices // TILE_COLS, return_counts=True)


def tiles_of(indptr: Any, indices: Any) -> tuple[int, int]:
    """Number of 8 x 128 tiles of a square pattern, and how many of them hold an edge."""
    nodes = indptr.size - 1
    grid, numbers, _ = tiles_with_entries(indptr, indices, (nodes, nodes))
    return grid[0] * grid[1], numbers.size


def scipy_pattern(function: str, pattern: Pattern) -> Any:
    """The pattern as a csr_array of int8 ones."""
    return scipy_csr(function, replace(pattern, values=np.ones(pattern.indices.size, np.int8)), copy=False)
