"""Where the codes of a tensor lie: ranges with the least squared error, that follow what they round or are learned with the weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from bitsparse.torch.registration import once

#: Shares of a tensor's extremes among which the one with the least squared error is taken, with up to `_CLIPPED` bits: with more the
#: extremes are the range, as gradients do not reach what lies outside (chosen on cora's validation nodes).
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
_CLIPPED, _LEAST = 3, 1e-30

Kind = Literal["weights", "signs", "positive", "any"]


class _Through(torch.autograd.Function):
    """Codes in place of real numbers. Gradients pass to numbers within the range, and to the range as its steps move what is rounded."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, low: Tensor, codes: Tensor, limits: tuple[float, float], kept: Any
    ) -> Tensor:
        place = (x - low) / step
        # What is no more than half a step beyond is rounded no worse than what lies between.
        inside = (place >= limits[0] - 0.5) & (place <= limits[1] + 0.5)
        rounded = (codes.double() * step + low).to(x.dtype)
        ctx.kept, ctx.shape = kept, step.shape
        ctx.top = max(limits[1], 1.0) if limits[1] < float("inf") else 1.0
        if kept is not None:
            rounded = torch.where(kept[:, None], x, rounded)
        learns = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        # How far the result moves with the step: by its code outside, by the rounding inside.
        moved = torch.where(inside, codes - place, codes).to(x.dtype) if learns else None
        ctx.save_for_backward(inside, moved)
        return rounded

    @staticmethod
    @once("LowBitGCN")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inside, moved = ctx.saved_tensors
        left = gradient if ctx.kept is None else gradient.masked_fill(ctx.kept[:, None], 0)
        passed = gradient * inside if ctx.kept is None else gradient * (inside | ctx.kept[:, None])
        by_step = by_low = None
        if moved is not None:
            # So that steps and weights learn at like rates (LSQ, section 2.2).
            rate = (gradient.numel() / max(ctx.shape[0], 1) * ctx.top) ** -0.5
            by_step = (left * moved).double().sum_to_size(ctx.shape) * rate
            by_low = (left * ~inside).double().sum_to_size(ctx.shape) * rate
        return passed, by_step, by_low, None, None, None


class CodeRange(nn.Module):
    """The grid of a tensor's codes, ``step * code + low``, one for all columns or one for each.

    Parameters
    ----------
    columns : int
        1 for one grid.
    bits : int
    kind : {"weights", "signs", "positive", "any"}
        Codes of weights are -2**(bits - 1) to 2**(bits - 1) - 1, of either sign, as the longer side of a column asks for; signs are -1 and
        1; the others are 0 to 2**bits - 1, from 0 on for positive numbers, else with a lower end.
    learned : bool
        Whether step and lower end are parameters (LSQ, Esser et al., ICLR 2020; LSQ+, Bhalgat et al., 2020), the step by its logarithm and
        the lower end in steps, so that a learning rate means the same for ranges of any size. They start from what is fitted first.
    """

    log_step: Tensor
    zero: Tensor
    sign: Tensor

    def __init__(self, columns: int, bits: int, kind: Kind, learned: bool) -> None:
        super().__init__()
        self.kind, self.bits = kind, bits
        least, top = {"signs": (-1, 1), "weights": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)}.get(
            kind, (0, 2**bits - 1)
        )
        self.limits = float(least), float(top)
        self.register_buffer("sign", torch.ones(columns, dtype=torch.float64))  # of the step
        for name, is_learned in (("log_step", learned), ("zero", learned and kind == "any")):
            start = torch.zeros(columns, dtype=torch.float64)
            if is_learned:
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start)

    @property
    def step(self) -> Tensor:
        """What one code is worth, float64 (columns,)."""
        return self.sign * self.log_step.exp()

    @property
    def low(self) -> Tensor:
        """What code 0 is worth, float64 (columns,)."""
        return self.step * self.zero

    @property
    def high(self) -> Tensor:
        """What the largest code is worth."""
        return self.low + self.step * self.limits[1]

    def codes(self, x: Tensor) -> Tensor:
        """The codes of a matrix, float64 integers."""
        place = (x.detach().double() - self.low.detach()) / self.step.detach()
        if self.kind == "signs":
            return torch.where(place >= 0, 1.0, -1.0).double()
        return place.round().clamp(*self.limits)

    def through(self, x: Tensor, codes: Any = None, kept: Tensor | None = None) -> Tensor:
        """What codes stand for in place of a matrix, with its gradients; rows that are `kept` stay as they are.

        `codes` are those of another computation of the same numbers; by default those of `x`.
        """
        found = self.codes(x) if codes is None else torch.as_tensor(codes, dtype=torch.float64)
        limits = (-float("inf"), float("inf")) if self.kind in ("weights", "signs") else self.limits
        if self.kind == "weights" and self.log_step.requires_grad:
            limits = self.limits
        return _Through.apply(x, self.step, self.low, found, limits, kept)

    @torch.no_grad()
    def follow(self, x: Tensor, share: float = 1.0) -> None:
        """Move step and lower end towards those that fit a matrix best; all the way with a share of 1."""
        step, low = self.fitted(x)
        step, low = (old + share * (new - old) for old, new in ((self.step, step), (self.low, low)))
        self.sign.copy_(step.sign())
        self.log_step.copy_(step.abs().log())
        self.zero.copy_(low / step)

    @torch.no_grad()
    def fitted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Step and lower end: the extremes, or with few bits those shares of them with the least squared error of the rounding."""
        columns = len(self.log_step)
        flat = x.detach().reshape(-1, columns)
        if self.kind == "signs" or not flat.numel():
            step = flat.abs().double().mean(dim=0) if flat.numel() else flat.new_ones(columns).double()
            return torch.where(step > _LEAST, step, 1.0), torch.zeros_like(step)
        least, most = flat.amin(dim=0).clamp(max=0).double(), flat.amax(dim=0).clamp(min=0).double()
        shares: tuple[float, ...] = SHARES if self.bits <= _CLIPPED else (1.0,)
        if self.kind == "weights":
            # Either the smallest or the largest code at an end: the codes reach further on one side.
            ends = torch.maximum(most, -least) / -self.limits[0]
            most, shares = ends * self.limits[1], (*shares, *(-part for part in shares))
        least = least if self.kind == "any" else torch.zeros_like(least)
        whole = (most - least) / self.limits[1]
        # A column of zeros has the largest step of the others: steps scale weights, which share a grid.
        some = whole > _LEAST
        whole = torch.where(some, whole, whole[some].max() if bool(some.any()) else 1.0)
        errors = []
        for part in shares:
            low, step = (part * least).to(flat.dtype), (part * whole).to(flat.dtype)
            codes = ((flat - low) / step).round_().clamp_(*self.limits)
            errors.append(((codes * step + low) - flat).square_().mean(dim=0))
        best = torch.tensor(shares, dtype=torch.float64)[torch.stack(errors).argmin(dim=0)]
        return best * whole, best * least

    def extra_repr(self) -> str:
        """Kind and codes, for ``repr``."""
        return f"{self.kind}, {self.limits[0]:.0f}..{self.limits[1]:.0f}, {len(self.log_step)} columns"
