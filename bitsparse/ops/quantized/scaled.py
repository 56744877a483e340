"""Codes of activations and gradients for integer products: all have one step, or each node has an integer multiple of a common step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of, working
from bitsparse.backends.params import Array, Sides
from bitsparse.ops.bits.pack import Coding, decode, on_grid
from bitsparse.ops.finish import schemes
from bitsparse.ops.quantized.operands import checked_dtype

#: Largest multiple of the step that a node may have: multiples must fit into a byte.
MOST_STEPS = 255
_SMALLEST = np.finfo(np.float32).smallest_normal
GRANULARITIES = ("tensor", "node")


class ScaledCodes(NamedTuple):
    """Integers that stand for real values.

    Attributes
    ----------
    codes : BitTensor (N, D)
        Signed codes with one scale.
    multiples : uint8 array (N,) or None
        Further factors, one per row.
    """

    codes: BitTensor
    multiples: Any = None

    def dequantize(self) -> Any:
        """The real values, float32; ``fl(fl(multiple * scale) * code)`` if rows have multiples."""
        if self.multiples is None:
            return self.codes.dequantize()
        with working(self.codes):
            integers: Array = decode(self.codes.with_affine(), np.float32)
            steps = self.multiples.astype(np.float32) * self.codes.scale
            return interop.from_array(integers * steps[:, None], family_of(self.codes), "dequantize")


def scaled_codes(
    function: str,
    name: str,
    x: Any,
    family: interop.Family,
    coding: Coding,
    granularity: str = "tensor",
    factors: Any = None,
    largest: Any = None,
) -> ScaledCodes:
    """Quantise a matrix of float32, float16 or bfloat16 over its own range, on its stream.

    `factors`, float32 (M,), first multiply the rows of a float32 matrix; a GPU does so while it loads them. A caller that knows the
    `largest` magnitude of the matrix can pass it as a float32 array of one element on the matrix's device; it is used if there are one
    scale and no factors.

    On the CPU, NaN and infinity are refused. On a GPU nothing waits for the answer: there the scale becomes NaN, and so does every result.

    Examples
    --------
    >>> x = np.array([[0.1, -0.1], [12.7, 6.0]], np.float32)
    >>> coding, family = Coding(4, "nearest", 0), interop.NUMPY
    >>> scaled_codes("example", "x", x, family, coding).dequantize().round(1)
    array([[ 0. ,  0. ],
           [12.7,  5.4]], dtype=float32)
    >>> made = scaled_codes("example", "x", x, family, coding, "node")
    >>> made.multiples, made.dequantize().round(1)
    (array([  3, 255], dtype=uint8), array([[ 0.1, -0.1],
           [12.7,  5.4]], dtype=float32))
    """
    if factors is not None:
        at_once = interop.device_of(x) != "cpu" and granularity != "node" and x.shape[1] > 1
        x, factors = (interop.contiguous(x), factors) if at_once else (x * factors[:, None], None)
    top, space = np.float32((1 << (coding.bits - 1)) - 1), interop.namespace(x)
    if granularity != "node":
        known = factors is None and largest is not None
        most = largest.reshape(()) if known else _magnitudes(function, name, x, False, factors)
        step = step_up_to(most, coding.bits)
        return ScaledCodes(on_steps(x, family, step, step, coding, int(top), factors))
    of_rows = _magnitudes(function, name, x, True)
    whole = of_rows.max() if of_rows.size else np.float32(0)
    step = _usable(space, whole / (top * np.float32(MOST_STEPS)))
    unit = top * step
    # fmin and fmax turn NaN into 1, which can be converted to uint8.
    multiples = space.fmin(space.fmax(space.ceil(of_rows / unit), np.float32(1)), np.float32(MOST_STEPS))
    codes = on_steps(x, family, multiples * step, step, coding, int(top))
    return ScaledCodes(codes, multiples.reshape(-1).astype(np.uint8))


def step_of(function: str, name: str, x: Any, bits: int) -> Any:
    """The step of a matrix's codes with one scale, float32 () on its device; on a GPU it is NaN if the matrix is not finite."""
    return step_up_to(_magnitudes(function, name, x, False), bits)


def step_up_to(largest: Any, bits: int) -> Any:
    """The step of codes for magnitudes up to `largest`, float32 () on its device; NaN if `largest` is not finite.

    Examples
    --------
    >>> float(step_up_to(np.float32(254.0), 8)), float(step_up_to(np.float32(0.0), 8))
    (2.0, 1.0)
    """
    device, top = interop.device_of(largest), (1 << (bits - 1)) - 1
    if device != "cpu":
        return backends.family(device, "quantized.steps").steps_up_to(largest, top)
    with np.errstate(invalid="ignore"):  # infinity is allowed and becomes NaN
        return _usable(interop.namespace(largest), largest / np.float32(top))


def magnitudes(x: Any, of_rows: bool, factors: Any = None) -> Any:
    """The largest magnitude of floats, () or per row (M, 1), as float32 on their device; NaN or infinite if a float is.

    On a GPU, rows may be multiplied by `factors` first for the shape ().

    Examples
    --------
    >>> magnitudes(np.array([[1.0, -3.0], [2.0, 0.5]], np.float32), False).tolist()
    3.0
    """
    device = interop.device_of(x)
    if device != "cpu":
        return backends.family(device, "quantized.steps").magnitudes(x, of_rows, factors)
    low, high, is_finite = backends.family(device, "bits.pack").calibrate(x, "row" if of_rows else "tensor")
    largest = np.maximum(-np.asarray(low, np.float32), np.asarray(high, np.float32))
    return largest if is_finite else np.full_like(largest, np.nan)


def _magnitudes(function: str, name: str, x: Any, of_rows: bool, factors: Any = None) -> Any:
    """:func:`magnitudes` of floats to be quantised; on the CPU, where the check does not wait for a device, they must be finite."""
    checked_dtype(function, x.dtype)
    found = magnitudes(x, of_rows, factors)
    if interop.device_of(x) == "cpu":
        _check.finite(function, name, bool(np.isfinite(found).all()))
    return found


def _usable(space: Any, step: Any) -> Any:
    """The step, or 1 if it is too small to divide by; NaN if it is not finite."""
    return space.where(step < _SMALLEST, np.float32(1), step + step * np.float32(0)).astype(np.float32)


def on_steps(
    x: Any,
    family: interop.Family,
    divisor: Any,
    step: Any,
    coding: Coding,
    top: int,
    factors: Any = None,
    sides: Sides | None = None,
    out: Any = None,
) -> BitTensor:
    """The codes of ``x / divisor`` within ``-top..top``, with `step` as their scale; on a GPU, rows may be multiplied by `factors` first.

    With `sides`, quotients are mapped further before they are rounded. The words are written to `out`, if it is given.
    """
    grid = schemes.Grid(np.zeros((), np.float32), divisor, 1.0, -top, top, "signed", step, None)
    return on_grid(x, family, grid, coding, factors=factors, sides=sides, out=out)
