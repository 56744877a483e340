"""The three quantisation schemes as one formula: ``q = clip(round(((x - offset) / divisor) * multiplier), qmin, qmax)``."""

from __future__ import annotations

import math
import secrets
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.backends.params import Array

#: Codes of up to this many bits are exact in float32; for more bits, the steps of the formula are computed in float64.
MAX_FLOAT32_BITS = 24
_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


class Grid(NamedTuple):
    """A quantisation grid: the parameters of the formula and, from `encoding` on, what a BitTensor stores to undo it."""

    offset: Array
    divisor: Array
    multiplier: float
    qmin: int
    qmax: int
    encoding: str
    scale: NDArray[np.float32]
    stored_offset: NDArray[np.float32] | None


def scheme_bits(function: str, scheme: Any, bits: Any) -> tuple[str, int]:
    """The checked scheme and bit count; ``symmetric`` needs at least two bits: a sign and a magnitude."""
    name = _check.choice(function, "scheme", scheme, tuple(_check.ROUNDINGS_OF_SCHEME))
    return name, _check.bit_count(function, bits, low=2 if name == "symmetric" else 1)


def drawn_seed(chosen: str, by_chance: str = "stochastic") -> int:
    """A seed from fresh entropy if the option has its random value, `chosen` == `by_chance`; else 0."""
    return secrets.randbits(64) if chosen == by_chance else 0


def checked_seed(
    function: str, chosen: str, seed: Any, stream: Any, option: str = "rounding", by_chance: str = "stochastic"
) -> tuple[int, int]:
    """The checked seed (see :func:`drawn_seed` for None) and stream; a seed is refused unless `chosen` is the random value `by_chance`."""
    stream = _check.integer(function, "stream", stream, 0, (1 << 32) - 1)
    if seed is None:
        return drawn_seed(chosen, by_chance), stream
    number = _check.integer(function, "seed", seed, 0, (1 << 64) - 1)
    if chosen != by_chance:
        raise ValueError(
            f"{function}: seed={number} has no effect with {option}={_check.shown(chosen)}; pass {option}={by_chance!r} or seed=None"
        )
    return number, stream


def checked_options(
    function: str, bits: Any, scheme: Any, rounding: Any, granularity: Any, seed: Any, stream: Any
) -> tuple[int, str, str, str, int, int]:
    """The checked options of :func:`bitsparse.quantize`: bits, scheme, rounding, granularity, seed and stream."""
    name, count = scheme_bits(function, scheme, bits)
    rounds = _check.rounding_of(function, name, rounding)
    granularity = _check.choice(function, "granularity", granularity, _check.GRANULARITIES)
    return count, name, rounds, granularity, *checked_seed(function, rounds, seed, stream)


def grid_from_range(function: str, scheme: str, bits: int, low: Array, high: Array, dtype: Any) -> Grid:
    """The grid that covers ``low..high`` (``symmetric``: ``-absmax..absmax``), with its steps computed in ``dtype``."""
    low, high = low.astype(dtype, copy=False), high.astype(dtype, copy=False)
    if scheme == "symmetric":
        top = (1 << (bits - 1)) - 1
        scale = _usable(np.maximum(-low, high) / dtype(top))
        _finite_in_float32(function, scale)
        stored = scale.astype(np.float32, copy=False)
        return Grid(np.zeros((), dtype), scale, 1.0, -top, top, "signed", stored, None)
    levels = (1 << bits) - (0 if scheme == "affine-pow2" else 1)
    with np.errstate(over="ignore"):
        stored_offset = low.astype(np.float32)
        offset = stored_offset.astype(dtype)
        extent = high - offset
    _finite_in_float32(function, extent)
    exact = extent / dtype(levels)
    scale = _usable(exact)
    if scheme == "affine-pow2":
        divisor, multiplier = scale.astype(dtype), 1.0
    else:
        divisor, multiplier = _where(scale == exact, extent, scale * dtype(levels)), float(levels)
    return Grid(offset, divisor, multiplier, 0, (1 << bits) - 1, "unsigned", scale.astype(np.float32), stored_offset)


def grid_from_scale(scheme: str, bits: int, scale: NDArray[np.float32], offset: NDArray[np.float32] | None) -> Grid:
    """The float32 grid with a given scale and offset, for an Epilogue."""
    start = np.zeros((), np.float32) if offset is None or scheme == "symmetric" else np.asarray(offset, np.float32)
    if scheme == "symmetric":
        top = (1 << (bits - 1)) - 1
        return Grid(start, scale, 1.0, -top, top, "signed", scale, None)
    if scheme == "affine-pow2":
        return Grid(start, scale, 1.0, 0, (1 << bits) - 1, "unsigned", scale, offset)
    levels = (1 << bits) - 1
    with np.errstate(over="ignore"):  # the caller checks for infinity
        divisor = (scale.astype(np.float64) * levels).astype(np.float32)
    return Grid(start, divisor, float(levels), 0, levels, "unsigned", scale, offset)


def _usable(scale: Array) -> Array:
    """The scale, or 1 if it is zero (the range is a single value) or subnormal in float32."""
    return _where(scale >= _SMALLEST_NORMAL, scale, scale.dtype.type(1))


def _where(condition: Any, one: Any, other: Any) -> Array:
    """``numpy.where``, but quick for scalars, for which it would take longer than quantising a row."""
    if one.ndim:
        return np.where(condition, one, other)
    return np.asarray(one if condition else other)


def _finite_in_float32(function: str, extent: Array) -> None:
    if extent.dtype != np.float32:
        with np.errstate(over="ignore"):
            extent = extent.astype(np.float32)
    if not (np.isfinite(extent).all() if extent.ndim else math.isfinite(extent)):
        raise ValueError(f"{function}: the range of x is too wide for float32; clip x or pass range=(low, high)")
