"""A bias behind a sum, whose gradient is a sum over all nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.dtypes = x.dtype, bias.dtype
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        made: Tensor = _ColumnSums.apply(gradient)
        return gradient.to(ctx.dtypes[0]), made.to(ctx.dtypes[1])


class _ColumnSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        made: Tensor = torch.ops.bitsparse.column_sums(x)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.expand(ctx.shape)


def biased(x: Tensor, bias: Tensor) -> Tensor:
    """``x + bias`` of a matrix (N, D) and a vector (D,).

    On a GPU PyTorch's own gradient by the bias takes longer than many a layer's sum; a compiler and transforms of torch.func see the
    addition as it is.
    """
    if not x.is_cuda or x.ndim != 2 or torch.compiler.is_compiling() or _are_functorch_transforms_active():
        return x + bias
    made: Tensor = _Biased.apply(x, bias)
    return made
