"""Products of the signs of features with the signs of weights, with straight-through gradients (Bi-GCN, Wang et al., CVPR 2021)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitsparse import ops
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.torch.coded import working
from bitsparse.torch.registration import once

EPS = 1e-5


class Norm(NamedTuple):
    """A batch norm of the data in front of the sign, without parameters: the mean and variance of each column."""

    mean: Tensor
    var: Tensor

    def of(self, x: Tensor) -> Tensor:
        """Normalise features."""
        return (x - self.mean) / torch.sqrt(self.var + EPS)

    def folded(self) -> tuple[Tensor, Tensor]:
        """A factor and an addend for each column, computed in float64 as in exported networks."""
        factor = 1 / torch.sqrt(self.var.double() + EPS)
        return factor.float(), (-self.mean.double() * factor).float()


class Weights(NamedTuple):
    """Weights as signs of their own dtype and the mean magnitude of each output's, for the gradient that reaches them."""

    w: Tensor
    signs: Tensor
    size: Tensor

    @classmethod
    def of(cls, w: Tensor) -> Weights:
        """Take them apart."""
        return cls(w, torch.where(w >= 0, 1.0, -1.0).to(w.dtype), w.abs().mean(dim=0))

    def gradient(self, by_weight: Tensor) -> Tensor:
        """The gradient by the weights from that by signs times sizes: it passes signs where weights lie in -1..1, and sizes everywhere."""
        straight = self.size * by_weight * (self.w.abs() <= 1)
        return straight + self.signs * (self.signs * by_weight).sum(dim=0) / self.w.shape[0]


class _Product(torch.autograd.Function):
    """``(alpha sign(x) kept) @ (m sign(w))``, a product of integers -1, 0 and 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, kept: Tensor | None, scale: float) -> Tensor:
        alpha, size = x.abs().mean(dim=1, keepdim=True) * scale, w.abs().mean(dim=0)
        with working(x):
            if kept is None:
                held = packed(signs_of(x), 1, encoding="bipolar", axis=-1)
            else:
                held = packed(signs_of(x) * kept, 2, encoding="signed", axis=-1)
            made: Tensor = ops.matmul(held, packed(signs_of(w), 1, encoding="bipolar", axis=-2))
        # Of the features only their bits and a mask of where a gradient passes are kept.
        ctx.held, ctx.passes = held, (x.abs() <= 1) if ctx.needs_input_grad[0] else None
        ctx.kept, ctx.scale = (kept, scale) if ctx.needs_input_grad[0] else (None, scale)
        ctx.save_for_backward(alpha, w)
        return made.to(x.dtype) * alpha * size

    @staticmethod
    @once("SignLinear")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        alpha, w = (part.to(gradient.dtype) for part in ctx.saved_tensors)
        weights = Weights.of(w)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = gradient @ (weights.signs * weights.size).t() * ctx.scale * ctx.passes
            dx = dx if ctx.kept is None else dx * ctx.kept
        if ctx.needs_input_grad[1]:
            with working(gradient):
                held: Tensor = ctx.held.toarray()
            dw = weights.gradient(held.to(gradient.dtype).t() @ (alpha * gradient))
        return dx, dw, None, None


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.passes = x.abs() <= 1
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    @once("BinaryGCN")
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.passes


def sign(x: Tensor) -> Tensor:
    """-1 and 1 in the dtype of `x`; the sign of 0 is 1. The gradient passes where `x` lies in -1..1."""
    made: Tensor = _Sign.apply(x)
    return made


def signs_of(x: Tensor) -> Tensor:
    """-1 and 1, int8; the sign of 0 is 1."""
    return torch.where(x >= 0, 1, -1).to(torch.int8)


def packed(signs: Tensor, bits: int, layout: str = "planes", **form: Any) -> BitTensor:
    """Pack signs into bits; they are known to fit, so the GPU is not queried to check."""
    return assembled(BitTensor, *construct.pack("SignLinear", signs, bits, layout=layout, fits=True, **form))


def product(x: Tensor, w: Tensor, bias: Tensor, rate: float, norm: Norm | None) -> Tensor:
    """``alpha sign(x) @ (m sign(w)) + bias`` with float gradients; a share `rate` of the features' signs is dropped.

    Parameters
    ----------
    x : Tensor (nodes, inputs)
    w : Tensor (inputs, outputs)
    bias : Tensor (outputs,)
    rate : float
        At least 0 and less than 1.
    norm : Norm, optional
        Applied to `x` first.
    """
    x = x if norm is None else norm.of(x)
    kept, scale = None, 1.0
    if rate:
        scale = 1 / (1 - rate)
        kept = (torch.rand_like(x) >= rate).to(torch.int8)
    made: Tensor = _Product.apply(x, w, kept, scale)
    return made + bias
