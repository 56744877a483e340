"""Reductions over real arrays on the GPU: ranges, errors, fingerprints; and stochastic rounding."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.geometry import DOUBLE, FLOAT, GROUP, HALF
from bitsparse.backends.params import DTYPES, ends_shape
from bitsparse.jit import cupy

#: Elements that a block takes at once, rows that a part of a column has at least, blocks and warps that keep a multiprocessor busy.
_BLOCK_ELEMENTS, _PART_ROWS, _BLOCKS_EACH, _WARPS_EACH = 8192, 64, 16, 32
_THREADS = 256
#: Threads that merge the parts of a line, where there are more than so many.
_FEW_PARTS = 32
_INT64_MIN = -(1 << 63)
#: Blocks of 256 threads a multiprocessor that read memory, and the bytes that each of these blocks has in flight.
_CONTENT_BLOCKS, _CONTENT_BYTES = 4, 256 * 4 * 16


RangeParams = jit.struct("bits/range.cuh", "RangeParams")
ErrorParams = jit.struct("bits/error.cu", "ErrorParams")
ContentParams = jit.struct("bits/content.cu", "ContentParams")


def _value_dtype(kind: int) -> Any:
    return np.float64 if kind == DOUBLE else np.float32 if kind >= HALF else np.int64


def _launch(name: str, kind: int, items: int, params: ctypes.Structure, source: str = "bits/range.cu") -> None:
    blocks = min(geometry.MAX_BLOCKS, items)
    jit.kernel(source, name, {"BS_KIND": kind}).run(blocks, _THREADS, params)


def _ranges(x: Any, granularity: str, low: Any, high: Any, flag: Any) -> None:
    """Write the ranges of ``x``, which is not empty; ``flag`` (int32, zero) is set if a float is NaN or infinite."""
    kind, multiprocessors = geometry.kind_of(x.dtype), jit.capability().multiprocessors
    warps, most = _WARPS_EACH * multiprocessors, _BLOCKS_EACH * multiprocessors
    params = RangeParams(flag=flag.data.ptr, infinity=geometry.infinity_of(x.dtype), is_signed=int(x.dtype.kind == "i"))
    if granularity == "tensor":
        # in whatever order the elements lie
        flat = x.T if x.flags.f_contiguous and not x.flags.c_contiguous else interop.contiguous(x)
        found = geometry.source(flat.reshape(1, -1))
    else:
        found = geometry.source(x)
    params.x, params.rows, params.cols = found.array.data.ptr, found.rows, found.cols
    params.x_batch, params.x_row, params.x_col = found.strides
    params.vector = int(found.vector)
    if (granularity == "col") == found.turned:
        params.lines = lines = found.batches * found.rows
        if found.cols >= _BLOCK_ELEMENTS // 2 and lines < warps:  # a block for each part
            params.lanes = _THREADS
            params.span = -(-found.cols * lines // most // _BLOCK_ELEMENTS) * _BLOCK_ELEMENTS
        else:
            params.lanes = min(32, 1 << (-(-found.cols // 4) - 1).bit_length())
            params.span = found.cols
        params.parts = -(-found.cols // params.span)
        name, items = "range_rows", -(-lines * params.parts * params.lanes // _THREADS)
    else:
        params.lines = lines = found.batches * found.cols
        quads = found.vector and found.cols % 4 == 0
        across = found.batches * -(-found.cols // (GROUP if quads else 32))
        most = max(1, (_THREADS // 32 * most // 2 if not quads else most // 2) // across)
        least = _PART_ROWS * (_THREADS // 32 if quads else 1)
        params.span = min(1 << 30, -(-found.rows // max(1, min(found.rows // least, most))))
        params.parts = -(-found.rows // params.span)
        name = "range_quads" if quads else "range_columns"
        items = across * params.parts if quads else -(-across * params.parts // (_THREADS // 32))
    if params.parts == 1:
        params.low, params.high = low.data.ptr, high.data.ptr
        _launch(name, kind, items, params)
        return
    room = cupy.empty((2, params.parts, lines), _value_dtype(kind))
    params.low, params.high = room[0].data.ptr, room[1].data.ptr
    _launch(name, kind, items, params)
    params.x, params.low, params.high = room.data.ptr, low.data.ptr, high.data.ptr
    params.lanes = 1 if params.parts <= _FEW_PARTS else _THREADS
    _launch("merge_ranges", kind, -(-lines * params.lanes // _THREADS), params)


def calibrate(x: Any, granularity: str) -> tuple[Any, Any, bool]:
    """Smallest and largest value of a float array per "tensor", "row" or "col", and whether every value is finite.

    Returns
    -------
    lo, hi : cupy.ndarray, or numpy.ndarray for "tensor"
        ``()``, ``(..., M, 1)`` or ``(..., 1, N)``, in the dtype of ``x`` (float32 for 16-bit input); 0 over nothing. Where values are
        not finite their entries mean nothing.
    finite : bool
        False if any value is NaN or infinite. It is waited for, and brings the range of a tensor along: one copy to the host.
    """
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    shape = ends_shape(x.shape, granularity)
    if granularity == "tensor":
        low, high, odd = _answer(x, granularity, dtype) if x.size else (np.zeros(1, dtype), np.zeros(1, dtype), False)
        return low.reshape(()), high.reshape(()), not odd
    if x.size == 0:
        return cupy.zeros(shape, dtype), cupy.zeros(shape, dtype), True
    low, high, flag = line_ranges(x, granularity)
    return low, high, not bool(flag.get())


def line_ranges(x: Any, granularity: str) -> tuple[Any, Any, Any]:
    """:func:`calibrate` of the rows or columns of what is not empty, without waiting: the last is an int32 there, 0 if all is finite."""
    shape = ends_shape(x.shape, granularity)
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    low, high, flag = cupy.empty(shape, dtype), cupy.empty(shape, dtype), cupy.zeros((), np.int32)
    _ranges(x, granularity, low, high, flag)
    return low, high, flag


def _answer(x: Any, granularity: str, dtype: Any) -> tuple[Any, Any, bool]:
    """Smallest and largest value on the host, one element each, and whether a float is not finite; one copy."""
    answer = cupy.zeros(3, np.int64)
    low, high, flag = (answer[i : i + 1] for i in range(3))
    _ranges(x, granularity, low, high, flag)
    host = answer.get()
    return host[:1].view(dtype)[:1], host[1:2].view(dtype)[:1], bool(host[2])


def minmax(values: Any) -> tuple[Any, Any, bool]:
    """Smallest and largest value as Python numbers, and whether a float is NaN or infinite; (0, 0, False) over nothing.

    One pass over the array and one small copy to the host. Where a float is not finite the two numbers mean nothing.
    """
    if values.size == 0:
        return 0, 0, False
    flat = values.reshape(1, -1) if values.ndim < 2 else values
    *found, odd = _answer(flat, "tensor", _value_dtype(geometry.kind_of(values.dtype)))
    ends = [end[0].item() for end in found]
    if values.dtype == np.uint64:  # held with the top bit turned over
        ends = [end - _INT64_MIN for end in ends]
    if values.dtype.kind == "b":
        ends = [int(end != 0) for end in ends]
    return ends[0], ends[1], odd


def stochastic_round(x: Any, seed: int, stream: int) -> Any:
    """``floor(x)`` or ``floor(x) + 1`` with the probability of the fraction, in the dtype of ``x``, C-contiguous."""
    result = cupy.empty(x.shape, x.dtype)
    if x.size == 0:
        return result
    x = interop.contiguous(x)
    params = RangeParams(x=x.data.ptr, low=result.data.ptr, cols=x.size, seed=seed & 0xFFFFFFFFFFFFFFFF)
    params.stream, params.infinity = stream & 0xFFFFFFFF, geometry.infinity_of(x.dtype)
    params.vector = int((x.data.ptr | result.data.ptr) % 16 == 0)
    items = -(-math.ceil(x.size / 8) // _THREADS)
    _launch("round_stochastically", geometry.kind_of(x.dtype), items, params, "bits/round.cu")
    return result


def relative_error(x: Any, y: Any) -> float:
    """Mean of ``|x - y| / (|x| + |y| + 0.0005)`` in float64 (TANGO Eq. 4); 0.0 for empty arrays. Waits for the stream.

    The terms are those of the host; they are added in another order, which depends on the size alone, so that the result is the same on
    every device and differs from the host's by at most 1e-13 of it.
    """
    if x.size == 0:
        return 0.0
    for array in (x, y):
        geometry.kind_of(array.dtype)  # a named error for a dtype that is not known
    x, y = interop.contiguous(x), interop.contiguous(y)
    blocks = -(-x.size // _BLOCK_ELEMENTS)
    parts, total = cupy.empty(blocks, np.float64), cupy.empty((), np.float64)
    params = ErrorParams(x.data.ptr, y.data.ptr, parts.data.ptr, x.size)
    params.x_type, params.y_type = DTYPES.index(x.dtype.name), DTYPES.index(y.dtype.name)
    jit.kernel("bits/error.cu", "relative_error").run(blocks, 256, params)
    jit.kernel("bits/error.cu", "add_blocks").run(1, 256, ErrorParams(parts.data.ptr, None, total.data.ptr, blocks))
    return float(total.get()) / int(x.size)


def content_sum(x: Any) -> int:
    """The host's fingerprint of the bytes of an array in C order, from one pass over them. Waits for the stream."""
    x = interop.contiguous(x)
    if x.nbytes and x.data.ptr % 16:
        x = x.copy()
    out = cupy.zeros((), np.uint64)
    if x.nbytes:
        blocks = min(_CONTENT_BLOCKS * jit.capability().multiprocessors, -(-x.nbytes // _CONTENT_BYTES))
        params = ContentParams(x.data.ptr, out.data.ptr, x.nbytes)
        jit.kernel("bits/content.cu", "content_sum").run(blocks, 256, params)
    return int(out.get())


_FLOATS = [{"BS_KIND": kind} for kind in (HALF, FLOAT, DOUBLE)]
VARIANTS = [
    *jit.variants_of("bits/range.cu", "range_rows", [{"BS_KIND": 0}, {"BS_KIND": 3}, *_FLOATS]),
    *jit.variants_of("bits/round.cu", "round_stochastically", _FLOATS),
    *jit.variants_of("bits/error.cu", "relative_error"),
    *jit.variants_of("bits/content.cu", "content_sum"),
]
