"""How the layers of a network multiply and sum: in floats, or in integers if somebody gave them a quantizer."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from bitsparse.torch import bias
from bitsparse.torch.attention_kinds import attention, cosine_attention, scored_attention
from bitsparse.torch.graph import Graph
from bitsparse.torch.sums import spmm

#: Under which name a module has one, beside its parameters.
_NAME = "_quantizer"


class Quantizer(Protocol):
    """What multiplies and sums in a layer in place of floats."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x @ weight.T``."""

    def spmm(self, graph: Graph, x: Tensor, reduce: str) -> Tensor:
        """As :func:`bitsparse.torch.spmm`."""

    def attention(
        self, graph: Graph, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """As :func:`bitsparse.torch.attention`, of features (N, H, D)."""

    def scores(self, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Dot products of heads with two vectors."""

    def attended(self, x: Tensor) -> Tensor:
        """Features as attention is to gather them."""

    def attending(self, y: Tensor) -> Tensor:
        """Sums of attention, with a gradient as it is to be gathered."""


def quantizer_of(layer: nn.Module) -> Quantizer | None:
    """The quantizer of a module, if it has one."""
    return vars(layer).get(_NAME)


def set_quantizer(layer: nn.Module, quantizer: Quantizer | None) -> None:
    """Give a module a quantizer, which is no part of its state, or take it away."""
    if quantizer is None:
        vars(layer).pop(_NAME, None)
    else:
        vars(layer)[_NAME] = quantizer


def linear_forward(module: Any, x: Tensor) -> Tensor:
    """What takes the place of a linear module's own `forward` while it has a quantizer."""
    y = linear(module, x, module.weight)
    return y if module.bias is None else bias.biased(y, module.bias)


def is_bypassable(module: nn.Module) -> bool:
    """Whether a linear module does nothing but multiply, as its class or its quantizer does: no hooks, no `forward` of somebody else."""
    forward = vars(module).get("forward")
    return not bias.has_hooks(module) and (forward is None or getattr(forward, "func", None) is linear_forward)


def linear(layer: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` in a layer."""
    quantizer = quantizer_of(layer)
    return bias.linear(x, weight) if quantizer is None else quantizer.linear(x, weight)


def sums(layer: nn.Module, graph: Graph, x: Tensor, reduce: str = "sum") -> Tensor:
    """:func:`bitsparse.torch.spmm` in a layer."""
    quantizer = quantizer_of(layer)
    if quantizer is None or reduce in ("max", "min"):
        return spmm(graph, x, reduce=reduce)
    return quantizer.spmm(graph, x, reduce)


def attended(layer: nn.Module, graph: Graph, x: Tensor, source: Tensor, target: Tensor, *how: Any) -> Tensor:
    """:func:`bitsparse.torch.attention` in a layer."""
    quantizer = quantizer_of(layer)
    if quantizer is None:
        return attention(graph, x, source, target, *how)
    return quantizer.attention(graph, x, source, target, *how)


def attended_by_scores(layer: nn.Module, graph: Graph, x: Tensor, first: Tensor, second: Tensor, *how: Any) -> Tensor:
    """Attention of nodes to each other by scores that are dot products of their features (N, H, D) with `first` and `second` (H, D)."""
    quantizer = quantizer_of(layer)
    if quantizer is None:
        return scored_attention(graph, x, first, second, *how)
    return quantizer.attention(graph, x, *quantizer.scores(x, first, second), *how)


def attended_by_cosines(layer: nn.Module, graph: Graph, x: Tensor, beta: Tensor) -> Tensor:
    """:func:`bitsparse.torch.cosine_attention` in a layer."""
    quantizer = quantizer_of(layer)
    if quantizer is None:
        return cosine_attention(graph, x, beta)
    return quantizer.attending(cosine_attention(graph, quantizer.attended(x), beta))
