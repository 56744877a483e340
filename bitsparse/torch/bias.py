"""Biases and linear maps that follow sums over edges, added in place if possible; the gradient by a bias sums over all nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.torch.dense import (
    add_product,
    is_alone,
    is_quicker,
    is_quicker_on_gpu,
    product,
    product_and_sums,
    product_in_rows,
    product_over_rows,
)
from bitsparse.torch.operators import column_sums


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.dtypes = x.dtype, bias.dtype
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        made = column_sums(gradient)
        return gradient.to(ctx.dtypes[0]), made.to(ctx.dtypes[1])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, width: int | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias) if width is None else product_in_rows(x, weight, width)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        by_x = product(gradient, weight.t()) if needs[0] else None
        if needs[1] and needs[2]:
            return by_x, *product_and_sums(gradient, x), None
        by_weight = product_over_rows(gradient, x) if needs[1] else None
        return by_x, by_weight, column_sums(gradient) if needs[2] else None, None


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        ctx.mark_dirty(out)
        ctx.save_for_backward(x, weight)
        return add_product(out, x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        by_x = product(gradient, weight.t()) if needs[1] else None
        return gradient, by_x, product_over_rows(gradient, x) if needs[2] else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, width: int | None = None) -> Tensor:
    """``x W^T + b`` like :func:`torch.nn.functional.linear`, with faster gradients that can be differentiated again.

    With a `width` there is no bias, and the result's rows lie `width` elements apart.
    """
    on_gpu = bias is not None and x.is_cuda and is_alone(x) and x.dtype == weight.dtype == bias.dtype
    if width is None and not on_gpu and not is_quicker(x, weight, bias) and not is_quicker_on_gpu(x, weight):
        return torch.nn.functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias, width)


#: The attributes in which modules keep their hooks.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks."""
    return any(getattr(module, hooks) for hooks in _HOOKS)


def is_watched(module: Any) -> bool:
    """Whether a module is more than a plain linear layer: its class or the module itself replaces `forward`, or it has hooks."""
    return "forward" in module.__dict__ or type(module).forward is not torch.nn.Linear.forward or has_hooks(module)


def added(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """``out + x W^T``; the caller gives up `out`, so its memory may be overwritten."""
    if x.is_cuda and is_alone(x) and out.dtype == x.dtype == weight.dtype:
        made: Tensor = _Added.apply(out, x, weight)
        return made
    return out + linear(x, weight)


def through(x: Tensor, layer: Any) -> Tensor:
    """Apply a linear layer to features; a layer with hooks or a `forward` of its own is called as it is."""
    made: Tensor = layer(x) if is_watched(layer) else linear(x, layer.weight, layer.bias)
    return made


def biased(x: Tensor, bias: Tensor, *, owned: bool = False) -> Tensor:
    """``x + bias`` of a matrix (N, D) and a vector (D,), in the memory of `x` if it is `owned`: no one else uses it.

    On a GPU PyTorch's own gradient by the bias takes longer than the sums of many layers, hence a gradient of our own. Compilers and
    transforms of torch.func see the plain addition.
    """
    if not is_alone(x):
        return x + bias
    if x.is_cuda:
        return _Biased.apply(x, bias)
    return x.add_(bias) if owned and x.dtype == bias.dtype else x + bias
