"""Reductions over real arrays on the GPU (ranges, relative errors, fingerprints), and stochastic rounding."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.geometry import DOUBLE, FLOAT, GROUP, HALF
from bitsparse.backends.params import DTYPES, ends_shape
from bitsparse.jit import cupy

_THREADS = 256
#: Elements that a block processes at a time, and the fewest rows of a part when columns are cut into parts.
_BLOCK_ELEMENTS, _PART_ROWS = 8192, 64
#: Blocks, and warps, that keep one multiprocessor busy.
_BLOCKS_EACH, _WARPS_EACH = 16, 32
#: Up to this many parts of a line are merged by one thread, more by a block.
_FEW_PARTS = 32
_INT64_MIN = -(1 << 63)
#: Blocks per multiprocessor that compute a fingerprint, and the bytes that each of them has in flight: four 16-byte vectors per thread.
_CONTENT_BLOCKS, _CONTENT_BYTES = 4, _THREADS * 4 * 16


RangeParams = jit.struct("bits/range.cuh", "RangeParams")
ErrorParams = jit.struct("bits/error.cu", "ErrorParams")
ContentParams = jit.struct("bits/content.cu", "ContentParams")


def _value_dtype(kind: int) -> Any:
    """The dtype in which the range of an array of this kind is found."""
    return np.float64 if kind == DOUBLE else np.float32 if kind >= HALF else np.int64


def _launch(name: str, kind: int, items: int, params: ctypes.Structure, source: str = "bits/range.cu") -> None:
    blocks = min(geometry.MAX_BLOCKS, items)
    jit.kernel(source, name, {"BS_KIND": kind}).run(blocks, _THREADS, params)


def _ranges(x: Any, granularity: str, low: Any, high: Any, flag: Any) -> None:
    """Write the ranges of a non-empty ``x`` into ``low`` and ``high``, and set ``flag`` (int32, zero before) if a value is not finite."""
    kind, multiprocessors = geometry.kind_of(x.dtype), jit.capability().multiprocessors
    warps, most = _WARPS_EACH * multiprocessors, _BLOCKS_EACH * multiprocessors
    params = RangeParams(flag=flag.data.ptr, infinity=geometry.infinity_of(x.dtype), is_signed=int(x.dtype.kind == "i"))
    if granularity == "tensor":
        # the order of the elements does not matter, so an array in Fortran order is read as it lies
        flat = x.T if x.flags.f_contiguous and not x.flags.c_contiguous else interop.contiguous(x)
        found = geometry.source(flat.reshape(1, -1))
    else:
        found = geometry.source(x)
    params.x, params.rows, params.cols = found.array.data.ptr, found.rows, found.cols
    params.x_batch, params.x_row, params.x_col = found.strides
    params.vector = int(found.vector)
    if (granularity == "col") == found.turned:
        params.lines = lines = found.batches * found.rows
        if found.cols >= _BLOCK_ELEMENTS // 2 and lines < warps:  # few long lines: cut them, one block for each part
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
    """Smallest and largest value of a float array per "tensor", "row" or "col", and whether all values are finite.

    Returns
    -------
    lo, hi : cupy.ndarray, or numpy.ndarray for "tensor"
        ``()``, ``(..., M, 1)`` or ``(..., 1, N)``, in the dtype of ``x`` (float32 for 16-bit input); 0 if there are no values. If a range
        covers a value that is not finite, its ends are undefined.
    finite : bool
        False if any value is NaN or infinite. The call waits for this flag; for "tensor" the range comes in the same copy to the host.
    """
    shape, dtype = ends_shape(x.shape, granularity), _value_dtype(geometry.kind_of(x.dtype))
    if granularity == "tensor":
        low, high, odd = _tensor_range(x, dtype) if x.size else (np.zeros(1, dtype), np.zeros(1, dtype), False)
        return low.reshape(()), high.reshape(()), not odd
    if x.size == 0:
        return cupy.zeros(shape, dtype), cupy.zeros(shape, dtype), True
    low, high, flag = line_ranges(x, granularity)
    return low, high, not bool(flag.get())


def line_ranges(x: Any, granularity: str) -> tuple[Any, Any, Any]:
    """:func:`calibrate` per "row" or "col" of a non-empty array, without waiting: the flag is an int32 on the GPU, 0 if all are finite."""
    shape, dtype = ends_shape(x.shape, granularity), _value_dtype(geometry.kind_of(x.dtype))
    low, high, flag = cupy.empty(shape, dtype), cupy.empty(shape, dtype), cupy.zeros((), np.int32)
    _ranges(x, granularity, low, high, flag)
    return low, high, flag


def _tensor_range(x: Any, dtype: Any) -> tuple[Any, Any, bool]:
    """Smallest and largest value as host arrays of one element, and whether a float is not finite, in one copy to the host."""
    found = cupy.zeros(3, np.int64)
    low, high, flag = (found[i : i + 1] for i in range(3))
    _ranges(x, "tensor", low, high, flag)
    host = found.get()
    return host[:1].view(dtype)[:1], host[1:2].view(dtype)[:1], bool(host[2])


def minmax(values: Any) -> tuple[Any, Any, bool]:
    """Smallest and largest value as Python numbers, and whether a float is NaN or infinite; (0, 0, False) for an empty array.

    It takes one pass over the array and one small copy to the host. If a float is not finite, the two numbers are undefined.
    """
    if values.size == 0:
        return 0, 0, False
    flat = values.reshape(1, -1) if values.ndim < 2 else values
    *found, odd = _tensor_range(flat, _value_dtype(geometry.kind_of(values.dtype)))
    ends = [end[0].item() for end in found]
    if values.dtype == np.uint64:  # the kernel flips the top bit, so that int64 comparisons order the values
        ends = [end - _INT64_MIN for end in ends]
    if values.dtype.kind == "b":
        ends = [int(end != 0) for end in ends]
    return ends[0], ends[1], odd


def stochastic_round(x: Any, seed: int, stream: int) -> Any:
    """Each value rounded up with a probability equal to its fraction, else down; C-contiguous, in the dtype of ``x``."""
    result = cupy.empty(x.shape, x.dtype)
    if x.size == 0:
        return result
    x = interop.contiguous(x)
    params = RangeParams(x=x.data.ptr, low=result.data.ptr, cols=x.size, seed=seed & 0xFFFFFFFFFFFFFFFF)
    params.stream, params.infinity = stream & 0xFFFFFFFF, geometry.infinity_of(x.dtype)
    params.vector = int((x.data.ptr | result.data.ptr) % 16 == 0)
    items = -(-x.size // (8 * _THREADS))
    _launch("round_stochastically", geometry.kind_of(x.dtype), items, params, "bits/round.cu")
    return result


def relative_error(x: Any, y: Any) -> float:
    """Mean of ``|x - y| / (|x| + |y| + 0.0005)`` in float64 (TANGO Eq. 4); 0.0 for empty arrays. Waits for the stream.

    The terms are those of the host, but they are added in another order. That order depends only on the size, so the result is the same on
    every GPU. It differs from the host's result by at most 1e-13 of its value.
    """
    if x.size == 0:
        return 0.0
    for array in (x, y):
        geometry.kind_of(array.dtype)  # raises an error that names the dtype if kernels do not know it
    x, y = interop.contiguous(x), interop.contiguous(y)
    blocks = -(-x.size // _BLOCK_ELEMENTS)
    parts, total = cupy.empty(blocks, np.float64), cupy.empty((), np.float64)
    params = ErrorParams(x.data.ptr, y.data.ptr, parts.data.ptr, x.size)
    params.x_type, params.y_type = DTYPES.index(x.dtype.name), DTYPES.index(y.dtype.name)
    jit.kernel("bits/error.cu", "relative_error").run(blocks, _THREADS, params)
    total_params = ErrorParams(parts.data.ptr, None, total.data.ptr, blocks)
    jit.kernel("bits/error.cu", "add_blocks").run(1, _THREADS, total_params)
    return float(total.get()) / int(x.size)


def content_sum(x: Any) -> int:
    """The host's fingerprint of an array's bytes in C order, computed in one pass. Waits for the stream."""
    x = interop.contiguous(x)
    if x.nbytes and x.data.ptr % 16:
        x = x.copy()
    out = cupy.zeros((), np.uint64)
    if x.nbytes:
        blocks = min(_CONTENT_BLOCKS * jit.capability().multiprocessors, -(-x.nbytes // _CONTENT_BYTES))
        params = ContentParams(x.data.ptr, out.data.ptr, x.nbytes)
        jit.kernel("bits/content.cu", "content_sum").run(blocks, _THREADS, params)
    return int(out.get())


_FLOATS = [{"BS_KIND": kind} for kind in (HALF, FLOAT, DOUBLE)]
VARIANTS = [
    *jit.variants_of("bits/range.cu", "range_rows", [{"BS_KIND": 0}, {"BS_KIND": 3}, *_FLOATS]),
    *jit.variants_of("bits/round.cu", "round_stochastically", _FLOATS),
    *jit.variants_of("bits/error.cu", "relative_error"),
    *jit.variants_of("bits/content.cu", "content_sum"),
]
