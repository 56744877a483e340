"""Attention and the softmax over rows as PyTorch operators, in addition to those of :mod:`bitsparse.torch.operators`.

Each can be differentiated once and has an operator of its own for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bitsparse import _check, ops
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.ops import AttentionState
from bitsparse.ops.edges.attention import checked_dropout
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose
from bitsparse.ops.edges.cosine_vjp import cosine_attention_vjp_of_both
from bitsparse.ops.edges.prepared import attention_run, attention_vjp_run, cosine_run, cosine_vjp_run
from bitsparse.torch import attention_shapes
from bitsparse.torch.attention_shapes import like
from bitsparse.torch.head_scores import head_scores, head_scores_vjp, sums_dtype, widened
from bitsparse.torch.operators import on_cupy
from bitsparse.torch.pattern import Pattern, array_over
from bitsparse.torch.registration import Operator, Recorded, differentiable, once, operator, straight

_SUMS_OF_ATTENTION = "Tensor lse, Tensor share, Tensor above, Tensor gradient, float slope, float dropout"


# ---- implementations
def _attention(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    *ends, seed, slope, dropout, keeps = parts
    operands: Any = [part.contiguous() for part in ends]
    if keeps and _lie_well(pattern, *_attended(pattern, *operands)):
        made = _room_of_attention(pattern, operands[0])
        if on_cupy(partial(_attend, array_over(pattern), slope, dropout, seed), *operands, *made):
            return made
    how = {"negative_slope": slope, "dropout": dropout, "seed": seed}
    made = ops.attention(array_over(pattern), *operands, **how, return_state=keeps)
    return tuple(made[1]) if keeps else (made, *(made.new_empty(0) for _ in range(3)))


def _attention_vjp(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    x, source, target, seed, *sums, gradient, slope, dropout = parts
    x, source, target, gradient = (part.contiguous() for part in (x, source, target, gradient))
    wide = [(part, (pattern.rows, *x.shape[1:])) for part in (gradient, sums[0], sums[3])]
    ends = [(part, (pattern.rows, *x.shape[1:-1])) for part in sums[1:3]]
    if _lie_well(pattern, *_attended(pattern, x, source, target), *wide, *ends):
        made = like(x, source, target)
        call = partial(_attend_vjp, array_over(pattern.turned), slope, dropout, seed)
        if on_cupy(call, x, source, target, gradient, *sums, *made):
            return made
    operands = (x, source, target, gradient, AttentionState(*sums))
    return attention_vjp_of_transpose(array_over(pattern.turned), *operands, slope, dropout, seed)


#: A tensor and the shape that it should have.
Shaped = tuple[Tensor, tuple[int, ...]]


def _lie_well(pattern: Pattern, *parts: Shaped) -> bool:
    """Whether tensors are contiguous, on the pattern's GPU and of the expected shapes; if not, the general path explains the error."""
    device = pattern.indptr.device
    return device.type == "cuda" and all(
        part.shape == shape and part.device == device and part.is_contiguous() for part, shape in parts
    )


def _attended(pattern: Pattern, x: Tensor, source: Tensor, target: Tensor) -> tuple[Shaped, ...]:
    """The operands of attention with their shapes: features (sources, D) or (sources, H, D), and scores of both ends."""
    sources, ends = pattern.turned.rows, x.shape[1:-1]
    features = (sources, *x.shape[1:]) if x.ndim in (2, 3) else ()
    return (x, features), (source, (sources, *ends)), (target, (pattern.rows, *ends))


def _cosines_of(pattern: Pattern, x: Tensor, beta: Tensor) -> tuple[Shaped, ...]:
    """The operands of attention by cosines with their shapes: features (nodes, D) and a factor of one element."""
    nodes = pattern.rows if pattern.rows == pattern.turned.rows else -1
    return (x, (nodes, x.shape[-1]) if x.ndim == 2 else ()), (beta, beta.shape if beta.numel() == 1 else (1,))


def _room_of_attention(pattern: Pattern, x: Tensor) -> tuple[Tensor, ...]:
    """Allocate the result and the state of attention."""
    lse, share = (x.new_empty((pattern.rows, *x.shape[1:-1]), dtype=sums_dtype(x)) for _ in range(2))
    made = x.new_empty((pattern.rows, *x.shape[1:]))
    return made, lse, share, torch.empty_like(made)


def _attend(
    array: TCTiledCSR, slope: float, dropout: float, seed: Any, x: Any, source: Any, target: Any, out: Any, *state: Any
) -> bool:
    """Attention from CuPy arrays into CuPy arrays; returns False if the kernels do not take these arrays directly."""
    slope = _check.number("attention", "negative_slope", slope)
    drop = checked_dropout("attention", dropout, seed, array.device)
    return _done(attention_run(array, (x, source, target), out, state, slope, drop))


def _attend_vjp(turned: TCTiledCSR, slope: float, dropout: float, seed: Any, *arrays: Any) -> bool:
    """The same for gradients: `arrays` are x, source, target, the gradient, the state, and three arrays for the results."""
    drop = checked_dropout("attention_vjp", dropout, seed, turned.device)
    return _done(attention_vjp_run(turned, arrays[:4], arrays[4:8], arrays[8:], slope, drop))


def _done(run: Callable[[], Any] | None) -> bool:
    if run is not None:
        run()
    return run is not None


def _scored_attention(pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    x = x.contiguous()
    made = scored_on_gpu(pattern, x, first, second, None, *rest) if x.is_cuda else None
    if made is not None:
        return made
    scores = head_scores(x, first, second)
    result, *sums = _attention(pattern, x, *scores, *rest)
    return result, *scores, *sums


def scored_on_gpu(
    pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, ...] | None:
    """What the operator ``scored_attention`` gives for contiguous features, plus a bias; None if kernels cannot take the tensors."""
    seed, slope, dropout, keeps = rest
    vectors, sums = widened(x, first, second), sums_dtype(x)
    source, target = (x.new_empty(x.shape[:-1], dtype=sums) for _ in range(2))
    result, *state = _room_of_attention(pattern, x) if keeps else [x.new_empty((pattern.rows, *x.shape[1:]))]
    if not _lie_well(pattern, *_attended(pattern, x, source, target), *((part, x.shape[1:]) for part in vectors)):
        return None
    array = array_over(pattern)

    def call(first: Any, second: Any, out: Any, *others: Any) -> bool:
        drop = checked_dropout("attention", dropout, seed, array.device)
        number, kept = _check.number("attention", "negative_slope", slope), 3 + len(state)
        given = others[:3], out, others[3:kept], number, drop, (first, second)
        return _done(attention_run(array, *given, *others[kept:]))

    of_bias = [] if bias is None else [bias.contiguous()]
    done = on_cupy(call, *vectors, result, x, source, target, *state, *of_bias)
    return (result, source, target, *(state or [x.new_empty(0) for _ in range(3)])) if done else None


def _scored_attention_vjp(pattern: Pattern, *parts: Any) -> tuple[Tensor, ...]:
    x, first, second, seed, result, source, target, *rest = parts
    made = scored_vjp_on_gpu(pattern, x.contiguous(), first, second, None, *parts[3:]) if x.is_cuda else None
    if made is not None:
        return made
    # On the CPU both terms of the gradient are added before they are rounded to the dtype of `x`.
    features = x.to(source.dtype).contiguous() if x.is_cpu else x.contiguous()
    dx, *by_scores = _attention_vjp(pattern, features, source, target, seed, result, *rest)
    dx, *by_vectors = head_scores_vjp(features, first, second, by_scores, dx)
    return dx.to(x.dtype), *by_vectors


def scored_vjp_on_gpu(
    pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, ...] | None:
    """Gradients of :func:`scored_on_gpu` by the features, the vectors and the bias, if there is one; None if kernels cannot do this."""
    seed, result, source, target, lse, share, above, gradient, slope, dropout = rest
    vectors, gradient = widened(x, first, second), gradient.contiguous()
    wide = [(part, (pattern.rows, *x.shape[1:])) for part in (gradient, result, above)]
    ends = [(part, (pattern.rows, *x.shape[1:-1])) for part in (lse, share)]
    wide += [(part, x.shape[1:]) for part in vectors]
    if not _lie_well(pattern, *_attended(pattern, x, source, target), *wide, *ends):
        return None
    array, by_vectors = array_over(pattern.turned), x.new_empty((2, *x.shape[1:]), dtype=vectors[0].dtype)
    made, of_bias = like(x, source, target), []
    if bias is not None:
        of_bias = [bias.contiguous(), torch.empty_like(bias, memory_format=torch.contiguous_format)]

    def call(first: Any, second: Any, by_vectors: Any, *arrays: Any) -> bool:
        drop = checked_dropout("attention_vjp", dropout, seed, array.device)
        scores = (first, second), by_vectors
        return _done(
            attention_vjp_run(array, arrays[:4], arrays[4:8], arrays[8:11], slope, drop, *scores, *arrays[11:])
        )

    given = x, source, target, gradient, result, lse, share, above, *made, *of_bias
    if not on_cupy(call, *vectors, by_vectors, *given):
        return None
    by_first, by_second = (one.to(part.dtype) for one, part in zip(by_vectors, (first, second), strict=True))
    return made[0], by_first, by_second, *of_bias[1:]


def _edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    return ops.edge_softmax(array_over(pattern), scores.contiguous())


def _edge_softmax_vjp(pattern: Pattern, weights: Tensor, gradient: Tensor) -> Tensor:
    return ops.edge_softmax_vjp(array_over(pattern), weights.contiguous(), gradient.contiguous())


def _cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor, keeps: bool) -> tuple[Tensor, Tensor]:
    array, x = array_over(pattern), x.contiguous()
    if keeps and _lie_well(pattern, *_cosines_of(pattern, x, beta)):
        made = torch.empty_like(x), x.new_empty(x.shape[:1], dtype=sums_dtype(x))
        if on_cupy(lambda *arrays: _done(cosine_run(array, *arrays)), x, beta, *made):
            return made
    found = ops.cosine_attention(array, x, beta=beta, return_lse=keeps)
    return found if keeps else (found, x.new_empty(0))


def _cosine_attention_vjp(
    pattern: Pattern, x: Tensor, beta: Tensor, result: Tensor, lse: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    forward, x, gradient = array_over(pattern), x.contiguous(), gradient.contiguous()
    backward = forward if pattern.t_indices.data_ptr() == pattern.indices.data_ptr() else array_over(pattern.turned)
    saved = (gradient, x.shape), (result, x.shape), (lse, x.shape[:1])
    if _lie_well(pattern, *_cosines_of(pattern, x, beta), *saved):
        made = torch.empty_like(x), torch.empty_like(beta)

        def call(beta: Any, by_x: Any, by_beta: Any, *arrays: Any) -> bool:
            return _done(cosine_vjp_run((forward, backward), arrays, (by_x, by_beta), beta))

        if on_cupy(call, beta, *made, x, gradient, result, lse):
            return made
    return cosine_attention_vjp_of_both(forward, backward, x, gradient, beta, result, lse)


def _gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    operands = (part.contiguous() for part in (source, target, a))
    return ops.gatv2_scores(array_over(pattern), *operands, negative_slope=slope)


def _gatv2_scores_vjp(pattern: Pattern, *parts: Any) -> tuple[Tensor, Tensor, Tensor]:
    *operands, slope = parts
    return ops.gatv2_scores_vjp(array_over(pattern), *(part.contiguous() for part in operands), negative_slope=slope)


# ---- gradients
def _by_operator(of: Operator, constants: int, without: int) -> Callable[..., tuple[Tensor | None, ...]]:
    """A gradient computed by operator `of` from saved tensors and the first `constants` constants; the last `without` inputs get None."""
    compute = straight(of)

    @once(of.name.removesuffix("_vjp").removeprefix("scored_"))
    def gradient(recorded: Recorded, given: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        others = recorded.constants[:constants]
        return *compute(recorded.pattern, *recorded.saved_tensors, given, *others), *(None,) * without

    return gradient


def _by_softmax(of: Operator) -> Callable[..., tuple[Tensor | None, ...]]:
    compute = straight(of)

    @once("edge_softmax")
    def gradient(recorded: Recorded, given: Tensor) -> tuple[Tensor | None, ...]:
        _, weights = recorded.saved_tensors
        return (compute(recorded.pattern, weights, given),)

    return gradient


# ---- registration
_ATTENTION_VJP = operator(
    "attention_vjp",
    f"Tensor x, Tensor source, Tensor target, Tensor? seed, Tensor result, {_SUMS_OF_ATTENTION}) -> (Tensor, Tensor, Tensor)",
    _attention_vjp,
    attention_shapes.of_three,
)
_OF_ATTENTION = differentiable(
    operator(
        "attention",
        "Tensor x, Tensor source, Tensor target, Tensor? seed, float slope, float dropout, bool keeps) -> "
        "(Tensor, Tensor, Tensor, Tensor)",
        _attention,
        attention_shapes.attention,
    ),
    _by_operator(_ATTENTION_VJP, 2, 4),
    keeps_result=True,
)
_SCORED_ATTENTION_VJP = operator(
    "scored_attention_vjp",
    f"Tensor x, Tensor first, Tensor second, Tensor? seed, Tensor result, Tensor source, Tensor target, {_SUMS_OF_ATTENTION}) -> "
    f"(Tensor, Tensor, Tensor)",
    _scored_attention_vjp,
    attention_shapes.of_three,
)
_OF_SCORED_ATTENTION = differentiable(
    operator(
        "scored_attention",
        "Tensor x, Tensor first, Tensor second, Tensor? seed, float slope, float dropout, bool keeps) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _scored_attention,
        attention_shapes.scored_attention,
    ),
    _by_operator(_SCORED_ATTENTION_VJP, 2, 4),
    keeps_result=True,
)
_SOFTMAX_VJP = operator(
    "edge_softmax_vjp", "Tensor weights, Tensor gradient) -> Tensor", _edge_softmax_vjp, attention_shapes.edge_softmax
)
_OF_SOFTMAX = differentiable(
    operator("edge_softmax", "Tensor scores) -> Tensor", _edge_softmax, attention_shapes.edge_softmax),
    _by_softmax(_SOFTMAX_VJP),
    keeps_result=True,
)
_COSINES_VJP = operator(
    "cosine_attention_vjp",
    "Tensor x, Tensor beta, Tensor result, Tensor lse, Tensor gradient) -> (Tensor, Tensor)",
    _cosine_attention_vjp,
    attention_shapes.cosine_attention_vjp,
)
_OF_COSINES = differentiable(
    operator(
        "cosine_attention",
        "Tensor x, Tensor beta, bool keeps) -> (Tensor, Tensor)",
        _cosine_attention,
        attention_shapes.cosine_attention,
    ),
    _by_operator(_COSINES_VJP, 0, 1),
    keeps_result=True,
)
_GATV2_VJP = operator(
    "gatv2_scores_vjp",
    "Tensor source, Tensor target, Tensor a, Tensor gradient, float slope) -> (Tensor, Tensor, Tensor)",
    _gatv2_scores_vjp,
    attention_shapes.of_three,
)
_OF_GATV2 = differentiable(
    operator(
        "gatv2_scores",
        "Tensor source, Tensor target, Tensor a, float slope) -> Tensor",
        _gatv2_scores,
        attention_shapes.gatv2_scores,
    ),
    _by_operator(_GATV2_VJP, 1, 1),
)


# ---- functions for the rest of the package
def _keeps(*parts: Tensor) -> bool:
    """Whether a gradient by one of these tensors may be asked for."""
    return torch.is_grad_enabled() and any(part.requires_grad for part in parts)


def attention(
    pattern: Pattern, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``leaky_relu(source[j] + target[i])``, once differentiable."""
    return _OF_ATTENTION(pattern, x, source, target, seed, slope, dropout, _keeps(x, source, target))[0]


def scored_attention(
    pattern: Pattern, x: Tensor, first: Tensor, second: Tensor, slope: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """:func:`attention` over a square pattern with ``source = <x, first>`` and ``target = <x, second>`` for each head (H, D)."""
    return _OF_SCORED_ATTENTION(pattern, x, first, second, seed, slope, dropout, _keeps(x, first, second))[0]


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """The softmax of the edges' scores over each row, once differentiable."""
    return _OF_SOFTMAX(pattern, scores)


def cosine_attention(pattern: Pattern, x: Tensor, beta: Tensor) -> Tensor:
    """Sums of `x` weighted with the softmax over each row of ``beta * cos(x[i], x[j])``, once differentiable by both."""
    return _OF_COSINES(pattern, x, beta, _keeps(x, beta))[0]


def gatv2_scores(pattern: Pattern, source: Tensor, target: Tensor, a: Tensor, slope: float) -> Tensor:
    """``a . leaky_relu(source[j] + target[i])`` for every edge and head, once differentiable."""
    return _OF_GATV2(pattern, source, target, a, slope)
