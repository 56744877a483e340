"""The error of quantisation, and how many bits are enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import working
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import ArrayLike
from bitsparse.ops.bits.pack import Coding, Granularity, Rounding, Scheme, coded, decode, ends_of, real
from bitsparse.ops.finish import schemes


def quantization_error(x: ArrayLike, q: Any) -> float:
    """Relative quantisation error (TANGO Eq. 4): the mean of ``|x - y| / (|x| + |y| + 0.0005)`` with y the dequantised value.

    TANGO prints the denominator without absolute values, so that it can vanish; absolute values are used here.

    Parameters
    ----------
    x : array_like
        The real values.
    q : BitTensor or array_like
        Their quantisation (this function dequantises it), or the dequantised values themselves.

    Returns
    -------
    float
        In 0..1, accumulated in float64; 0 for an empty array.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    >>> errors = [bs.quantization_error(x, bs.quantize(x, bits, scheme="symmetric")) for bits in (2, 4, 8)]
    >>> errors[0] > errors[1] > errors[2]
    True
    """
    function = "quantization_error"
    values, family = interop.as_array(x, function, kinds="biuf")
    if isinstance(q, BitTensor):
        with working(q):
            back = decode(q, np.float64)
    else:
        back, _ = interop.as_array(q, function, "q")
    _check.numeric(function, "q", back)
    device = _check.same_device(function, (interop.device_of(values), interop.device_of(back)))
    if values.shape != back.shape:
        raise ShapeError(
            f"{function}: x has shape {values.shape} but q has shape {back.shape}; pass the quantisation of this very array"
        )
    with interop.working_on(device, family):
        error = float(backends.family(device, "bits.pack").relative_error(values, back))
    _check.finite(function, "x or q", bool(np.isfinite(error)))
    return error


def choose_bits(
    x: ArrayLike,
    *,
    threshold: float = 0.3,
    bits: Iterable[int] = range(2, 9),
    scheme: Scheme = "symmetric",
    rounding: Rounding | None = None,
    granularity: Granularity = "tensor",
    seed: int | None = None,
) -> int:
    """Fewest bits whose :func:`quantization_error` is at most `threshold` (TANGO section 3.1: 0.3 keeps the accuracy).

    TANGO measures this error on the output of the first layer, not on the input features.

    Parameters
    ----------
    x : array_like
        At least two dimensions.
    threshold : float, default 0.3
    bits : iterable of int, default 2..8
        Candidates, tried in ascending order.
    scheme, rounding, granularity, seed
        As in :func:`quantize`.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        No candidate reaches the threshold; the message names the smallest error found.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    >>> bs.choose_bits(x)
    4
    """
    function = "choose_bits"
    if not isinstance(bits, Iterable):
        raise DTypeError(
            f"{function}: bits must hold the candidates, such as range(2, 9) or [4, 8], got {_check.shown(bits)}; "
            f"pass a list"
        )
    candidates = sorted({_check.bit_count(function, one) for one in bits})
    if not candidates:
        raise ValueError(f"{function}: bits holds no candidate; pass for example range(2, 9)")
    given: Any = threshold
    number = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
    if not number or not 0 <= given <= 1:
        raise ValueError(f"{function}: threshold must be a number in 0..1, got {_check.shown(threshold)}")
    array, family = interop.as_array(x, function, kinds="biuf")
    _check.at_least_2d(function, "x", array.shape)
    options = schemes.checked_options(function, candidates[0], scheme, rounding, granularity, seed, 0)
    _, _, rounding_name, granularity_name, seed_number, _ = options
    with interop.working_on(interop.device_of(array), family):
        smallest = 1.0
        values = real(array)
        ends = ends_of(function, values, scheme, granularity_name, None)  # the same for all candidates
    for count in candidates:
        with interop.working_on(interop.device_of(array), family):
            q = coded(function, values, family, scheme, ends, Coding(count, rounding_name, seed_number))
        error = quantization_error(x, q)
        if error <= threshold:
            return count
        smallest = min(smallest, error)
    raise ValueError(
        f"{function}: {candidates[0]}..{candidates[-1]} bits leave an error of {smallest:.3f}, above threshold={threshold}; "
        f"pass more bits, a finer granularity or a larger threshold"
    )
