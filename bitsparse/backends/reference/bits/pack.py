"""Packing, quantisation and bit statistics in plain NumPy.

Only two functions know the layouts: :func:`codes_to_words` and :func:`words_to_codes` convert between non-negative integer codes, packed
along their *last* axis, and the words of either layout. Everything else is arithmetic on codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Any, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitsparse import _check
from bitsparse.backends.params import Array, Packing, Quantisation, packed_words, tile_bitmap_shape
from bitsparse.backends.reference.scalar import round_stochastic, stochastic_bits

Shape = tuple[int, ...]


# ---- the two layouts
def codes_to_words(codes: Array, bits: int, layout: str) -> NDArray[np.uint32]:
    """Words of non-negative integer ``codes`` (..., outer, L), packed along the last axis.

    Examples
    --------
    >>> codes_to_words(np.array([[1, 2, 3]]), 2, "planes")
    array([[[5, 0, 0, 0],
            [6, 0, 0, 0]]], dtype=uint32)
    >>> codes_to_words(np.array([[1, 2, 3]]), 2, "rows")
    array([[57,  0,  0,  0]], dtype=uint32)
    """
    *lead, length = codes.shape
    n_words = packed_words(length, bits, layout)
    field = 1 if layout == "planes" else bits  # bits of a word that one element takes
    per_word = 32 // field
    padded = np.zeros((*lead, n_words * per_word), np.uint64)
    padded[..., :length] = codes
    padded = padded.reshape(*lead, n_words, per_word)
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(field)
    if layout == "rows":
        return np.asarray((padded << shifts).sum(-1, dtype=np.uint64), np.uint32)
    words = np.zeros((*lead, bits, n_words), np.uint32)
    for p in range(bits):
        plane = (padded >> np.uint64(p)) & np.uint64(1)
        words[..., p, :] = (plane << shifts).sum(-1, dtype=np.uint64)
    return words


def words_to_codes(words: Array, length: int, bits: int, layout: str) -> NDArray[np.int64]:
    """Codes (..., outer, length) of ``words``; the inverse of :func:`codes_to_words`."""
    words = np.asarray(words, np.uint64)
    field = 1 if layout == "planes" else bits
    shifts = np.arange(32 // field, dtype=np.uint64) * np.uint64(field)
    parts = (words[..., None] >> shifts) & np.uint64((1 << field) - 1)
    flat = parts.reshape(*words.shape[:-1], words.shape[-1] * shifts.size)[..., :length].astype(np.int64)
    if layout == "rows":
        return np.asarray(flat)
    codes = np.zeros((*flat.shape[:-2], length), np.int64)
    for p in range(bits):
        codes += flat[..., p, :] << p
    return codes


def codes_to_values(codes: Array, bits: int, encoding: str) -> NDArray[np.int64]:
    """The integers that ``codes`` encode."""
    codes = np.asarray(codes, np.int64)
    if encoding == "bipolar":
        return np.asarray(2 * codes - 1)
    if encoding == "signed":
        return np.asarray(codes - ((codes >> (bits - 1)) << bits))
    return codes


def packed_last(x: Array, axis: int) -> Array:
    """``x`` with its packed axis moved to the end."""
    return x if axis == -1 else np.asarray(np.swapaxes(x, -1, -2))


def _decode(words: Array, shape: Shape, bits: int, axis: int, layout: str) -> NDArray[np.int64]:
    """The codes as an array of the logical ``shape``."""
    return packed_last(words_to_codes(words, shape[axis], bits, layout), axis)


# ---- integers in, integers out
def pack(values: Array, bits: int, *, axis: int, layout: str, encoding: str) -> NDArray[np.uint32]:
    """Pack booleans, integers (the low ``bits`` bits of their two's complement), or floats (one bit, set if v >= 0)."""
    if encoding == "bipolar" and values.dtype.kind in "bui":
        codes = (values > 0).astype(np.uint64)
    elif values.dtype.kind in "bui":
        codes = values.astype(np.uint64) & np.uint64((1 << bits) - 1)
    else:
        _check.no_nan("pack_bits", "x", bool(np.isnan(values).any()))
        codes = (values >= 0).astype(np.uint64)
    return codes_to_words(packed_last(codes, axis), bits, layout)


def unpack(words: Array, shape: Shape, bits: int, *, axis: int, layout: str, encoding: str, dtype: DTypeLike) -> Array:
    """The stored integers as a C-contiguous array of ``dtype``."""
    values = codes_to_values(_decode(words, shape, bits, axis, layout), bits, encoding)
    return np.ascontiguousarray(values.astype(dtype))


def repack(
    words: Array, shape: Shape, bits: int, *, axis: int, layout: str, to_axis: int, to_layout: str
) -> NDArray[np.uint32]:
    """The same codes packed along ``to_axis`` in ``to_layout``."""
    return codes_to_words(packed_last(_decode(words, shape, bits, axis, layout), to_axis), bits, to_layout)


# ---- floating point
def calibrate(x: Array, granularity: str) -> tuple[Array, Array, bool]:
    """Smallest and largest value of the whole array or of each row or column, and whether all values are finite.

    A minimum or maximum of zero is always +0, whatever zeros ``x`` holds. The minimum and maximum of no values are 0.
    """
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float32)
    finite = bool(np.isfinite(x).all())
    axes: Any = {"tensor": None, "row": -1, "col": -2}[granularity]
    keep = granularity != "tensor"
    count = x.size if axes is None else x.shape[axes]
    if count == 0:
        zeros = np.zeros_like(x.sum(axes, keepdims=keep))
        return zeros, zeros.copy(), finite
    low, high = x.min(axes, keepdims=keep), x.max(axes, keepdims=keep)
    return np.asarray(low + x.dtype.type(0)), np.asarray(high + x.dtype.type(0)), finite


def round_to_integers(v: Array, rounding: str, seed: int, stream: int, first_index: int = 0) -> Array:
    """``v`` (float32 or float64) rounded to integers, in its dtype; element i in C order draws the bits of index ``first_index + i``."""
    if rounding == "floor":
        return np.asarray(np.floor(v))
    if rounding == "nearest":
        return np.asarray(np.rint(v))  # ties to even
    index = np.uint64(first_index) + np.arange(v.size, dtype=np.uint64)
    draws = stochastic_bits(index, seed, stream).reshape(v.shape)
    # The fraction of an infinity is inf - inf, a NaN, which compares false: the infinity stays, and is clipped later.
    with np.errstate(invalid="ignore", over="ignore"):
        return round_stochastic(v, draws)


def quantize_codes(x: Array, bits: int, how: Mapping[str, Any]) -> NDArray[np.int64]:
    """Codes ``clip(round(((x - offset) / divisor) * multiplier), qmin, qmax)``, computed in the dtype of ``offset``.

    `how` holds the fields of :class:`~bitsparse.backends.params.Quantisation`; `sides` act before the rounding.
    """
    dtype = np.asarray(how["offset"]).dtype
    v = np.asarray(x).astype(dtype)
    with np.errstate(over="ignore"):  # an overflow to infinity is clipped to the last code
        v = v - how["offset"]
        v = v / how["divisor"]
        v = v * dtype.type(how["multiplier"])
    sides = how.get("sides")
    if sides is not None:
        v = np.where(x < 0, x * dtype.type(sides.below), v) if sides.below else v
        v = v + dtype.type(sides.zero)
        v = np.where(x <= 0, dtype.type(how["qmin"]), v) if sides.marked else v
    assert v.dtype == dtype
    whole = round_to_integers(v, how["rounding"], how["seed"], how["stream"], how.get("first_index", 0))
    q = np.clip(whole, dtype.type(how["qmin"]), dtype.type(how["qmax"])).astype(np.int64)
    return np.asarray(q & ((1 << bits) - 1))


def quantize(x: Array, bits: int, **how: Unpack[Quantisation]) -> NDArray[np.uint32]:
    """Quantise and pack."""
    return codes_to_words(packed_last(quantize_codes(x, bits, how), how["axis"]), bits, how["layout"])


def dequantize(
    words: Array, shape: Shape, bits: int, *, scale: Array, offset: Array, dtype: DTypeLike, **how: Unpack[Packing]
) -> Array:
    """``q * scale + offset`` in float64 steps if ``dtype`` is float64, else in float32 steps with one rounding to ``dtype`` at the end."""
    q = codes_to_values(_decode(words, shape, bits, how["axis"], how["layout"]), bits, how["encoding"])
    steps = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    with np.errstate(over="ignore"):  # float16 overflows to infinity, as every conversion to it does
        v = q.astype(steps) * np.asarray(scale).astype(steps)
        v = v + np.asarray(offset).astype(steps)
        return np.ascontiguousarray(v.astype(dtype))


def stochastic_round(x: Array, seed: int, stream: int) -> Array:
    """Each value rounded up with a probability equal to its fraction, else down, in the dtype of ``x``."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    return round_to_integers(wide, "stochastic", seed, stream).astype(x.dtype)


# ---- statistics
def tile_bitmap(words: Array, k: int) -> NDArray[np.uint32]:
    """One bit for each 8 x 128 tile of a planes operand (..., outer, bits, W), set if any plane has a bit set in the tile."""
    *batch, outer, _, n_words = words.shape
    rows, cols = tile_bitmap_shape(outer, k)
    bitmap = np.zeros((*batch, rows, cols), np.uint32)
    for r in range(rows):
        for t in range(n_words // 4):
            tile = words[..., 8 * r : 8 * r + 8, :, 4 * t : 4 * t + 4]
            hit = (tile != 0).any((-1, -2, -3)).astype(np.uint32)
            bitmap[..., r, t // 32] |= hit << np.uint32(t % 32)
    return bitmap


def count_nonzero(words: Array, bits: int, layout: str, axis_len: int) -> int:
    """Number of elements with a code other than zero."""
    return int(np.count_nonzero(words_to_codes(words, axis_len, bits, layout)))


def code_sums(words: Array, bits: int, encoding: str, k: int) -> NDArray[np.int64]:
    """The sum of the integers along the packed axis, for each outer index of a planes operand."""
    return np.asarray(codes_to_values(words_to_codes(words, k, bits, "planes"), bits, encoding).sum(-1, dtype=np.int64))


def pad_is_zero(words: Array, bits: int, layout: str, axis_len: int) -> bool:
    """Whether all bits past the last element are zero."""
    per_word = 32 if layout == "planes" else 32 // bits
    capacity = words.shape[-1] * per_word
    everything = words_to_codes(words, capacity, bits, layout)
    return not bool(everything[..., axis_len:].any())


def relative_error(x: Array, y: Array) -> float:
    """Mean of ``|x - y| / (|x| + |y| + 0.0005)`` (TANGO Eq. 4); the terms are summed without rounding."""
    pairs = [(float(a), float(b)) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)]
    return fsum(abs(a - b) / (abs(a) + abs(b) + 0.0005) for a, b in pairs) / len(pairs) if pairs else 0.0


def content_sum(x: Array) -> int:
    """A fingerprint of the bytes, read as little-endian 64-bit words and padded with zeros.

    It is the sum, modulo 2**64, of splitmix64's finaliser applied to ``word[i] + (i + 1) * step``, where ``step`` is splitmix64's.
    """
    mask, data, total = (1 << 64) - 1, x.tobytes(), 0
    for place in range(-(-len(data) // 8)):
        word = int.from_bytes(data[8 * place : 8 * place + 8], "little")
        word = word + (place + 1) * 0x9E3779B97F4A7C15 & mask
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        total += word ^ word >> 31
    return total & mask
