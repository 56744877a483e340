"""Binary weights: one sign per weight and one magnitude per output (Bi-GCN section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.arrays import BitTensor
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.checks import floats, vector

_NAME = "BinaryLinear"


@dataclass(frozen=True, eq=False)
class BinaryLinear:
    """``x -> (alpha sign(x)) @ (sign(W) m) + b``: the signs of a weight matrix, a magnitude and a bias per output.

    Parameters
    ----------
    signs : BitTensor (k, n) of one bipolar bit
        Packed along k (``axis=-2``), as products read it; any other packing is converted.
    scale : array_like of float (n,), optional
        Positive magnitudes m; 1 by default.
    bias : array_like of float (n,), optional

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The parts do not fit each other, or are not finite.

    Examples
    --------
    >>> from bitsparse import nn
    >>> layer = nn.BinaryLinear.from_weights(np.array([[0.5, -1.0], [1.5, 0.0]]), bias=[0.0, 1.0])
    >>> layer.signs.toarray(), layer.scale
    (array([[ 1, -1],
           [ 1,  1]], dtype=int8), array([1. , 0.5], dtype=float32))
    """

    signs: BitTensor
    scale: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        signs: Any = self.signs
        if not isinstance(signs, BitTensor) or (signs.bits, signs.encoding) != (1, "bipolar"):
            got = f"{signs.bits} {signs.encoding} bits" if isinstance(signs, BitTensor) else type(signs).__name__
            raise DTypeError(
                f"{_NAME}: signs must be a BitTensor of one bipolar bit, got {got}; pass pack_bits(w, encoding='bipolar', axis=-2)"
            )
        if signs.ndim != 2:
            raise ShapeError(f"{_NAME}: signs have shape {signs.shape}, but weights are (inputs, outputs); pick one")
        if signs.scale is not None or signs.offset is not None:
            raise ValueError(f"{_NAME}: signs have a scale or an offset; pass signs.with_affine() and scale= instead")
        object.__setattr__(self, "signs", signs.repack(axis=-2, layout="planes"))
        for name in ("scale", "bias"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, vector(_NAME, name, getattr(self, name), signs.shape[1]))
        if self.scale is not None and not (self.scale > 0).all():
            raise ValueError(f"{_NAME}: scale must be positive, got {float(self.scale.min())}; turn the signs around")

    @classmethod
    def from_weights(cls, weights: Any, bias: Any = None, *, scaled: bool = True) -> Self:
        """Take the signs of float weights, with ``sign(0) = +1``; the scale of each output is the mean magnitude of its weights.

        Parameters
        ----------
        weights : array_like of float (k, n)
        bias : array_like of float (n,), optional
        scaled : bool, default True
            If False, all scales are 1.

        Examples
        --------
        >>> from bitsparse import nn
        >>> nn.BinaryLinear.from_weights(np.ones((3, 2)), scaled=False).scale is None
        True
        """
        _check.flag(_NAME, "scaled", scaled)
        array = floats(_NAME, "weights", weights, 2, None)
        scale = None
        if scaled and array.size:
            scale = np.abs(array.astype(np.float64)).mean(axis=0).astype(np.float32)
            scale = np.where(scale > 0, scale, np.float32(1))
        return cls(BitTensor(array.astype(np.float32, copy=False), 1, encoding="bipolar", axis=-2), scale, bias)

    @property
    def shape(self) -> tuple[int, int]:
        """(inputs, outputs)."""
        return (self.signs.shape[0], self.signs.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of signs, scale and bias."""
        return int(self.signs.nbytes) + sum(part.nbytes for part in (self.scale, self.bias) if part is not None)
