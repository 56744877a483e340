"""Orderings of the nodes that put connected nodes close together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays import FRDC, TCTiledCSR
from bitsparse.arrays.indices import csr_of, index_array
from bitsparse.arrays.sparse_convert import scipy_csr
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.errors import DTypeError
from bitsparse.graph.adjacency import check_square, scipy_pattern, square_pattern
from bitsparse.graph.parts import partition

METHODS = ("rcm", "degree", "partition")


def reorder(graph: Any, method: str = "rcm", *, parts: int | None = None, seed: int = 0) -> NDArray[np.int64]:
    """An order of the nodes in which windows of rows share columns.

    Parameters
    ----------
    graph : sparse array of shape (n, n), tuple, TCTiledCSR, FRDC, BitTensor
    method : {"rcm", "degree", "partition"}
        ``"rcm"``: reverse Cuthill-McKee on the symmetric pattern, which narrows the band. ``"degree"``: nodes with the most edges first,
        ties by number. ``"partition"``: the parts of :func:`partition` one after the other, nodes of a part by number.
    parts : int, optional
        Number of parts for ``"partition"``; by default parts have about 256 nodes.
    seed : int, default 0
        Seed for ``"partition"``.

    Returns
    -------
    ndarray of int64, shape (n,)
        ``order[i]`` is the old number of new node i, as :func:`permute` expects.

    Examples
    --------
    >>> from bitsparse import graph
    >>> star = bs.TCTiledCSR.from_edges([2, 2, 2], [0, 1, 3], symmetric=True)
    >>> graph.reorder(star, "degree")
    array([2, 0, 1, 3])
    """
    _check.choice("reorder", "method", method, METHODS)
    pattern = square_pattern("reorder", graph)
    if parts is not None and method != "partition":
        raise ValueError(
            f"reorder: parts goes with method='partition', got method={_check.shown(method)} and parts={_check.shown(parts)}"
        )
    if method == "degree":
        return np.argsort(-np.diff(pattern.indptr).astype(np.int64), kind="stable").astype(np.int64)
    if method == "partition":
        count = max(1, -(-pattern.shape[0] // 256)) if parts is None else parts
        return np.argsort(partition(graph, count, seed=seed), kind="stable").astype(np.int64)
    if pattern.shape[0] == 0:  # SciPy refuses an empty graph
        return np.empty(0, np.int64)
    from scipy.sparse import csgraph, csr_array

    csr = scipy_pattern("reorder", pattern)
    both = csr_array(csr + csr.T)
    both.data = np.ones(both.data.size, np.int8)
    return np.asarray(csgraph.reverse_cuthill_mckee(both, symmetric_mode=True), dtype=np.int64)


def permute(graph: Any, order: Any) -> Any:
    """The same graph with its rows and columns in another order.

    Parameters
    ----------
    graph : TCTiledCSR, FRDC or scipy.sparse array of shape (n, n)
    order : array_like of int, shape (n,)
        The old number of each new node, as :func:`reorder` returns it.

    Returns
    -------
    TCTiledCSR, FRDC or scipy.sparse array
        It has the type of `graph`; values and scales are reordered as well.

    Examples
    --------
    >>> from bitsparse import graph
    >>> graph.permute(bs.FRDC(np.array([[0, 1], [0, 0]])), [1, 0]).toarray()
    array([[0, 0],
           [1, 0]], dtype=uint8)
    """
    if not isinstance(graph, (TCTiledCSR, FRDC)) and not hasattr(graph, "tocsr"):
        raise DTypeError(f"permute: graph must be a TCTiledCSR, an FRDC or a sparse array, got {type(graph).__name__}")
    nodes = graph.shape[0]
    check_square("permute", graph.shape)
    old = index_array("permute", "order", order).astype(np.int64, copy=False)
    _check.on_cpu("permute", "order", interop.device_of(old))
    data = getattr(graph, "data", None)
    _check.on_cpu("permute", "the graph", getattr(graph, "device", "cpu") if data is None else interop.device_of(data))
    if old.size != nodes or not np.array_equal(np.sort(old), np.arange(nodes)):
        raise ValueError(f"permute: order must hold each of 0..{nodes - 1} once; it has {old.size} entries")
    if not isinstance(graph, (TCTiledCSR, FRDC)):
        return _moved(csr_of("permute", graph), old)
    indptr, indices, values = graph.csr_arrays()
    numbers = np.arange(indices.size, dtype=indices.dtype)
    moved = _moved(scipy_csr("permute", Pattern(indptr, indices, graph.shape, numbers), copy=False), old)
    options: dict[str, Any] = {"index_dtype": graph.index_dtype}
    for name in ("row_scale", "col_scale"):
        scale = getattr(graph, name)
        options[name] = None if scale is None else scale[old]
    if isinstance(graph, TCTiledCSR):
        options |= {"values": None if values is None else values[moved.data], "window": graph.window}
    return type(graph).from_csr_arrays(moved.indptr, moved.indices, graph.shape, **options)


def _moved(csr: Any, order: NDArray[np.int64]) -> Any:
    new = np.empty(order.size, csr.indices.dtype)
    new[order] = np.arange(order.size)
    rows = csr[order]
    moved = type(csr)((rows.data, new[rows.indices], rows.indptr), shape=rows.shape)
    moved.sort_indices()
    return moved
