"""Sums over neighbours of products with weights: the products are written as the rows that the sums gather, so nothing is copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.ops.spmm.laid import LaidSums, laid_sums
from bitsparse.torch.coded import Factors, Keep
from bitsparse.torch.dense import is_alone, product, product_over_rows
from bitsparse.torch.graph import Graph
from bitsparse.torch.operators import column_sums, on_cupy, permitted, spmm
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import is_plain, on_gpu, once, taken

#: Products with fewer elements are copied in next to no time.
_FEWEST = 1 << 22


def _compute(
    x: Tensor, weight: Tensor, bias: Tensor | None, pattern: Pattern, factors: Factors, laid: LaidSums
) -> Tensor:
    columns = weight.shape[0]
    rows = x.new_empty((x.shape[0], laid.columns))
    torch.mm(x, weight.t(), out=rows[:, :columns])
    if laid.scaled and factors[1] is not None:
        rows.mul_(factors[1][:, None])
    out = x.new_empty((pattern.rows, columns))
    on_cupy(laid, rows, out, None if bias is None else bias.contiguous())
    return out


_compute_on_gpu = on_gpu(_compute)


class _ProductSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        ctx.pattern, ctx.factors, _ = how
        ctx.save_for_backward(x, weight)
        made: Tensor = _compute_on_gpu(x, weight, bias, *how)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_product, by_bias = _through_sums(ctx, gradient)
        by_weight = product_over_rows(by_product, x) if ctx.needs_input_grad[1] else None
        return (
            product(by_product, weight.t()) if ctx.needs_input_grad[0] else None,
            by_weight,
            by_bias,
            None,
            None,
            None,
        )


class _KeptProductSums(torch.autograd.Function):
    """The same, which keeps its input in few bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, keep: Keep, *how: Any) -> Tensor:
        ctx.pattern, ctx.factors, _ = how
        ctx.kept = keep(x)
        ctx.save_for_backward(weight)
        made: Tensor = _compute_on_gpu(x, weight, bias, *how)
        return made

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,), kept = ctx.saved_tensors, taken(ctx, "kept")
        by_product, by_bias = _through_sums(ctx, gradient)
        by_weight = kept.over_rows(by_product) if ctx.needs_input_grad[1] else None
        del kept  # whose memory is free before the larger gradient takes some
        by_x = product(by_product, weight.t()) if ctx.needs_input_grad[0] else None
        return by_x, by_weight, by_bias, None, None, None, None


def _through_sums(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    """The gradients by the product and by the bias."""
    (rows, columns), by_bias = ctx.factors, column_sums(gradient) if ctx.needs_input_grad[2] else None
    return spmm(ctx.pattern.turned, None, columns, rows, gradient), by_bias


def product_sums(
    graph: Graph, x: Tensor, weight: Tensor, reduce: str, bias: Tensor | None, keep: Keep | None = None
) -> Tensor | None:
    """Sums or means over neighbours of ``x @ weight.T``, plus a bias; None where the kernel of the sums would not copy the product.

    The product of a large float32 matrix on a GPU lies once in memory: in rows of whole vectors, multiplied by the factors of the graph's
    columns, and only until the sums are enqueued. Sums have the bits that they have otherwise. With `keep`, the gradient by the weight
    uses what `keep` stores of `x`.
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
    laid = _laid_sums(pattern, factors, weight.shape[0], bias is not None)
    if laid is None:
        return None
    made: Tensor
    if keep is None:
        made = _ProductSums.apply(x, weight, bias, pattern, factors, laid)
    else:
        made = _KeptProductSums.apply(x, weight, bias, keep, pattern, factors, laid)
    return made


@on_gpu
def _laid_sums(pattern: Pattern, factors: Factors, columns: int, biased: bool) -> LaidSums | None:
    """The prepared sums; what is prepared anew is made on PyTorch's stream."""
    array, of_torch = array_over(pattern, *factors), pattern.indptr
    found: LaidSums | None = on_cupy(lambda _: laid_sums(array, columns, biased), of_torch)
    return found
