"""Patterns in another order on the GPU: sorted rows, coordinates, sums over repeated entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import contiguous_indices, launch, rows_of, streaming, validate_csr
from bitsparse.jit import cupy

_LARGEST_KEY = 1 << 63
#: Numbers by which ``sparse/runs.cu`` knows the dtypes that it adds.
_KINDS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}


RunParams = jit.struct("sparse/runs.cu", "RunParams")


def _order_of(major: Any, minor: Any, sizes: tuple[int, int]) -> Any:
    """The stable order by two indices below `sizes`, the first one leading, as int64."""
    if sizes[0] * sizes[1] >= _LARGEST_KEY:
        return cupy.lexsort(cupy.stack([minor.astype(np.int64), major.astype(np.int64)]))
    keys = major.astype(np.int64)
    keys *= sizes[1]
    keys += minor
    return cupy.argsort(keys, kind="stable")


def canonical_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, bool]:
    """Column indices that ascend in every row.

    Returns
    -------
    indices : cupy.ndarray
        Sorted in each row; those given where they are sorted already.
    order : cupy.ndarray of int64, or None
        Where each came from (repeated columns keep their order); None if nothing was moved.
    has_duplicates : bool
        Whether a row holds a column more than once.

    Raises
    ------
    ValueError
        As :func:`validate_csr`.
    """
    indptr, indices = contiguous_indices(indptr, indices)
    state = validate_csr(indptr, indices, shape)
    if state != "unsorted":
        return indices, None, state == "duplicates"
    rows = rows_of(indptr, indices.size)
    order = _order_of(rows, indices, shape)
    moved = indices[order]
    return moved, order, validate_csr(indptr, moved, shape) == "duplicates"


def _starts_of(keys: Any, count: int) -> Any:
    """Where the runs of each of `count` keys start in a sorted array, in its dtype."""
    return cupy.searchsorted(keys, cupy.arange(count + 1, dtype=keys.dtype)).astype(keys.dtype)


def sort_coordinates(rows: Any, cols: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """The stable order of coordinates by row and column (int64), and where the rows then start."""
    order = _order_of(rows, cols, shape)
    return order, _starts_of(rows[order], shape[0])


def sum_runs(values: Any, starts: Any) -> Any:
    """Sums of the runs of rows that start at `starts` (int64, ascending, the first 0), in the dtype of the values.

    Integers wrap. Floats are added one after another, 16-bit ones in float32: the first entry and the sum of the others, as NumPy does
    (which adds in pairs from nine entries on). Booleans are counted, as int64.
    """
    if values.dtype.kind in "biu":
        total = cupy.zeros((values.shape[0] + 1, *values.shape[1:]), np.int64)
        total[1:] = cupy.cumsum(values.astype(np.int64), axis=0)
        ends = cupy.concatenate([starts[1:], cupy.full(1, values.shape[0], starts.dtype)])
        sums = total[ends] - total[starts]
        return sums if values.dtype.kind == "b" else sums.astype(values.dtype)
    bits = values.view(np.uint16) if values.dtype.itemsize == 2 else values
    bits = cupy.ascontiguousarray(bits)
    out = cupy.empty((starts.size, *values.shape[1:]), bits.dtype)
    params = RunParams(bits.data.ptr, out.data.ptr, starts.data.ptr, starts.size, values.shape[0])
    params.width, params.kind = values[:1].size, _KINDS[values.dtype.name]
    launch("sparse/runs.cu", "sum_runs", np.dtype(np.int32), streaming(out.size), params)
    return out.view(values.dtype)


VARIANTS = jit.variants_of("sparse/runs.cu", "sum_runs")
