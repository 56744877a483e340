"""Where the codes of one layer's tensors come from: the state that all layers of a network share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bitsparse.backends.signs import Drop
from bitsparse.ops.binary.signs import SignRows
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.torch import coded
from bitsparse.torch.buffers import state_of, writes_of
from bitsparse.torch.quantization import Quantization
from bitsparse.torch.signs import Norm

#: Keys under which a tensor's largest magnitude, and what gradients need of it, are kept until the next pass, like drawn codes.
_LARGEST, _KEPT = ("largest", False), ("kept", False)


class CodeSource:
    """The source of codes of one layer's tensors; it keeps them in the state that all layers share."""

    def __init__(self, state: Quantization, fixed: bool, layer: int | None = None) -> None:
        self._state, self._fixed, self._layer = state, fixed, layer

    def _key(self, bits: int, granularity: str, fixed: bool) -> tuple[Any, ...]:
        return bits, granularity, fixed or not self._state.training or self._state.config.rounding == "nearest"

    def known(self, x: Tensor, bits: int) -> ScaledCodes | None:
        """The codes with a single scale that a tensor has already, or None."""
        found: ScaledCodes | None = self._state.known(x, self._key(bits, "tensor", self._fixed))
        return found

    def is_data(self, x: Tensor) -> bool:
        """Whether a tensor is data."""
        return self._fixed and self._state.is_data(x, self._layer)

    def coding(self, x: Tensor, bits: int) -> Coding:
        """The settings for quantising a tensor."""
        return self._state.coding(x.device, bits, self._fixed)

    def keep(self, x: Tensor, bits: int, made: ScaledCodes) -> None:
        """Remember codes with a single scale."""
        self._state.keep(x, self._key(bits, "tensor", self._fixed), made)

    def drop(self, x: Tensor, rate: float) -> Drop:
        """Which signs of a matrix to drop, drawn anew at every call."""
        self._state.misses += 1
        return self._state.drop(x.device, rate)

    @staticmethod
    def _sign_key(norm: Norm | None) -> tuple[Any, ...]:
        return "signs", None if norm is None else tuple(map(state_of, norm)), True

    def signs(self, x: Tensor, norm: Norm | None) -> SignRows | None:
        """The signs that a matrix has already, behind the same norm, or None."""
        found: SignRows | None = self._state.known(x, self._sign_key(norm))
        return found

    def keep_signs(self, x: Tensor, norm: Norm | None, made: SignRows) -> None:
        """Remember the signs of a matrix, none of which is dropped."""
        self._state.keep(x, self._sign_key(norm), made)

    def largest(self, x: Tensor) -> Any:
        """The largest magnitude of a tensor if it is known, else None."""
        return self._state.of_pass(x, _LARGEST)

    def keep_largest(self, x: Tensor, found: Any) -> None:
        """Remember the largest magnitude of a tensor."""
        self._state.keep(x, _LARGEST, found)

    def kept(self, x: Tensor) -> Any:
        """What is kept of a tensor for gradients."""
        return self._state.of_pass(x, _KEPT)

    def keep_kept(self, x: Tensor, made: Any) -> None:
        """Remember what is kept of a tensor for gradients."""
        self._state.keep(x, _KEPT, made)

    def codes(
        self,
        x: Tensor,
        bits: int,
        granularity: str = "tensor",
        fixed: bool = False,
        factors: Tensor | None = None,
    ) -> ScaledCodes:
        """The known codes of a tensor, or new ones, which are remembered; those of its rows times `factors` only if it never changes."""
        state, key = self._state, self._key(bits, granularity, fixed)
        if factors is not None:
            key = (*key[:-1], id(factors), writes_of(factors), key[-1])
            times: tuple[ScaledCodes, Tensor] | None = state.known(x, key)
            if times is None:
                times = coded.coded(x, state.coding(x.device, bits, fixed), granularity, factors), factors
                if state.is_fixed(x):
                    state.keep(x, key, times)  # with the factors, so that no other tensor gets their id
            return times[0]
        found: ScaledCodes | None = state.known(x, key)
        if found is None:
            found = coded.coded(x, state.coding(x.device, bits, fixed), granularity, largest=state.of_pass(x, _LARGEST))
            state.keep(x, key, found)
        return found
