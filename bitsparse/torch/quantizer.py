"""The arithmetic of a network's layers: they multiply and sum in floats, or in integers if they were given a quantizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bitsparse.backends.after_sums import AfterSums
from bitsparse.torch import bias, signs
from bitsparse.torch.attention_kinds import attention, cosine_attention, scored_attention
from bitsparse.torch.biased_attention import scored_attention_with_bias
from bitsparse.torch.dense import Rows, Second
from bitsparse.torch.graph import Graph
from bitsparse.torch.layer_sums import sums_and_more
from bitsparse.torch.product_sums import product_sums, product_sums_and_own
from bitsparse.torch.sums import spmm

#: The attribute of a module that holds its quantizer.
_NAME = "_quantizer"


class Floats:
    """The products, sums and attention of a layer in floats; derived classes may compute in integers."""

    @property
    def multiplies_floats(self) -> bool:
        """Whether products are computed in floats."""
        return True

    @property
    def sums_floats(self) -> bool:
        """Whether sums are computed in floats."""
        return True

    @property
    def fuses(self) -> bool:
        """Whether relu may be part of products and sums; else it is called as a function of PyTorch, so that modes see it."""
        return True

    def linear(
        self, x: Tensor, weight: Tensor, behind: Tensor | None = None, rows: Rows | None = None, relu: bool = False
    ) -> Tensor:
        """``x @ weight.T``, plus the bias `behind` if there is one, and through relu if asked for; or a product that lies in `rows`."""
        return bias.linear(x, weight, behind, rows, relu)

    def added(self, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """``out + x @ weight.T``; the caller gives up `out`, so its memory may be overwritten."""
        return bias.added(out, x, weight)

    def signs(self, x: Tensor, weight: Tensor, behind: Tensor, rate: float, norm: signs.Norm | None) -> Tensor:
        """:func:`bitsparse.torch.signs.product`."""
        return signs.product(x, weight, behind, rate, norm)

    def signs_of_sums(self, graph: Graph, x: Tensor) -> Tensor:
        """The signs of sums over neighbours of signs, as -1 and 1; the gradient is that of the mean, and passes as that of a sign does."""
        return signs.sign(self.spmm(graph, signs.sign(x), "mean"))

    def spmm(self, graph: Graph, x: Tensor, reduce: str, behind: Tensor | None = None, relu: bool = False) -> Tensor:
        """:func:`bitsparse.torch.spmm`, plus the bias `behind` if there is one, and through relu if asked for."""
        together = sums_and_more(graph, x, reduce, AfterSums(behind, relu=relu))
        return _behind(spmm(graph, x, reduce=reduce), behind, relu) if together is None else together

    def spmm_of_product(
        self, graph: Graph, x: Tensor, layer: Any, reduce: str, behind: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        """:meth:`spmm` of the product of `x` with the weight of a linear layer, which is bypassable."""
        of_layer, sums = quantizer_of(layer), None
        if self.sums_floats and of_layer.multiplies_floats and x.is_cuda:
            sums = product_sums(graph, x, layer.weight, reduce, behind)
        if sums is None:
            return self.spmm(graph, of_layer.linear(x, layer.weight), reduce, behind, relu)
        products = of_layer.linear(x, layer.weight, rows=sums.rows)
        return sums(products, behind, relu) if self.fuses else _behind(sums(products, behind), None, relu)

    def spmm_and_own(
        self,
        graph: Graph,
        x: Tensor,
        own: Tensor,
        factor: Tensor,
        behind: Tensor | None = None,
        relu: bool = False,
    ) -> Tensor:
        """Sums over neighbours plus `factor` times the targets' own features, plus a bias, and through relu if asked for."""
        together = sums_and_more(graph, x, "sum", AfterSums(behind, own, factor, relu))
        if together is not None:
            return together
        made = self.spmm(graph, x, "sum", behind)
        alike = made.dtype == own.dtype == factor.dtype
        return _behind(torch.addcmul(made, own, factor) if alike else made + factor * own, None, relu)

    def attention(
        self, graph: Graph, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """:func:`bitsparse.torch.attention` for features (N, H, D)."""
        return attention(graph, x, source, target, slope, dropout)

    def scored_attention(
        self,
        graph: Graph,
        x: Tensor,
        vectors: tuple[Tensor, Tensor],
        slope: float,
        dropout: float,
        behind: Tensor | None = None,
    ) -> Tensor:
        """Attention (N, H, D) whose scores are dot products of the nodes' features with two vectors (H, D), plus a bias (H * D,)."""
        if behind is None:
            return scored_attention(graph, x, *vectors, slope, dropout)
        together = scored_attention_with_bias(graph, x, *vectors, behind, slope, dropout)
        if together is not None:
            return together
        return bias.biased(scored_attention(graph, x, *vectors, slope, dropout).flatten(1), behind).view(x.shape)

    def cosine_attention(self, graph: Graph, x: Tensor, beta: Tensor) -> Tensor:
        """:func:`bitsparse.torch.cosine_attention`."""
        return cosine_attention(graph, x, beta)


def _behind(made: Tensor, behind: Tensor | None, relu: bool) -> Tensor:
    """Add a bias to sums that nobody else has, and apply relu if asked for."""
    made = made if behind is None else bias.biased(made, behind, owned=True)
    return made.relu() if relu else made


FLOATS = Floats()


def quantizer_of(layer: nn.Module) -> Floats:
    """The quantizer of a module, or :data:`FLOATS` if it has none."""
    found: Floats = vars(layer).get(_NAME, FLOATS)
    return found


def set_quantizer(layer: nn.Module, quantizer: Floats) -> None:
    """Give a module a quantizer, which does not become part of its state."""
    vars(layer)[_NAME] = quantizer


def remove_quantizer(layer: nn.Module) -> None:
    """Let a module multiply and sum in floats again."""
    vars(layer).pop(_NAME, None)


def linear_forward(module: Any, x: Tensor) -> Tensor:
    """The `forward` of a linear module while it has a quantizer."""
    return quantizer_of(module).linear(x, module.weight, module.bias)


def added(out: Tensor, x: Tensor, layer: Any) -> Tensor:
    """``out + layer(x)`` for a linear layer; the caller gives up `out`, so its memory may be overwritten."""
    if not is_bypassable(layer) or layer.bias is not None:
        return out + bias.through(x, layer)
    return quantizer_of(layer).added(out, x, layer.weight)


def linear_and_own(x: Tensor, layer: Any, own: Tensor, own_layer: Any, relu: bool) -> Tensor:
    """``layer(x) + own_layer(own)`` of two linear layers, of which only the first has a bias, and through relu if asked for."""
    if _make_one(layer, own_layer):
        return bias.linear_of_two(x, layer.weight, Second(own, own_layer.weight), layer.bias, relu)
    made = bias.through(x, layer)
    made = added(made, own, own_layer) if is_bypassable(layer) else made + bias.through(own, own_layer)
    return made.relu() if relu else made


def sums_and_own(
    quantizer: Floats, graph: Graph, x: Tensor, layer: Any, own: Tensor, own_layer: Any, reduce: str, relu: bool
) -> Tensor:
    """:func:`linear_and_own` of sums over neighbours, for a bypassable layer whose product comes before the sums."""
    if own is x and quantizer is FLOATS and _make_one(layer, own_layer):
        made = product_sums_and_own(graph, x, layer.weight, own_layer.weight, reduce, layer.bias, relu)
        if made is not None:
            return made
    made = added(quantizer.spmm_of_product(graph, x, layer, reduce, layer.bias), own, own_layer)
    return made.relu() if relu else made


def _make_one(layer: Any, own_layer: Any) -> bool:
    """Whether one product may compute both linear layers: they are bypassable, compute in floats, and only the first has a bias."""
    plain = all(is_bypassable(one) and quantizer_of(one) is FLOATS for one in (layer, own_layer))
    return plain and own_layer.bias is None


def is_bypassable(module: nn.Module) -> bool:
    """Whether calling a linear layer only multiplies, so that the call may be skipped: it has no hooks and no foreign `forward`."""
    quantized = getattr(vars(module).get("forward"), "func", None) is linear_forward
    return not bias.has_hooks(module) if quantized else not bias.is_watched(module)
