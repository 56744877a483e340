"""Entries of canonical CSR arrays, one at a time; see the host backend."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array


def _picked(
    places: list[list[int]], columns: list[int], indptr: Array, values: Array | None
) -> tuple[Array, Array, Array | None]:
    """The entries at the places of each row, with their columns."""
    starts = np.cumsum([0, *map(len, places)]).astype(indptr.dtype)
    flat = np.array([place for row in places for place in row], np.int64)
    return starts, np.array(columns, indptr.dtype), None if values is None else values[flat]


def gather(values: Array, order: Array) -> Array:
    """Item by item."""
    out = np.empty((order.size, *values.shape[1:]), values.dtype)
    for to, place in enumerate(order.tolist()):
        out[to] = values[place]
    return out


def keep(
    indptr: Array, indices: Array, values: Array | None, mask: NDArray[np.bool_]
) -> tuple[Array, Array, Array | None]:
    """Row by row."""
    kept = mask.tolist()
    places = [[place for place in range(start, stop) if kept[place]] for start, stop in pairwise(indptr.tolist())]
    return _picked(places, [int(indices[place]) for row in places for place in row], indptr, values)


def take_rows(
    indptr: Array, indices: Array, values: Array | None, rows: NDArray[np.int64]
) -> tuple[Array, Array, Array | None]:
    """Row by row."""
    places = [list(range(int(indptr[row]), int(indptr[row + 1]))) for row in rows.tolist()]
    return _picked(places, [int(indices[place]) for row in places for place in row], indptr, values)


def take_columns(
    indptr: Array, indices: Array, values: Array | None, start: int, stop: int
) -> tuple[Array, Array, Array | None]:
    """Row by row."""
    columns = indices.tolist()
    places = [
        [place for place in range(first, last) if start <= columns[place] < stop]
        for first, last in pairwise(indptr.tolist())
    ]
    return _picked(places, [columns[place] - start for row in places for place in row], indptr, values)


def find(indptr: Array, indices: Array, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.int64]:
    """By a dictionary of every entry."""
    where = {}
    for row, (first, last) in enumerate(pairwise(indptr.tolist())):
        for place in range(first, last):
            where[row, int(indices[place])] = place
    return np.array([where.get(pair, -1) for pair in zip(rows.tolist(), cols.tolist(), strict=True)], np.int64)


def diagonal(indptr: Array, indices: Array, values: Array | None, shape: tuple[int, int], k: int) -> Array:
    """One row after another."""
    row, column = max(0, -k), max(0, k)
    out = np.zeros(max(0, min(shape[0] - row, shape[1] - column)), np.uint8 if values is None else values.dtype)
    for i in range(out.size):
        for place in range(int(indptr[row + i]), int(indptr[row + i + 1])):
            if int(indices[place]) == column + i:
                out[i] = 1 if values is None else values[place]
    return out


def merge(
    left: tuple[Array, ...], right: tuple[Array, ...], cols: int, subtract: bool
) -> tuple[Array, Array, Array, int]:
    """By a dictionary of the columns of every row."""
    starts, columns, values, dtype = [0], [], [], left[2].dtype
    for row in range(left[0].size - 1):
        elements: dict[int, Any] = {}
        for (indptr, indices, numbers), minus in ((left, False), (right, subtract)):
            for place in range(int(indptr[row]), int(indptr[row + 1])):
                column, zero = int(indices[place]), dtype.type(0)
                before, number = elements.get(column, zero), numbers[place]
                with np.errstate(over="ignore"):
                    elements[column] = before - number if minus else before + number if column in elements else number
        columns += sorted(elements)
        values += [elements[column] for column in sorted(elements)]
        starts.append(len(columns))
    made = np.array(values, dtype)
    index = left[0].dtype
    return np.array(starts, index), np.array(columns, index), made, int(np.count_nonzero(made == 0))


def product(
    left: tuple[Array, Array],
    right: tuple[Array, Array],
    cols: int,
    work: int | None = None,
) -> tuple[Array, Array]:
    """By the sets of columns of the rows."""
    others = [set(right[1][start:stop].tolist()) for start, stop in pairwise(right[0].tolist())]
    rows: list[list[int]] = []
    for start, stop in pairwise(left[0].tolist()):
        found = set().union(*(others[other] for other in left[1][start:stop].tolist()))
        assert all(column < cols for column in found)
        rows.append(sorted(found))
    starts = np.cumsum([0, *map(len, rows)]).astype(left[0].dtype)
    return starts, np.array([column for row in rows for column in row], left[1].dtype)


def row_sums(indptr: Array, values: Array) -> Array:
    """Floats in eight sums, of every eighth entry of whole eights, and one of the rest; integers in Python's own."""
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
