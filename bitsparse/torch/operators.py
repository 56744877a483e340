"""Sparse products as operators of PyTorch, with gradients of any order.

Two operators, spmm and sddmm, are closed under differentiation. The gradient of spmm by its features is spmm with the transpose; that by
its values is sddmm, one number per edge, whose own gradients are spmm again. Maxima and minima, attention and the softmax over rows have
separate operators for their gradients, which cannot be differentiated again.
Every schema takes both directions of a pattern as tensors, so that no operator has to build a transpose within a captured step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_fp32_precision_getter as _float32_precision  # the result of all of PyTorch's settings

from bitsparse import backends, interop, ops
from bitsparse.ops.spmm.spmm import Precision, kernel_of_gradient
from bitsparse.torch.pattern import Pattern, array_over, sums_kernel
from bitsparse.torch.registration import Recorded, differentiable, on_gpu, once, operator, register

_SCALES = "Tensor? row_scale, Tensor? col_scale"


# ---- implementations
def _spmm(
    pattern: Pattern,
    values: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    x: Tensor,
    is_gradient: bool,
) -> Tensor:
    array, x = array_over(pattern, row_scale, col_scale), x.contiguous()
    if x.is_cpu:
        return ops.spmm(array, x, values=values, precision=permitted(x.dtype))
    out = x.new_empty((pattern.rows, *x.shape[1:]), dtype=_result(x, values))
    precision, asked = permitted(out.dtype), sums_kernel(pattern, x) if values is None else None

    def call(into: Any, features: Any, weights: Any = None) -> None:
        kernel = asked
        if is_gradient and weights is None and asked is None:
            kernel = kernel_of_gradient(array, features, precision)
        ops.spmm(array, features, values=weights, precision=precision, kernel=kernel, out=into)

    on_cupy(call, out, x, values)
    return out


def _sddmm(pattern: Pattern, row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    array = array_over(pattern)
    dtype = torch.promote_types(x.dtype, y.dtype)
    made: Tensor = ops.sddmm(array, x.contiguous(), y.contiguous(), precision=permitted(dtype))
    if row_scale is None and col_scale is None:
        return made
    one, other = (
        torch.ones(size, device=x.device) if scale is None else scale
        for scale, size in zip((row_scale, col_scale), array.shape, strict=True)
    )
    factors = ops.sddmm(array, one, other, op="mul")
    return made * factors.reshape(-1, *(1,) * (made.ndim - 1)).to(made.dtype)


def _spmm_extreme(pattern: Pattern, values: Tensor | None, x: Tensor, reduce: Any) -> Tensor:
    # On the CPU the call allocates its own result.
    out = None if x.is_cpu else x.new_empty((pattern.rows, *x.shape[1:]), dtype=_result(x, values))
    return ops.spmm(array_over(pattern), x.contiguous(), values=values, reduce=reduce, out=out)


def _spmm_extreme_vjp(
    pattern: Pattern, values: Tensor | None, x: Tensor, gradient: Tensor, reduce: Any
) -> tuple[Tensor, Tensor]:
    operands = (array_over(pattern), x.contiguous(), gradient.contiguous())
    if values is None:
        return ops.spmm_vjp(*operands, reduce=reduce), x.new_empty(0)
    return ops.spmm_vjp(*operands, values=values, reduce=reduce, wrt=("x", "values"))


def permitted(dtype: torch.dtype) -> Precision:
    """The precision in which a GPU may multiply float32: TF32 if PyTorch may use it for its own matrix products."""
    allowed = dtype == torch.float32 and _float32_precision("cuda", "matmul") == "tf32"
    return "tf32" if allowed else "fp32"


def _column_sums(x: Tensor) -> Tensor:
    out = x.new_empty(x.shape[1:], dtype=torch.float32 if x.element_size() == 2 else x.dtype)
    on_cupy(backends.family("cuda", "edges.head_scores").column_sums, x.contiguous(), out)
    return out.to(x.dtype)


def on_cupy(call: Callable[..., Any], *tensors: Tensor | None) -> Any:
    """Call a function with CuPy arrays over the memory of all tensors that are not None, on PyTorch's current stream.

    CuPy arrays are used because only calls with them are recognised as repetitions of earlier calls.
    """
    given = [part for part in tensors if part is not None]
    with interop.working_on(f"cuda:{given[0].device.index}", interop.TORCH):
        return call(*(interop.over_tensor(part, "bitsparse.torch") for part in given))


def _result(x: Tensor, values: Tensor | None) -> torch.dtype:
    return x.dtype if values is None else torch.promote_types(x.dtype, values.dtype)


# ---- shapes and dtypes for a compiler
def _fake_extreme(pattern: Pattern, values: Tensor | None, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((pattern.indptr.shape[0] - 1, *x.shape[1:]), dtype=_result(x, values))


def _fake_spmm(
    pattern: Pattern, values: Tensor | None, row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor, _: bool
) -> Tensor:
    return _fake_extreme(pattern, values, x)


def _fake_sddmm(pattern: Pattern, row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty((pattern.indices.shape[0], *x.shape[1:-1]), dtype=torch.promote_types(x.dtype, y.dtype))


def _fake_extreme_vjp(pattern: Pattern, values: Tensor | None, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if values is None else torch.empty_like(values)


# ---- gradients
def _spmm_gradient(recorded: Recorded, gradient: Tensor) -> tuple[Tensor | None, ...]:
    pattern, (values, row_scale, col_scale, x), needs, _ = recorded
    by_values = by_x = None
    if needs[3]:
        turned = None if values is None else values[pattern.order]
        by_x = spmm(pattern.turned, turned, col_scale, row_scale, gradient, True).to(x.dtype)
    if needs[0]:
        ends = (gradient, x) if values.ndim == 2 else (_flat(gradient), _flat(x))
        by_values = sddmm(pattern, row_scale, col_scale, *ends).to(values.dtype)
    return by_values, None, None, by_x, None


def _spmm_of_batches(info: Any, dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    _one_graph(*dims[:6], dims[7], dims[8])
    pattern, (values, row_scale, col_scale, x, is_gradient) = Pattern(*arguments[:6]), arguments[6:]
    x = _batched(x, dims[9], info.batch_size)
    inner = x.shape[2:]
    if values is None or (dims[6] is None and values.ndim == 1):
        features = _flat(x)
    else:
        values = _batched(values, dims[6], info.batch_size)
        heads = info.batch_size * (inner[0] if values.ndim == 3 else 1)
        features = x.reshape(x.shape[0], heads, math.prod(x.shape[1:]) // max(heads, 1))
        values = _flat(values)
    made = spmm(pattern, values, row_scale, col_scale, features, is_gradient)
    return made.reshape(pattern.rows, info.batch_size, *inner), 1


def _sddmm_gradient(recorded: Recorded, gradient: Tensor) -> tuple[Tensor | None, ...]:
    pattern, (row_scale, col_scale, x, y), needs, _ = recorded
    by_x = by_y = None
    if needs[2]:
        by_x = spmm(pattern, gradient, row_scale, col_scale, y).to(x.dtype)
    if needs[3]:
        by_y = spmm(pattern.turned, gradient[pattern.order], col_scale, row_scale, x).to(y.dtype)
    return None, None, by_x, by_y


def _sddmm_of_batches(info: Any, dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    _one_graph(*dims[:8])
    row_scale, col_scale = arguments[6:8]
    x, y = (_batched(part, dim, info.batch_size) for part, dim in zip(arguments[8:], dims[8:], strict=True))
    inner = x.shape[2:-1]
    x, y = (part.reshape(part.shape[0], math.prod(part.shape[1:-1]), part.shape[-1]) for part in (x, y))
    made = sddmm(Pattern(*arguments[:6]), row_scale, col_scale, x, y)
    return made.reshape(made.shape[0], info.batch_size, *inner), 1


@once("spmm of maxima and minima")
def _extreme_gradient(recorded: Recorded, gradient: Tensor) -> tuple[Tensor | None, ...]:
    pattern, (values, x), _, constants = recorded
    by_x, by_values = torch.ops.bitsparse.spmm_extreme_vjp(*pattern, values, x, gradient, *constants)
    return None if values is None else by_values, by_x, None


def _flat(x: Tensor) -> Tensor:
    return x.unsqueeze(-1).flatten(1)  # reshape(n, -1) fails for tensors without elements


def _one_graph(*dims: int | None) -> None:
    if any(dim is not None for dim in dims):
        raise NotImplementedError(
            "spmm: torch.vmap over several graphs or scales; map over features or values, or join the graphs into one"
        )


def _batched(x: Tensor, dim: int | None, size: int) -> Tensor:
    """Move the batch behind the axis of nodes or edges."""
    return x.unsqueeze(1).expand(x.shape[0], size, *x.shape[1:]) if dim is None else x.movedim(dim, 1)


# ---- registration
_OF_SPMM = differentiable(
    operator("spmm", f"Tensor? values, {_SCALES}, Tensor x, bool is_gradient) -> Tensor", _spmm, _fake_spmm),
    _spmm_gradient,
    _spmm_of_batches,
    read_by={0: 3, 3: 0},  # values and features
)
_OF_SDDMM = differentiable(
    operator("sddmm", f"{_SCALES}, Tensor x, Tensor y) -> Tensor", _sddmm, _fake_sddmm),
    _sddmm_gradient,
    _sddmm_of_batches,
    read_by={2: 3, 3: 2},  # both ends
)
operator(
    "spmm_extreme_vjp",
    "Tensor? values, Tensor x, Tensor gradient, str reduce) -> (Tensor, Tensor)",
    _spmm_extreme_vjp,
    _fake_extreme_vjp,
)
_OF_EXTREMES = differentiable(
    operator("spmm_extreme", "Tensor? values, Tensor x, str reduce) -> Tensor", _spmm_extreme, _fake_extreme),
    _extreme_gradient,
)
register(
    "column_sums(Tensor x) -> Tensor",
    lambda x: x.sum(dim=0),
    on_gpu(_column_sums),
    lambda x: x.new_empty(x.shape[1:]),
)


class _ColumnSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return torch.ops.bitsparse.column_sums(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.expand(ctx.shape)


# ---- functions for the rest of the package
def spmm(
    pattern: Pattern,
    values: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    x: Tensor,
    is_gradient: bool = False,
) -> Tensor:
    """``y[i] = row_scale[i] * sum over j of values[i, j] * col_scale[j] * x[j]``, differentiable by `values` and `x`.

    If `x` is a gradient, it may have many rows of zeros.
    """
    return _OF_SPMM(pattern, values, row_scale, col_scale, x, is_gradient)


def column_sums(x: Tensor) -> Tensor:
    """Sums of the columns of a matrix: the gradient by a bias, which is itself differentiable if gradients are enabled."""
    made: Tensor = (_ColumnSums.apply if torch.is_grad_enabled() else torch.ops.bitsparse.column_sums)(x)
    return made


def sddmm(pattern: Pattern, row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """``row_scale[i] * col_scale[j] * <x[i], y[j]>`` for every edge and head, differentiable by `x` and `y`."""
    return _OF_SDDMM(pattern, row_scale, col_scale, x, y)


def spmm_extreme(pattern: Pattern, values: Tensor | None, x: Tensor, reduce: str) -> Tensor:
    """The largest or smallest of ``values[i, j] * x[j]`` over each row, once differentiable."""
    return _OF_EXTREMES(pattern, values, x, reduce)
