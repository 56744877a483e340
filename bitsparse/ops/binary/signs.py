"""Arrays turned into signs: the batch norm before the sign, and the mean magnitudes by which binary networks scale their rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, family_of, with_scale, working
from bitsparse.backends.params import Array
from bitsparse.backends.signs import Drop, mean_magnitudes
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
        try:
            words = BitTensor(values, 1, encoding="bipolar", axis=axis).words
        except ValueError:  # NaN, which the packing names as an argument of its own
            _check.no_nan(function, name, bool(space.isnan(values).any()))
            raise
    return assembled(BitTensor, words, tuple(array.shape), 1, axis, "planes", "bipolar", family), means


class SignRows(NamedTuple):
    """Signs of the rows of a float32 matrix, for a product and its gradients.

    Attributes
    ----------
    signs : BitTensor (m, k)
        One bipolar bit for each, or two signed bits if some signs are dropped, in planes along the rows. The scale of a row, (m, 1), is its
        mean magnitude, divided by the share of signs that is kept.
    passes : BitTensor (m, k) of one bit, or None
        Where a sign was not dropped and its value lies in -1..1.
    """

    signs: BitTensor
    passes: BitTensor | None

    @classmethod
    def of(
        cls,
        x: Array,
        family: interop.Family,
        norm: tuple[Array, Array] | None = None,
        drop: Drop | None = None,
        passes: bool = False,
    ) -> SignRows:
        """Take the signs of `x`, float32, on its stream; with a norm (factor, addend), those of ``fl(fl(x * factor) + addend)``.

        Examples
        --------
        >>> made = SignRows.of(np.array([[0.5, -2.5]], np.float32), interop.NUMPY, passes=True)
        >>> made.signs.dequantize(), made.passes.toarray()
        (array([[ 1.5, -1.5]], dtype=float32), array([[1, 0]], dtype=uint8))
        """
        gain = 1.0 if drop is None else 1 / drop.share
        backend = backends.family(interop.device_of(x), "binary.signs")
        words, means, mask = backend.sign_rows(x, norm, drop, gain, passes)
        kind = (1, -1, "planes", "bipolar") if drop is None else (2, -1, "planes", "signed")
        signs = with_scale(assembled(BitTensor, words, x.shape, *kind, family), means[:, None])
        within = None if mask is None else assembled(BitTensor, mask, x.shape, 1, -1, "planes", "unsigned", family)
        return cls(signs, within)


def codes_of_signs(signs: BitTensor) -> BitTensor:
    """Signs of rows as codes of 8 bits side by side, with a scale of 1.

    Examples
    --------
    >>> codes_of_signs(SignRows.of(np.array([[0.5, -2.5]], np.float32), interop.NUMPY).signs).toarray()
    array([[ 1, -1]], dtype=int8)
    """
    with working(signs):
        words = backends.family(signs.device, "binary.signs").sign_bytes(signs.words, signs.shape[1])
        one = interop.namespace(words).ones((), np.float32)
        return with_scale(assembled(BitTensor, words, signs.shape, 8, -1, "rows", "signed", family_of(signs)), one)


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
