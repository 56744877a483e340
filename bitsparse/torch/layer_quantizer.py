"""The products, sums and attention of one layer that trains in integers of a few bits."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch._C import _current_graph_task_id

from bitsparse.errors import DTypeError
from bitsparse.ops.quantized.attention import Settings
from bitsparse.torch import coded, coded_attention, coded_signs
from bitsparse.torch.attention_kinds import once_each
from bitsparse.torch.bias import biased
from bitsparse.torch.code_source import CodeSource
from bitsparse.torch.dense import Rows
from bitsparse.torch.graph import Graph
from bitsparse.torch.kept import exact_linear, kept_codes
from bitsparse.torch.quantization import PRODUCT_BITS, Quantization
from bitsparse.torch.quantizer import Floats
from bitsparse.torch.signs import Norm

#: The dtypes of what can be quantised.
_CODED = (torch.float32, torch.float16, torch.bfloat16)


def _joins(bias: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Whether the product's kernel may add a bias: float32, one per output column, and on the device of float32 features."""
    alike = bias.shape == weight.shape[:1] and bias.device == x.device
    return alike and bias.dtype == x.dtype == torch.float32


class LayerQuantizer(Floats):
    """Products and sums of one layer in integers; either may stay in floats. The network's layers have different numbers."""

    def __init__(self, state: Quantization, products: bool, sums: bool, number: int | None = None) -> None:
        self._state, self._products, self._sums, self._number = state, products, sums, number

    def _source(self, x: Tensor) -> CodeSource:
        state = self._state
        if state.training and state.config.rounding == "stochastic" and _current_graph_task_id() >= 0:
            raise RuntimeError(
                "quantize_: a layer is computed again on the way back, as torch.utils.checkpoint does, but stochastic rounding would not "
                "draw the same again; pass Tango(rounding='nearest'), or leave the layer, which keeps codes alone, out of the checkpoint"
            )
        return CodeSource(state, not x.requires_grad, self._number)

    def _grid(self, x: Tensor) -> coded.Grid:
        """How gathered features are rounded."""
        bits = self._state.bits or 8
        return coded.Grid(bits, "tensor" if bits == 8 else "node", self._source(x))

    @property
    def multiplies_floats(self) -> bool:
        """Whether products are computed in floats."""
        return not self._products or self._state.bits is None

    @property
    def sums_floats(self) -> bool:
        """Whether sums are computed in floats."""
        return not self._sums or self._state.bits is None

    @property
    def fuses(self) -> bool:
        """Whether relu may be part of products and sums."""
        return False

    def linear(
        self, x: Tensor, weight: Tensor, behind: Tensor | None = None, rows: Rows | None = None, relu: bool = False
    ) -> Tensor:
        """``x @ weight.T``, plus the bias `behind` if there is one, and relu; a product in floats may lie in `rows`."""
        products = not self.multiplies_floats
        if relu:  # an activation of its own, which modes of PyTorch see
            return self.linear(x, weight, behind).relu()
        if behind is not None and not (products and x.ndim == 2 and _joins(behind, x, weight)):
            return biased(self.linear(x, weight), behind)
        if not products:
            keep = self._keep(x) if x.ndim == 2 and x.requires_grad else None
            return super().linear(x, weight, rows=rows) if keep is None else exact_linear(x, weight, keep, rows)
        flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        keep = self._keep(flat, PRODUCT_BITS)
        made = coded.linear(flat, weight, PRODUCT_BITS, self._source(x), behind, keep=keep).to(x.dtype)
        return made if x.ndim == 2 else made.reshape(*x.shape[:-1], weight.shape[0])

    def added(self, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """``out + x @ weight.T``; an integer product is added in the memory of `out`."""
        if self.multiplies_floats:
            exact = self._state.config.activations is None
            return super().added(out, x, weight) if exact else out + self.linear(x, weight)
        alike = x.ndim == 2 and out.shape == (len(x), len(weight)) and out.device == x.device
        if not (alike and out.dtype == x.dtype == torch.float32 and out.is_contiguous()):
            return out + self.linear(x, weight)
        keep = self._keep(x, PRODUCT_BITS)
        return coded.linear(x, weight, PRODUCT_BITS, self._source(x), None, out, keep)

    def signs(self, x: Tensor, weight: Tensor, behind: Tensor, rate: float, norm: Norm | None) -> Tensor:
        """A product of signs, of which a share `rate` is dropped by draws of the shared state; its gradients are products of integers."""
        if self.multiplies_floats:
            return super().signs(x, weight, behind, rate, norm)
        if x.dtype not in _CODED:
            raise DTypeError(
                f"SignLinear: x is {x.dtype}, but quantize_ needs float32, float16 or bfloat16; pass x.float(), or call unquantize_"
            )
        source = self._source(x)
        if rate and _current_graph_task_id() >= 0:
            raise RuntimeError(
                "SignLinear: a layer is computed again on the way back, as torch.utils.checkpoint does, but would not drop the same signs "
                "again; pass dropout=0, or leave the layer, which keeps bits alone, out of the checkpoint"
            )
        if norm is not None and x.requires_grad:
            x, norm = norm.of(x), None
        return coded_signs.product(x, weight, behind, rate, norm, PRODUCT_BITS, source)

    def signs_of_sums(self, graph: Graph, x: Tensor) -> Tensor:
        """The signs of sums over neighbours of signs, counted on bits; the gradient is a mean of codes."""
        weighted = graph.weight is not None or graph.multiplicity is not None
        if self.sums_floats or weighted or x.dtype != torch.float32:
            return super().signs_of_sums(graph, x)
        return coded_signs.signs_of_sums(x, graph.pattern(), graph.factors(True, torch.float32), self._grid(x))

    def spmm(self, graph: Graph, x: Tensor, reduce: str, behind: Tensor | None = None, relu: bool = False) -> Tensor:
        """Sums, means or extrema over neighbours, plus the bias `behind` if there is one, and relu."""
        if self.sums_floats or reduce in ("max", "min"):
            made = super().spmm(graph, x, reduce, behind)
        else:
            made = self._summed(graph, x, reduce, None, behind)
        return made.relu() if relu else made

    def spmm_and_own(
        self,
        graph: Graph,
        x: Tensor,
        own: Tensor,
        factor: Tensor,
        behind: Tensor | None = None,
        relu: bool = False,
    ) -> Tensor:
        """Sums over neighbours plus `factor` times the targets' own features, in one pass if `own` is `x`; plus a bias, and relu."""
        alone = own is x and x.ndim == 2 and x.dtype == factor.dtype == torch.float32
        if self.sums_floats or not alone or factor.requires_grad:
            made = super().spmm_and_own(graph, x, own, factor, behind)
        else:
            made = self._summed(graph, x, "sum", factor, behind)
        return made.relu() if relu else made

    def _summed(self, graph: Graph, x: Tensor, reduce: str, own: Tensor | None, behind: Tensor | None = None) -> Tensor:
        if behind is not None and not (x.ndim == 2 and x.dtype == behind.dtype == torch.float32):
            return biased(self._summed(graph, x, reduce, own), behind)
        weight = graph.multiplicity if graph.weight is None else graph.weight
        values = None if weight is None else self._state.edge_values(graph, weight)
        factors = graph.factors(reduce == "mean", torch.float32)
        return coded.spmm(x, graph.pattern(), factors, self._grid(x), values, own, behind).to(x.dtype)

    def attention(
        self, graph: Graph, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """Attention to neighbours by scores of both ends."""
        grid, keep = None if self.sums_floats else self._grid(x), self._keep(x)
        if grid is None and keep is None:
            return super().attention(graph, x, source, target, slope, dropout)
        how = self._settings(graph, x, slope, dropout)
        return coded_attention.attention(x, (source, target), graph.pattern(), how, grid, keep).to(x.dtype)

    def scored_attention(
        self,
        graph: Graph,
        x: Tensor,
        vectors: tuple[Tensor, Tensor],
        slope: float,
        dropout: float,
        behind: Tensor | None = None,
    ) -> Tensor:
        """Attention whose scores are dot products of the heads' features with two vectors, plus a bias."""
        grid, keep = None if self.sums_floats else self._grid(x), self._keep(x)
        if grid is None and keep is None:
            return super().scored_attention(graph, x, vectors, slope, dropout, behind)
        how = self._settings(graph, x, slope, dropout)
        made = coded_attention.scored_attention(x, *vectors, graph.pattern(), how, grid, keep).to(x.dtype)
        return made if behind is None else biased(made.flatten(1), behind).view(x.shape)

    def _keep(self, x: Tensor, at_hand: int | None = None) -> coded.Keep | None:
        """A function that keeps float32 matrices in few bits for the gradients of a layer with input `x`.

        None if the matrices are kept as they are, or if codes of `at_hand` bits exist anyway and are no wider.
        """
        bits = self._state.config.activations
        if bits is None or (at_hand is not None and bits >= at_hand):
            return None
        if not (self._state.training and torch.is_grad_enabled() and x.dtype == torch.float32):
            return None
        source = CodeSource(self._state, False)
        return functools.partial(kept_codes, bits=bits, source=source)

    @staticmethod
    def _settings(graph: Graph, x: Tensor, slope: float, dropout: float) -> Settings:
        """The slope and the dropout of a call, with the seed that decides which weights are dropped."""
        once_each("attention", graph)
        return Settings(slope, dropout, torch.randint(2**62, (1,), device=x.device) if dropout else None)

    def cosine_attention(self, graph: Graph, x: Tensor, beta: Tensor) -> Tensor:
        """Attention by cosines over the values that the codes of features, and of the gradient of its sums, stand for."""
        if self.sums_floats:
            return super().cosine_attention(graph, x, beta)
        y = super().cosine_attention(graph, coded.on_grid(x, self._grid(x)), beta)
        return coded.gradient_on_grid(y, self._grid(y))
