"""How the layers of a network multiply and sum: in floats, or in integers if somebody gave them a quantizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bitsparse.torch import bias
from bitsparse.torch.attention_kinds import attention, cosine_attention, scored_attention
from bitsparse.torch.graph import Graph
from bitsparse.torch.sums import spmm, spmm_with_bias

#: Under which name a module has one, beside its parameters.
_NAME = "_quantizer"


class Floats:
    """What multiplies and sums in a layer: in floats, unless a class derived of it does otherwise."""

    def linear(self, x: Tensor, weight: Tensor, behind: Tensor | None = None) -> Tensor:
        """``x @ weight.T``, plus the bias that stands `behind` it."""
        return bias.linear(x, weight, behind)

    def added(self, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """``out + x @ weight.T``; `out` is nobody else's, and its memory may be taken."""
        return bias.added(out, x, weight)

    def spmm(self, graph: Graph, x: Tensor, reduce: str, behind: Tensor | None = None) -> Tensor:
        """As :func:`bitsparse.torch.spmm`, plus the bias that stands `behind` it."""
        if behind is None:
            return spmm(graph, x, reduce=reduce)
        together = spmm_with_bias(graph, x, behind, reduce)
        return bias.biased(spmm(graph, x, reduce=reduce), behind, owned=True) if together is None else together

    def spmm_and_own(
        self, graph: Graph, x: Tensor, own: Tensor, factor: Tensor, behind: Tensor | None = None
    ) -> Tensor:
        """Sums over neighbours, plus `factor` times what the targets have themselves, and a bias."""
        made = self.spmm(graph, x, "sum") + factor * own
        return made if behind is None else bias.biased(made, behind)

    def attention(
        self, graph: Graph, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """As :func:`bitsparse.torch.attention`, of features (N, H, D)."""
        return attention(graph, x, source, target, slope, dropout)

    def scored_attention(
        self, graph: Graph, x: Tensor, first: Tensor, second: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """Attention of nodes to each other by scores that are dot products of their features (N, H, D) with two vectors (H, D)."""
        return scored_attention(graph, x, first, second, slope, dropout)

    def cosine_attention(self, graph: Graph, x: Tensor, beta: Tensor) -> Tensor:
        """As :func:`bitsparse.torch.cosine_attention`."""
        return cosine_attention(graph, x, beta)


FLOATS = Floats()


def quantizer_of(layer: nn.Module) -> Floats:
    """What a module multiplies and sums with: :data:`FLOATS`, if nobody gave it a quantizer."""
    found: Floats = vars(layer).get(_NAME, FLOATS)
    return found


def set_quantizer(layer: nn.Module, quantizer: Floats) -> None:
    """Give a module a quantizer, which is no part of its state."""
    vars(layer)[_NAME] = quantizer


def remove_quantizer(layer: nn.Module) -> None:
    """Let a module multiply and sum in floats again."""
    vars(layer).pop(_NAME, None)


def linear_forward(module: Any, x: Tensor) -> Tensor:
    """What takes the place of a linear module's own `forward` while it has a quantizer."""
    return quantizer_of(module).linear(x, module.weight, module.bias)


def added(out: Tensor, x: Tensor, layer: Any) -> Tensor:
    """``out`` plus what a linear layer makes of features; `out` is nobody else's, and its memory may be taken."""
    if not is_bypassable(layer) or layer.bias is not None:
        return out + bias.through(x, layer)
    return quantizer_of(layer).added(out, x, layer.weight)


def is_bypassable(module: nn.Module) -> bool:
    """Whether a module does nothing but multiply, as a linear layer or its quantizer does: no hooks, no `forward` of somebody else."""
    quantized = getattr(vars(module).get("forward"), "func", None) is linear_forward
    return not bias.has_hooks(module) if quantized else not bias.is_watched(module)
