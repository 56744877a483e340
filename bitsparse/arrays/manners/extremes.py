"""Extremes of rows and columns and their positions, found by sorting the entries; for NumPy and CuPy arrays alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.manners.picking import turned
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.errors import ShapeError

_KEYS = 1 << 62


def of_lines(made: Pattern, axis: int, name: str) -> Any:
    """The largest or smallest element of every column (axis 0) or row (axis 1), including elements that are not stored; NaN propagates.

    Examples
    --------
    >>> of_lines(Pattern(np.array([0, 1, 3]), np.array([1, 0, 1]), (2, 2), np.array([5, -6, -7])), 1, "max")
    array([ 5, -6])
    """
    made = turned(made) if axis == 0 else made
    space, values = interop.namespace(made.indptr), made.values
    best, filled = _best(made, name)
    found = space.zeros(made.shape[0], values.dtype)  # type: ignore[union-attr]
    if filled.size:
        pick = space.maximum if name == "max" else space.minimum
        picked = values[best]  # type: ignore[index]
        whole = (made.indptr[1:] - made.indptr[:-1])[filled] == made.shape[1]
        found[filled] = space.where(whole, picked, pick(picked, picked.dtype.type(0)))
    return found


def places(made: Pattern, axis: int | None, name: str) -> Any:
    """Index of the first largest or smallest element of each column (axis 0), of each row (axis 1), or of all, counted row by row.

    Examples
    --------
    >>> places(Pattern(np.array([0, 1, 3]), np.array([1, 0, 1]), (2, 2), np.array([5, -6, -7])), 1, "argmin")
    array([0, 1])
    """
    if axis is None:
        made = _one_row(made, name)
    elif axis == 0:
        made = turned(made)
    space, values = interop.namespace(made.indptr), made.values
    best, filled = _best(made, name[3:])
    found = space.zeros(made.shape[0], np.int64)
    if filled.size:
        starts, ends = (made.indptr[at].astype(np.int64) for at in (filled, filled + 1))
        value, column, gap = values[best], made.indices[best].astype(np.int64), _first_gap(made, starts, ends)  # type: ignore[index]
        beyond = value > 0 if name == "argmax" else value < 0
        found[filled] = space.where(
            beyond | (ends - starts == made.shape[1]),
            column,
            space.where(value == 0, space.minimum(column, gap), gap),
        )
    return found[0] if axis is None else found


def _one_row(made: Pattern, name: str) -> Pattern:
    size = made.shape[0] * made.shape[1]
    if size > _KEYS:
        raise ShapeError(f"{name}: an array of shape {made.shape} has more than 2**62 elements; pass axis=0 or axis=1")
    keys = rows_of(made.indptr).astype(np.int64) * made.shape[1] + made.indices
    ends = interop.namespace(keys).asarray([0, keys.size])
    return replace(made, indptr=ends, indices=keys, shape=(1, size))


def _best(made: Pattern, name: str) -> tuple[Any, Any]:
    """Position of the first extreme entry (or NaN) of every row that has entries, and these rows."""
    space, values = interop.namespace(made.indptr), made.values
    lengths = made.indptr[1:] - made.indptr[:-1]
    filled = space.flatnonzero(lengths)
    if not filled.size:
        return filled, filled
    keys = values.view(np.uint8) if values.dtype == np.bool_ else values  # type: ignore[union-attr]
    position = space.arange(keys.size)  # type: ignore[union-attr]
    rows = rows_of(made.indptr).astype(np.int64)
    largest = space.lexsort(space.stack([-position, _ranks(keys), rows]))[made.indptr[filled + 1] - 1]
    if name == "max":
        return largest, filled
    smallest = space.lexsort(space.stack([position, _ranks(keys), rows]))[made.indptr[filled]]
    return space.where(keys[largest] != keys[largest], largest, smallest), filled  # type: ignore[index]


def _ranks(keys: Any) -> Any:
    """Integers in the same order as the values, with NaN last; equal values get equal integers."""
    space = interop.namespace(keys)
    order = space.argsort(keys)
    ordered = keys[order]
    both = (ordered[1:] != ordered[:-1]) & ~((ordered[1:] != ordered[1:]) & (ordered[:-1] != ordered[:-1]))
    ranks = space.zeros(keys.size, np.int64)
    ranks[order[1:]] = space.cumsum(both, dtype=np.int64)
    return ranks


def _first_gap(made: Pattern, starts: Any, ends: Any) -> Any:
    """The first column without an entry in each row; the entries of row i are those from ``starts[i]`` to ``ends[i]``."""
    space = interop.namespace(starts)
    rows = rows_of(made.indptr)
    local = space.arange(made.indices.size) - made.indptr[rows]
    moved = space.flatnonzero(made.indices != local)
    at = space.searchsorted(moved, starts)
    reached = moved[space.minimum(at, max(moved.size - 1, 0))] if moved.size else ends
    return space.where((at < moved.size) & (reached < ends), reached, ends) - starts
