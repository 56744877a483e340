"""Ranges of arrays and stochastic rounding on the GPU."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.geometry import DOUBLE, HALF

__all__ = ["calibrate", "minmax", "stochastic_round"]

#: Elements and rows that a part of a range has at least, and warps that keep a device busy, a multiprocessor.
_PART_ELEMENTS, _PART_ROWS, _WARPS_EACH = 4096, 64, 32
_THREADS = 256
#: Elements that 32 lanes take together; parts begin at multiples of it.
GROUP_OF_LANES = 128
_INT64_MIN = -(1 << 63)


class RangeParams(ctypes.Structure):
    """The argument of the kernels of ``bits_range.cu``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "low", "high", "flag")),
        *((name, ctypes.c_int64) for name in ("lines", "rows", "cols", "x_batch", "x_row", "x_col", "parts", "span")),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        *((name, ctypes.c_int) for name in ("lanes", "is_signed", "infinity", "vector")),
    )


def _value_dtype(kind: int) -> Any:
    return np.float64 if kind == DOUBLE else np.float32 if kind >= HALF else np.int64


def _launch(name: str, kind: int, items: int, params: RangeParams) -> None:
    blocks = min(geometry.MAX_BLOCKS, items)
    jit.kernel("bits_range.cu", name, {"BS_KIND": kind}).launch(blocks, _THREADS, params)()


def _ranges(x: Any, granularity: str, low: Any, high: Any, flag: Any) -> None:
    """Write the ranges of ``x``, which is not empty; ``flag`` (int32, zero) is set if a float is NaN or infinite."""
    kind, warps = geometry.kind_of(x.dtype), _WARPS_EACH * jit.capability().multiprocessors
    params = RangeParams(flag=flag.data.ptr, infinity=geometry.infinity_of(x.dtype), is_signed=int(x.dtype.kind == "i"))
    if granularity == "tensor":
        # in whatever order the elements lie
        flat = x.T if x.flags.f_contiguous and not x.flags.c_contiguous else geometry.contiguous(x)
        found = geometry.source(flat.reshape(1, -1))
    else:
        found = geometry.source(x)
    params.x, params.rows, params.cols = found.array.data.ptr, found.rows, found.cols
    params.x_batch, params.x_row, params.x_col = found.strides
    params.vector = int(found.vector)
    if (granularity == "col") == found.turned:
        params.lines = lines = found.batches * found.rows
        wanted = min(found.cols // _PART_ELEMENTS, warps // lines)
        params.span = -(-found.cols // max(1, wanted) // GROUP_OF_LANES) * GROUP_OF_LANES
        params.parts = -(-found.cols // params.span)
        params.lanes = min(32, 1 << (-(-found.cols // 4) - 1).bit_length())
        name, items = "range_rows", -(-lines * params.parts * params.lanes // _THREADS)
    else:
        params.lines = lines = found.batches * found.cols
        across = found.batches * -(-found.cols // 32)
        params.span = -(-found.rows // max(1, min(found.rows // _PART_ROWS, warps // across)))
        params.parts = -(-found.rows // params.span)
        name, items = "range_columns", -(-across * params.parts // (_THREADS // 32))
    if params.parts == 1:
        params.low, params.high = low.data.ptr, high.data.ptr
        _launch(name, kind, items, params)
        return
    room = jit.require_cupy("calibrate").empty((2, params.parts, lines), _value_dtype(kind))
    params.low, params.high = room[0].data.ptr, room[1].data.ptr
    _launch(name, kind, items, params)
    params.x, params.low, params.high = room.data.ptr, low.data.ptr, high.data.ptr
    _launch("merge_ranges", kind, -(-lines // (_THREADS // 32)), params)


def calibrate(x: Any, granularity: str) -> tuple[Any, Any, bool]:
    """Smallest and largest value of a float array per "tensor", "row" or "col", and whether every value is finite.

    Returns
    -------
    lo, hi : cupy.ndarray
        ``()``, ``(..., M, 1)`` or ``(..., 1, N)``, in the dtype of ``x`` (float32 for 16-bit input); 0 over nothing. Where values are
        not finite their entries mean nothing.
    finite : bool
        False if any value is NaN or infinite; the one answer that is waited for.
    """
    cupy = jit.require_cupy("calibrate")
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    shape = {"tensor": (), "row": (*x.shape[:-1], 1), "col": (*x.shape[:-2], 1, x.shape[-1])}[granularity]
    if x.size == 0:
        return cupy.zeros(shape, dtype), cupy.zeros(shape, dtype), True
    low, high, flag = cupy.empty(shape, dtype), cupy.empty(shape, dtype), cupy.zeros((), np.int32)
    _ranges(x, granularity, low, high, flag)
    return low, high, not bool(flag.get())


def minmax(values: Any) -> tuple[Any, Any, bool]:
    """Smallest and largest value as Python numbers, and whether a float is NaN or infinite; (0, 0, False) over nothing.

    One pass over the array and one small copy to the host. Where a float is not finite the two numbers mean nothing.
    """
    cupy = jit.require_cupy("minmax")
    if values.size == 0:
        return 0, 0, False
    answer, dtype = cupy.zeros(3, np.int64), _value_dtype(geometry.kind_of(values.dtype))
    low, high, flag = (answer[i : i + 1] for i in range(3))
    _ranges(values.reshape(1, -1) if values.ndim < 2 else values, "tensor", low, high, flag)
    host = answer.get()
    ends = [host[i : i + 1].view(dtype)[0].item() for i in range(2)]
    if values.dtype == np.uint64:  # held with the top bit turned over
        ends = [end - _INT64_MIN for end in ends]
    if values.dtype.kind == "b":
        ends = [int(end != 0) for end in ends]
    return ends[0], ends[1], bool(host[2])


def stochastic_round(x: Any, seed: int, stream: int, *, out: Any = None) -> Any:
    """``floor(x)`` or ``floor(x) + 1`` with the probability of the fraction, in the dtype of ``x``, C-contiguous."""
    result = geometry.output("stochastic_round", out, x.shape, x.dtype, x.dtype.itemsize)
    if x.size == 0:
        return result
    x = geometry.contiguous(x)
    params = RangeParams(x=x.data.ptr, low=result.data.ptr, cols=x.size, seed=seed & 0xFFFFFFFFFFFFFFFF)
    params.stream, params.infinity = stream & 0xFFFFFFFF, geometry.infinity_of(x.dtype)
    params.vector = int((x.data.ptr | result.data.ptr) % 16 == 0)
    _launch("round_stochastically", geometry.kind_of(x.dtype), -(-math.ceil(x.size / 8) // _THREADS), params)
    return result
