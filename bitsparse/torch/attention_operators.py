"""Attention and the softmax over rows as operators of PyTorch, beside those of :mod:`bitsparse.torch.operators`; differentiated once.

Each has an operator for its gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bitsparse import backends, ops
from bitsparse.ops import AttentionState
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose
from bitsparse.ops.edges.cosine_vjp import cosine_attention_vjp_of_both
from bitsparse.torch.operators import PATTERN, of_cupy
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import differentiable, once, operator

_ATTENDED = "Tensor x, Tensor source, Tensor target, Tensor? seed"
_SCORED = "Tensor x, Tensor first, Tensor second, Tensor? seed"


# ---- what computes
def _attention(*arguments: Any) -> tuple[Tensor, ...]:
    pattern, (*parts, seed, slope, dropout, keeps) = Pattern(*arguments[:6]), arguments[6:]
    operands = (part.contiguous() for part in parts)
    how = {"negative_slope": slope, "dropout": dropout, "seed": seed}
    if keeps:
        state: tuple[Tensor, ...] = ops.attention(array_over(pattern), *operands, **how, return_state=True)[1]
        return tuple(state)
    made = ops.attention(array_over(pattern), *operands, **how)
    return made, *(made.new_empty(0) for _ in range(3))


def _attention_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    pattern, (x, source, target, seed, *sums, gradient, slope, dropout) = Pattern(*arguments[:6]), arguments[6:]
    x, source, target, gradient = (part.contiguous() for part in (x, source, target, gradient))
    operands = (x, source, target, gradient, AttentionState(*sums))
    return attention_vjp_of_transpose(array_over(pattern.turned), *operands, slope, dropout, seed)


def _scored_attention(*arguments: Any) -> tuple[Tensor, ...]:
    parts, (x, first, second), rest = arguments[:6], arguments[6:9], arguments[9:]
    x = x.contiguous()
    scores = _head_scores(x, *_widened(x, first, second))
    result, *sums = _attention(*parts, x, *scores, *rest)
    return result, *scores, *sums


def _scored_attention_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    parts, (x, first, second, seed, result, source, target, *rest) = arguments[:6], arguments[6:]
    vectors = _widened(x, first, second)
    features = (
        x.to(source.dtype).contiguous() if x.is_cpu else x.contiguous()
    )  # there what is added is not rounded before
    dx, *by_scores = _attention_vjp(*parts, features, source, target, seed, result, *rest)
    if x.is_cpu:
        dx += sum(by_score[..., None] * vector for by_score, vector in zip(by_scores, vectors, strict=True))
        by_vectors = [torch.einsum("nh,nhd->hd", by_score, features) for by_score in by_scores]
    else:
        kernels = backends.family("cuda", "edges.head_scores")
        by_vectors = of_cupy(kernels.head_scores_vjp, features, *vectors, *by_scores, dx)
    return dx.to(x.dtype), *(made.to(part.dtype) for made, part in zip(by_vectors, (first, second), strict=True))


def _head_scores(x: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """Dot products of each head's features with two vectors."""
    if x.is_cpu:
        return [torch.einsum("nhd,hd->nh", x.to(part.dtype), part).contiguous() for part in (first, second)]
    return of_cupy(backends.family("cuda", "edges.head_scores").head_scores, x, first, second)


def _widened(x: Tensor, *parts: Tensor) -> list[Tensor]:
    """Vectors in what features are summed in."""
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    return [part.to(sums).contiguous() for part in parts]


def _edge_softmax(*arguments: Any) -> Tensor:
    return ops.edge_softmax(array_over(Pattern(*arguments[:6])), arguments[6].contiguous())


def _edge_softmax_vjp(*arguments: Any) -> Tensor:
    weights, gradient = (part.contiguous() for part in arguments[6:])
    return ops.edge_softmax_vjp(array_over(Pattern(*arguments[:6])), weights, gradient)


def _cosine_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, beta, keeps = arguments[6:]
    array, x = array_over(Pattern(*arguments[:6])), x.contiguous()
    if keeps:
        return ops.cosine_attention(array, x, beta=beta, return_lse=True)
    plain: Tensor = ops.cosine_attention(array, x, beta=beta)
    return plain, x.new_empty(0)


def _cosine_attention_vjp(*arguments: Any) -> tuple[Tensor, Tensor]:
    pattern, (x, beta, result, lse, gradient) = Pattern(*arguments[:6]), arguments[6:]
    forward, x, gradient = array_over(pattern), x.contiguous(), gradient.contiguous()
    backward = forward if pattern.t_indices.data_ptr() == pattern.indices.data_ptr() else array_over(pattern.turned)
    return cosine_attention_vjp_of_both(forward, backward, x, gradient, beta, result, lse)


def _gatv2_scores(*arguments: Any) -> Tensor:
    pattern, (*parts, slope) = Pattern(*arguments[:6]), arguments[6:]
    operands = (part.contiguous() for part in parts)
    return ops.gatv2_scores(array_over(pattern), *operands, negative_slope=slope)


def _gatv2_scores_vjp(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    pattern, (*parts, slope) = Pattern(*arguments[:6]), arguments[6:]
    operands = (part.contiguous() for part in parts)
    return ops.gatv2_scores_vjp(array_over(pattern), *operands, negative_slope=slope)


# ---- what a compiler is told
def _fake_attention(*arguments: Any) -> tuple[Tensor, ...]:
    rows, x = arguments[0].shape[0] - 1, arguments[6]
    made = x.new_empty((rows, *x.shape[1:]))
    if not arguments[-1]:
        return made, *(x.new_empty(0) for _ in range(3))
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    lse, share = (x.new_empty((rows, *x.shape[1:-1]), dtype=sums) for _ in range(2))
    return made, lse, share, torch.empty_like(made)


def _fake_attention_vjp(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, source, target = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in arguments[6:9])
    return x, source, target


def _fake_scored_attention(*arguments: Any) -> tuple[Tensor, ...]:
    x = arguments[6]
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    scores = [x.new_empty(x.shape[:-1], dtype=sums) for _ in range(2)]
    result, *rest = _fake_attention(*arguments)
    return result, *scores, *rest


def _fake_edge_softmax(*arguments: Any) -> Tensor:
    return torch.empty_like(arguments[6], memory_format=torch.contiguous_format)


def _fake_cosine_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, _, keeps = arguments[6:]
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    lse = x.new_empty((x.shape[0],), dtype=sums) if keeps else x.new_empty(0)
    return torch.empty_like(x, memory_format=torch.contiguous_format), lse


def _fake_cosine_attention_vjp(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, beta = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in arguments[6:8])
    return x, beta


def _fake_gatv2_scores(*arguments: Any) -> Tensor:
    indices, (source, target, a) = arguments[1], arguments[6:9]
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in (source, target, a)))
    return source.new_empty((indices.shape[0], *source.shape[1:-1]), dtype=dtype)


# ---- gradients
def _by_operator(name: str, constants: int, without: int) -> Callable[..., tuple[Tensor | None, ...]]:
    """The gradient that an operator computes from what was saved and the first `constants` others; the last `without` inputs have none."""

    @once(name.removesuffix("_vjp").removeprefix("scored_"))
    def gradient(ctx: Any, given: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        made = getattr(torch.ops.bitsparse, name)(*ctx.saved_tensors, given, *ctx.constants[:constants])
        return (*(None,) * 6, *made, *(None,) * without)

    return gradient


@once("edge_softmax")
def _softmax_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *parts, _, weights = ctx.saved_tensors
    return (*(None,) * 6, torch.ops.bitsparse.edge_softmax_vjp(*parts, weights, gradient))


# ---- registration
operator(
    f"attention_vjp({PATTERN}, {_ATTENDED}, Tensor result, Tensor lse, Tensor share, Tensor above, Tensor gradient, float slope, "
    f"float dropout) -> (Tensor, Tensor, Tensor)",
    _attention_vjp,
    _fake_attention_vjp,
)
_OF_ATTENTION = differentiable(
    operator(
        f"attention({PATTERN}, {_ATTENDED}, float slope, float dropout, bool keeps) -> (Tensor, Tensor, Tensor, Tensor)",
        _attention,
        _fake_attention,
    ),
    _by_operator("attention_vjp", 2, 4),
    keeps_result=True,
)
operator(
    f"scored_attention_vjp({PATTERN}, {_SCORED}, Tensor result, Tensor source, Tensor target, Tensor lse, Tensor share, Tensor above, "
    f"Tensor gradient, float slope, float dropout) -> (Tensor, Tensor, Tensor)",
    _scored_attention_vjp,
    _fake_attention_vjp,
)
_OF_SCORED_ATTENTION = differentiable(
    operator(
        f"scored_attention({PATTERN}, {_SCORED}, float slope, float dropout, bool keeps) -> "
        f"(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _scored_attention,
        _fake_scored_attention,
    ),
    _by_operator("scored_attention_vjp", 2, 4),
    keeps_result=True,
)
operator(
    f"edge_softmax_vjp({PATTERN}, Tensor weights, Tensor gradient) -> Tensor", _edge_softmax_vjp, _fake_edge_softmax
)
_OF_SOFTMAX = differentiable(
    operator(f"edge_softmax({PATTERN}, Tensor scores) -> Tensor", _edge_softmax, _fake_edge_softmax),
    _softmax_gradient,
    keeps_result=True,
)
operator(
    f"cosine_attention_vjp({PATTERN}, Tensor x, Tensor beta, Tensor result, Tensor lse, Tensor gradient) -> (Tensor, Tensor)",
    _cosine_attention_vjp,
    _fake_cosine_attention_vjp,
)
_OF_COSINES = differentiable(
    operator(
        f"cosine_attention({PATTERN}, Tensor x, Tensor beta, bool keeps) -> (Tensor, Tensor)",
        _cosine_attention,
        _fake_cosine_attention,
    ),
    _by_operator("cosine_attention_vjp", 0, 1),
    keeps_result=True,
)
operator(
    f"gatv2_scores_vjp({PATTERN}, Tensor source, Tensor target, Tensor a, Tensor gradient, float slope) -> (Tensor, Tensor, Tensor)",
    _gatv2_scores_vjp,
    _fake_attention_vjp,
)
_OF_GATV2 = differentiable(
    operator(
        f"gatv2_scores({PATTERN}, Tensor source, Tensor target, Tensor a, float slope) -> Tensor",
        _gatv2_scores,
        _fake_gatv2_scores,
    ),
    _by_operator("gatv2_scores_vjp", 1, 1),
)


# ---- what the package calls
def attention(
    pattern: Pattern, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``leaky_relu(source[j] + target[i])``, once differentiable."""
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (x, source, target))
    return _OF_ATTENTION(*pattern, x, source, target, seed, slope, dropout, keeps)[0]


def scored_attention(
    pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """:func:`attention` over a square pattern with ``source = <x, first>`` and ``target = <x, second>`` for each head (H, D)."""
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (x, first, second))
    return _OF_SCORED_ATTENTION(*pattern, x, first, second, seed, slope, dropout, keeps)[0]


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """The softmax of the edges' scores over each row, once differentiable."""
    return _OF_SOFTMAX(*pattern, scores)


def cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``beta * cos(x[i], x[j])``, once differentiable by both."""
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (x, beta))
    return _OF_COSINES(*pattern, x, beta, keeps)[0]


def gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    """``a . leaky_relu(source[j] + target[i])`` for every edge and head, once differentiable."""
    return _OF_GATV2(*pattern, source, target, a, slope)
