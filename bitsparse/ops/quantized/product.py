"""Products of real activations with a quantised weight, which also return the codes of the activations; they never wait for a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized import bytewise
from bitsparse.ops.quantized.operands import Settings
from bitsparse.ops.quantized.plan import QuantizedMatmulPlan
from bitsparse.ops.quantized.scaled import scaled_codes, step_of, step_up_to
from bitsparse.ops.quantized.vjp import product_of_codes

#: Up to this many columns, activations are quantised before the product: it has too few steps to hide the random draws behind its loads.
_NARROW = 128


class CodedProduct(NamedTuple):
    """A product, the codes of the activations, and the product's largest magnitude, float32 (1,), if the kernel found it."""

    product: Any
    codes: BitTensor
    largest: Any = None


def product_with_codes(
    function: str, x: Any, w: BitTensor, coding: Coding, bias: Any = None, out: Any = None, largest: Any = None
) -> CodedProduct:
    """:func:`bitsparse.quantized_matmul` of an array (m, k) and codes (k, n) with one scale; also returns the codes of the array.

    On a GPU the activations are quantised while they are loaded, unless they are narrow. NaN and infinity give NaN there, not an error.

    Parameters
    ----------
    bias : float32 array (n,), optional
        A NumPy or CuPy array on the operands' device, added to the product.
    out : float32 array (m, n), optional
        C-contiguous, on the operands' device; product and bias are added to its contents.
    largest : optional
        The largest magnitude of `x`, if the caller knows it.
    """
    device, family = interop.device_of(x), family_of(w)
    narrow = coding.bits == 8 and x.shape[1] <= _NARROW
    if device == "cpu" or 0 in (*x.shape, *w.shape) or (narrow and bytewise.takes(w)):
        codes = scaled_codes(function, "x", x, family, coding, largest=largest).codes
        return CodedProduct(product_of_codes(function, codes, w, bias, out), codes)
    seed = coding.seed if coding.rounding == "stochastic" else None
    settings = Settings(coding.bits, coding.rounding, seed, 0, "tensor")
    plan = QuantizedMatmulPlan(function, w, int(x.shape[0]), settings, x.dtype)
    # the step is NaN if x is not finite
    step = step_of(function, "x", x, coding.bits) if largest is None else step_up_to(largest, coding.bits)
    alone = bias is None and out is None
    found = interop.require_cupy(function).empty(1, np.float32) if alone else None
    made = plan.run(x, None, step, None, None, found, True, copies=True, stream=coding.stream)
    result = interop.as_array(made.out, function)[0]
    if bias is not None:  # added here, since a plan takes its bias from the host
        result += bias
    if out is not None:
        out += result
        return CodedProduct(interop.from_array(out, family, function), made.x)
    return CodedProduct(made.out, made.x, found)
