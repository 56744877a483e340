"""The implementations of calls: functions over NumPy and CuPy arrays, some of which write directly into XLA's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, ops
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.indices import gather
from bitsparse.arrays.inside import scales_of, with_fields
from bitsparse.interop import converted
from bitsparse.jax.tasks import Directions, Outs, computes
from bitsparse.ops import AttentionState
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose
from bitsparse.ops.edges.cosine_vjp import cosine_attention_vjp_of_both
from bitsparse.ops.spmm.spmm import kernel_of_gradient

#: The arguments by which gradients are taken: features and, if a call has them, values.
_BY: Any = ("x", "values")


def weights_of(ways: Directions, values: Any, dtype: np.dtype[Any]) -> Any:
    """The values of the edges: those of the call, else the graph's weights in the dtype of the features."""
    if values is not None or ways.weights is None:
        return values
    return converted(ways.weights, dtype)


@computes
def spmm(ways: Directions, outs: Outs, values: Any, x: Any, *, reduce: Any, is_gradient: bool = False) -> Any:
    """Sums, maxima and minima over neighbours."""
    weights = weights_of(ways, values, x.dtype)
    kernel = kernel_of_gradient(ways.forward, x) if is_gradient and weights is None else None
    return ops.spmm(ways.forward, x, values=weights, reduce=reduce, kernel=kernel, out=outs[0])


@computes
def spmm_extreme_vjp(ways: Directions, outs: Outs, values: Any, x: Any, gradient: Any, *, reduce: Any) -> Any:
    """Gradients of a maximum or minimum by the features and, if the call has values, by the values."""
    weights = weights_of(ways, values, x.dtype)
    return ops.spmm_vjp(ways.forward, x, gradient, values=weights, reduce=reduce, wrt=_BY[: len(outs)])


@computes
def sddmm(ways: Directions, outs: Outs, x: Any, y: Any, *, op: Any) -> Any:
    """Products of both ends of every edge, times factors of rows and columns."""
    pattern = ways.forward
    rows, columns = scales_of(pattern)
    made = ops.sddmm(pattern, x, y, op=op, out=outs[0])
    if rows is None is columns:
        return made
    space: Any = interop.namespace(x)
    one, other = (
        space.ones(size, np.float32) if scale is None else scale
        for scale, size in zip((rows, columns), ways.shape, strict=True)
    )
    factors = ops.sddmm(pattern, one, other, op="mul").reshape(-1, *(1,) * (made.ndim - 1))
    return converted(made * factors, made.dtype)


@computes
def sddmm_vjp(ways: Directions, outs: Outs, x: Any, y: Any, gradient: Any, *, op: Any) -> Any:
    """Gradients by both ends of the edges."""
    return ops.sddmm_vjp(ways.forward, x, y, gradient, op=op)


@computes
def turned(ways: Directions, outs: Outs, values: Any) -> Any:
    """Values of the edges in the order of the transpose."""
    return gather(values, ways.order)


@computes
def edge_softmax(ways: Directions, outs: Outs, scores: Any) -> Any:
    """The softmax over the edges of each row."""
    return ops.edge_softmax(ways.forward, scores, out=outs[0])


@computes
def edge_softmax_vjp(ways: Directions, outs: Outs, weights: Any, gradient: Any) -> Any:
    """Gradient by the scores."""
    return ops.edge_softmax_vjp(ways.forward, weights, gradient)


def seed_of(words: Any) -> Any:
    """The 64-bit seed that a call passes as two words, the lower one first."""
    return None if words is None else words.view(np.int64)


@computes
def attention(
    ways: Directions, outs: Outs, x: Any, source: Any, target: Any, seed: Any, *, slope: float, dropout: float
) -> Any:
    """Attention, and the state that its gradient needs if the call has results for it."""
    how: dict[str, Any] = {"negative_slope": slope, "dropout": dropout, "seed": seed_of(seed), "out": outs[0]}
    keeps = len(outs) > 1
    made = ops.attention(ways.forward, x, source, target, **how, return_state=keeps)
    return made[1] if keeps else made


@computes
def attention_vjp(
    ways: Directions, outs: Outs, x: Any, source: Any, target: Any, seed: Any, *rest: Any, slope: float, dropout: float
) -> Any:
    """Gradients by the features and by the scores of both ends."""
    *state, gradient = rest
    ends = x, source, target, gradient, AttentionState(*state)
    return attention_vjp_of_transpose(ways.backward, *ends, slope, dropout, seed_of(seed))


@computes
def cosine_attention(ways: Directions, outs: Outs, x: Any, beta: Any) -> Any:
    """Attention by cosines, and the state that its gradient needs if the call has a result for it."""
    return ops.cosine_attention(ways.forward, x, beta=beta, out=outs[0], return_lse=len(outs) > 1)


@computes
def cosine_attention_vjp(ways: Directions, outs: Outs, x: Any, beta: Any, result: Any, lse: Any, gradient: Any) -> Any:
    """Gradients by the features and by the factor of the cosines."""
    return cosine_attention_vjp_of_both(ways.forward, ways.backward, x, gradient, beta, result, lse)


@computes
def aggregate_edges(ways: Directions, outs: Outs, edges: Any, *, reduce: Any, side: Any) -> Any:
    """Features of edges reduced to nodes."""
    return ops.aggregate_edges(ways.forward, edges, reduce=reduce, side=side, out=outs[0])


@computes
def aggregate_edges_vjp(ways: Directions, outs: Outs, edges: Any, gradient: Any, *, reduce: Any, side: Any) -> Any:
    """Gradient by the features of the edges."""
    return ops.aggregate_edges_vjp(ways.forward, edges, gradient, reduce=reduce, side=side)


@computes
def sampled_spmm(ways: Directions, outs: Outs, values: Any, x: Any, **options: Any) -> Any:
    """Sums over sampled edges."""
    return ops.sampled_spmm(_weighted(ways, weights_of(ways, values, x.dtype)), x, out=outs[0], **options)


@computes
def sampled_spmm_vjp(ways: Directions, outs: Outs, values: Any, x: Any, gradient: Any, **options: Any) -> Any:
    """Gradients by the features and, if the call has values, by the values."""
    weighted = _weighted(ways, weights_of(ways, values, x.dtype))
    return ops.sampled_spmm_vjp(weighted, x, gradient, wrt=_BY[: len(outs)], **options)


def _weighted(ways: Directions, values: Any) -> Any:
    """The pattern with values, which are not copied."""
    values = ways.weights if values is None else values
    return ways.forward if values is None else with_fields(ways.forward, data=values)


# ---- packed bits
def bits_of(words: Any, told: dict[str, Any], scale: Any = None, offset: Any = None) -> BitTensor:
    """A BitTensor over the words of a call."""
    how = told | {"shape": tuple(told["shape"])}
    return BitTensor.from_words(words, scale=scale, offset=offset, check=False, **how)


@computes
def quantize(_: None, outs: Outs, x: Any, **options: Any) -> Any:
    """Words, scale and, for affine schemes, offset."""
    made = ops.quantize(x, options.pop("bits"), **options)
    return (made.words, made.scale, made.offset)[: len(outs)]


@computes
def pack_bits(_: None, outs: Outs, x: Any, **options: Any) -> Any:
    """Words of integers or signs."""
    return ops.pack_bits(x, options.pop("bits"), **options).words


@computes
def dequantize(_: None, outs: Outs, words: Any, scale: Any, offset: Any, *, settings: dict[str, Any]) -> Any:
    """The real numbers that integers stand for."""
    return ops.dequantize(bits_of(words, settings, scale, offset))


@computes
def matmul(_: None, outs: Outs, a: Any, b: Any, *, left: dict[str, Any], right: dict[str, Any]) -> Any:
    """Exact products of integers."""
    return ops.matmul(bits_of(a, left), bits_of(b, right), out=outs[0])


def _number(seed: Any) -> int | None:
    """The seed of a call as an integer; reading it from a GPU waits for the GPU."""
    return None if seed is None else int(seed[0])


@computes
def quantized_matmul(_: None, outs: Outs, seed: Any, x: Any, w: Any, *, bits: Any, rounding: Any) -> Any:
    """Products of codes, scaled back."""
    return ops.quantized_matmul(x, w, bits, rounding=rounding, seed=_number(seed), out=outs[0])


@computes
def quantized_matmul_vjp(
    _: None, outs: Outs, seed: Any, x: Any, w: Any, gradient: Any, *, bits: Any, rounding: Any
) -> Any:
    """Gradients by both factors, which are products of codes themselves."""
    return ops.quantized_matmul_vjp(x, w, gradient, bits, rounding=rounding, seed=_number(seed), stream=2)


@computes
def quantized_spmm(ways: Directions, outs: Outs, seed: Any, x: Any, *, bits: Any, **options: Any) -> Any:
    """Sums of codes, scaled back."""
    return ops.quantized_spmm(_weighted(ways, None), x, bits, seed=_number(seed), **options)


@computes
def bspmm(ways: Directions, outs: Outs, x: Any, *, variant: str, told: dict[str, Any] | None) -> Any:
    """Sums of bits or floats, or the words of their signs."""
    made = ops.bspmm(ways.forward, x if told is None else bits_of(x, told), variant)
    return made.words if isinstance(made, BitTensor) else made
