"""Sums over neighbours of products with weights: the products are written as the rows that the sums gather, so nothing is copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.backends.after_sums import AfterSums
from bitsparse.ops.spmm.laid import LaidSums, laid_sums
from bitsparse.torch.coded import Factors
from bitsparse.torch.dense import is_alone
from bitsparse.torch.graph import Graph
from bitsparse.torch.operators import column_sums, on_cupy, permitted, spmm
from bitsparse.torch.pattern import Pattern, array_over, sums_kernel
from bitsparse.torch.registration import is_plain, on_gpu

#: Products with fewer elements are copied in next to no time.
_FEWEST = 1 << 22


def _compute(products: Tensor, bias: Tensor | None, pattern: Pattern, factors: Factors, laid: LaidSums) -> Tensor:
    rows = products.as_strided((products.shape[0], laid.columns), (laid.columns, 1))
    if laid.scaled and factors[1] is not None:
        rows.mul_(factors[1][:, None])
    out = products.new_empty((pattern.rows, products.shape[1]))

    def call(features: Any, into: Any, behind: Any = None) -> None:
        laid(features, into, AfterSums(behind))

    on_cupy(call, rows, out, None if bias is None else bias.contiguous())
    return out


_compute_on_gpu = on_gpu(_compute)


class _ProductSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        ctx.pattern, ctx.factors, _ = how
        made: Tensor = _compute_on_gpu(products, bias, *how)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns = ctx.factors
        needs_product, needs_bias = ctx.needs_input_grad[:2]
        by_bias = column_sums(gradient) if needs_bias else None
        by_product = spmm(ctx.pattern.turned, None, columns, rows, gradient) if needs_product else None
        return by_product, by_bias, None, None, None


class ProductSums:
    """Sums ``sums(products, bias)`` over neighbours of products that the caller gives up, in rows of `width` elements.

    The gradients are functions of their own for the product and for the sums, so that each lets go of its memory as soon as it can.
    """

    def __init__(self, pattern: Pattern, factors: Factors, laid: LaidSums) -> None:
        self._how, self.width = (pattern, factors, laid), laid.columns

    def __call__(self, products: Tensor, bias: Tensor | None) -> Tensor:
        """The sums, plus the bias for which they were prepared; `products` may be overwritten."""
        made: Tensor = _ProductSums.apply(products, bias, *self._how)
        return made


def product_sums(
    graph: Graph, x: Tensor, weight: Tensor, reduce: str, bias: Tensor | None = None
) -> ProductSums | None:
    """Sums or means over neighbours of ``x @ weight.T``, plus a bias; None where the kernel of the sums would not copy the product.

    The product of a large float32 matrix on a GPU lies once in memory: in rows of whole vectors, multiplied by the factors of the graph's
    columns, and only until the sums are enqueued. Sums have the bits that they have otherwise.
    """
    if not (x.is_cuda and is_alone(x) and x.shape[0] * weight.shape[0] >= _FEWEST):
        return None
    given = (x, weight) if bias is None else (x, weight, bias)
    if any(part.dtype != torch.float32 or part.device != x.device for part in given) or not is_plain(*given):
        return None
    if reduce not in ("sum", "mean") or not (graph.weight is None and graph.multiplicity is None):
        return None
    fits = x.shape == (graph.num_sources, weight.shape[1]) and (bias is None or bias.shape == weight.shape[:1])
    if not fits or permitted(x.dtype) != "fp32" or graph.indptr.device != x.device:
        return None
    pattern, factors = graph.pattern(), graph.factors(reduce == "mean", x.dtype)
    kernel = sums_kernel(pattern, x)
    laid = _laid_sums(pattern, factors, weight.shape[0], bias is not None, kernel)
    return None if laid is None else ProductSums(pattern, factors, laid)


@on_gpu
def _laid_sums(pattern: Pattern, factors: Factors, columns: int, biased: bool, kernel: str | None) -> LaidSums | None:
    """The prepared sums; what is prepared anew is made on PyTorch's stream."""
    array, of_torch = array_over(pattern, *factors), pattern.indptr
    found: LaidSums | None = on_cupy(lambda _: laid_sums(array, columns, biased, kernel), of_torch)
    return found
