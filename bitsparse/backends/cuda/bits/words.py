"""Packed words to packed words and to numbers on the GPU: repacking, counts, pad bits."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry

__all__ = ["count_nonzero", "pad_is_zero", "repack"]

_THREADS, _TURN_THREADS = 256, 512


WordsParams = jit.struct("bits/words.cu", "WordsParams")


def _launch(name: str, items: int, params: ctypes.Structure) -> None:
    blocks = min(geometry.MAX_BLOCKS, -(-items // _THREADS))
    if blocks:
        jit.kernel("bits/words.cu", name).launch(blocks, _THREADS, params)()


def _turn(planes: Any, turned: Any, shape: tuple[int, ...], bits: int, axis: int) -> None:
    """Planes along the other axis."""
    params = _params(planes, turned, shape, bits, axis)
    params.lanes_log = min(5, (params.width - 1).bit_length())
    lanes = 1 << params.lanes_log
    groups = _TURN_THREADS // lanes
    params.pitch = lanes + max(1, 32 // groups)
    params.across, params.down = -(-params.width // lanes), -(-params.lines // (32 * groups))
    units, shared = params.batches * bits * params.down * params.across, 4 * 32 * groups * params.pitch
    kernel = jit.kernel("bits/words.cu", "turn_planes")
    kernel.launch(min(geometry.MAX_BLOCKS, units), _TURN_THREADS, params, shared=shared)()


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
    """The same codes along another axis or in another layout; what stands in pad bits is left behind.

    Changing the axis of the layout "rows" goes through planes.
    """
    result = geometry.output("repack", out, geometry.packed_shape(shape, bits, to_axis, to_layout), np.uint32)
    if result.size == 0:
        return result
    if axis == to_axis:
        _change_layout(words, result, shape, bits, axis, layout, to_layout)
        return result
    cupy = jit.require_cupy("repack")
    planes, turned = words, result
    if _fields(layout, bits):
        planes = cupy.empty(geometry.packed_shape(shape, bits, axis, "planes"), np.uint32)
        _change_layout(words, planes, shape, bits, axis, layout, "planes")
    if _fields(to_layout, bits):
        turned = cupy.empty(geometry.packed_shape(shape, bits, to_axis, "planes"), np.uint32)
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
    """Number of elements whose code is not zero; pad bits are zero by the format. Waits for the stream."""
    cupy = jit.require_cupy("count_nonzero")
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
    cupy = jit.require_cupy("pad_is_zero")
    used, width = axis_len if layout == "planes" else axis_len * bits, words.shape[-1]
    lines = math.prod(words.shape[:-1])
    if lines * (width - used // 32) <= 0:
        return True
    found = cupy.zeros((), np.int32)
    params = WordsParams(words=words.data.ptr, out=found.data.ptr, bits=bits, lines=lines, length=used, width=width)
    _launch("find_pad_bits", lines * (width - used // 32), params)
    return not bool(found.get())


VARIANTS = jit.variants_of("bits/words.cu", "turn_planes")
