"""Results without values of the operators of :mod:`bitsparse.torch.attention_operators`: their shapes and dtypes, for a compiler."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bitsparse.torch.head_scores import sums_dtype
from bitsparse.torch.pattern import Pattern


def like(*parts: Tensor) -> tuple[Tensor, ...]:
    """New tensors of these shapes and dtypes."""
    return tuple(torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts)


def attention(pattern: Pattern, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The result of attention and what is kept for its gradient, if asked for."""
    rows, keeps = pattern.indptr.shape[0] - 1, rest[-1]
    made = x.new_empty((rows, *x.shape[1:]))
    if not keeps:
        return made, *(x.new_empty(0) for _ in range(3))
    lse, share = (x.new_empty((rows, *x.shape[1:-1]), dtype=sums_dtype(x)) for _ in range(2))
    return made, lse, share, torch.empty_like(made)


def of_three(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    """Stand-ins for gradients by the first three arguments."""
    return like(*parts[:3])


def scored_attention(pattern: Pattern, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The same with the scores behind the result."""
    scores = [x.new_empty(x.shape[:-1], dtype=sums_dtype(x)) for _ in range(2)]
    result, *sums = attention(pattern, x, *rest)
    return result, *scores, *sums


def edge_softmax(pattern: Pattern, scores: Tensor, *_: Any) -> Tensor:
    """Weights of the shape of scores."""
    return like(scores)[0]


def cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor, keeps: bool) -> tuple[Tensor, Tensor]:
    """The result of attention by cosines, and the logarithms of its sums if they are kept."""
    lse = x.new_empty((x.shape[0],), dtype=sums_dtype(x)) if keeps else x.new_empty(0)
    return like(x)[0], lse


def cosine_attention_vjp(pattern: Pattern, x: Tensor, beta: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """Gradients by the features and by beta."""
    return like(x, beta)


def gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    """One score for each edge and head."""
    dtype = reduce(torch.promote_types, (part.dtype for part in (source, target, a)))
    return source.new_empty((pattern.indices.shape[0], *source.shape[1:-1]), dtype=dtype)
