"""Products of the signs of features with the signs of weights whose gradients are products of integers, too."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from bitsparse import interop, ops
from bitsparse.arrays.inside import with_scale
from bitsparse.backends.signs import Drop
from bitsparse.ops.binary.signs import SignRows, codes_of_signs
from bitsparse.ops.quantized.vjp import product_of_codes, product_over_rows
from bitsparse.torch.coded import LASTING, Factors, Grid, Source, array_of, sum_over_nodes, summed, tensor_of, working
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import once
from bitsparse.torch.signs import Norm, Weights, packed, signs_of

_NAME = "SignLinear"


class SignSource(Source, Protocol):
    """A source of codes that also draws which signs are dropped, and remembers signs of tensors that do not change."""

    def drop(self, x: Tensor, rate: float) -> Drop:
        """Which signs of a matrix to drop, a share `rate` of them, drawn anew at every call."""

    def signs(self, x: Tensor, norm: Norm | None) -> SignRows | None:
        """The signs that a matrix has already, or None."""

    def keep_signs(self, x: Tensor, norm: Norm | None, made: SignRows) -> None:
        """Remember the signs of a matrix, none of which is dropped."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor, rate: float, norm: Norm | None, bits: int, source: SignSource
    ) -> Tensor:
        by_x = ctx.needs_input_grad[0]
        drop = source.drop(x, rate) if rate else None
        rows = None if rate else source.signs(x, norm)
        with working(x.float()) as array:
            if rows is None:
                folded = None if norm is None else tuple(map(array_of, norm.folded()))
                rows = SignRows.of(array, interop.TORCH, folded, drop, passes=by_x)
                if not rate:
                    source.keep_signs(x, norm, rows)
            of_weights = packed(signs_of(w), 1, encoding="bipolar", axis=-2)
            right = with_scale(of_weights, array_of(w.float().abs().mean(dim=0))[None, :])
            made = tensor_of(product_of_codes(_NAME, rows.signs, right, array_of(bias.float())))
        # The signs of data, which need no gradient, stay from one step to the next if none is dropped.
        setattr(ctx, "signs" if rate or by_x else LASTING, rows.signs)
        ctx.passes, ctx.gain = rows.passes, 1.0 if drop is None else 1 / drop.share
        ctx.bits, ctx.source = bits, source
        ctx.save_for_backward(w)
        ctx.dtypes = x.dtype, bias.dtype
        return made.to(x.dtype)

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_weight, by_bias = ctx.needs_input_grad[:3]
        (w,) = ctx.saved_tensors
        weights, g = Weights.of(w.float()), gradient.float()
        dx = dw = None
        # What varies along the axis that a product sums over is multiplied with the gradient before that is rounded: the rows' magnitudes
        # for the weights, the outputs' for the features. All other scales are applied to the sums.
        if by_weight:
            found = getattr(ctx, LASTING, None)
            signs = ctx.signs if found is None else found
            # Handed over on another stream, the scales would make streams wait for each other, which no capture allows.
            with working(g):
                magnitudes = tensor_of(signs.scale.reshape(-1))
            codes = ctx.source.codes(g, ctx.bits, factors=magnitudes).codes
            with working(g):
                dw = weights.gradient(tensor_of(product_over_rows(_NAME, codes_of_signs(signs), codes))).to(w.dtype)
        if by_x:
            codes = ctx.source.codes(g * (weights.size * ctx.gain), ctx.bits).codes
            with working(g) as array:
                one = interop.namespace(array).ones((), array.dtype)
                right = with_scale(packed(signs_of(w), 8, "rows", encoding="signed", axis=-1), one)
                dx = tensor_of(product_of_codes(_NAME, codes, right.T))
                dx = dx.mul_(tensor_of(ctx.passes.toarray())).to(ctx.dtypes[0])
        return dx, dw, sum_over_nodes(gradient).to(ctx.dtypes[1]) if by_bias else None, None, None, None, None


def product(
    x: Tensor, w: Tensor, bias: Tensor, rate: float, norm: Norm | None, bits: int, source: SignSource
) -> Tensor:
    """:func:`bitsparse.torch.signs.product` whose gradients by `x` and `w` are products of `bits`-bit codes of the gradient with signs.

    The gradient's codes for the weights are those of its rows times the magnitudes of the features' rows; those for the features are of
    its columns times the sizes of the weights. Features need no gradient if there is a norm.
    """
    made: Tensor = _Product.apply(x, w, bias, rate, norm, bits, source)
    return made


class _SignsOfSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pattern: Pattern, factors: Factors, grid: Grid) -> Tensor:
        ctx.pattern, ctx.factors, ctx.grid = pattern, factors, grid
        with working(x) as values:
            rows = SignRows.of(values, interop.TORCH, passes=True)
            ctx.passes = rows.passes
            # What the plan prepares is kept with the pattern; a call without a plan would wait for the GPU to report NaN.
            plan = ops.plan_bspmm(array_over(pattern), x.shape[1], "BBB")
            return tensor_of(plan(with_scale(rows.signs, None)).dequantize())

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns = ctx.factors
        by_signs = summed(gradient, ctx.pattern.turned, (columns, rows), ctx.grid, None, None, None, True, False)
        with working(gradient):
            return by_signs.mul_(tensor_of(ctx.passes.toarray())), None, None, None


def signs_of_sums(x: Tensor, pattern: Pattern, factors: Factors, grid: Grid) -> Tensor:
    """The signs of the sums over a pattern of the signs of features (N, D), as float32 -1 and 1.

    The gradient is that of the mean, whose factors are given, as a sum of codes; it passes where features lie in -1..1.
    """
    made: Tensor = _SignsOfSums.apply(x, pattern, factors, grid)
    return made
