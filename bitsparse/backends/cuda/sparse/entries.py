"""Selecting, finding and summing entries of canonical CSR arrays on the GPU, with the host's results bit for bit.

Arrays must be canonical, which is not checked, and the index arrays of a call share one dtype. Functions that need to know how much to
allocate wait for that number only; the other functions wait for nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, launch, streaming
from bitsparse.backends.cuda.sparse.starts import room_for_counts, start_rows
from bitsparse.jit import cupy

_SOURCE, _SUMS = "sparse/entries.cu", "sparse/row_sums.cu"
#: The numbers of dtypes in ``sparse/row_sums.cu``, and the rows of one of its blocks.
_KINDS = {
    name: kind
    for kind, names in enumerate(
        ("bool uint8", "int8", "uint16", "int16", "uint32", "int32", "int64 uint64", "float32", "float64")
    )
    for name in names.split()
}
_SUMMED_ROWS = 32
_SUMMED_IN = {"b": np.dtype(np.int64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
#: The most blocks of kernels that give a group of lanes to each row; they loop over further rows.
_MOST_BLOCKS = 1 << 16

Arrays = tuple[Any, Any, Any]

EntryParams = jit.struct(_SOURCE, "EntryParams")
RowSumParams = jit.struct(_SUMS, "RowSumParams")


def lanes_for(entries: int, rows: int) -> int:
    """Threads that share a row: as many as a row has entries on average, up to a warp.

    Examples
    --------
    >>> lanes_for(1_638_396, 50_515), lanes_for(10, 4), lanes_for(0, 0)
    (32, 4, 1)
    """
    return min(32, 1 << max(0, -(-entries // max(rows, 1)) - 1).bit_length())


def grouped(rows: int, lanes: int) -> int:
    """Blocks of a kernel that gives a group of lanes to each row."""
    return min(_MOST_BLOCKS, -(-rows * lanes // THREADS))


def _params(indptr: Any, indices: Any = None, **numbers: int) -> Any:
    """The kernels' argument, filled in one step, since host time dominates small calls."""
    columns = None if indices is None else indices.data.ptr
    return EntryParams(indptr=indptr.data.ptr, indices=columns, **numbers)


def _moved(params: Any, values: Any, count: int) -> Arrays:
    """``(values, bits, room)``, where `room` holds `count` items like those of `values`; an item is moved as one or more words."""
    if values is None:
        return None, None, None
    bits = interop.as_bits(values)
    if not bits.flags.c_contiguous:
        bits = cupy.ascontiguousarray(bits)
    dtype, address = bits.dtype, bits.data.ptr
    size = dtype.itemsize
    words, shape = (1, count) if bits.ndim == 1 else (math.prod(bits.shape[1:]), (count, *bits.shape[1:]))
    room = cupy.ndarray(shape, dtype)
    params.values, params.out = address, room.data.ptr
    # Words of eight bytes keep twice as many bytes in flight as words of four.
    params.unit, params.words = (8, size * words // 8) if size * words % 8 == 0 == address % 8 else (size, words)
    return values, bits, room


def _of_kind(values: Any, room: Any) -> Any:
    return room if values is None or room.dtype == values.dtype else room.view(values.dtype)


# -- items ------------------------------------------------------------------------------------------------------------
def gather(values: Any, order: Any) -> Any:
    """``values[order]``, along the first axis. One kernel."""
    if order.dtype.char not in "ilq" or not order.flags.c_contiguous:
        order = cupy.ascontiguousarray(order, dtype=np.int64)
    params = EntryParams(order=order.data.ptr, count=order.size)
    values, _bits, room = _moved(params, values, order.size)
    params.lanes = lanes_for(params.words, 1)
    launch(_SOURCE, "gather_items", order.dtype, streaming(order.size * params.lanes), params)
    return _of_kind(values, room)


def find(indptr: Any, indices: Any, rows: Any, cols: Any) -> Any:
    """The positions (int64) of the entries at int64 `rows` and `cols`; -1 where there is no entry. One kernel."""
    rows, cols = (cupy.ascontiguousarray(part, dtype=np.int64) for part in (rows, cols))
    places = cupy.empty(rows.size, np.int64)
    params = _params(indptr, indices, rows=rows.data.ptr, cols=cols.data.ptr, places=places.data.ptr, count=rows.size)
    launch(_SOURCE, "find_entries", indptr.dtype, streaming(rows.size), params)
    return places


def elements(indptr: Any, indices: Any, values: Any, rows: Any, cols: Any) -> Any:
    """The elements at int64 `rows` and `cols`; for a pattern they are 0 or 1 as uint8. One kernel."""
    rows, cols = (cupy.ascontiguousarray(part, dtype=np.int64) for part in (rows, cols))
    return _elements(indptr, indices, values, rows.size, rows=rows.data.ptr, cols=cols.data.ptr)


def diagonal(indptr: Any, indices: Any, values: Any, shape: tuple[int, int], k: int) -> Any:
    """The elements ``(i, i + k)``. One kernel, in which each thread searches one row."""
    row, col = max(0, -k), max(0, k)
    count = max(0, min(shape[0] - row, shape[1] - col))
    return _elements(indptr, indices, values, count, low=row, high=col)


def _elements(indptr: Any, indices: Any, values: Any, count: int, **where: int) -> Any:
    params = _params(indptr, indices, count=count, **where)
    values, bits, room = _moved(params, values, count)
    if values is None:
        room = cupy.empty(count, np.uint8)
        params.out = room.data.ptr
    elif not bits.size:  # an empty array has no address
        return cupy.zeros(count, bits.dtype).view(values.dtype)
    launch(_SOURCE, "find_entries", indptr.dtype, streaming(count), params)
    return _of_kind(values, room)


# -- rows and columns -------------------------------------------------------------------------------------------------
def take_rows(indptr: Any, indices: Any, values: Any, rows: Any) -> Arrays:
    """The given rows, in the given order: ``(indptr, indices, values)``; with int64 indices if int32 cannot count the entries."""
    made = pick_rows(indptr, indices, values, rows)
    assert made is not None, "rows that are not there"
    return made


def pick_rows(indptr: Any, indices: Any, values: Any, rows: Any) -> Arrays | None:
    """:func:`take_rows` with negative numbers counting from the end; None if a row does not exist, which the call learns with the sizes."""
    rows = cupy.ascontiguousarray(rows, dtype=np.int64)
    found = cupy.zeros(2, np.int64)
    params = _params(indptr, indices, rows=rows.data.ptr, absent=found.data.ptr + 8, count=rows.size, high=-1)
    starts, _firsts, total, absent = _counted(params, indptr, found)
    if absent:
        return None
    if total > _largest(indptr.dtype):
        return pick_rows(indptr.astype(np.int64), indices.astype(np.int64), values, rows)
    return _filled("copy_rows", params, starts, total, values)


def take_columns(indptr: Any, indices: Any, values: Any, start: int, stop: int) -> Arrays:
    """The columns from `start` up to `stop`, renumbered from 0: ``(indptr, indices, values)``."""
    params = _params(indptr, indices, count=indptr.size - 1, low=start, high=stop)
    starts, _firsts, total = _counted(params, indptr)
    return _filled("copy_rows", params, starts, total, values)


def _counted(params: Any, indptr: Any, found: Any = None) -> tuple[Any, ...]:
    """Row starts of the result, first entries of its rows (to be kept alive for the next kernel), and the list of :func:`start_rows`."""
    index, count = indptr.dtype, params.count
    firsts, starts = cupy.empty(count, index), room_for_counts(count, index)
    params.firsts, params.starts, params.height = firsts.data.ptr, starts.data.ptr, indptr.size - 1
    launch(_SOURCE, "count_rows", index, streaming(count), params)
    return starts, firsts, *start_rows(starts, found)


def _largest(index: Any) -> int:
    """The largest number of entries that indices of this dtype can count (a test lowers it)."""
    return int(np.iinfo(index).max)


def _filled(name: str, params: Any, starts: Any, total: int, values: Any) -> Arrays:
    """The arrays of a result with these row starts, filled by a kernel that gives a group of lanes to each row."""
    columns = cupy.empty(total, starts.dtype)
    values, _bits, room = _moved(params, values, total)
    params.lanes, params.columns = lanes_for(total, params.count), columns.data.ptr
    launch(_SOURCE, name, starts.dtype, grouped(params.count, params.lanes), params)
    return starts, columns, _of_kind(values, room)


def row_range(indptr: Any, start: int, stop: int) -> tuple[Any, int, int]:
    """``indptr`` of the rows from `start` up to `stop`, their first entry and the end of their entries. One kernel, and one wait."""
    starts, ends = cupy.empty(stop - start + 1, indptr.dtype), cupy.empty(2, np.int64)
    params = _params(indptr, starts=starts.data.ptr, places=ends.data.ptr, first=start, count=starts.size)
    launch(_SOURCE, "shift_starts", indptr.dtype, streaming(starts.size), params)
    first, last = ends.get().tolist()
    return starts, first, last


def keep(indptr: Any, indices: Any, values: Any, mask: Any) -> Arrays:
    """The entries where `mask` is True: ``(indptr, indices, values)``."""
    rows = indptr.size - 1
    mask, starts = cupy.ascontiguousarray(mask), room_for_counts(rows, indptr.dtype)
    params = _params(indptr, indices, mask=mask.data.ptr, starts=starts.data.ptr, count=rows)
    params.lanes = lanes_for(indices.size, rows)
    launch(_SOURCE, "count_kept", indptr.dtype, grouped(rows, params.lanes), params)
    (total,) = start_rows(starts)
    return _filled("copy_kept", params, starts, total, values)


# -- sums -------------------------------------------------------------------------------------------------------------
def row_sums(indptr: Any, values: Any) -> Any:
    """Sums of rows: floats in their own dtype, with the host's bits; booleans and integers in int64 or uint64. One kernel."""
    dtype = _SUMMED_IN.get(values.dtype.kind, values.dtype)
    values, out = cupy.ascontiguousarray(values), cupy.empty(indptr.size - 1, dtype)
    kind = _KINDS[values.dtype.name]
    params = RowSumParams(indptr.data.ptr, values.data.ptr, out.data.ptr, out.size, kind)
    launch(_SUMS, "sum_rows", indptr.dtype, min(_MOST_BLOCKS, -(-out.size // _SUMMED_ROWS)), params)
    return out


VARIANTS = [
    *jit.variants_of(_SOURCE, "copy_rows", BOTH_INDICES),
    *jit.variants_of(_SUMS, "sum_rows", BOTH_INDICES),
]
