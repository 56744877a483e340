"""Functions on the entries of canonical CSR arrays, without optimisations; see the host backend."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array

Entries = tuple[Array, Array, Array | None]


def _picked(
    places: list[NDArray[np.int64]], indptr: Array, indices: Array, values: Array | None, first: int = 0
) -> Entries:
    """The entries at the given places of each row, with columns relative to `first`."""
    starts = np.cumsum([0, *map(len, places)]).astype(indptr.dtype)
    flat = np.concatenate([*places, np.zeros(0, np.int64)])
    return starts, indices[flat] - indices.dtype.type(first), None if values is None else values[flat]


def _places(indptr: Array) -> list[NDArray[np.int64]]:
    return [np.arange(start, stop) for start, stop in pairwise(indptr.tolist())]


def gather(values: Array, order: Array) -> Array:
    """``values[order]``."""
    return values[order]


def keep(indptr: Array, indices: Array, values: Array | None, mask: NDArray[np.bool_]) -> Entries:
    """The entries where `mask` is True."""
    return _picked([row[mask[row]] for row in _places(indptr)], indptr, indices, values)


def take_rows(indptr: Array, indices: Array, values: Array | None, rows: NDArray[np.int64]) -> Entries:
    """The entries of `rows`, in that order."""
    places = _places(indptr)
    return _picked([places[row] for row in rows], indptr, indices, values)


def take_columns(indptr: Array, indices: Array, values: Array | None, start: int, stop: int) -> Entries:
    """The entries of columns `start` to `stop`, with columns relative to `start`."""
    inside = (indices >= start) & (indices < stop)
    return _picked([row[inside[row]] for row in _places(indptr)], indptr, indices, values, start)


def find(indptr: Array, indices: Array, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each entry ``(row, col)``, or -1, looked up in a dictionary of all entries."""
    where = {(row, int(indices[place])): place for row, places in enumerate(_places(indptr)) for place in places}
    return np.array([where.get(pair, -1) for pair in zip(rows.tolist(), cols.tolist(), strict=True)], np.int64)


def diagonal(indptr: Array, indices: Array, values: Array | None, shape: tuple[int, int], k: int) -> Array:
    """The elements of diagonal `k`, 0 where there is no entry; see the host backend."""
    rows = np.arange(max(0, -k), max(0, -k, min(shape[0], shape[1] - k)))
    places = find(indptr, indices, rows, rows + k)
    out = np.zeros(rows.size, np.uint8 if values is None else values.dtype)
    out[places >= 0] = 1 if values is None else values[places[places >= 0]]
    return out


def merge(left: Entries, right: Entries, cols: int, subtract: bool) -> tuple[Array, Array, Array, int]:
    """The sum or difference of two arrays, by a dictionary of columns for each row, and how many of its values are 0."""
    assert left[2] is not None and right[2] is not None
    starts, columns, values, dtype = [0], [], [], left[2].dtype
    for one, two in zip(_places(left[0]), _places(right[0]), strict=True):
        elements: dict[int, Any] = dict(zip(left[1][one].tolist(), left[2][one], strict=True))
        for column, number in zip(right[1][two].tolist(), right[2][two], strict=True):
            with np.errstate(over="ignore"):
                before = elements.get(column)
                elements[column] = (
                    (dtype.type(0) if before is None else before) - number
                    if subtract
                    else number
                    if before is None
                    else before + number
                )
        columns += sorted(elements)
        values += [elements[column] for column in sorted(elements)]
        starts.append(len(columns))
    made = np.array(values, dtype)
    index = left[0].dtype
    return np.array(starts, index), np.array(columns, index), made, int(np.count_nonzero(made == 0))


def product(
    left: tuple[Array, Array], right: tuple[Array, Array], cols: int, work: int | None = None
) -> tuple[Array, Array]:
    """The pattern of the product of two patterns: each row is the union of the right operand's rows that it selects."""
    others = [right[1][row] for row in _places(right[0])]
    rows = [np.unique(np.concatenate([right[1][:0], *(others[o] for o in left[1][row])])) for row in _places(left[0])]
    starts, columns = np.cumsum([0, *map(len, rows)]).astype(left[0].dtype), np.concatenate([right[1][:0], *rows])
    assert (columns < cols).all()
    return starts, columns.astype(left[1].dtype)


def row_sums(indptr: Array, values: Array) -> Array:
    """The sum of each row: integers exactly, modulo 2**64; floats in eight interleaved sums over whole eights and one of the rest."""
    if values.dtype.kind != "f":
        sums = [sum(map(int, values[first:last].tolist())) for first, last in pairwise(indptr.tolist())]
        wide = np.uint64 if values.dtype.kind == "u" else np.int64
        return np.array([one % (1 << 64) for one in sums], np.uint64).view(wide)
    out = np.empty(indptr.size - 1, values.dtype)
    for row, (first, last) in enumerate(pairwise(indptr.tolist())):
        lanes, rest = np.zeros(8, values.dtype), values.dtype.type(0)
        whole = first + (last - first) // 8 * 8
        for place in range(first, whole, 8):
            lanes += values[place : place + 8]
        for place in range(whole, last):
            rest += values[place]
        even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6])
        out[row] = (even + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))) + rest
    return out
