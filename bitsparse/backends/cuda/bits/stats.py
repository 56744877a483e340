"""Integer reductions over packed words on the GPU, and the steps that prepare operands of a product."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.params import TILE_ROWS, tile_bitmap_shape

__all__ = ["coarse_bitmap", "code_sums", "content_sum", "digits_of", "relative_error", "tile_bitmap"]

_WARPS = 8


StatsParams = jit.struct("bits/stats.cu", "StatsParams")
ErrorParams = jit.struct("bits/error.cu", "ErrorParams")
ContentParams = jit.struct("bits/content.cu", "ContentParams")


#: Numbers by which ``bits/error.cu`` knows dtypes, and elements that one of its blocks adds up.
_TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
_BLOCK_ELEMENTS = 8192
#: Blocks of 256 threads a multiprocessor that read memory, and the bytes that each of these blocks has in flight.
_CONTENT_BLOCKS, _CONTENT_BYTES = 4, 256 * 4 * 16


def _launch(name: str, items: int, params: ctypes.Structure, *, dependent: bool = False) -> None:
    if items:
        jit.kernel("bits/stats.cu", name).launch(items, 32 * _WARPS, params, dependent=dependent)()


def _rows(words: Any, outer: int, bits: int) -> int:
    per_row = bits * words.shape[-1]
    return int(words.size // per_row) if per_row and outer else 0


def code_sums(
    words: Any,
    bits: int,
    encoding: str,
    k: int,
    *,
    factor: int = 1,
    addend: int = 0,
    dtype: str = "int64",
    out: Any = None,
) -> Any:
    """``factor`` times the sum of the integers of each outer index of a planes operand, plus ``addend``, modulo the width of `dtype`."""
    if out is None:
        out = jit.require_cupy("code_sums").empty(words.shape[:-2], dtype)
    if words.shape[-1] == 0:
        out.fill(addend)
        return out
    bipolar = encoding == "bipolar"
    params = StatsParams(words=words.data.ptr, out=out.data.ptr, rows=out.size, bits=bits, n_words=words.shape[-1], k=k)
    params.weight, params.constant = (2, -1) if bipolar else (1, 0)
    params.negative_top = int(encoding == "signed")
    params.factor, params.addend, params.wide = factor, addend, int(dtype == "int64")
    _launch("code_sums", -(-out.size // _WARPS), params)
    return out


def tile_bitmap(words: Any, k: int) -> Any:
    """One bit per 8 x 128 tile of a planes operand (..., outer, bits, W): whether any plane has a bit set in it."""
    cupy = jit.require_cupy("tile_bitmap")
    *batch, outer, bits, n_words = words.shape
    out = cupy.empty((*batch, *tile_bitmap_shape(outer, k)), "uint32")
    if out.size:
        params = StatsParams(words=words.data.ptr, out=out.data.ptr, rows=_rows(words, outer, bits), bits=bits)
        params.n_words, params.k, params.outer, params.out_words = n_words, k, outer, out.shape[-1]
        _launch("tile_bitmap", -(-out.size // _WARPS), params)
    return out


def coarse_bitmap(bitmap: Any, outer: int, blocks: int, tile_rows: int) -> Any:
    """A tile bitmap (..., outer / 8, words) with one bit per ``tile_rows`` rows and block of 1024 elements."""
    cupy = jit.require_cupy("coarse_bitmap")
    batches = bitmap.size // max(1, bitmap.shape[-1] * -(-outer // TILE_ROWS))
    out = cupy.empty((batches, -(-outer // tile_rows), -(-blocks // 32)), "uint32")
    params = StatsParams(words=bitmap.data.ptr, out=out.data.ptr, rows=batches * outer, n_words=bitmap.shape[-1])
    params.outer, params.tile_rows, params.out_words = outer, tile_rows, out.shape[-1]
    _launch("coarsen_bitmap", -(-out.size // _WARPS), params)
    return out


def digits_of(
    words: Any,
    bits: int,
    k: int,
    flip: bool,
    out: Any = None,
    *,
    extend: bool = False,
    dependent: bool = False,
) -> Any:
    """Bytes (..., outer, digits, 8 W words) of a planes operand; with ``flip`` the top plane is turned over, which adds 2**(bits - 1),
    with ``extend`` it is the sign of the last byte.

    Within each 32 elements byte ``c`` of word ``i`` is element ``8 c + i``: both operands of a product have to come from here.
    With ``dependent`` it starts before the end of the kernel in front (and the next one before its own end, where that allows it).
    """
    n_words, digits = words.shape[-1], -(-bits // 8)
    if out is None:
        out = jit.require_cupy("matmul").empty((*words.shape[:-2], digits, 8 * n_words), "uint32")
    params = StatsParams(words=words.data.ptr, out=out.data.ptr, rows=words.size // (bits * n_words), bits=bits)
    params.n_words, params.k, params.flip, params.digits, params.extend = n_words, k, int(flip), digits, int(extend)
    blocks = -(-(out.size // 8) // (32 * _WARPS))
    _launch("unpack_digits", blocks, params, dependent=dependent and jit.capability().major >= 9)
    return out


def relative_error(x: Any, y: Any) -> float:
    """Mean of ``|x - y| / (|x| + |y| + 0.0005)`` in float64 (TANGO Eq. 4); 0.0 for empty arrays. Waits for the stream.

    The terms are those of the host; they are added in another order, which depends on the size alone, so that the result is the same on
    every device and differs from the host's by at most 1e-13 of it.
    """
    cupy = jit.require_cupy("quantization_error")
    if x.size == 0:
        return 0.0
    for array in (x, y):
        geometry.kind_of(array.dtype)  # a named error for a dtype that is not known
    x, y = geometry.contiguous(x), geometry.contiguous(y)
    blocks = -(-x.size // _BLOCK_ELEMENTS)
    parts, total = cupy.empty(blocks, np.float64), cupy.empty((), np.float64)
    params = ErrorParams(x.data.ptr, y.data.ptr, parts.data.ptr, x.size)
    params.x_type, params.y_type = _TYPES.index(x.dtype.name), _TYPES.index(y.dtype.name)
    jit.kernel("bits/error.cu", "relative_error").launch(blocks, 256, params)()
    jit.kernel("bits/error.cu", "add_blocks").launch(
        1, 256, ErrorParams(parts.data.ptr, None, total.data.ptr, blocks)
    )()
    return float(total.get()) / int(x.size)


def content_sum(x: Any) -> int:
    """The host's fingerprint of the bytes of an array in C order, from one pass over them. Waits for the stream."""
    cupy = jit.require_cupy("content_sum")
    x = geometry.contiguous(x)
    if x.nbytes and x.data.ptr % 16:
        x = x.copy()
    out = cupy.zeros((), np.uint64)
    if x.nbytes:
        blocks = min(_CONTENT_BLOCKS * jit.capability().multiprocessors, -(-x.nbytes // _CONTENT_BYTES))
        params = ContentParams(x.data.ptr, out.data.ptr, x.nbytes)
        jit.kernel("bits/content.cu", "content_sum").launch(blocks, 256, params)()
    return int(out.get())


VARIANTS = [
    *jit.variants_of("bits/stats.cu", "code_sums"),
    *jit.variants_of("bits/error.cu", "relative_error"),
    *jit.variants_of("bits/content.cu", "content_sum"),
]
