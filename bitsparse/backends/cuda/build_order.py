"""Patterns in another order on the GPU: sorted rows, transposition."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.build_checks import contiguous_indices, rows_of, validate_csr

__all__ = ["canonical_csr", "order_of", "transpose_csr"]

_LARGEST_KEY = 1 << 63


def order_of(major: Any, minor: Any, sizes: tuple[int, int]) -> Any:
    """The stable order by two indices below `sizes`, the first one leading, as int64."""
    cupy = jit.require_cupy("order")
    if sizes[0] * sizes[1] >= _LARGEST_KEY:
        return cupy.lexsort(cupy.stack([minor.astype(np.int64), major.astype(np.int64)]))
    keys = major.astype(np.int64)
    keys *= sizes[1]
    keys += minor
    return cupy.argsort(keys)


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
    order = order_of(rows, indices, shape)
    moved = indices[order]
    return moved, order, validate_csr(indptr, moved, shape) == "duplicates"


def transpose_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The transposed pattern ``(indptr_T, indices_T, order)`` of a canonical CSR pattern; entry k of it is entry ``order[k]``."""
    cupy = jit.require_cupy("transpose_csr")
    indptr, indices = contiguous_indices(indptr, indices)
    rows = rows_of(indptr, indices.size)
    order = order_of(indices, rows, (shape[1], shape[0]))
    starts = cupy.searchsorted(indices[order], cupy.arange(shape[1] + 1, dtype=indices.dtype))
    return starts.astype(indptr.dtype), rows[order], order.astype(indptr.dtype)
