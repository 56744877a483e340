"""Attention by scores of nodes with a bias behind it, in the kernel of the sums: the sums without the bias are never stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.torch.attention_kinds import once_each
from bitsparse.torch.attention_operators import scored_on_gpu, scored_vjp_on_gpu
from bitsparse.torch.dense import is_alone
from bitsparse.torch.graph import Graph
from bitsparse.torch.pattern import Pattern
from bitsparse.torch.registration import is_plain, on_gpu, once

#: The most bytes of a head, which the kernel of the bias's gradient can take, and dtypes with which the bias does not spoil the gradient:
#: it is taken off the rounded result again.
_MOST_BYTES, _DTYPES = 512, (torch.float32, torch.float64)

_forward_on_gpu, _vjp_on_gpu = on_gpu(scored_on_gpu), on_gpu(scored_vjp_on_gpu)


class _BiasedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor, bias: Tensor, *how: Any) -> Tensor:
        ctx.pattern, seed, *ctx.numbers, keeps = how
        operands = x.contiguous(), first, second, bias, seed
        made = _forward_on_gpu(ctx.pattern, *operands, *ctx.numbers, keeps)
        if made is None:
            raise RuntimeError("bitsparse.torch: the kernels of attention cannot take these tensors")
        result, *others = made
        if keeps:
            # PyTorch would refuse a result that is changed in place, as by an activation, but it can be computed again. So it is saved
            # under another count of changes; what counts its own holds no memory.
            ctx.changes = result.detach()
            ctx.changes.data = result.new_empty(0)
            ctx.unchanged = result._version
            ctx.save_for_backward(*operands, result.data, *others)
        return result

    @staticmethod
    @once("attention")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        operands, (result, *others) = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        if ctx.changes._version != ctx.unchanged:
            result = _forward_on_gpu(ctx.pattern, *operands, *ctx.numbers, False)[0]
        made = _vjp_on_gpu(ctx.pattern, *operands, result, *others, gradient, *ctx.numbers)
        return *made, *(None,) * 5


def scored_attention_with_bias(
    graph: Graph, x: Tensor, first: Tensor, second: Tensor, bias: Tensor, slope: float, dropout: float
) -> Tensor | None:
    """:func:`~bitsparse.torch.attention_kinds.scored_attention` plus a bias (H * D,), once differentiable; None if kernels cannot do this.

    The result may be changed in place: its gradient then computes the sums once more.
    """
    once_each("attention", graph)
    parts = x, first, second, bias
    if not (
        x.is_cuda and x.dtype in _DTYPES and is_alone(first) and is_plain(*parts) and x.numel() and graph.num_edges
    ):
        return None
    if any(part.dtype != x.dtype or part.device != x.device for part in parts) or bias.shape != (first.numel(),):
        return None
    if x.shape[0] != graph.num_sources or x.shape[1:] != first.shape or x.shape[-1] * x.element_size() > _MOST_BYTES:
        return None
    pattern: Pattern = graph.pattern()
    if pattern.rows != pattern.turned.rows or pattern.indptr.device != x.device:
        return None
    seed = torch.randint(2**62, (1,), device=x.device) if dropout else None
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
    made: Tensor = _BiasedAttention.apply(*parts, pattern, seed, slope, dropout, keeps)
    return made
