"""Biases and linear maps that follow sums over edges, added in place if possible; the gradient by a bias sums over all nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.torch.dense import (
    Rows,
    Second,
    add_product,
    behind_relu,
    clipped,
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
    """A product, or the sum of two, through relu if asked for; a gradient by an input leaves relu to :func:`clipped`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, relu: bool, *second: Any
    ) -> Tensor:
        made = (
            product(x, weight, bias, relu=relu, second=Second(*second) if second else None)
            if rows is None
            else product_in_rows(x, weight, rows)
        )
        needs = ctx.needs_input_grad
        ctx.masks = relu and not (needs[0] or any(needs[5:6]))
        ctx.save_for_backward(x, weight, *second, *([made] if ctx.masks else []))
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts, needs = ctx.saved_tensors, ctx.needs_input_grad
        y = parts[-1] if ctx.masks else None
        x, weight = parts[:2]
        by_bias = None
        by_x = product(gradient, weight.t()) if needs[0] else None
        if needs[1] and needs[2]:
            by_weight, by_bias = product_and_sums(gradient, x, y)
        else:
            by_weight = product_over_rows(gradient, x, y) if needs[1] else None
            if needs[2]:
                by_bias = column_sums(gradient if y is None else behind_relu(gradient, y))
        found = [by_x, by_weight, by_bias, None, None]
        if len(needs) > 5:
            found.append(product(gradient, parts[3].t()) if needs[5] else None)
            found.append(product_over_rows(gradient, parts[2], y) if needs[6] else None)
        return tuple(found)


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


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, relu: bool, *second: Tensor) -> Tensor:
    made: Tensor = _Linear.apply(x, weight, bias, rows, relu, *second)
    return clipped(made) if relu and any(part.requires_grad for part in (x, *second[:1])) else made


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, rows: Rows | None = None, relu: bool = False
) -> Tensor:
    """``x W^T + b`` like :func:`torch.nn.functional.linear`, through relu if asked for, with faster gradients of any order.

    A product that lies in `rows` has no bias and no relu. Scales of its rows belong to the sums that follow: theirs is the gradient that
    takes them into account.
    """
    on_gpu = (bias is not None or relu) and x.is_cuda and is_alone(x) and _are_alike(x, weight, bias)
    if rows is None and not on_gpu and not is_quicker(x, weight, bias) and not is_quicker_on_gpu(x, weight):
        made = torch.nn.functional.linear(x, weight, bias)
        return made.relu() if relu else made
    return _linear(x, weight, bias, rows, relu)


def linear_of_two(x: Tensor, weight: Tensor, second: Second, bias: Tensor | None, relu: bool) -> Tensor:
    """:func:`linear` plus the product of a second pair of factors."""
    if x.is_cuda and is_alone(x) and is_alone(second.x) and _are_alike(x, weight, bias, *second):
        return _linear(x, weight, bias, None, relu, *second)
    made = added(linear(x, weight, bias), *second)
    return made.relu() if relu else made


def _are_alike(x: Tensor, *others: Tensor | None) -> bool:
    return all(part is None or (part.dtype == x.dtype and part.device == x.device) for part in others)


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


def through(x: Tensor, layer: Any, relu: bool = False) -> Tensor:
    """Apply a linear layer to features, and relu if asked for; a layer with hooks or a `forward` of its own is called as it is."""
    if not is_watched(layer):
        return linear(x, layer.weight, layer.bias, relu=relu)
    made: Tensor = layer(x)
    return made.relu() if relu else made


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
