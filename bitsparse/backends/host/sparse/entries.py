"""Selecting, finding, merging and summing entries of canonical CSR arrays on the host, by _ext/sparse/entries.c on all threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import entries as _ext
from bitsparse.backends.host.buffers import as_bytes, dtype_code, items_of, pattern_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Array

Index = NDArray[np.int32] | NDArray[np.int64]
Values = Array | None


def _threads(work: int | None) -> int:
    return run_on(work)[1]


def _picked(
    pick: Callable[..., Any], indptr: Index, indices: Index, values: Values, *which: Any
) -> tuple[Index, Index, Values]:
    """The entries that the compiled function `pick` selects, with the selected values in their original dtype and shape."""
    data, item = items_of(values)
    starts, columns, made = pick(*pattern_bytes(indptr, indices), *which, data, item, _threads(indices.size))
    if values is None or made is None:
        return starts, columns, None
    return starts, columns, made.view(values.dtype).reshape(columns.size, *values.shape[1:])


def gather(values: Array, order: Index) -> Array:
    """``values[order]``, along the first axis.

    Examples
    --------
    >>> gather(np.array([5, 6, 7]), np.array([2, 0], dtype=np.int32))
    array([7, 5])
    """
    data, item = items_of(values)
    assert data is not None
    if not item:
        return np.empty((order.size, *values.shape[1:]), values.dtype)
    made = _ext.gather(data, item, as_bytes(order), order.dtype.itemsize == 8, _threads(order.size))
    return made.view(values.dtype).reshape(order.size, *values.shape[1:])


def keep(indptr: Index, indices: Index, values: Values, mask: NDArray[np.bool_]) -> tuple[Index, Index, Values]:
    """The entries where `mask` is True: ``(indptr, indices, values)``.

    Examples
    --------
    >>> keep(np.array([0, 2, 3]), np.array([0, 4, 1]), None, np.array([False, True, True]))[:2]
    (array([0, 1, 2]), array([4, 1]))
    """
    return _picked(_ext.keep, indptr, indices, values, as_bytes(mask))


def take_rows(indptr: Index, indices: Index, values: Values, rows: NDArray[np.int64]) -> tuple[Index, Index, Values]:
    """The given rows, in the given order: ``(indptr, indices, values)``.

    Examples
    --------
    >>> take_rows(np.array([0, 1, 3]), np.array([4, 0, 2]), None, np.array([1, 0]))[:2]
    (array([0, 2, 3]), array([0, 2, 4]))
    """
    return _picked(_ext.take_rows, indptr, indices, values, as_bytes(rows))


def take_columns(indptr: Index, indices: Index, values: Values, start: int, stop: int) -> tuple[Index, Index, Values]:
    """The columns from `start` up to `stop`, renumbered from 0: ``(indptr, indices, values)``.

    Examples
    --------
    >>> take_columns(np.array([0, 1, 3]), np.array([4, 0, 2]), None, 1, 5)[:2]
    (array([0, 1, 2]), array([3, 1]))
    """
    return _picked(_ext.take_columns, indptr, indices, values, start, stop)


def find(indptr: Index, indices: Index, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the entries at `rows` and `cols`; -1 where there is no entry.

    Examples
    --------
    >>> find(np.array([0, 1, 3]), np.array([4, 0, 2]), np.array([1, 0]), np.array([2, 2]))
    array([ 2, -1])
    """
    return _ext.find(*pattern_bytes(indptr, indices), as_bytes(rows), as_bytes(cols), _threads(8 * rows.size))


def diagonal(indptr: Index, indices: Index, values: Values, shape: tuple[int, int], k: int) -> Array:
    """The elements ``(i, i + k)``, 0 where no entry is stored; without values, 1 (uint8) where one is stored.

    Examples
    --------
    >>> diagonal(np.array([0, 1, 3]), np.array([4, 0, 2]), np.array([5.0, 6.0, 7.0]), (2, 5), 1)
    array([0., 7.])
    """
    row, column = max(0, -k), max(0, k)
    count = max(0, min(shape[0] - row, shape[1] - column))
    dtype = np.dtype(np.uint8) if values is None else values.dtype
    if not count:
        return np.empty(0, dtype)
    data, item = items_of(values)
    made = _ext.diagonal(*pattern_bytes(indptr, indices), row, column, count, data, item, _threads(8 * count))
    return made.view(dtype)


def merge(
    left: tuple[Index, Index, Array], right: tuple[Index, Index, Array], cols: int, subtract: bool
) -> tuple[Index, Index, Array, int]:
    """The sum or difference ``(indptr, indices, values)`` of two canonical arrays, zeros included, and the number of zeros.

    Both arrays have the same shape, with `cols` columns, the same index dtype and the same value dtype: float32, float64, or integers of
    32 or 64 bits, which wrap.

    Examples
    --------
    >>> a = np.array([0, 2]), np.array([1, 4]), np.array([5, 6])
    >>> merge(a, (np.array([0, 2]), np.array([1, 2]), np.array([-5, 7])), 5, False)
    (array([0, 3]), array([1, 2, 4]), array([0, 7, 6]), 1)
    """
    dtype, wide = left[2].dtype, left[0].dtype.itemsize == 8
    one, two = ([as_bytes(part) for part in parts] for parts in (left, right))
    code, threads = dtype_code(dtype), _threads(left[1].size + right[1].size)
    starts, columns, made, zeros = _ext.merge(
        one[0], one[1], one[2], two[0], two[1], two[2], wide, cols, code, dtype.itemsize, subtract, threads
    )
    return starts, columns, made.view(dtype), zeros


def product(
    left: tuple[Index, Index], right: tuple[Index, Index], cols: int, work: int | None = None
) -> tuple[Index, Index]:
    """The pattern ``(indptr, indices)`` of the product of two canonical patterns; the second one has `cols` columns.

    All arrays, the result included, have one dtype. `work` is the number of products of entries, if the caller knows it.

    Examples
    --------
    >>> product((np.array([0, 2]), np.array([0, 1])), (np.array([0, 1, 3]), np.array([2, 0, 2])), 3)
    (array([0, 2]), array([0, 2]))
    """
    one, two = ([as_bytes(part) for part in parts] for parts in (left, right))
    return _ext.product(one[0], one[1], two[0], two[1], left[0].dtype.itemsize == 8, cols, _threads(work))


def row_sums(indptr: Index, values: Array) -> Array:
    """Sums of rows: floats in their own dtype, as eight interleaved partial sums; booleans and integers in int64 or uint64.

    Examples
    --------
    >>> row_sums(np.array([0, 1, 3]), np.array([4, 1, 2], np.int8))
    array([4, 3])
    """
    dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.uint64 if values.dtype.kind == "u" else np.int64)
    rows, items = (as_bytes(indptr), indptr.dtype.itemsize == 8), (as_bytes(values), dtype_code(values.dtype))
    return _ext.row_sums(*rows, *items, values.itemsize, _threads(values.size)).view(dtype)
