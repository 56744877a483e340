"""Sums over neighbours together with what layers do behind them: own features, a bias, and relu, in one launch on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitsparse.backends.after_sums import AfterSums
from bitsparse.ops.spmm.spmm import spmm_and_after
from bitsparse.torch.dense import clipped, is_alone
from bitsparse.torch.graph import Graph
from bitsparse.torch.operators import column_sums, on_cupy, permitted, spmm
from bitsparse.torch.pattern import Pattern, array_over, sums_kernel
from bitsparse.torch.registration import is_plain, on_gpu

#: The dtypes of features that kernels sum together with steps behind the sums.
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def call_with(run: Any, x: Tensor, out: Tensor, after: AfterSums) -> Any:
    """Call ``run(x, out, after)`` with CuPy arrays in place of tensors, also within the steps `after` the sums.

    A factor and a bias of 16 bits are passed in float32, as kernels take them.
    """
    given = {"own": after.own}
    for name in ("bias", "own_scale"):
        part = getattr(after, name)
        given[name] = None if part is None else part.float().contiguous()
    names = [name for name, part in given.items() if part is not None]

    def with_arrays(features: Any, into: Any, *arrays: Any) -> Any:
        return run(features, into, AfterSums(relu=after.relu, **dict(zip(names, arrays, strict=True))))

    return on_cupy(with_arrays, x, out, *(given[name] for name in names))


def take(after: AfterSums, sums: Tensor) -> None:
    """Take steps of tensors one after the other, in place; each rounds to the dtype of the sums."""
    bias, own, factor, relu = after
    if own is not None:
        sums.add_(own) if factor is None else sums.addcmul_(own, factor)
    if bias is not None:
        sums.add_(bias)
    if relu:
        sums.relu_()


def _summed(pattern: Pattern, rows: Tensor | None, columns: Tensor | None, x: Tensor, after: AfterSums) -> Tensor:
    array, x = array_over(pattern, rows, columns), x.contiguous()
    out = x.new_empty((pattern.rows, x.shape[1]))
    precision, kernel = permitted(x.dtype), sums_kernel(pattern, x)

    def run(features: Any, into: Any, steps: AfterSums) -> bool:
        return spmm_and_after(array, features, steps, reduce="sum", precision=precision, kernel=kernel, out=into)

    if not call_with(run, x, out, after):  # sums in 16 bits of a kernel that takes no steps
        take(after, out)
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
        out: Tensor = _summed_on_gpu(*how, x, AfterSums(bias, own, factor, relu))
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
            by_x = _summed_on_gpu(
                pattern.turned, columns, rows, gradient, AfterSums(own=gradient.contiguous(), own_scale=factor)
            )
        elif needs[0]:
            by_x = spmm(pattern.turned, None, columns, rows, gradient, True)
            if ctx.itself:
                by_x = by_x + (gradient if factor is None else factor * gradient)
        by_factor = (gradient * own).sum().reshape(factor.shape) if needs[2] else None
        return by_x, by_own, by_factor, column_sums(gradient) if needs[3] else None, *(None,) * 5


def sums_and_more(graph: Graph, x: Tensor, reduce: str, after: AfterSums) -> Tensor | None:
    """:func:`bitsparse.torch.spmm` and the steps `after` it in one launch; None if no kernel can.

    In float32 the bits are those of separate steps. Features of 16 bits are summed and take the steps in float32, with one rounding at the
    end; where their sums come from the matrix units, steps follow one by one, each with a rounding.
    """
    bias, own, factor, relu = after
    parts = [part for part in (own, factor, bias) if part is not None]
    if not (parts or relu) or not can_sum(graph, x, reduce, *parts):
        return None
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
    """Whether a kernel may sum these matrices of float32 or 16 bits on a GPU, with steps behind that take parts of the same dtype."""
    if not (x.is_cuda and is_alone(x) and is_plain(x, *parts)) or reduce not in ("sum", "mean"):
        return False
    if x.dtype not in _DTYPES or any(part.dtype != x.dtype or part.device != x.device for part in parts):
        return False
    return graph.weight is None and graph.multiplicity is None and graph.indptr.device == x.device
