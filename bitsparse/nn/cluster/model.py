"""What a run over batches asks of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from bitsparse.arrays import BitTensor
from bitsparse.arrays.bit_tensor import Layout

__all__ = ["ClusterModel"]


class ClusterModel(Protocol):
    """What a :class:`ClusterRunner` asks of a network; :class:`LowBitNetwork` is one."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def normalisation(self) -> str:
        """Of the sums over neighbours: "gcn", "mean" or "sum"."""

    @property
    def self_loops(self) -> bool:
        """Whether every node is its own neighbour."""

    @property
    def features(self) -> int:
        """Features that it reads."""

    @property
    def classes(self) -> int:
        """Columns of the logits."""

    @property
    def input_bits(self) -> int:
        """Bits of its features."""

    @property
    def input_encoding(self) -> str:
        """Their encoding."""

    @property
    def input_layout(self) -> Layout:
        """Their layout, packed along the features."""

    def quantize(self, rows: Any) -> BitTensor:
        """Codes of feature rows, the same whatever other rows come along."""

    def plan(self, operand: Any, x: BitTensor) -> Callable[..., Any]:
        """``run(out=None)``: logits of an operand's nodes."""

    def fingerprint(self) -> str:
        """A hash of all that the logits depend on."""
