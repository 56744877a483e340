"""Largest magnitudes of activations and gradients on the GPU, which nobody waits for: steps of their codes are made of them there."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.bits.stats import line_ranges
from bitsparse.backends.cuda.quantized.product import absmax_into


def magnitudes(x: Any, of_rows: bool) -> Any:
    """The largest magnitude of an array of float32, float16 or bfloat16, (), or those of the rows of a matrix, (M, 1), as float32.

    Where a value is NaN or infinite the results are as well, all of them for rows.
    """
    cupy = jit.require_cupy("quantized_spmm")
    x = interop.contiguous(x)
    if x.size == 0:
        return cupy.zeros((x.shape[0], 1) if of_rows else (), np.float32)
    if not of_rows:
        largest = cupy.empty(1, np.float32)
        absmax_into(x.reshape(x.shape[0], -1), largest)
        return largest.reshape(())
    low, high, odd = line_ranges(x, "row")
    return cupy.where(odd != 0, np.float32(np.nan), cupy.maximum(high, -low))
