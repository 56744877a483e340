"""What computes the calls: functions over NumPy's and CuPy's arrays, which write into XLA's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, ops
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.indices import gather
from bitsparse.arrays.inside import scales_of, with_fields
from bitsparse.interop import as_bits, converted
from bitsparse.jax.tasks import Directions, computes
from bitsparse.ops import AttentionState
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose
from bitsparse.ops.edges.cosine_vjp import cosine_attention_vjp_of_both


def write(made: Any, out: Any) -> None:
    """Bring a result into the memory of a call."""
    if made is not out:
        as_bits(out)[...] = as_bits(made.reshape(out.shape))


def weights_of(ways: Directions, values: Any, dtype: np.dtype[Any]) -> Any:
    """Values of the edges: those of a call, else those of the graph in the dtype of the features."""
    if values is not None or ways.weights is None:
        return values
    return converted(ways.weights, dtype)


@computes
def spmm(ways: Directions, values: Any, x: Any, out: Any, *, reduce: Any) -> None:
    """Sums, maxima and minima."""
    write(ops.spmm(ways.forward, x, values=weights_of(ways, values, x.dtype), reduce=reduce, out=out), out)


@computes
def spmm_extreme_vjp(ways: Directions, values: Any, x: Any, gradient: Any, *outs: Any, reduce: Any) -> None:
    """Gradients of a maximum or minimum by the features and, if the call has values, by these."""
    weights = weights_of(ways, values, x.dtype)
    if len(outs) == 1:
        write(ops.spmm_vjp(ways.forward, x, gradient, values=weights, reduce=reduce), outs[0])
        return
    made = ops.spmm_vjp(ways.forward, x, gradient, values=weights, reduce=reduce, wrt=("x", "values"))
    for part, out in zip(made, outs, strict=True):
        write(part, out)


@computes
def sddmm(ways: Directions, x: Any, y: Any, out: Any, *, op: Any) -> None:
    """Products of edges, with factors of rows and columns."""
    pattern = ways.forward
    rows, columns = scales_of(pattern)
    write(ops.sddmm(pattern, x, y, op=op, out=out), out)
    if rows is None is columns:
        return
    space: Any = interop.namespace(x)
    one, other = (
        space.ones(size, np.float32) if scale is None else scale
        for scale, size in zip((rows, columns), ways.shape, strict=True)
    )
    factors = ops.sddmm(pattern, one, other, op="mul").reshape(-1, *(1,) * (out.ndim - 1))
    out[...] = converted(out * factors, out.dtype)


@computes
def sddmm_vjp(ways: Directions, x: Any, y: Any, gradient: Any, dx: Any, dy: Any, *, op: Any) -> None:
    """Gradients by both ends of the edges."""
    for part, out in zip(ops.sddmm_vjp(ways.forward, x, y, gradient, op=op), (dx, dy), strict=True):
        write(part, out)


@computes
def turned(ways: Directions, values: Any, out: Any) -> None:
    """Values of the edges in the order of the transpose."""
    write(gather(values, ways.order), out)


@computes
def edge_softmax(ways: Directions, scores: Any, out: Any) -> None:
    """The softmax over the edges of each row."""
    write(ops.edge_softmax(ways.forward, scores, out=out), out)


@computes
def edge_softmax_vjp(ways: Directions, weights: Any, gradient: Any, out: Any) -> None:
    """Gradient by the scores."""
    write(ops.edge_softmax_vjp(ways.forward, weights, gradient), out)


def seed_of(words: Any) -> Any:
    """The 64-bit integer of two words that a call brings, the lower one first."""
    return None if words is None else words.view(np.int64)


@computes
def attention(
    ways: Directions, x: Any, source: Any, target: Any, seed: Any, out: Any, *state: Any, slope: float, dropout: float
) -> None:
    """Attention, and what its gradient needs if there is room for it."""
    how: dict[str, Any] = {"negative_slope": slope, "dropout": dropout, "seed": seed_of(seed), "out": out}
    made = ops.attention(ways.forward, x, source, target, **how, return_state=bool(state))
    if not state:
        write(made, out)
        return
    for part, place in zip(made[1], (out, *state), strict=True):
        write(part, place)


@computes
def attention_vjp(
    ways: Directions,
    x: Any,
    source: Any,
    target: Any,
    seed: Any,
    result: Any,
    lse: Any,
    share: Any,
    above: Any,
    gradient: Any,
    dx: Any,
    dsource: Any,
    dtarget: Any,
    *,
    slope: float,
    dropout: float,
) -> None:
    """Gradients by the features and scores of nodes."""
    state = AttentionState(result, lse, share, above)
    drops = dropout, seed_of(seed)
    made = attention_vjp_of_transpose(ways.backward, x, source, target, gradient, state, slope, *drops)
    for part, out in zip(made, (dx, dsource, dtarget), strict=True):
        write(part, out)


@computes
def cosine_attention(ways: Directions, x: Any, beta: Any, out: Any, *lse: Any) -> None:
    """Attention by cosines, and what its gradient needs if there is room for it."""
    made = ops.cosine_attention(ways.forward, x, beta=beta, out=out, return_lse=bool(lse))
    for part, place in zip(made if lse else (made,), (out, *lse), strict=True):
        write(part, place)


@computes
def cosine_attention_vjp(
    ways: Directions, x: Any, beta: Any, result: Any, lse: Any, gradient: Any, dx: Any, dbeta: Any
) -> None:
    """Gradients by the features and by the factor of the cosines."""
    made = cosine_attention_vjp_of_both(ways.forward, ways.backward, x, gradient, beta, result, lse)
    for part, out in zip(made, (dx, dbeta), strict=True):
        write(part, out)


@computes
def aggregate_edges(ways: Directions, edges: Any, out: Any, *, reduce: Any, side: Any) -> None:
    """Features of edges reduced to nodes."""
    write(ops.aggregate_edges(ways.forward, edges, reduce=reduce, side=side, out=out), out)


@computes
def aggregate_edges_vjp(ways: Directions, edges: Any, gradient: Any, out: Any, *, reduce: Any, side: Any) -> None:
    """Gradient by the features of the edges."""
    write(ops.aggregate_edges_vjp(ways.forward, edges, gradient, reduce=reduce, side=side), out)


@computes
def sampled_spmm(ways: Directions, values: Any, x: Any, out: Any, **options: Any) -> None:
    """Sums over sampled edges."""
    write(ops.sampled_spmm(_weighted(ways, values), x, out=out, **options), out)


@computes
def sampled_spmm_vjp(ways: Directions, values: Any, x: Any, gradient: Any, *outs: Any, **options: Any) -> None:
    """Gradients by the features and, if the call has values, by these."""
    wrt = ("x", "values")[: len(outs)]
    for part, out in zip(
        ops.sampled_spmm_vjp(_weighted(ways, values), x, gradient, wrt=wrt, **options), outs, strict=True
    ):
        write(part, out)


def _weighted(ways: Directions, values: Any) -> Any:
    """The pattern with values; they are read where they lie."""
    values = ways.weights if values is None else values
    return ways.forward if values is None else with_fields(ways.forward, data=values)


# ---- packed bits
def bits_of(words: Any, told: dict[str, Any], scale: Any = None, offset: Any = None) -> BitTensor:
    """A BitTensor over the words of a call."""
    how = told | {"shape": tuple(told["shape"])}
    return BitTensor.from_words(words, scale=scale, offset=offset, check=False, **how)


@computes
def quantize(_: None, x: Any, *outs: Any, **options: Any) -> None:
    """Words, scale and, of affine schemes, offset."""
    made = ops.quantize(x, options.pop("bits"), **options)
    for part, out in zip((made.words, made.scale, made.offset), outs, strict=False):
        write(part, out)


@computes
def pack_bits(_: None, x: Any, out: Any, **options: Any) -> None:
    """Words of integers or signs."""
    write(ops.pack_bits(x, options.pop("bits"), **options).words, out)


@computes
def dequantize(_: None, words: Any, scale: Any, offset: Any, out: Any, *, settings: dict[str, Any]) -> None:
    """What integers stand for."""
    write(ops.dequantize(bits_of(words, settings, scale, offset)), out)


@computes
def matmul(_: None, a: Any, b: Any, out: Any, *, left: dict[str, Any], right: dict[str, Any]) -> None:
    """Exact products of integers."""
    write(ops.matmul(bits_of(a, left), bits_of(b, right), out=out), out)


def _number(seed: Any) -> int | None:
    """The seed of a call; one on a GPU is waited for."""
    return None if seed is None else int(seed[0])


@computes
def quantized_matmul(_: None, seed: Any, x: Any, w: Any, out: Any, *, bits: Any, rounding: Any) -> None:
    """Products of codes, scaled back."""
    write(ops.quantized_matmul(x, w, bits, rounding=rounding, seed=_number(seed), out=out), out)


@computes
def quantized_matmul_vjp(
    _: None, seed: Any, x: Any, w: Any, gradient: Any, *outs: Any, bits: Any, rounding: Any
) -> None:
    """Gradients by both factors, themselves products of codes."""
    made = ops.quantized_matmul_vjp(x, w, gradient, bits, rounding=rounding, seed=_number(seed), stream=2)
    for part, out in zip(made, outs, strict=True):
        write(part, out)


@computes
def quantized_spmm(ways: Directions, seed: Any, x: Any, out: Any, *, bits: Any, **options: Any) -> None:
    """Sums of codes, scaled back."""
    write(ops.quantized_spmm(_weighted(ways, None), x, bits, seed=_number(seed), **options), out)


@computes
def bspmm(ways: Directions, x: Any, out: Any, *, variant: str, told: dict[str, Any] | None) -> None:
    """Sums of bits or floats, or the words of their signs."""
    made = ops.bspmm(ways.forward, x if told is None else bits_of(x, told), variant)
    write(made.words if isinstance(made, BitTensor) else made, out)
