"""Attention over features in few bits as PyTorch functions: both passes gather codes, and the gradient's inputs are kept in few bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bitsparse.backends.row_pieces import RowPieces
from bitsparse.ops.edges.attention import AttentionState
from bitsparse.ops.quantized.attention import Settings, attention_of_codes, attention_of_codes_vjp, attention_of_floats
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.torch.coded import Grid, Keep, array_of, tensor_of, working
from bitsparse.torch.head_scores import head_scores, head_scores_vjp
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import once, taken

Ends = Sequence[Tensor]


def _attended(ctx: Any, x: Tensor, ends: Ends, others: tuple[Any, ...]) -> tuple[Tensor, list[Tensor]]:
    """Compute attention from the scores of both ends; return the result and the tensors that its gradient needs."""
    ctx.pattern, ctx.how, ctx.grid, keep = others
    source, target = (part.detach() for part in ends)
    codes = None if ctx.grid is None else ctx.grid.codes(x, not ctx.needs_input_grad[0])
    with working(x) as features:
        array = array_over(ctx.pattern)
        if codes is None:
            state = attention_of_floats(array, features, array_of(source), array_of(target), ctx.how)
        else:
            state = attention_of_codes(array, codes, source, target, ctx.how)
        # Handing an array over to PyTorch on another stream would make streams wait for each other, which no capture allows.
        result, lse, share, above = (tensor_of(part) for part in state)
    ctx.codes, ctx.kept = codes if keep is None else keep(x), None
    needed = [source, target, lse, share]
    if keep is None:
        return result, [*needed, result, above]
    kept = keep(above)
    del state, above  # whose memory is free before the result gets codes
    ctx.kept = [keep(result), kept]
    return result, needed


def _features(codes: Any, gradient: Tensor) -> Tensor | RowPieces:
    """The values that the kept codes of the features (N, H, D) stand for."""
    if not isinstance(codes, ScaledCodes):
        made: RowPieces = codes.in_pieces(math.prod(gradient.shape[1:]))
        return made
    with working(gradient):
        return tensor_of(codes.dequantize()).reshape(codes.codes.shape[0], *gradient.shape[1:])


def _attended_vjp(ctx: Any, gradient: Tensor, features: Tensor | RowPieces, saved: Sequence[Tensor]) -> list[Tensor]:
    """Gradients by the features and by the scores of both ends; `features` are the values that their codes stand for."""
    source, target, lse, share, *wide = saved
    codes, in_codes = None if ctx.grid is None else ctx.grid.codes(gradient, False), taken(ctx, "kept")
    with working(gradient):
        kept = wide if in_codes is None else [part.in_pieces(math.prod(gradient.shape[1:])) for part in in_codes]
        turned, state = array_over(ctx.pattern.turned), AttentionState(kept[0], lse, share, kept[1])
        made = attention_of_codes_vjp(turned, features, (source, target), gradient, codes, state, ctx.how)
        return [tensor_of(part) for part in made]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, target: Tensor, *others: Any) -> Tensor:
        result, needed = _attended(ctx, x, (source, target), others)
        ctx.save_for_backward(*needed)
        return result

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradient.contiguous()
        made = _attended_vjp(ctx, gradient, _features(taken(ctx, "codes"), gradient), ctx.saved_tensors)
        return *made, None, None, None, None


class _ScoredAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor, *others: Any) -> Tensor:
        with working(x):
            ends = head_scores(x.contiguous(), first, second)
        result, needed = _attended(ctx, x, ends, others)
        ctx.save_for_backward(first, second, *needed)
        return result

    @staticmethod
    @once("quantize_")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        first, second, *needed = ctx.saved_tensors
        gradient, codes = gradient.contiguous(), taken(ctx, "codes")
        features = _features(codes, gradient)
        dx, *by_scores = _attended_vjp(ctx, gradient, features, needed)
        by_scores = [part.to(dx.dtype) for part in by_scores]
        by_vectors = [torch.zeros_like(part) for part in (first, second)]
        with working(dx):
            for rows, values in [(slice(None), features)] if isinstance(features, Tensor) else codes:
                scores = [part[rows] for part in by_scores]
                for total, part in zip(
                    by_vectors, head_scores_vjp(values, first, second, scores, dx[rows])[1:], strict=True
                ):
                    total += part
        return dx, *by_vectors, None, None, None, None


def attention(x: Tensor, ends: Ends, pattern: Pattern, how: Settings, grid: Grid | None, keep: Keep | None) -> Tensor:
    """Attention (N, H, D) that gathers codes of features and of the gradient, or floats if `grid` is None. Once differentiable.

    With `keep`, the gradient uses what `keep` stores of the features and results instead of these themselves.
    """
    return _Attention.apply(x, *ends, pattern, how, grid, keep)


def scored_attention(
    x: Tensor, first: Tensor, second: Tensor, pattern: Pattern, how: Settings, grid: Grid | None, keep: Keep | None
) -> Tensor:
    """:func:`attention` whose scores are float dot products of the heads' features with two vectors (H, D).

    Gradients by the vectors are computed from the values that the features' codes stand for.
    """
    return _ScoredAttention.apply(x, first, second, pattern, how, grid, keep)
