"""Sparse products as operators of PyTorch, with gradients of any order.

Two operators are closed under differentiation: the gradient of a product by its features is the product with the transpose, that by its
values one number per edge, whose gradients are products again. Maxima and minima, attention and the softmax over rows have operators for
their gradients, which are not differentiated again.
Both directions of a pattern are tensors in every schema, so that an operator prepares nothing that a captured step would have to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bitsparse import backends, interop, ops
from bitsparse.ops import AttentionState
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose
from bitsparse.ops.edges.cosine_vjp import cosine_attention_vjp_of_both
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import differentiable, operator

_PATTERN = "Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor order, Tensor t_order"
_SCALES = "Tensor? row_scale, Tensor? col_scale"
_ATTENDED = "Tensor x, Tensor source, Tensor target, Tensor? seed"
_SCORED = "Tensor x, Tensor first, Tensor second, Tensor? seed"


# ---- what computes
def _spmm(*arguments: Any) -> Tensor:
    pattern, (values, row_scale, col_scale, x) = Pattern(*arguments[:6]), arguments[6:]
    out = _memory((pattern.rows, *x.shape[1:]), x, values)
    made: Tensor = ops.spmm(array_over(pattern, row_scale, col_scale), x.contiguous(), values=values, out=out)
    return made


def _sddmm(*arguments: Any) -> Tensor:
    pattern, (row_scale, col_scale, x, y) = Pattern(*arguments[:6]), arguments[6:]
    array = array_over(pattern)
    made: Tensor = ops.sddmm(array, x.contiguous(), y.contiguous())
    if row_scale is None and col_scale is None:
        return made
    one, other = (
        torch.ones(size, device=x.device) if scale is None else scale
        for scale, size in zip((row_scale, col_scale), array.shape, strict=True)
    )
    factors = ops.sddmm(array, one, other, op="mul")
    return made * factors.reshape(-1, *(1,) * (made.ndim - 1)).to(made.dtype)


def _spmm_extreme(*arguments: Any) -> Tensor:
    pattern, (values, x, reduce) = Pattern(*arguments[:6]), arguments[6:]
    out = _memory((pattern.rows, *x.shape[1:]), x, values)
    made: Tensor = ops.spmm(array_over(pattern), x.contiguous(), values=values, reduce=reduce, out=out)
    return made


def _spmm_extreme_vjp(*arguments: Any) -> tuple[Tensor, Tensor]:
    pattern, (values, x, gradient, reduce) = Pattern(*arguments[:6]), arguments[6:]
    operands = (array_over(pattern), x.contiguous(), gradient.contiguous())
    if values is None:
        return ops.spmm_vjp(*operands, reduce=reduce), x.new_empty(0)
    made: tuple[Tensor, Tensor] = ops.spmm_vjp(*operands, values=values, reduce=reduce, wrt=("x", "values"))
    return made


def _attention(*arguments: Any) -> tuple[Tensor, ...]:
    pattern, (*parts, seed, slope, dropout, keeps) = Pattern(*arguments[:6]), arguments[6:]
    operands = (part.contiguous() for part in parts)
    how = {"negative_slope": slope, "dropout": dropout, "seed": seed}
    if keeps:
        state: tuple[Tensor, ...] = ops.attention(array_over(pattern), *operands, **how, return_state=True)[1]
        return tuple(state)
    made = ops.attention(array_over(pattern), *operands, **how)
    return made, *(made.new_empty(0) for _ in range(3))


def _attention_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    pattern, (x, source, target, seed, *sums, gradient, slope, dropout) = Pattern(*arguments[:6]), arguments[6:]
    x, source, target, gradient = (part.contiguous() for part in (x, source, target, gradient))
    operands = (x, source, target, gradient, AttentionState(*sums))
    return attention_vjp_of_transpose(array_over(pattern.turned), *operands, slope, dropout, seed)


def _scored_attention(*arguments: Any) -> tuple[Tensor, ...]:
    parts, (x, first, second), rest = arguments[:6], arguments[6:9], arguments[9:]
    x = x.contiguous()
    scores = _head_scores(x, *_widened(x, first, second))
    result, *sums = _attention(*parts, x, *scores, *rest)
    return result, *scores, *sums


def _scored_attention_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    parts, (x, first, second, seed, result, source, target, *rest) = arguments[:6], arguments[6:]
    vectors = _widened(x, first, second)
    features = (
        x.to(source.dtype).contiguous() if x.is_cpu else x.contiguous()
    )  # there what is added is not rounded before
    dx, *by_scores = _attention_vjp(*parts, features, source, target, seed, result, *rest)
    if x.is_cpu:
        dx += sum(by_score[..., None] * vector for by_score, vector in zip(by_scores, vectors, strict=True))
        by_vectors = [torch.einsum("nh,nhd->hd", by_score, features) for by_score in by_scores]
    else:
        kernels = backends.family("cuda", "edges.head_scores")
        by_vectors = _of_cupy(kernels.head_scores_vjp, features, *vectors, *by_scores, dx)
    return dx.to(x.dtype), *(made.to(part.dtype) for made, part in zip(by_vectors, (first, second), strict=True))


def _head_scores(x: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """Dot products of each head's features with two vectors."""
    if x.is_cpu:
        return [torch.einsum("nhd,hd->nh", x.to(part.dtype), part).contiguous() for part in (first, second)]
    return _of_cupy(backends.family("cuda", "edges.head_scores").head_scores, x, first, second)


def _column_sums(x: Tensor) -> Tensor:
    if x.is_cpu:
        return x.sum(dim=0)
    kernels = backends.family("cuda", "edges.head_scores")
    return _of_cupy(lambda array: [kernels.column_sums(array)], x.contiguous())[0].to(x.dtype)


def _widened(x: Tensor, *parts: Tensor) -> list[Tensor]:
    """Vectors in what features are summed in."""
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    return [part.to(sums).contiguous() for part in parts]


def _of_cupy(kernel: Callable[..., Any], *tensors: Tensor) -> list[Tensor]:
    """What kernels over CuPy arrays make of tensors, on the current stream of PyTorch."""
    arrays = [interop.as_array(part, "bitsparse.torch")[0] for part in tensors]
    with interop.working_on(interop.device_of(arrays[0]), interop.TORCH):
        made = kernel(*arrays)
        return [interop.from_array(part, interop.TORCH, "bitsparse.torch") for part in made]


def _edge_softmax(*arguments: Any) -> Tensor:
    made: Tensor = ops.edge_softmax(array_over(Pattern(*arguments[:6])), arguments[6].contiguous())
    return made


def _edge_softmax_vjp(*arguments: Any) -> Tensor:
    weights, gradient = (part.contiguous() for part in arguments[6:])
    made: Tensor = ops.edge_softmax_vjp(array_over(Pattern(*arguments[:6])), weights, gradient)
    return made


def _cosine_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, beta, keeps = arguments[6:]
    array, x = array_over(Pattern(*arguments[:6])), x.contiguous()
    if keeps:
        made: tuple[Tensor, Tensor] = ops.cosine_attention(array, x, beta=beta, return_lse=True)
        return made
    plain: Tensor = ops.cosine_attention(array, x, beta=beta)
    return plain, x.new_empty(0)


def _cosine_attention_vjp(*arguments: Any) -> tuple[Tensor, Tensor]:
    pattern, (x, beta, result, lse, gradient) = Pattern(*arguments[:6]), arguments[6:]
    forward, x, gradient = array_over(pattern), x.contiguous(), gradient.contiguous()
    backward = forward if pattern.t_indices.data_ptr() == pattern.indices.data_ptr() else array_over(pattern.turned)
    gradients: tuple[Tensor, Tensor] = cosine_attention_vjp_of_both(forward, backward, x, gradient, beta, result, lse)
    return gradients


def _gatv2_scores(*arguments: Any) -> Tensor:
    pattern, (*parts, slope) = Pattern(*arguments[:6]), arguments[6:]
    operands = (part.contiguous() for part in parts)
    made: Tensor = ops.gatv2_scores(array_over(pattern), *operands, negative_slope=slope)
    return made


def _gatv2_scores_vjp(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    pattern, (*parts, slope) = Pattern(*arguments[:6]), arguments[6:]
    operands = (part.contiguous() for part in parts)
    made: tuple[Tensor, Tensor, Tensor] = ops.gatv2_scores_vjp(array_over(pattern), *operands, negative_slope=slope)
    return made


def _memory(shape: tuple[int, ...], x: Tensor, values: Tensor | None) -> Tensor | None:
    """A result of PyTorch's on a GPU; on the CPU a call makes its own."""
    return None if x.is_cpu else x.new_empty(shape, dtype=_result(x, values))


def _result(x: Tensor, values: Tensor | None) -> torch.dtype:
    return x.dtype if values is None else torch.promote_types(x.dtype, values.dtype)


# ---- what a compiler is told
def _fake_spmm(*arguments: Any) -> Tensor:
    indptr, values, x = arguments[0], arguments[6], arguments[9]
    made: Tensor = x.new_empty((indptr.shape[0] - 1, *x.shape[1:]), dtype=_result(x, values))
    return made


def _fake_sddmm(*arguments: Any) -> Tensor:
    indices, x, y = arguments[1], arguments[8], arguments[9]
    made: Tensor = x.new_empty((indices.shape[0], *x.shape[1:-1]), dtype=torch.promote_types(x.dtype, y.dtype))
    return made


def _fake_extreme(*arguments: Any) -> Tensor:
    indptr, values, x = arguments[0], arguments[6], arguments[7]
    made: Tensor = x.new_empty((indptr.shape[0] - 1, *x.shape[1:]), dtype=_result(x, values))
    return made


def _fake_extreme_vjp(*arguments: Any) -> tuple[Tensor, Tensor]:
    values, x = arguments[6], arguments[7]
    return torch.empty_like(x), x.new_empty(0) if values is None else torch.empty_like(values)


def _fake_attention(*arguments: Any) -> tuple[Tensor, ...]:
    rows, x = arguments[0].shape[0] - 1, arguments[6]
    made = x.new_empty((rows, *x.shape[1:]))
    if not arguments[-1]:
        return made, *(x.new_empty(0) for _ in range(3))
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    lse, share = (x.new_empty((rows, *x.shape[1:-1]), dtype=sums) for _ in range(2))
    return made, lse, share, torch.empty_like(made)


def _fake_attention_vjp(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, source, target = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in arguments[6:9])
    return x, source, target


def _fake_scored_attention(*arguments: Any) -> tuple[Tensor, ...]:
    x = arguments[6]
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    scores = [x.new_empty(x.shape[:-1], dtype=sums) for _ in range(2)]
    result, *rest = _fake_attention(*arguments)
    return result, *scores, *rest


def _fake_edge_softmax(*arguments: Any) -> Tensor:
    made: Tensor = torch.empty_like(arguments[6], memory_format=torch.contiguous_format)
    return made


def _fake_cosine_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, _, keeps = arguments[6:]
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    lse = x.new_empty((x.shape[0],), dtype=sums) if keeps else x.new_empty(0)
    return torch.empty_like(x, memory_format=torch.contiguous_format), lse


def _fake_cosine_attention_vjp(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, beta = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in arguments[6:8])
    return x, beta


def _fake_gatv2_scores(*arguments: Any) -> Tensor:
    indices, (source, target, a) = arguments[1], arguments[6:9]
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in (source, target, a)))
    made: Tensor = source.new_empty((indices.shape[0], *source.shape[1:-1]), dtype=dtype)
    return made


# ---- gradients
def _spmm_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *parts, values, row_scale, col_scale, x = ctx.saved_tensors
    pattern = Pattern(*parts)
    by_values = by_x = None
    if ctx.needs_input_grad[9]:
        turned = None if values is None else values[pattern.order]
        by_x = spmm(pattern.turned, turned, col_scale, row_scale, gradient).to(x.dtype)
    if ctx.needs_input_grad[6]:
        ends = (gradient, x) if values.ndim == 2 else (_flat(gradient), _flat(x))
        by_values = sddmm(pattern, row_scale, col_scale, *ends).to(values.dtype)
    return (*(None,) * 6, by_values, None, None, by_x)


def _spmm_of_batches(info: Any, dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    _one_graph(*dims[:6], dims[7], dims[8])
    pattern, (values, row_scale, col_scale, x) = Pattern(*arguments[:6]), arguments[6:]
    x = _batched(x, dims[9], info.batch_size)
    inner = x.shape[2:]
    if values is None or (dims[6] is None and values.ndim == 1):
        features = _flat(x)
    else:
        values = _batched(values, dims[6], info.batch_size)
        features = x.reshape(x.shape[0], info.batch_size * (inner[0] if values.ndim == 3 else 1), -1)
        values = _flat(values)
    made = spmm(pattern, values, row_scale, col_scale, features)
    return made.reshape(pattern.rows, info.batch_size, *inner), 1


def _sddmm_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *parts, row_scale, col_scale, x, y = ctx.saved_tensors
    pattern = Pattern(*parts)
    by_x = by_y = None
    if ctx.needs_input_grad[8]:
        by_x = spmm(pattern, gradient, row_scale, col_scale, y).to(x.dtype)
    if ctx.needs_input_grad[9]:
        by_y = spmm(pattern.turned, gradient[pattern.order], col_scale, row_scale, x).to(y.dtype)
    return (*(None,) * 8, by_x, by_y)


def _sddmm_of_batches(info: Any, dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    _one_graph(*dims[:8])
    row_scale, col_scale = arguments[6:8]
    x, y = (_batched(part, dim, info.batch_size) for part, dim in zip(arguments[8:], dims[8:], strict=True))
    inner = x.shape[2:-1]
    x, y = (part.reshape(part.shape[0], -1, part.shape[-1]) for part in (x, y))
    made = sddmm(Pattern(*arguments[:6]), row_scale, col_scale, x, y)
    return made.reshape(made.shape[0], info.batch_size, *inner), 1


@once_differentiable
def _extreme_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *parts, values, x = ctx.saved_tensors
    by_x, by_values = torch.ops.bitsparse.spmm_extreme_vjp(*parts, values, x, gradient, *ctx.constants)
    return (*(None,) * 6, None if values is None else by_values, by_x, None)


@once_differentiable
def _attention_gradient(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    slope, dropout, _ = ctx.constants
    gradients = torch.ops.bitsparse.attention_vjp(*ctx.saved_tensors, gradient, slope, dropout)
    return (*(None,) * 6, *gradients, *(None,) * 4)


@once_differentiable
def _scored_gradient(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    slope, dropout, _ = ctx.constants
    gradients = torch.ops.bitsparse.scored_attention_vjp(*ctx.saved_tensors, gradient, slope, dropout)
    return (*(None,) * 6, *gradients, *(None,) * 4)


@once_differentiable
def _softmax_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *parts, _, weights = ctx.saved_tensors
    return (*(None,) * 6, torch.ops.bitsparse.edge_softmax_vjp(*parts, weights, gradient))


@once_differentiable
def _cosine_gradient(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return (*(None,) * 6, *torch.ops.bitsparse.cosine_attention_vjp(*ctx.saved_tensors, gradient), None)


@once_differentiable
def _gatv2_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.bitsparse.gatv2_scores_vjp(*ctx.saved_tensors, gradient, *ctx.constants)
    return (*(None,) * 6, *gradients, None)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)


def _one_graph(*dims: int | None) -> None:
    if any(dim is not None for dim in dims):
        raise NotImplementedError(
            "spmm: torch.vmap over several graphs or scales; map over features or values, or join the graphs into one"
        )


def _batched(x: Tensor, dim: int | None, size: int) -> Tensor:
    """Nodes or edges first, then the batch."""
    return x.unsqueeze(1).expand(x.shape[0], size, *x.shape[1:]) if dim is None else x.movedim(dim, 1)


# ---- registration
_OF_SPMM = differentiable(
    operator(f"spmm({_PATTERN}, Tensor? values, {_SCALES}, Tensor x) -> Tensor", _spmm, _fake_spmm),
    _spmm_gradient,
    _spmm_of_batches,
)
_OF_SDDMM = differentiable(
    operator(f"sddmm({_PATTERN}, {_SCALES}, Tensor x, Tensor y) -> Tensor", _sddmm, _fake_sddmm),
    _sddmm_gradient,
    _sddmm_of_batches,
)
operator(
    f"spmm_extreme_vjp({_PATTERN}, Tensor? values, Tensor x, Tensor gradient, str reduce) -> (Tensor, Tensor)",
    _spmm_extreme_vjp,
    _fake_extreme_vjp,
)
_OF_EXTREMES = differentiable(
    operator(f"spmm_extreme({_PATTERN}, Tensor? values, Tensor x, str reduce) -> Tensor", _spmm_extreme, _fake_extreme),
    _extreme_gradient,
)
operator(
    f"attention_vjp({_PATTERN}, {_ATTENDED}, Tensor result, Tensor lse, Tensor share, Tensor above, Tensor gradient, float slope, "
    f"float dropout) -> (Tensor, Tensor, Tensor)",
    _attention_vjp,
    _fake_attention_vjp,
)
_OF_ATTENTION = differentiable(
    operator(
        f"attention({_PATTERN}, {_ATTENDED}, float slope, float dropout, bool keeps) -> (Tensor, Tensor, Tensor, Tensor)",
        _attention,
        _fake_attention,
    ),
    _attention_gradient,
    keeps_result=True,
)
operator(
    f"scored_attention_vjp({_PATTERN}, {_SCORED}, Tensor result, Tensor source, Tensor target, Tensor lse, Tensor share, Tensor above, "
    f"Tensor gradient, float slope, float dropout) -> (Tensor, Tensor, Tensor)",
    _scored_attention_vjp,
    _fake_attention_vjp,
)
_OF_SCORED_ATTENTION = differentiable(
    operator(
        f"scored_attention({_PATTERN}, {_SCORED}, float slope, float dropout, bool keeps) -> "
        f"(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _scored_attention,
        _fake_scored_attention,
    ),
    _scored_gradient,
    keeps_result=True,
)
operator(
    f"edge_softmax_vjp({_PATTERN}, Tensor weights, Tensor gradient) -> Tensor", _edge_softmax_vjp, _fake_edge_softmax
)
_OF_SOFTMAX = differentiable(
    operator(f"edge_softmax({_PATTERN}, Tensor scores) -> Tensor", _edge_softmax, _fake_edge_softmax),
    _softmax_gradient,
    keeps_result=True,
)


operator(
    f"cosine_attention_vjp({_PATTERN}, Tensor x, Tensor beta, Tensor result, Tensor lse, Tensor gradient) -> (Tensor, Tensor)",
    _cosine_attention_vjp,
    _fake_cosine_attention_vjp,
)
_OF_COSINES = differentiable(
    operator(
        f"cosine_attention({_PATTERN}, Tensor x, Tensor beta, bool keeps) -> (Tensor, Tensor)",
        _cosine_attention,
        _fake_cosine_attention,
    ),
    _cosine_gradient,
    keeps_result=True,
)
operator(
    f"gatv2_scores_vjp({_PATTERN}, Tensor source, Tensor target, Tensor a, Tensor gradient, float slope) -> (Tensor, Tensor, Tensor)",
    _gatv2_scores_vjp,
    _fake_attention_vjp,
)
_OF_GATV2 = differentiable(
    operator(
        f"gatv2_scores({_PATTERN}, Tensor source, Tensor target, Tensor a, float slope) -> Tensor",
        _gatv2_scores,
        _fake_gatv2_scores,
    ),
    _gatv2_gradient,
)


operator("column_sums(Tensor x) -> Tensor", _column_sums, lambda x: x.new_empty(x.shape[1:]))


# ---- what the package calls
def spmm(
    pattern: Pattern, values: Tensor | None, row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor
) -> Tensor:
    """``y[i] = row_scale[i] * sum over j of values[i, j] * col_scale[j] * x[j]``, differentiable by `values` and `x`."""
    return _OF_SPMM(*pattern, values, row_scale, col_scale, x)


def sddmm(pattern: Pattern, row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """``row_scale[i] * col_scale[j] * <x[i], y[j]>`` for every edge and head, differentiable by `x` and `y`."""
    return _OF_SDDMM(*pattern, row_scale, col_scale, x, y)


def spmm_extreme(pattern: Pattern, values: Tensor | None, x: Tensor, reduce: str) -> Tensor:
    """The largest or smallest of ``values[i, j] * x[j]`` over each row, once differentiable."""
    return _OF_EXTREMES(*pattern, values, x, reduce)


def attention(
    pattern: Pattern, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``leaky_relu(source[j] + target[i])``, once differentiable."""
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (x, source, target))
    made: Tensor = _OF_ATTENTION(*pattern, x, source, target, seed, slope, dropout, keeps)[0]
    return made


def scored_attention(
    pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """:func:`attention` over a square pattern with ``source = <x, first>`` and ``target = <x, second>`` for each head (H, D)."""
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (x, first, second))
    made: Tensor = _OF_SCORED_ATTENTION(*pattern, x, first, second, seed, slope, dropout, keeps)[0]
    return made


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """The softmax of the edges' scores over each row, once differentiable."""
    return _OF_SOFTMAX(*pattern, scores)


def cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``beta * cos(x[i], x[j])``, once differentiable by both."""
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (x, beta))
    made: Tensor = _OF_COSINES(*pattern, x, beta, keeps)[0]
    return made


def gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    """``a . leaky_relu(source[j] + target[i])`` for every edge and head, once differentiable."""
    return _OF_GATV2(*pattern, source, target, a, slope)
