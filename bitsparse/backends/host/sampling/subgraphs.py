"""Parts of a graph for training in batches: sampled neighbours, edges among nodes, and walks. Callers validate the arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import subgraphs as _ext
from bitsparse.backends.host.buffers import as_bytes, pattern_bytes
from bitsparse.backends.params import Array

Nodes = NDArray[np.int64]


def _pattern(indptr: Array, indices: Array, columns: int) -> tuple[Any, Any, bool, int, int]:
    return *pattern_bytes(indptr, indices), indptr.size - 1, columns


def hop(
    indptr: Array,
    indices: Array,
    columns: int,
    targets: Nodes,
    *,
    width: int,
    own: bool,
    seed: int,
    stream: int,
    place: NDArray[np.int32],
) -> tuple[Nodes, Nodes, NDArray[np.int32], Nodes]:
    """Some neighbours of each target, with columns renumbered; every set of neighbours is equally likely.

    Parameters
    ----------
    indptr, indices
        CSR pattern, int32 or int64.
    columns
        Columns of the pattern.
    targets
        Distinct rows.
    width
        The most neighbours per target; -1 for all.
    own
        Whether the targets themselves are the first of the new columns.
    seed, stream
        Together with the row, these determine the draws.
    place
        Scratch memory: -1 for every column, both before and after the call.

    Returns
    -------
    sources : ndarray of int64
        The columns, in the order of their new numbers: the targets if `own`, then the others in the order in which rows reach them.
    starts : ndarray of int64, shape (targets + 1,)
    columns : ndarray of int32
        New numbers, ascending within a row.
    edges : ndarray of int64
        The number of each edge in the pattern.

    Examples
    --------
    >>> place = np.full(3, -1, np.int32)
    >>> hop(np.array([0, 2, 2, 3]), np.array([1, 2, 0]), 3, np.array([2]), width=-1, own=True, seed=0, stream=0, place=place)
    (array([2, 0]), array([0, 1]), array([1], dtype=int32), array([2]))
    """
    degrees = (indptr[targets + 1] - indptr[targets]).astype(np.int64)
    starts = np.zeros(targets.size + 1, np.int64)
    np.cumsum(degrees if width < 0 else np.minimum(degrees, width), out=starts[1:])
    total = int(starts[-1])
    sources = np.empty(min(total + (targets.size if own else 0), columns), np.int64)
    made, edges = np.empty(total, np.int32), np.empty(total, np.int64)
    read = *_pattern(indptr, indices, columns), as_bytes(targets), width, own, (seed, stream)
    count = _ext.hop(*read, *(as_bytes(part) for part in (place, starts, sources, made, edges)))
    return sources[:count], starts, made, edges


def induced(
    indptr: Array, indices: Array, columns: int, nodes: Nodes, *, place: NDArray[np.int32]
) -> tuple[Nodes, NDArray[np.int32], Nodes]:
    """The edges among ascending nodes: row starts, columns as positions in `nodes`, and each edge's number in the pattern.

    Examples
    --------
    >>> place = np.full(3, -1, np.int32)
    >>> induced(np.array([0, 2, 2, 3]), np.array([1, 2, 0]), 3, np.array([0, 2]), place=place)
    (array([0, 1, 2]), array([1, 0], dtype=int32), array([1, 2]))
    """
    read = *_pattern(indptr, indices, columns), as_bytes(nodes), as_bytes(place)
    starts, nothing = np.zeros(nodes.size + 1, np.int64), np.empty(0, np.uint8)
    _ext.induced(*read, as_bytes(starts), nothing, nothing, True)
    np.cumsum(starts, out=starts)
    made, edges = np.empty(int(starts[-1]), np.int32), np.empty(int(starts[-1]), np.int64)
    _ext.induced(*read, as_bytes(starts), as_bytes(made), as_bytes(edges), False)
    return starts, made, edges


def walks(
    indptr: Array, indices: Array, columns: int, roots: Nodes, length: int, *, seed: int, stream: int
) -> NDArray[np.int64]:
    """Walks of `length` steps to uniformly drawn neighbours, (roots, length + 1); a walk stays at a node without neighbours.

    Examples
    --------
    >>> walks(np.array([0, 1, 2, 2]), np.array([1, 2]), 3, np.array([0, 2]), 3, seed=0, stream=0)
    array([[0, 1, 2, 2],
           [2, 2, 2, 2]])
    """
    out = np.empty((roots.size, length + 1), np.int64)
    _ext.walks(*_pattern(indptr, indices, columns), as_bytes(roots), length, (seed, stream), as_bytes(out))
    return out


def below(limit: int, count: int, *, seed: int, stream: int) -> Nodes:
    """`count` uniformly drawn integers below `limit`.

    Examples
    --------
    >>> below(10, 4, seed=0, stream=0).tolist()
    [6, 3, 8, 9]
    """
    out = np.empty(count, np.int64)
    _ext.below(limit, (seed, stream), as_bytes(out))
    return out
