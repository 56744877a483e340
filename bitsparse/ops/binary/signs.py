"""Arrays turned into signs: the batch norm before the sign, and the mean magnitudes by which binary networks scale their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.backends.magnitudes import mean_magnitudes
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.finish.epilogue import folded

Norm = tuple[NDArray[np.float32], NDArray[np.float32]]


def norm_of(function: str, a_norm: Any, features: int) -> Norm | None:
    """The factor and the addend of every feature, float32 ``(features,)``; None without a batch norm."""
    scale, shift = folded(a_norm, function, "a_norm")
    if scale is None or shift is None:
        return None
    if scale.shape not in ((), (features,)):
        raise ShapeError(
            f"{function}: a_norm has shape {scale.shape}, but a has {features} columns; pass numbers or vectors of {features}"
        )
    made = tuple(np.ascontiguousarray(np.broadcast_to(part, (features,))) for part in (scale, shift))
    return made[0], made[1]


def as_signs(
    function: str, name: str, x: Any, axis: int, norm: Norm | None = None, absmean: bool = False
) -> tuple[BitTensor, Any]:
    """A bipolar BitTensor unchanged, or an array's signs packed along `axis`; and the rows' mean magnitudes if asked for, else None.

    With a norm, signs and magnitudes are those of ``fl(fl(x * scale) + shift)``.
    """
    if isinstance(x, BitTensor):
        return bipolar(function, name, x), None
    array, family = interop.as_array(x, function, name)
    check_array(function, name, array)
    with interop.working_on(interop.device_of(array), family):
        space, values = interop.namespace(array), array
        if norm is not None or absmean:
            with np.errstate(over="ignore", invalid="ignore"):  # infinite values have a sign; NaN is refused below
                values = array.astype(np.float32)
                if norm is not None:
                    values = values * space.asarray(norm[0])
                    values += space.asarray(norm[1])
        means = None
        if absmean:
            with np.errstate(over="ignore", invalid="ignore"):
                means = mean_magnitudes(values)
        if norm is None:
            values = array
            if array.dtype.kind in "biu":
                values = (array >= 0).astype(np.float32) - np.float32(0.5)
        words = BitTensor(values, 1, encoding="bipolar", axis=axis).words
    return assembled(BitTensor, words, tuple(array.shape), 1, axis, "planes", "bipolar", family), means


def check_array(function: str, name: str, array: Any) -> None:
    """Refuse an array that is not numeric or has fewer than two dimensions."""
    _check.numeric(function, name, array)
    if array.ndim < 2:
        raise ShapeError(
            f"{function}: {name} has shape {array.shape}, but a product takes at least 2 dimensions; pass {name}[None, :]"
        )


def bipolar(function: str, name: str, x: BitTensor) -> BitTensor:
    """The BitTensor itself; refuses one whose bits do not stand for -1 and +1."""
    if x.encoding != "bipolar":
        raise DTypeError(
            f"{function}: {name} holds {x.encoding} bits, but binary operands are bipolar (-1/+1); pass "
            f"BitTensor.from_words({name}.words, {name}.shape, 1, encoding='bipolar', axis={name}.axis, layout={name}.layout)"
        )
    return x
