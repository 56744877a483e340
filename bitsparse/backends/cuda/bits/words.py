"""Packed words on the GPU: repacking, counts, pad bits, sums, tile bitmaps, and unpacking to bytes for products."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.params import TILE_ROWS, tile_bitmap_shape, words_shape
from bitsparse.jit import cupy

_THREADS, _TURN_THREADS = 256, 512
#: Warps of a block of ``bits/stats.cu``.
_WARPS = 8


WordsParams = jit.struct("bits/words.cu", "WordsParams")
StatsParams = jit.struct("bits/stats.cu", "StatsParams")


def _launch(name: str, items: int, params: ctypes.Structure) -> None:
    blocks = min(geometry.MAX_BLOCKS, -(-items // _THREADS))
    if blocks:
        jit.kernel("bits/words.cu", name).run(blocks, _THREADS, params)


def _turn(planes: Any, turned: Any, shape: tuple[int, ...], bits: int, axis: int) -> None:
    """Repack planes along the other axis."""
    params = _params(planes, turned, shape, bits, axis)
    params.lanes_log = min(5, (params.width - 1).bit_length())
    lanes = 1 << params.lanes_log
    groups = _TURN_THREADS // lanes
    params.pitch = lanes + max(1, 32 // groups)
    params.across, params.down = -(-params.width // lanes), -(-params.lines // (32 * groups))
    units, shared = params.batches * bits * params.down * params.across, 4 * 32 * groups * params.pitch
    kernel = jit.kernel("bits/words.cu", "turn_planes")
    kernel.run(min(geometry.MAX_BLOCKS, units), _TURN_THREADS, params, shared=shared)


def repack(
    words: Any,
    shape: tuple[int, ...],
    bits: int,
    *,
    axis: int,
    layout: str,
    to_axis: int,
    to_layout: str,
    out: Any = None,
) -> Any:
    """The same codes along another axis or in another layout; pad bits are not copied.

    Changing the axis of the layout "rows" goes by way of planes.
    """
    result = geometry.output("repack", out, words_shape(shape, bits, to_axis, to_layout), np.uint32)
    if result.size == 0:
        return result
    if axis == to_axis:
        _change_layout(words, result, shape, bits, axis, layout, to_layout)
        return result
    planes, turned = words, result
    if _fields(layout, bits):
        planes = cupy.empty(words_shape(shape, bits, axis, "planes"), np.uint32)
        _change_layout(words, planes, shape, bits, axis, layout, "planes")
    if _fields(to_layout, bits):
        turned = cupy.empty(words_shape(shape, bits, to_axis, "planes"), np.uint32)
    _turn(planes, turned, shape, bits, axis)
    if turned is not result:
        _change_layout(turned, result, shape, bits, to_axis, "planes", to_layout)
    return result


def _fields(layout: str, bits: int) -> bool:
    return layout == "rows" and bits > 1


def _params(words: Any, out: Any, shape: tuple[int, ...], bits: int, axis: int) -> ctypes.Structure:
    length, outer = (shape[-1], shape[-2]) if axis == -1 else (shape[-2], shape[-1])
    params = WordsParams(words=words.data.ptr, out=out.data.ptr, bits=bits, lines=outer, length=length)
    params.batches = math.prod(shape[:-2])
    params.width, params.out_width = words.shape[-1], out.shape[-1]
    return params


def _change_layout(words: Any, out: Any, shape: tuple[int, ...], bits: int, axis: int, layout: str, to: str) -> None:
    params = _params(words, out, shape, bits, axis)
    params.fields, params.out_fields = int(_fields(layout, bits)), int(_fields(to, bits))
    _launch("change_layout", params.batches * params.lines * 4 * -(-params.length // geometry.GROUP), params)


def count_nonzero(words: Any, bits: int, layout: str, axis_len: int) -> int:
    """Number of elements whose code is not zero. The format guarantees that pad bits are zero. Waits for the stream."""
    if words.size == 0:
        return 0
    count = cupy.zeros((), np.int64)
    lines = math.prod(words.shape[:-2] if layout == "planes" else words.shape[:-1])
    params = WordsParams(words=words.data.ptr, out=count.data.ptr, bits=bits, lines=lines, width=words.shape[-1])
    params.fields = int(layout == "rows")
    multiprocessors = jit.capability().multiprocessors
    _launch("count_nonzero", min(lines * words.shape[-1], 16 * multiprocessors * _THREADS), params)
    return int(count.get())


def pad_is_zero(words: Any, bits: int, layout: str, axis_len: int) -> bool:
    """Whether every bit beyond ``axis_len`` elements is zero. Waits for the stream."""
    used, width = axis_len if layout == "planes" else axis_len * bits, words.shape[-1]
    lines = math.prod(words.shape[:-1])
    if lines * (width - used // 32) <= 0:
        return True
    pad_bits = cupy.zeros((), np.int32)
    params = WordsParams(words=words.data.ptr, out=pad_bits.data.ptr, bits=bits, lines=lines, length=used, width=width)
    _launch("find_pad_bits", lines * (width - used // 32), params)
    return not bool(pad_bits.get())


def _reduce(name: str, items: int, params: ctypes.Structure, *, dependent: bool = False) -> None:
    if items:
        jit.kernel("bits/stats.cu", name).run(items, 32 * _WARPS, params, dependent=dependent)


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
    """For each outer index of a planes operand: ``factor`` times the sum of its integers, plus ``addend``, wrapping in `dtype`."""
    if out is None:
        out = cupy.empty(words.shape[:-2], dtype)
    if words.shape[-1] == 0:
        out.fill(addend)
        return out
    bipolar = encoding == "bipolar"
    params = StatsParams(words=words.data.ptr, out=out.data.ptr, rows=out.size, bits=bits, n_words=words.shape[-1], k=k)
    params.weight, params.constant = (2, -1) if bipolar else (1, 0)
    params.negative_top = int(encoding == "signed")
    params.factor, params.addend, params.wide = factor, addend, int(dtype == "int64")
    _reduce("code_sums", -(-out.size // _WARPS), params)
    return out


def tile_bitmap(words: Any, k: int) -> Any:
    """One bit per 8 x 128 tile of a planes operand (..., outer, bits, W), set if the tile has a bit set in any plane."""
    *batch, outer, bits, n_words = words.shape
    out = cupy.empty((*batch, *tile_bitmap_shape(outer, k)), "uint32")
    if out.size:
        params = StatsParams(words=words.data.ptr, out=out.data.ptr, rows=words.size // (bits * n_words), bits=bits)
        params.n_words, params.k, params.outer, params.out_words = n_words, k, outer, out.shape[-1]
        _reduce("tile_bitmap", -(-out.size // _WARPS), params)
    return out


def coarse_bitmap(bitmap: Any, outer: int, blocks: int, tile_rows: int) -> Any:
    """Coarsen a tile bitmap (..., outer / 8, words) to one bit per ``tile_rows`` rows and block of 1024 elements."""
    batches = bitmap.size // max(1, bitmap.shape[-1] * -(-outer // TILE_ROWS))
    out = cupy.empty((batches, -(-outer // tile_rows), -(-blocks // 32)), "uint32")
    params = StatsParams(words=bitmap.data.ptr, out=out.data.ptr, rows=batches * outer, n_words=bitmap.shape[-1])
    params.outer, params.tile_rows, params.out_words = outer, tile_rows, out.shape[-1]
    _reduce("coarsen_bitmap", -(-out.size // _WARPS), params)
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
    """Unpack a planes operand to bytes (..., outer, digits, 8 W words).

    ``flip`` inverts the top plane, which adds 2**(bits - 1); ``extend`` makes the top plane the sign of the last byte. Within every 32
    elements, byte ``c`` of word ``i`` is element ``8 c + i``, so both operands of a product must be unpacked by this function. With
    ``dependent``, the kernel may start before the preceding kernel ends (and the next one before this one ends, if it allows that).
    """
    n_words, digits = words.shape[-1], -(-bits // 8)
    if out is None:
        out = cupy.empty((*words.shape[:-2], digits, 8 * n_words), "uint32")
    params = StatsParams(words=words.data.ptr, out=out.data.ptr, rows=words.size // (bits * n_words), bits=bits)
    params.n_words, params.k, params.flip, params.digits, params.extend = n_words, k, int(flip), digits, int(extend)
    blocks = -(-(out.size // 8) // (32 * _WARPS))
    _reduce("unpack_digits", blocks, params, dependent=dependent and jit.capability().major >= 9)
    return out


VARIANTS = [
    *jit.variants_of("bits/words.cu", "turn_planes"),
    *jit.variants_of("bits/stats.cu", "code_sums"),
]
