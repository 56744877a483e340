"""Products of two sparse matrices of bits or integers on the GPU: exact, in memory of the size that was counted before."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, constants, contiguous_indices

#: Bytes of shared memory that a block uses, so that several blocks run on a multiprocessor.
_SHARED = 48 << 10
_MOST_BLOCKS = 1 << 30

ProductParams = jit.struct("sparse/products.cu", "ProductParams")

Matrix = tuple[Any, Any, Any]


def multiply(left: Matrix, right: Matrix, cols: int) -> Matrix:
    """The canonical CSR array of the product of two, which are believed to be canonical.

    Parameters
    ----------
    left, right : tuple of CuPy arrays
        ``(indptr, indices, values)``; values are int32 or int64 in both, or None in both, where the result is a pattern.
    cols : int
        Columns of the right matrix.

    Returns
    -------
    tuple
        Sums are of the values' dtype and wrap; those that come to zero are there.

    Raises
    ------
    MemoryError
        The result does not fit into the memory of the GPU.
    """
    cupy = jit.require_cupy("multiply")
    starts, columns, right_starts, right_columns = contiguous_indices(left[0], left[1], right[0], right[1])
    rows, values = starts.size - 1, left[2]
    params = ProductParams(starts.data.ptr, columns.data.ptr, right_starts.data.ptr, right_columns.data.ptr)
    params.rows, params.cols, params.lanes = rows, cols, _lanes(right_columns.size, right_starts.size - 1)
    words = max(1, -(-cols // 32))
    params.words = min(words, _SHARED // 4)
    counts = cupy.empty(rows + 1, np.int64) if rows else cupy.zeros(1, np.int64)
    params.starts = counts.data.ptr
    _launch("count_products", starts.dtype, params, 4 * params.words)
    counts = cupy.cumsum(counts)
    total = int(counts[-1])
    if total > np.iinfo(starts.dtype).max:
        wide = [(*(part.astype(np.int64) for part in matrix[:2]), matrix[2]) for matrix in (left, right)]
        return multiply(wide[0], wide[1], cols)
    _fits(cupy, total, starts.dtype.itemsize + (0 if values is None else values.dtype.itemsize))
    made = cupy.empty(total, starts.dtype)
    params.starts, params.columns = counts.data.ptr, made.data.ptr
    sums = None
    if values is not None:
        factors = [cupy.ascontiguousarray(matrix[2]) for matrix in (left, right)]
        sums = cupy.zeros(total, values.dtype)
        params.left_values, params.right_values, params.values = (part.data.ptr for part in (*factors, sums))
        params.wide, params.words = int(values.dtype.itemsize == 8), min(words, _SHARED // 8)
    _launch("fill_products", starts.dtype, params, 4 * params.words * (1 if sums is None else 2))
    return counts.astype(starts.dtype, copy=False), made, sums


def _lanes(entries: int, rows: int) -> int:
    """Threads that share a row of the right matrix: about half as many as it has entries on average, up to a warp."""
    mean = entries // max(rows, 1)
    return min(32, 1 << max(0, mean.bit_length() - 1))


def _launch(name: str, dtype: Any, params: Any, shared: int) -> None:
    if params.rows:
        blocks = min(params.rows, _MOST_BLOCKS)
        jit.kernel("sparse/products.cu", name, constants(dtype)).launch(blocks, THREADS, params, shared=shared)()


def _fits(cupy: Any, entries: int, item: int) -> None:
    free = cupy.get_default_memory_pool().free_bytes()
    if entries * item <= free:
        return
    free += cupy.cuda.runtime.memGetInfo()[0]  # which takes longer than a small product
    if entries * item > free:
        raise MemoryError(
            f"matmul: the product has {entries} entries, {entries * item / 1e9:.1f} GB, but {free / 1e9:.1f} GB of the GPU's memory are "
            f"free; multiply rows in pieces, as in A[i:j] @ B"
        )


VARIANTS = jit.variants_of("sparse/products.cu", "count_products", BOTH_INDICES)
