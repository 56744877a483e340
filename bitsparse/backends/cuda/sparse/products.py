"""Exact products of two sparse matrices of bits or integers on the GPU; the size of the result is counted before it is allocated."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, constants, contiguous_indices
from bitsparse.backends.cuda.sparse.starts import room_for_counts, start_rows
from bitsparse.jit import cupy

#: Bytes of shared memory that a block uses, so that several blocks run on a multiprocessor.
_SHARED = 48 << 10
_MOST_BLOCKS = 1 << 30

ProductParams = jit.struct("sparse/products.cu", "ProductParams")

Matrix = tuple[Any, Any, Any]


def multiply(left: Matrix, right: Matrix, cols: int) -> Matrix | None:
    """The product of two CSR arrays, which must be canonical, as a canonical CSR array.

    Parameters
    ----------
    left, right : tuple of CuPy arrays
        ``(indptr, indices, values)``; values are int32, int64 or booleans in both, or None in both, and then the result is a pattern.
    cols : int
        Columns of the right matrix.

    Returns
    -------
    tuple or None
        Sums have the values' dtype and wrap; sums that are zero are stored. None if a boolean is False, which the call finds out together
        with the size of the result: the caller has to remove such entries first.

    Raises
    ------
    MemoryError
        If the result does not fit in the memory of the GPU.
    """
    starts, columns, right_starts, right_columns = contiguous_indices(left[0], left[1], right[0], right[1])
    rows, bits = starts.size - 1, left[2] is None or left[2].dtype == np.bool_
    params = ProductParams(starts.data.ptr, columns.data.ptr, right_starts.data.ptr, right_columns.data.ptr)
    params.rows, params.cols, params.lanes = rows, cols, _lanes(right_columns.size, right_starts.size - 1)
    words = max(1, -(-cols // 32))
    params.words = min(words, _SHARED // 4)
    values: list[Any] = [None if part[2] is None else cupy.ascontiguousarray(part[2]) for part in (left, right)]
    found = None
    if bits and values[0] is not None:
        found = cupy.zeros(2, np.int64)
        params.left_truth, params.left_size, params.untrue = values[0].data.ptr, values[0].size, found.data.ptr + 8
        if values[1] is not values[0]:
            params.right_truth, params.right_size = values[1].data.ptr, values[1].size
    made = room_for_counts(rows, starts.dtype)
    params.starts = made.data.ptr
    _launch("count_products", starts.dtype, params, 4 * params.words)
    total, *untrue = start_rows(made, found)
    if any(untrue):
        return None
    if total > np.iinfo(starts.dtype).max:
        wide = [(*(part.astype(np.int64) for part in matrix[:2]), matrix[2]) for matrix in (left, right)]
        return multiply(wide[0], wide[1], cols)
    _fits(total, starts.dtype.itemsize + (0 if left[2] is None else left[2].dtype.itemsize))
    found_columns, sums = cupy.empty(total, starts.dtype), None
    params.columns = found_columns.data.ptr
    if not bits:
        sums = cupy.zeros(total, left[2].dtype)
        params.left_values, params.right_values, params.values = (part.data.ptr for part in (*values, sums))
        params.wide, params.words = int(sums.dtype.itemsize == 8), min(words, _SHARED // 8)
    elif found is not None:
        sums = cupy.empty(total, np.bool_)
        if total:
            sums.data.memset_async(1, total)
    _launch("fill_products", starts.dtype, params, 4 * params.words * (1 if bits else 2))
    return made, found_columns, sums


def _lanes(entries: int, rows: int) -> int:
    """Threads that share a row of the right matrix: about half as many as a row has entries on average, up to a warp."""
    mean = entries // max(rows, 1)
    return min(32, 1 << max(0, mean.bit_length() - 1))


def _launch(name: str, dtype: Any, params: Any, shared: int) -> None:
    if params.rows:
        blocks = min(params.rows, _MOST_BLOCKS)
        jit.kernel("sparse/products.cu", name, constants(dtype)).run(blocks, THREADS, params, shared)


def _fits(entries: int, item: int) -> None:
    free = cupy.get_default_memory_pool().free_bytes()
    if entries * item <= free:
        return
    free += cupy.cuda.runtime.memGetInfo()[0]  # asked last, since it takes longer than a small product
    if entries * item > free:
        raise MemoryError(
            f"matmul: the product has {entries} entries, {entries * item / 1e9:.1f} GB, but {free / 1e9:.1f} GB of the GPU's memory are "
            f"free; multiply rows in pieces, as in A[i:j] @ B"
        )


VARIANTS = jit.variants_of("sparse/products.cu", "count_products", BOTH_INDICES)
