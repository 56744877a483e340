"""Packing, quantisation and reductions on the host. Callers in ``ops`` and ``arrays`` have validated the arguments."""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitsparse import _check
from bitsparse._ext import bits as _ext
from bitsparse.backends.host.buffers import as_bytes, dtype_code, fold_shape, is_float, strided
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import (
    ENCODINGS,
    LAYOUTS,
    ROUNDINGS,
    Array,
    Packing,
    Quantisation,
    Sides,
    ends_shape,
    tile_bitmap_shape,
    words_shape,
)

Words = NDArray[np.uint32]
Shape = tuple[int, ...]

#: Elements that :func:`relative_error` widens to float64 at a time, so that no full-size temporaries arise.
_CHUNK = 1 << 18
_GRANULARITIES = {"tensor": 0, "row": 1, "col": 2}
_RANGE_LINE = 4096  # BS_RANGE_LINE of _ext/drivers/drive.h


def _empty_words(shape: Shape, bits: int, axis: int, layout: str) -> Words:
    return np.empty(words_shape(shape, bits, axis, layout), dtype=np.uint32)


def _form(shape: Shape, bits: int, axis: int, layout: str) -> tuple[tuple[int, int, int], int, int, int]:
    """The arguments by which compiled functions know how integers are packed."""
    return fold_shape(shape), bits, axis, LAYOUTS[layout]


def pack(values: Array, bits: int, *, axis: int, layout: str, encoding: str) -> Words:
    """Pack integers (their low ``bits`` bits; ``v > 0`` if bipolar) or floats (one bit, ``v >= 0``).

    Parameters
    ----------
    values
        bool, integer or float array of at least two dimensions, any strides.
    bits, axis, layout, encoding
        Format of the words; see ``BitTensor``.

    Raises
    ------
    ValueError
        If a float is NaN, which has no sign.

    Examples
    --------
    >>> pack(np.array([[1, 0, 3]]), 2, axis=-1, layout="planes", encoding="unsigned")[0, :, 0]
    array([5, 4], dtype=uint32)
    """
    words = _empty_words(values.shape, bits, axis, layout)
    how = 1 if encoding == "bipolar" and not is_float(values.dtype) else 0
    source = as_bytes(values), dtype_code(values.dtype), how, *_form(values.shape, bits, axis, layout)
    nan = _ext.pack(run_on(values.size), *source, as_bytes(words))
    _check.no_nan("pack_bits", "x", nan)
    return words


def unpack(
    words: Words,
    shape: Shape,
    bits: int,
    *,
    axis: int,
    layout: str,
    encoding: str,
    dtype: DTypeLike,
    out: Array | None = None,
) -> Array:
    """The integers of ``words`` as a C-contiguous array of ``dtype``, in ``out`` if it is given.

    Examples
    --------
    >>> w = pack(np.array([[1, -2, -1]]), 2, axis=-1, layout="planes", encoding="signed")
    >>> unpack(w, (1, 3), 2, axis=-1, layout="planes", encoding="signed", dtype=np.int8)
    array([[ 1, -2, -1]], dtype=int8)
    """
    values = np.empty(shape, dtype=dtype) if out is None else out
    codes = as_bytes(words), *_form(shape, bits, axis, layout), ENCODINGS[encoding]
    _ext.unpack(run_on(values.size), *codes, dtype_code(values.dtype), as_bytes(values))
    return values


def repack(words: Words, shape: Shape, bits: int, *, axis: int, layout: str, to_axis: int, to_layout: str) -> Words:
    """The same codes along another axis or in another layout.

    Examples
    --------
    >>> w = pack(np.array([[1], [1]]), 1, axis=-1, layout="planes", encoding="unsigned")
    >>> repack(w, (2, 1), 1, axis=-1, layout="planes", to_axis=-2, to_layout="planes")[0, 0, 0]
    np.uint32(3)
    """
    out = _empty_words(shape, bits, to_axis, to_layout)
    codes = as_bytes(words), *_form(shape, bits, axis, layout)
    _ext.repack(run_on(math.prod(shape)), *codes, to_axis, LAYOUTS[to_layout], as_bytes(out))
    return out


def calibrate(x: Array, granularity: str) -> tuple[Array, Array, bool]:
    """Smallest and largest value of a float array per "tensor", "row" or "col", and whether every value is finite.

    Returns
    -------
    lo, hi
        ``()``, ``(..., M, 1)`` or ``(..., 1, N)``, in the dtype of ``x`` (float32 for 16-bit input);
        0 if there are no values. Entries over values that are not all finite are unspecified.
    finite
        False if any value is NaN or infinite.

    Examples
    --------
    >>> lo, hi, finite = calibrate(np.array([[1.0, -2.0], [3.0, 0.5]]), "row")
    >>> lo.ravel().tolist(), hi.ravel().tolist(), finite
    ([-2.0, 0.5], [1.0, 3.0], True)
    """
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    shape = ends_shape(x.shape, granularity)
    if x.size == 0:
        return np.zeros(shape, dtype), np.zeros(shape, dtype), True
    room = (-(-x.size // _RANGE_LINE),) if granularity == "tensor" else shape
    lo, hi = np.empty(room, dtype), np.empty(room, dtype)
    source = as_bytes(x), dtype_code(x.dtype), fold_shape(x.shape)
    finite = _ext.calibrate(run_on(x.size), *source, _GRANULARITIES[granularity], as_bytes(lo), as_bytes(hi))
    if granularity == "tensor":
        lo, hi = np.array(lo[0]), np.array(hi[0])  # copies, so that the room is free again
    return lo, hi, bool(finite)


def quantize(
    x: Array, bits: int, *, out: Words | None = None, check: bool = False, **how: Unpack[Quantisation]
) -> Words:
    """The packed codes of real numbers; see :class:`~bitsparse.backends.params.Quantisation`.

    ``x`` is widened to the dtype of the steps. NaN becomes ``qmin``; with ``check``, NaN and infinity are errors. ``out`` is written in
    place.

    Examples
    --------
    >>> one = np.float32(1)
    >>> w = quantize(np.array([[0.5, 2.5, 9.0]], np.float32), 2, offset=0 * one, divisor=one, multiplier=1.0,
    ...              qmin=0, qmax=3, rounding="nearest", seed=0, stream=0, axis=-1, layout="planes")
    >>> unpack(w, (1, 3), 2, axis=-1, layout="planes", encoding="unsigned", dtype=np.int64)
    array([[0, 2, 3]])
    """
    if check:
        _check.finite("quantize", "x", calibrate(x, "tensor")[2])
    dtype, axis, layout = np.asarray(how["offset"]).dtype, how["axis"], how["layout"]
    if not is_float(x.dtype) or (x.dtype == np.float64 and dtype == np.float32):
        x = x.astype(dtype)
    words = _empty_words(x.shape, bits, axis, layout) if out is None else out
    divisor, sides = how["divisor"], how.get("sides")
    if sides is not None:
        x, divisor = _on_sides(x / divisor, x, sides, how["qmin"]), np.ones((), np.float32)
    source = as_bytes(x), dtype_code(x.dtype), dtype == np.float64, fold_shape(x.shape)
    grid = *strided(how["offset"], x.shape, dtype), *strided(divisor, x.shape, dtype)
    codes = how["multiplier"], how["qmin"], how["qmax"], ROUNDINGS[how["rounding"]]
    draws = how["seed"] & 0xFFFFFFFFFFFFFFFF, how["stream"] & 0xFFFFFFFF, how.get("first_index", 0)
    _ext.quantize(run_on(x.size), *source, *grid, *codes, *draws, bits, axis, LAYOUTS[layout], as_bytes(words))
    return words


def _on_sides(quotients: Array, x: Array, sides: Sides, low: int) -> Array:
    """Quotients of `x` as `sides` maps them; overwrites the quotients."""
    if sides.below:
        np.multiply(x, np.float32(sides.below), out=quotients, where=x < 0)
    quotients += np.float32(sides.zero)
    if sides.marked:
        quotients[x <= 0] = low
    return quotients


def dequantize(
    words: Words, shape: Shape, bits: int, *, scale: Array, offset: Array, dtype: DTypeLike, **how: Unpack[Packing]
) -> Array:
    """``fl(fl(fl(q) * scale) + offset)`` in float64 if ``dtype`` is float64, else in float32.

    A 16-bit result is the float32 result rounded once.

    Examples
    --------
    >>> w = pack(np.array([[0, 3]]), 2, axis=-1, layout="planes", encoding="unsigned")
    >>> dequantize(w, (1, 2), 2, axis=-1, layout="planes", encoding="unsigned",
    ...            scale=np.float32(0.5), offset=np.float32(1), dtype=np.float32)
    array([[1. , 2.5]], dtype=float32)
    """
    values = np.empty(shape, dtype=dtype)
    codes = as_bytes(words), *_form(shape, bits, how["axis"], how["layout"]), ENCODINGS[how["encoding"]]
    affine = *strided(scale, shape, np.float32), *strided(offset, shape, np.float32)
    _ext.dequantize(run_on(values.size), *codes, *affine, dtype_code(values.dtype), as_bytes(values))
    return values


def stochastic_round(x: Array, seed: int, stream: int) -> Array:
    """``floor(x) + 1`` with a probability equal to the fraction of ``x``, else ``floor(x)``, in the dtype of ``x``.

    Examples
    --------
    >>> stochastic_round(np.array([[1.0, 2.25]]), 0, 0)[0, 0]
    np.float64(1.0)
    """
    out = np.empty(x.shape, dtype=x.dtype)
    _ext.stochastic_round(
        run_on(x.size), as_bytes(x), dtype_code(x.dtype), seed & 0xFFFFFFFFFFFFFFFF, stream & 0xFFFFFFFF, as_bytes(out)
    )
    return out


def tile_bitmap(words: Words, k: int) -> Words:
    """One bit per 8 x 128 tile of plane words ``(..., outer, bits, W)``, set if the tile has a bit set in any plane.

    Examples
    --------
    >>> w = pack(np.eye(2, 300, 299, dtype=bool), 1, axis=-1, layout="planes", encoding="unsigned")
    >>> tile_bitmap(w, 300)
    array([[4]], dtype=uint32)
    """
    *lead, outer, bits, width = words.shape
    bitmap = np.zeros((*lead, *tile_bitmap_shape(outer, k)), dtype=np.uint32)
    _ext.tile_bitmap(run_on(8 * words.size), as_bytes(words), math.prod(lead), outer, bits, width, as_bytes(bitmap))
    return bitmap


def count_nonzero(words: Words, bits: int, layout: str, axis_len: int) -> int:
    """Number of elements whose code is not zero. The format guarantees that pad bits are zero.

    Examples
    --------
    >>> count_nonzero(pack(np.array([[0, 2, 3]]), 2, axis=-1, layout="rows", encoding="unsigned"), 2, "rows", 3)
    2
    """
    lines = math.prod(words.shape[:-2] if layout == "planes" else words.shape[:-1])
    return int(
        _ext.count_nonzero(run_on(8 * words.size), as_bytes(words), lines, bits, LAYOUTS[layout], words.shape[-1])
    )


def code_sums(words: Words, bits: int, encoding: str, k: int) -> NDArray[np.int64]:
    """Sum of the integers along the packed axis of plane words: int64 ``(..., outer)``.

    Examples
    --------
    >>> code_sums(pack(np.array([[0, 2, 3]]), 2, axis=-1, layout="planes", encoding="unsigned"), 2, "unsigned", 3)
    array([5])
    """
    sums = np.empty(words.shape[:-2], dtype=np.int64)
    integers = as_bytes(words), sums.size, bits, ENCODINGS[encoding], k, words.shape[-1]
    _ext.code_sums(run_on(8 * words.size), *integers, as_bytes(sums))
    return sums


def pad_is_zero(words: Words, bits: int, layout: str, axis_len: int) -> bool:
    """Whether every bit beyond ``axis_len`` elements is zero.

    Examples
    --------
    >>> pad_is_zero(np.array([[[1, 0, 0, 2]]], np.uint32), 1, "planes", 97)
    False
    """
    used = axis_len if layout == "planes" else axis_len * bits
    return bool(_ext.pad_is_zero(as_bytes(words), math.prod(words.shape[:-1]), used, words.shape[-1]))


def relative_error(x: Array, y: Array) -> float:
    """Mean of ``|x - y| / (|x| + |y| + 0.0005)`` in float64 (TANGO Eq. 4); 0.0 for empty arrays.

    The order of summation depends on the size alone, so the result does not depend on threads.
    """
    if x.size == 0:
        return 0.0
    x, y = np.ascontiguousarray(x).reshape(-1), np.ascontiguousarray(y).reshape(-1)
    total = 0.0
    for start in range(0, x.size, _CHUNK):
        left, right = x[start : start + _CHUNK].astype(np.float64), y[start : start + _CHUNK].astype(np.float64)
        total += float(np.sum(np.abs(left - right) / (np.abs(left) + np.abs(right) + 0.0005)))
    return total / x.size


def content_sum(x: Array) -> int:
    """A 64-bit fingerprint of an array's bytes in C order (see ``common/content.h``), the same on every device and thread count.

    Arrays that differ in one 8-byte word never share it; others do with a probability of 2**-64. It does not resist deliberate collisions.

    Examples
    --------
    >>> content_sum(np.zeros(3)) == content_sum(np.zeros(6, np.int32)) != content_sum(np.zeros(4))
    True
    """
    return int(_ext.content_sum(run_on(x.nbytes), as_bytes(x)))
