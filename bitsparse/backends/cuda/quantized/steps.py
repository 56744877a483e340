"""Largest magnitudes of activations and gradients, and the quantisation steps computed from them; all stay on the GPU without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.bits.stats import line_ranges
from bitsparse.backends.cuda.quantized.product import absmax_into

_THREADS = 256
StepParams = jit.struct("quantized/absmax.cu", "StepParams")


def magnitudes(x: Any, of_rows: bool, factors: Any = None) -> Any:
    """The largest magnitude of a float32, float16 or bfloat16 array, (), or of each row of a matrix, (M, 1), as float32.

    Without `of_rows`, the rows of a float32 matrix may first be multiplied by `factors`, float32 (M,). If any value is NaN or infinite, so
    is the result; with `of_rows` the result of every row is then NaN.
    """
    cupy = jit.require_cupy("quantized_spmm")
    x = interop.contiguous(x)
    if x.size == 0:
        return cupy.zeros((x.shape[0], 1) if of_rows else (), np.float32)
    if not of_rows:
        largest = cupy.empty(1, np.float32)
        absmax_into(x.reshape(x.shape[0], -1), largest, factors)
        return largest.reshape(())
    low, high, nonfinite = line_ranges(x, "row")
    return cupy.where(nonfinite != 0, np.float32(np.nan), cupy.maximum(high, -low))


def steps_up_to(largest: Any, top: int) -> Any:
    """``largest / top`` for float32 magnitudes; 1 where this is below the smallest normal number, NaN where it is not finite."""
    steps = jit.require_cupy("quantized_spmm").empty(largest.shape, np.float32)
    if largest.size:
        largest = interop.contiguous(largest)
        params = StepParams(largest.data.ptr, steps.data.ptr, top, largest.size)
        jit.kernel("quantized/absmax.cu", "steps_up_to", {"BS_KIND": 5}).run(
            -(-largest.size // _THREADS), _THREADS, params
        )
    return steps


VARIANTS = jit.variants_of("quantized/absmax.cu", "steps_up_to", [{"BS_KIND": 5}])
