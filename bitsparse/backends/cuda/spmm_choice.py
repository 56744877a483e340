"""Which kernels can compute a sparse product on the GPU, and which of them is estimated to be quicker."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bitsparse.backends.cuda import tiles

__all__ = ["WINDOW", "alignment_of", "costs_us", "csr_cost_us", "group_of", "tiles_precision", "tiles_refuse"]

#: Rows of a window of the tiles.
WINDOW = 16

#: What the estimates assume of a GPU: bytes and rows gathered a microsecond, bytes moved, and the start of a kernel.
_GATHER_BYTES_US, _GATHER_ROWS_US, _MEMORY_BYTES_US, _LAUNCH_US = 9.0e6, 140.0e3, 4.0e6, 2.5
_SIXTEEN = ("float16", "bfloat16")


def alignment_of(x: Any, out: Any, result_dtype: Any) -> int:
    """Bytes that addresses of the features are a multiple of, 16 at most, as far as the result's address goes with them."""
    found = math.gcd(16, int(x.data.ptr))
    if out is not None and int(out.data.ptr) % 16:
        # A vector of results has as many elements as one of features.
        fits = math.gcd(16, int(out.data.ptr)) * x.dtype.itemsize // np.dtype(result_dtype).itemsize
        found = min(found, max(fits, 1))
    return found


def group_of(dtype: Any) -> int:
    """Columns that one step on the matrix units takes.

    Examples
    --------
    >>> group_of(np.float32), group_of(np.float16)
    (8, 16)
    """
    return 8 if np.dtype(dtype).itemsize == 4 else 16


def tiles_refuse(dtype: Any, values: Any, *, reduce: str, precision: str, has_columns: bool = True) -> str | None:
    """Why the tiles cannot compute a product within the error that its caller allows; None if they can.

    Parameters
    ----------
    dtype : dtype
        Of the features and the result.
    values : dtype or None
        Of the edges' values.

    Examples
    --------
    >>> tiles_refuse(np.float32, None, reduce="sum", precision="fp32")
    "float32 features are multiplied in float32; permit precision='tf32' or '3xtf32'"
    >>> tiles_refuse(np.float16, None, reduce="mean", precision="fp32")
    """
    name = np.dtype(dtype).name
    if reduce == "max":
        return "they take sums and means only"
    if not has_columns:
        return "an edge of this matrix is its own column"
    if name == "float32":
        if precision == "fp32":
            return "float32 features are multiplied in float32; permit precision='tf32' or '3xtf32'"
        return None
    if name not in _SIXTEEN:
        return f"they take features of float32, float16 and bfloat16, not {name}"
    if values is not None and np.dtype(values) != np.dtype(dtype) and np.dtype(values).kind not in "b":
        return f"values of {np.dtype(values)} would be rounded to {name}"
    return None


def tiles_precision(dtype: Any, precision: str, scaled: bool) -> str:
    """How the tiles multiply: factors of columns of 16-bit features are split in two, so that they lose no digits unasked.

    Examples
    --------
    >>> tiles_precision(np.float16, "fp32", True), tiles_precision(np.float16, "fp32", False)
    ('3xtf32', 'tf32')
    """
    if np.dtype(dtype).itemsize == 2:
        return "3xtf32" if scaled and precision != "tf32" else "tf32"
    return precision


def costs_us(shape: tuple[int, int], stats: Any, columns: int, dtype: Any, weighted: bool) -> dict[str, float]:
    """Estimated microseconds of the kernels ``"csr"`` and ``"tiles"`` (of these statistics) for a product of `columns` columns."""
    return {
        "csr": csr_cost_us(shape, stats.nnz, columns, dtype, weighted),
        "tiles": tiles.cost_us(stats, columns, dtype, weighted),
    }


def csr_cost_us(shape: tuple[int, int], nnz: int, columns: int, dtype: Any, weighted: bool) -> float:
    """Estimated microseconds of a product that gathers a row of features for every edge.

    Rows of features come from the L2 at a rate of bytes, or of rows where these are short; beside that every array is moved once.

    Examples
    --------
    >>> [round(csr_cost_us((50_515, 50_515), 1_638_396, d, np.float32, False)) for d in (16, 128)]
    [14, 96]
    """
    item = np.dtype(dtype).itemsize
    gather = nnz * max(columns * item / _GATHER_BYTES_US, 1 / _GATHER_ROWS_US)
    moved = sum(shape) * columns * item + nnz * (4 + 4 * weighted)
    return float(_LAUNCH_US + max(gather, moved / _MEMORY_BYTES_US))
