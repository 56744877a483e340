"""What every way of batching needs: nodes numbered part after part, and memory that starts where copies like it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse.arrays.indices import index_array
from bitsparse.arrays.sparse_forms import Pattern
from bitsparse.errors import ShapeError

__all__ = ["Numbered", "aligned_bytes", "numbered_by_part"]


class Numbered(NamedTuple):
    """The node with each new number, the new number of each node, and where parts start, in new numbers; last, how many nodes there are."""

    order: NDArray[Any]
    place: NDArray[Any]
    bounds: NDArray[np.int64]


def numbered_by_part(function: str, pattern: Pattern, labels: Any) -> Numbered:
    """Number the nodes of a graph part after part, within a part as before; empty parts are left out.

    Examples
    --------
    >>> from bitsparse.graph.adjacency import square_pattern
    >>> numbered_by_part("f", square_pattern("f", np.eye(3)), [7, 2, 7])
    Numbered(order=array([1, 0, 2], dtype=int32), place=array([1, 0, 2], dtype=int32), bounds=array([0, 1, 3]))
    """
    nodes = pattern.shape[0]
    part = index_array(function, "labels", labels)
    if part.size != nodes:
        raise ShapeError(f"{function}: there are {part.size} labels for {nodes} nodes; pass one part for each")
    if part.size and int(part.min()) < 0:
        raise ValueError(f"{function}: labels reach {int(part.min())}, but parts count from 0")
    dtype = np.int32 if nodes < 1 << 31 else np.int64
    order = np.argsort(part, kind="stable").astype(dtype)
    place = np.empty(nodes, dtype)
    place[order] = np.arange(nodes, dtype=dtype)
    sizes = np.unique(part, return_counts=True)[1]  # labels may be any numbers: no array is as long as the largest
    return Numbered(order, place, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def aligned_bytes(nbytes: int, alignment: int) -> NDArray[np.uint8]:
    """So many zero bytes that start at a multiple of `alignment`."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]
