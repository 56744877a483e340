"""Transposes of canonical CSR patterns on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.sparse.checks import (
    BOTH_INDICES,
    CHUNK,
    contiguous_indices,
    launch,
    rows_of,
    streaming,
)
from bitsparse.backends.cuda.sparse.entries import gather
from bitsparse.jit import cupy

_SOURCE = "sparse/transpose.cu"
#: Keys of a block, and bits that are sorted at a time.
_TILE, _DIGIT_BITS = 4096, 8

TransposeParams = jit.struct(_SOURCE, "TransposeParams")


def transpose_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The transposed pattern ``(indptr_T, indices_T, order)`` of a canonical CSR pattern; entry k of it is entry ``order[k]``.

    Where the pattern is its own transpose, the first two are the arrays that were given; whether a square one is, is waited for.
    """
    return transpose_both(indptr, indices, None, shape)[:3]


def transpose_both(indptr: Any, indices: Any, values: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """:func:`transpose_csr`, and the values of the entries in the order of the transpose, or None if they are None."""
    starts, columns = contiguous_indices(indptr, indices)
    if shape[0] == shape[1]:
        order, moved = _mirrors(starts, columns, values, shape[0])
        if order is not None:
            return indptr, indices, order, gather(values, order) if moved is None and values is not None else moved
    made, rows, order = _sorted_columns(starts, columns, shape)
    return made, rows, order, None if values is None else gather(values, order)


def _mirrors(starts: Any, columns: Any, values: Any, size: int) -> tuple[Any, Any]:
    """Where the mirror image of every entry is, None if one has none; and the values there, if an entry has one."""
    order, unlike = cupy.empty(columns.size, starts.dtype), cupy.zeros(2, np.int64)
    params = TransposeParams(starts.data.ptr, columns.data.ptr, order.data.ptr, unlike=unlike.data.ptr)
    params.rows, params.nnz, moved = size, columns.size, None
    if values is not None and values.ndim == 1:
        bits = interop.as_bits(interop.contiguous(values))  # lives until the kernel is enqueued
        room = cupy.empty(bits.shape, bits.dtype)
        params.values, params.out, params.unit = bits.data.ptr, room.data.ptr, bits.dtype.itemsize
        moved = room if room.dtype == values.dtype else room.view(values.dtype)
    launch(_SOURCE, "find_mirrors", starts.dtype, -(-columns.size // CHUNK), params)
    return (None, None) if columns.size and any(unlike.get().tolist()) else (order, moved)


def _sorted_columns(starts: Any, columns: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Entries in the stable order of their columns; nothing is waited for."""
    index, nnz = starts.dtype, columns.size
    blocks = -(-nnz // _TILE)
    params = jit.filled(TransposeParams(), rows=shape[0], cols=shape[1], nnz=nnz, blocks=blocks)
    keys, ids = columns, None
    for shift in range(0, max(1, (shape[1] - 1).bit_length()) if nnz else 0, _DIGIT_BITS):
        counts = cupy.empty((blocks << _DIGIT_BITS) + 1, index)
        params.shift = shift
        jit.filled(params, keys=keys, ids=ids, counts=counts)
        launch(_SOURCE, "count_digits", index, blocks, params)
        before = cupy.cumsum(counts, dtype=index)
        moved, named = cupy.empty(nnz, index), cupy.empty(nnz, index)
        jit.filled(params, before=before, keys_out=moved, ids_out=named)
        launch(_SOURCE, "move_digits", index, blocks, params)
        keys, ids = moved, named
    made = cupy.empty(shape[1] + 1, index)
    jit.filled(params, keys=keys, starts=made)
    launch(_SOURCE, "start_columns", index, streaming(made.size), params)
    order = cupy.empty(0, index) if ids is None else ids
    return made, gather(rows_of(starts, nnz), order), order


VARIANTS = jit.variants_of(_SOURCE, "move_digits", BOTH_INDICES)
