"""Codes of activations and gradients for products in integers: a step for all of them, or whole multiples of one, to a node each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of, working
from bitsparse.backends.params import Array
from bitsparse.ops.bits.pack import Coding, decode, on_grid
from bitsparse.ops.finish import schemes
from bitsparse.ops.quantized.operands import checked_dtype

#: Largest multiple of the step that a node may have, so that it fits into a byte.
MOST_STEPS = 255
_SMALLEST = np.finfo(np.float32).smallest_normal
GRANULARITIES = ("tensor", "node")


class ScaledCodes(NamedTuple):
    """Integers that stand for real values.

    Attributes
    ----------
    codes : BitTensor (N, D)
        Signed, with one scale.
    multiples : uint8 array (N,) or None
        Factors of the rows beside it.
    """

    codes: BitTensor
    multiples: Any = None

    def dequantize(self) -> Any:
        """The real values, float32; ``fl(fl(multiple * scale) * code)`` where rows have multiples."""
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
    """The codes of a matrix of float32, float16 or bfloat16, on its own range; work on its stream.

    With `factors`, float32 (M,), those of the rows of a float32 matrix times these; a GPU multiplies while it loads. Who knows the
    `largest` magnitude of the matrix already passes it, a float32 array of one element where the matrix is; it serves where all have one
    scale and no factors.

    On the CPU NaN and infinity are refused. A GPU is not waited for: there the scale becomes NaN, and so does all that is computed with it.

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
    # Where the step is NaN multiples are 1, which can be converted.
    multiples = space.fmin(space.fmax(space.ceil(of_rows / unit), np.float32(1)), np.float32(MOST_STEPS))
    codes = on_steps(x, family, multiples * step, step, coding, int(top))
    return ScaledCodes(codes, multiples.reshape(-1).astype(np.uint8))


def step_of(function: str, name: str, x: Any, bits: int) -> Any:
    """What the codes of a matrix with one scale are worth, float32 () where it lies; NaN on a GPU if something is not finite."""
    return step_up_to(_magnitudes(function, name, x, False), bits)


def step_up_to(largest: Any, bits: int) -> Any:
    """What the codes of magnitudes up to a largest one are worth, float32 () where that lies; NaN if it is not finite.

    Examples
    --------
    >>> float(step_up_to(np.float32(254.0), 8)), float(step_up_to(np.float32(0.0), 8))
    (2.0, 1.0)
    """
    device, top = interop.device_of(largest), (1 << (bits - 1)) - 1
    if device != "cpu":
        return backends.family(device, "quantized.steps").steps_up_to(largest, top)
    with np.errstate(invalid="ignore"):  # of infinity
        return _usable(interop.namespace(largest), largest / np.float32(top))


def magnitudes(x: Any, of_rows: bool, factors: Any = None) -> Any:
    """The largest magnitude of floats, () or that of each row (M, 1), as float32 where they lie; NaN or infinite if one of them is.

    On a GPU the former may be that of rows times `factors`.

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
    """:func:`magnitudes` of what is quantised; on the CPU, where nobody waits for the answer, they have to be finite."""
    checked_dtype(function, x.dtype)
    found = magnitudes(x, of_rows, factors)
    if interop.device_of(x) == "cpu":
        _check.finite(function, name, bool(np.isfinite(found).all()))
    return found


def _usable(space: Any, step: Any) -> Any:
    """A step, or 1 where it is too small to divide by; NaN if it is not finite."""
    return space.where(step < _SMALLEST, np.float32(1), step + step * np.float32(0)).astype(np.float32)


def on_steps(
    x: Any,
    family: interop.Family,
    divisor: Any,
    step: Any,
    coding: Coding,
    top: int,
    factors: Any = None,
    out: Any = None,
) -> BitTensor:
    """The codes of quotients by `divisor`, at most `top` from zero, with `step` as their scale; on a GPU of rows times `factors`.

    Their words are `out`, if it is given.
    """
    grid = schemes.Grid(np.zeros((), np.float32), divisor, 1.0, -top, top, "signed", step, None)
    return on_grid(x, family, grid, coding, factors=factors, out=out)
