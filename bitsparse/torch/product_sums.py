"""Sums over neighbours of products with weights: the products are written as the rows that the sums gather, so nothing is copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.backends.after_sums import AfterSums
from bitsparse.ops.spmm.laid import LaidSums, laid_sums
from bitsparse.torch.coded import Factors
from bitsparse.torch.dense import (
    Rows,
    Second,
    clipped,
    product,
    product_and_sums,
    product_in_rows,
    product_over_rows,
)
from bitsparse.torch.graph import Graph
from bitsparse.torch.layer_sums import call_with, can_sum
from bitsparse.torch.operators import column_sums, on_cupy, permitted, spmm
from bitsparse.torch.pattern import Pattern, array_over, sums_kernel
from bitsparse.torch.registration import on_gpu

#: Products with fewer elements are copied in next to no time.
_FEWEST = 1 << 22


def _compute(products: Tensor, pattern: Pattern, laid: LaidSums, after: AfterSums) -> Tensor:
    rows = products.as_strided((products.shape[0], laid.columns), (products.stride(0), 1))
    out = products.new_empty((pattern.rows, products.shape[1]))
    call_with(laid, rows, out, after)
    return out


_compute_on_gpu = on_gpu(_compute)


class _ProductSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Tensor, bias: Tensor | None, relu: bool, *how: Any) -> Tensor:
        ctx.pattern, ctx.factors, laid = how
        made: Tensor = _compute_on_gpu(products, ctx.pattern, laid, AfterSums(bias, relu=relu))
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns = ctx.factors
        needs_product, needs_bias = ctx.needs_input_grad[:2]
        by_bias = column_sums(gradient) if needs_bias else None
        by_product = spmm(ctx.pattern.turned, None, columns, rows, gradient, True) if needs_product else None
        return by_product, by_bias, *(None,) * 4


class ProductSums:
    """Sums ``sums(products, bias)`` over neighbours of products that the caller gives up, which lie in `rows`.

    The gradients are functions of their own for the product and for the sums, so that each lets go of its memory as soon as it can. The
    product's rows are multiplied by their scales on the way to memory; the gradient of the sums takes these into account.
    """

    def __init__(self, pattern: Pattern, factors: Factors, laid: LaidSums) -> None:
        self._how, self.rows = (pattern, factors, laid), Rows(laid.columns, factors[1] if laid.scaled else None)

    def __call__(self, products: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
        """The sums, plus a bias if given, and through relu if asked for."""
        made: Tensor = _ProductSums.apply(products, bias, relu, *self._how)
        return clipped(made) if relu else made


def product_sums(
    graph: Graph, x: Tensor, weight: Tensor, reduce: str, bias: Tensor | None = None
) -> ProductSums | None:
    """Sums or means over neighbours of ``x @ weight.T``, plus a bias; None where the kernel of the sums would not copy the product.

    The product of a large float32 matrix on a GPU lies once in memory: in rows of whole vectors, multiplied by the factors of the graph's
    columns, and only until the sums are enqueued. Sums have the bits that they have otherwise.
    """
    found = _prepared(graph, x, weight, reduce, bias, False)
    return None if found is None else ProductSums(*found)


def _prepared(
    graph: Graph, x: Tensor, weight: Tensor, reduce: str, bias: Tensor | None, always: bool
) -> tuple[Pattern, Factors, LaidSums] | None:
    """The pattern, its factors and the sums of a product; with `always`, also where the kernel of the sums would not copy it."""
    if x.ndim != 2 or x.dtype != torch.float32 or x.shape[0] * weight.shape[0] < _FEWEST:
        return None
    if not can_sum(graph, x, reduce, weight, *(() if bias is None else (bias,))) or permitted(x.dtype) != "fp32":
        return None
    fits = x.shape == (graph.num_sources, weight.shape[1]) and (bias is None or bias.shape == weight.shape[:1])
    if not fits:
        return None
    pattern, factors = graph.pattern(), graph.factors(reduce == "mean", x.dtype)
    laid = _laid_sums(pattern, factors, weight.shape[0], sums_kernel(pattern, x), always)
    return None if laid is None else (pattern, factors, laid)


@on_gpu
def _laid_sums(pattern: Pattern, factors: Factors, columns: int, kernel: str | None, always: bool) -> LaidSums | None:
    """The prepared sums; what is prepared anew is made on PyTorch's stream."""
    array, of_torch = array_over(pattern, *factors), pattern.indptr
    found: LaidSums | None = on_cupy(lambda _: laid_sums(array, columns, True, kernel, always), of_torch)
    return found


class _SumsAndOwn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, own_weight: Tensor, bias: Tensor | None, relu: bool, *how: Any
    ) -> Tensor:
        ctx.pattern, ctx.factors, laid = how
        columns, start = (
            len(weight),
            -(-laid.columns // 4) * 4,
        )  # rows begin at multiples of 16 bytes, and so do both parts of them
        both = x.new_zeros((start + columns, x.shape[1]))
        both[:columns], both[start:] = weight, own_weight
        products = product_in_rows(x, both, Rows(start + -(-columns // 4) * 4))
        after = AfterSums(bias, products[:, start:], relu=relu)
        made: Tensor = _compute_on_gpu(products[:, :columns], ctx.pattern, laid, after)
        ctx.save_for_backward(x, weight, own_weight)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, own_weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        rows, columns = ctx.factors
        by_x = by_weight = by_own = by_bias = None
        if needs[2] and needs[3]:
            by_own, by_bias = product_and_sums(gradient, x)
        else:
            by_own = product_over_rows(gradient, x) if needs[2] else None
            by_bias = column_sums(gradient) if needs[3] else None
        if needs[0] or needs[1]:
            by_product = spmm(ctx.pattern.turned, None, columns, rows, gradient, True)
            by_weight = product_over_rows(by_product, x) if needs[1] else None
            if needs[0]:
                by_x = product(by_product, weight.t(), second=Second(gradient, own_weight.t()))
        return by_x, by_weight, by_own, by_bias, *(None,) * 4


def product_sums_and_own(
    graph: Graph, x: Tensor, weight: Tensor, own_weight: Tensor, reduce: str, bias: Tensor | None, relu: bool
) -> Tensor | None:
    """Sums over neighbours of ``x @ weight.T``, plus ``x @ own_weight.T``, plus a bias, and through relu if asked for.

    Both products are one, and the nodes' own is added where the sums are finished. None for small products and for what kernels cannot do.
    """
    if own_weight.shape != weight.shape or not can_sum(graph, x, reduce, weight, own_weight):
        return None
    found = _prepared(graph, x, weight, reduce, bias, True)
    if found is None or (found[2].scaled and found[1][1] is not None) or graph.num_targets != x.shape[0]:
        return None
    made: Tensor = _SumsAndOwn.apply(x, weight, own_weight, bias, relu, *found)
    return clipped(made) if relu else made
