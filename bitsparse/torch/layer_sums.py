"""Sums over neighbours together with what layers do behind them: own features, a bias, and relu, in one launch on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitsparse.backends.after_sums import AfterSums
from bitsparse.ops.spmm.spmm import spmm_and_after
from bitsparse.torch.dense import clipped, is_alone
from bitsparse.torch.graph import Graph
from bitsparse.torch.operators import column_sums, on_cupy, permitted, spmm
from bitsparse.torch.pattern import Pattern, array_over, sums_kernel
from bitsparse.torch.registration import is_plain, on_gpu


class Behind(NamedTuple):
    """Steps behind sums: ``relu(sums + factor * own + bias)``, without the parts that are not given.

    Attributes
    ----------
    own : Tensor (targets, D), optional
    factor : Tensor (1,), optional
        By default 1.
    bias : Tensor (D,), optional
    relu : bool
    """

    own: Tensor | None = None
    factor: Tensor | None = None
    bias: Tensor | None = None
    relu: bool = False

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that are given."""
        return [part for part in (self.own, self.factor, self.bias) if part is not None]

    def call(self, run: Any, x: Tensor, out: Tensor) -> None:
        """Call ``run(x, out, steps)`` with CuPy arrays."""
        own, factor, bias, relu = self
        bias = None if bias is None else bias.contiguous()
        names = [name for name, part in (("own", own), ("own_scale", factor), ("bias", bias)) if part is not None]

        def with_steps(features: Any, into: Any, *arrays: Any) -> None:
            run(features, into, AfterSums(relu=relu, **dict(zip(names, arrays, strict=True))))

        on_cupy(with_steps, x, out, own, factor, bias)


def _summed(pattern: Pattern, rows: Tensor | None, columns: Tensor | None, x: Tensor, behind: Behind) -> Tensor:
    array, x = array_over(pattern, rows, columns), x.contiguous()
    out = x.new_empty((pattern.rows, x.shape[1]))
    precision, kernel = permitted(x.dtype), sums_kernel(pattern, x)

    def run(features: Any, into: Any, after: AfterSums) -> None:
        spmm_and_after(array, features, after, reduce="sum", precision=precision, kernel=kernel, out=into)

    behind.call(run, x, out)
    return out


_summed_on_gpu = on_gpu(_summed)


class _Sums(torch.autograd.Function):
    """Sums with steps behind them, of which relu's gradient is left to :func:`clipped`; with `itself`, the sources are the own features."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        own: Tensor | None,
        factor: Tensor | None,
        bias: Tensor | None,
        relu: bool,
        itself: bool,
        *how: Any,
    ) -> Tensor:
        own = x if itself else own
        out: Tensor = _summed_on_gpu(*how, x, Behind(own, factor, bias, relu))
        ctx.itself, ctx.how = itself, how
        ctx.save_for_backward(own if ctx.needs_input_grad[2] else None, factor)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (own, factor), needs = ctx.saved_tensors, ctx.needs_input_grad
        pattern, rows, columns = ctx.how
        by_x = by_own = None
        if needs[1]:
            by_own = gradient if factor is None else factor * gradient
        if needs[0] and ctx.itself and not torch.is_grad_enabled():
            by_x = _summed_on_gpu(pattern.turned, columns, rows, gradient, Behind(gradient.contiguous(), factor))
        elif needs[0]:
            by_x = spmm(pattern.turned, None, columns, rows, gradient)
            if ctx.itself:
                by_x = by_x + (gradient if factor is None else factor * gradient)
        by_factor = (gradient * own).sum().reshape(factor.shape) if needs[2] else None
        return by_x, by_own, by_factor, column_sums(gradient) if needs[3] else None, *(None,) * 5


def sums_and_more(graph: Graph, x: Tensor, reduce: str, behind: Behind) -> Tensor | None:
    """:func:`bitsparse.torch.spmm` and the steps behind it in one launch, with the bits of separate steps; None if no kernel can."""
    if not (behind.parts or behind.relu) or not can_sum(graph, x, reduce, *behind.parts):
        return None
    own, factor, bias, relu = behind
    shape = (graph.num_targets, x.shape[1])
    if x.shape[0] != graph.num_sources or not (bias is None or bias.shape == shape[1:]):
        return None
    if not (own is None or own.shape == shape) or not (factor is None or factor.numel() == 1):
        return None
    itself = own is x
    own = None if itself else own if own is None or own.stride(1) == 1 else own.contiguous()
    how = graph.pattern(), *graph.factors(reduce == "mean", x.dtype)
    made: Tensor = _Sums.apply(x, own, factor, bias, relu, itself, *how)
    return clipped(made) if relu else made


def can_sum(graph: Graph, x: Tensor, reduce: str, *parts: Tensor) -> bool:
    """Whether a kernel may sum these float32 matrices on a GPU, with steps that take further parts behind the sums."""
    if not (x.is_cuda and is_alone(x) and is_plain(x, *parts)) or reduce not in ("sum", "mean"):
        return False
    if any(part.dtype != torch.float32 or part.device != x.device for part in (x, *parts)):
        return False
    return graph.weight is None and graph.multiplicity is None and graph.indptr.device == x.device
