"""Scores of nodes for attention: dot products of the heads' features with vectors, and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from bitsparse import backends
from bitsparse.torch.operators import on_cupy


def sums_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which features are summed."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def head_scores(x: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """Dot products of each head's contiguous features (N, H, D) with two vectors (H, D), in the dtype of sums."""
    vectors = widened(x, first, second)
    if x.is_cpu:
        return [torch.einsum("nhd,hd->nh", x.to(part.dtype), part).contiguous() for part in vectors]
    made = [x.new_empty(x.shape[:-1], dtype=vectors[0].dtype) for _ in range(2)]
    compute = backends.family("cuda", "edges.head_scores").head_scores
    on_cupy(lambda x, first, second, *out: compute(x, first, second, out), x, *vectors, *made)
    return made


def head_scores_vjp(x: Tensor, first: Tensor, second: Tensor, by_scores: list[Tensor], dx: Tensor) -> list[Tensor]:
    """Gradients of :func:`head_scores` by both vectors and by the features; the latter are added in place to `dx`, which is like `x`."""
    vectors = widened(x, first, second)
    if x.is_cpu:
        for by_score, vector in zip(by_scores, vectors, strict=True):
            dx.addcmul_(by_score[..., None], vector)
        heads = range(x.shape[1])  # one by one: a product of all heads at once would copy them first
        by_vectors = [torch.stack([x[:, h].t() @ by_score[:, h] for h in heads]) for by_score in by_scores]
    else:
        by_vectors = x.new_empty((2, *first.shape), dtype=vectors[0].dtype)
        compute = backends.family("cuda", "edges.head_scores").head_scores_vjp
        on_cupy(compute, x, *vectors, *by_scores, dx, by_vectors)
    return [dx, *(made.to(part.dtype) for made, part in zip(by_vectors, (first, second), strict=True))]


def widened(x: Tensor, *parts: Tensor) -> list[Tensor]:
    """Convert vectors to the dtype in which features are summed."""
    return [part.to(sums_dtype(x)).contiguous() for part in parts]
