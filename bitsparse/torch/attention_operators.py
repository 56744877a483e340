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
from bitsparse.torch.operators import of_cupy
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import Recorded, differentiable, once, operator

_SUMS_OF_ATTENTION = "Tensor lse, Tensor share, Tensor above, Tensor gradient, float slope, float dropout"


def _sums_dtype(x: Tensor) -> torch.dtype:
    """In what features are summed."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# ---- what computes
def _attention(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    *ends, seed, slope, dropout, keeps = parts
    operands: Any = (part.contiguous() for part in ends)
    how = {"negative_slope": slope, "dropout": dropout, "seed": seed}
    made = ops.attention(array_over(pattern), *operands, **how, return_state=keeps)
    return tuple(made[1]) if keeps else (made, *(made.new_empty(0) for _ in range(3)))


def _attention_vjp(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    x, source, target, seed, *sums, gradient, slope, dropout = parts
    x, source, target, gradient = (part.contiguous() for part in (x, source, target, gradient))
    operands = (x, source, target, gradient, AttentionState(*sums))
    return attention_vjp_of_transpose(array_over(pattern.turned), *operands, slope, dropout, seed)


def _scored_attention(pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    x = x.contiguous()
    scores = _head_scores(x, *_widened(x, first, second))
    result, *sums = _attention(pattern, x, *scores, *rest)
    return result, *scores, *sums


def _scored_attention_vjp(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    x, first, second, seed, result, source, target, *rest = parts
    vectors = _widened(x, first, second)
    # On the CPU what is added is not rounded before.
    features = x.to(source.dtype).contiguous() if x.is_cpu else x.contiguous()
    dx, *by_scores = _attention_vjp(pattern, features, source, target, seed, result, *rest)
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
    return [part.to(_sums_dtype(x)).contiguous() for part in parts]


def _edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    return ops.edge_softmax(array_over(pattern), scores.contiguous())


def _edge_softmax_vjp(pattern: Pattern, weights: Tensor, gradient: Tensor) -> Tensor:
    return ops.edge_softmax_vjp(array_over(pattern), weights.contiguous(), gradient.contiguous())


def _cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor, keeps: bool) -> tuple[Tensor, Tensor]:
    made = ops.cosine_attention(array_over(pattern), x.contiguous(), beta=beta, return_lse=keeps)
    return made if keeps else (made, x.new_empty(0))


def _cosine_attention_vjp(
    pattern: Pattern, x: Tensor, beta: Tensor, result: Tensor, lse: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    forward, x, gradient = array_over(pattern), x.contiguous(), gradient.contiguous()
    backward = forward if pattern.t_indices.data_ptr() == pattern.indices.data_ptr() else array_over(pattern.turned)
    return cosine_attention_vjp_of_both(forward, backward, x, gradient, beta, result, lse)


def _gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    operands = (part.contiguous() for part in (source, target, a))
    return ops.gatv2_scores(array_over(pattern), *operands, negative_slope=slope)


def _gatv2_scores_vjp(pattern: Pattern, *parts: Any) -> tuple[Tensor, Tensor, Tensor]:
    *operands, slope = parts
    return ops.gatv2_scores_vjp(array_over(pattern), *(part.contiguous() for part in operands), negative_slope=slope)


# ---- what a compiler is told
def _like(*parts: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts)


def _fake_attention(pattern: Pattern, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    rows, keeps = pattern.indptr.shape[0] - 1, rest[-1]
    made = x.new_empty((rows, *x.shape[1:]))
    if not keeps:
        return made, *(x.new_empty(0) for _ in range(3))
    lse, share = (x.new_empty((rows, *x.shape[1:-1]), dtype=_sums_dtype(x)) for _ in range(2))
    return made, lse, share, torch.empty_like(made)


def _fake_of_three(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    """Gradients by the first three arguments."""
    return _like(*parts[:3])


def _fake_scored_attention(pattern: Pattern, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    scores = [x.new_empty(x.shape[:-1], dtype=_sums_dtype(x)) for _ in range(2)]
    result, *sums = _fake_attention(pattern, x, *rest)
    return result, *scores, *sums


def _fake_edge_softmax(pattern: Pattern, scores: Tensor, *_: Any) -> Tensor:
    return _like(scores)[0]


def _fake_cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor, keeps: bool) -> tuple[Tensor, Tensor]:
    lse = x.new_empty((x.shape[0],), dtype=_sums_dtype(x)) if keeps else x.new_empty(0)
    return _like(x)[0], lse


def _fake_cosine_attention_vjp(pattern: Pattern, x: Tensor, beta: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return _like(x, beta)


def _fake_gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in (source, target, a)))
    return source.new_empty((pattern.indices.shape[0], *source.shape[1:-1]), dtype=dtype)


# ---- gradients
def _by_operator(name: str, constants: int, without: int) -> Callable[..., tuple[Tensor | None, ...]]:
    """The gradient that an operator computes from what was saved and the first `constants` others; the last `without` inputs have none."""

    @once(name.removesuffix("_vjp").removeprefix("scored_"))
    def gradient(recorded: Recorded, given: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        compute, others = getattr(torch.ops.bitsparse, name), recorded.constants[:constants]
        return *compute(*recorded.pattern, *recorded.saved_tensors, given, *others), *(None,) * without

    return gradient


@once("edge_softmax")
def _softmax_gradient(recorded: Recorded, gradient: Tensor) -> tuple[Tensor | None, ...]:
    _, weights = recorded.saved_tensors
    return (torch.ops.bitsparse.edge_softmax_vjp(*recorded.pattern, weights, gradient),)


# ---- registration
operator(
    "attention_vjp",
    f"Tensor x, Tensor source, Tensor target, Tensor? seed, Tensor result, {_SUMS_OF_ATTENTION}) -> (Tensor, Tensor, Tensor)",
    _attention_vjp,
    _fake_of_three,
)
_OF_ATTENTION = differentiable(
    operator(
        "attention",
        "Tensor x, Tensor source, Tensor target, Tensor? seed, float slope, float dropout, bool keeps) -> "
        "(Tensor, Tensor, Tensor, Tensor)",
        _attention,
        _fake_attention,
    ),
    _by_operator("attention_vjp", 2, 4),
    keeps_result=True,
)
operator(
    "scored_attention_vjp",
    f"Tensor x, Tensor first, Tensor second, Tensor? seed, Tensor result, Tensor source, Tensor target, {_SUMS_OF_ATTENTION}) -> "
    f"(Tensor, Tensor, Tensor)",
    _scored_attention_vjp,
    _fake_of_three,
)
_OF_SCORED_ATTENTION = differentiable(
    operator(
        "scored_attention",
        "Tensor x, Tensor first, Tensor second, Tensor? seed, float slope, float dropout, bool keeps) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _scored_attention,
        _fake_scored_attention,
    ),
    _by_operator("scored_attention_vjp", 2, 4),
    keeps_result=True,
)
operator("edge_softmax_vjp", "Tensor weights, Tensor gradient) -> Tensor", _edge_softmax_vjp, _fake_edge_softmax)
_OF_SOFTMAX = differentiable(
    operator("edge_softmax", "Tensor scores) -> Tensor", _edge_softmax, _fake_edge_softmax),
    _softmax_gradient,
    keeps_result=True,
)
operator(
    "cosine_attention_vjp",
    "Tensor x, Tensor beta, Tensor result, Tensor lse, Tensor gradient) -> (Tensor, Tensor)",
    _cosine_attention_vjp,
    _fake_cosine_attention_vjp,
)
_OF_COSINES = differentiable(
    operator(
        "cosine_attention",
        "Tensor x, Tensor beta, bool keeps) -> (Tensor, Tensor)",
        _cosine_attention,
        _fake_cosine_attention,
    ),
    _by_operator("cosine_attention_vjp", 0, 1),
    keeps_result=True,
)
operator(
    "gatv2_scores_vjp",
    "Tensor source, Tensor target, Tensor a, Tensor gradient, float slope) -> (Tensor, Tensor, Tensor)",
    _gatv2_scores_vjp,
    _fake_of_three,
)
_OF_GATV2 = differentiable(
    operator(
        "gatv2_scores",
        "Tensor source, Tensor target, Tensor a, float slope) -> Tensor",
        _gatv2_scores,
        _fake_gatv2_scores,
    ),
    _by_operator("gatv2_scores_vjp", 1, 1),
)


# ---- what the package calls
def _keeps(*parts: Tensor) -> bool:
    """Whether a gradient by one of these may be asked for."""
    return torch.is_grad_enabled() and any(part.requires_grad for part in parts)


def attention(
    pattern: Pattern, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``leaky_relu(source[j] + target[i])``, once differentiable."""
    return _OF_ATTENTION(pattern, x, source, target, seed, slope, dropout, _keeps(x, source, target))[0]


def scored_attention(
    pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """:func:`attention` over a square pattern with ``source = <x, first>`` and ``target = <x, second>`` for each head (H, D)."""
    return _OF_SCORED_ATTENTION(pattern, x, first, second, seed, slope, dropout, _keeps(x, first, second))[0]


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """The softmax of the edges' scores over each row, once differentiable."""
    return _OF_SOFTMAX(pattern, scores)


def cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``beta * cos(x[i], x[j])``, once differentiable by both."""
    return _OF_COSINES(pattern, x, beta, _keeps(x, beta))[0]


def gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    """``a . leaky_relu(source[j] + target[i])`` for every edge and head, once differentiable."""
    return _OF_GATV2(pattern, source, target, a, slope)
