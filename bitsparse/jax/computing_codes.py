"""The implementations of calls with codes: they use the same functions as the quantised layers for PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import with_scale
from bitsparse.jax.computing import bits_of, seed_of
from bitsparse.jax.tasks import Directions, Outs, computes
from bitsparse.ops import AttentionState
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.attention import Settings, attention_of_codes, attention_of_codes_vjp
from bitsparse.ops.quantized.scaled import ScaledCodes, scaled_codes
from bitsparse.ops.quantized.spmm import sum_of_codes
from bitsparse.ops.quantized.vjp import product_of_codes, product_over_rows

_NAME = "tango"
#: Bits of the weights of edges.
_VALUE_BITS = 8


def _coding(draw: Any, bits: int, seed: int) -> Coding:
    """Settings for quantising an array: without a draw to nearest; the number of a draw on a GPU is not copied to the host."""
    if draw is None:
        return Coding(bits, "nearest", 0, 0, -1, "rows")
    number = int(draw[0]) if interop.device_of(draw) == "cpu" else draw
    return Coding(bits, "stochastic", seed, number, -1, "rows")


def _scaled_bits(words: Any, told: dict[str, Any], scale: Any) -> BitTensor:
    """Codes with the scale from :func:`scaled`; the host does not read it, which would wait for the GPU in every call."""
    return with_scale(bits_of(words, told), scale)


def _codes(words: Any, scale: Any, multiples: Any, told: dict[str, Any]) -> ScaledCodes:
    return ScaledCodes(_scaled_bits(words, told, scale), multiples)


@computes
def scaled(_: None, outs: Outs, draw: Any, x: Any, *, bits: int, granularity: str, seed: int) -> Any:
    """Words, scale and, with granularity "node", the nodes' multiples of it."""
    family = interop.NUMPY if interop.device_of(x) == "cpu" else interop.CUPY
    made = scaled_codes(_NAME, "x", x, family, _coding(draw, bits, seed), granularity)
    return (made.codes.words, made.codes.scale, made.multiples)[: len(outs)]


@computes
def dequantized(_: None, outs: Outs, words: Any, scale: Any, multiples: Any, *, told: dict[str, Any]) -> Any:
    """The real numbers that codes stand for."""
    return _codes(words, scale, multiples, told).dequantize()


def _factors(parts: tuple[Any, ...], left: dict[str, Any], right: dict[str, Any]) -> tuple[BitTensor, BitTensor]:
    a, a_scale, b, b_scale = parts
    return _scaled_bits(a, left, a_scale), _scaled_bits(b, right, b_scale)


@computes
def product_codes(_: None, outs: Outs, *parts: Any, left: dict[str, Any], right: dict[str, Any], turned: bool) -> Any:
    """``a @ b`` of codes (m, k) and (k, n); with `turned`, the second codes are (n, k)."""
    a, b = _factors(parts, left, right)
    return product_of_codes(_NAME, a, b.T if turned else b)


@computes
def product_rows(_: None, outs: Outs, *parts: Any, left: dict[str, Any], right: dict[str, Any]) -> Any:
    """``a.T @ b`` of codes (m, k) and (m, n)."""
    return product_over_rows(_NAME, *_factors(parts, left, right))


@computes
def sum_codes(ways: Directions, outs: Outs, words: Any, scale: Any, multiples: Any, *, told: dict[str, Any]) -> Any:
    """Sums over the rows of a pattern; weights of edges are rounded to the nearest 8-bit integers."""
    operand, ints, value_scale = as_csr(_NAME, ways.forward), None, None
    if ways.weights is not None:
        given = ways.weights.astype(np.float32, copy=False).reshape(1, -1)
        family = interop.NUMPY if interop.device_of(given) == "cpu" else interop.CUPY
        values = scaled_codes(_NAME, "weights", given, family, _coding(None, _VALUE_BITS, 0)).codes
        ints = interop.as_array(values.with_affine().toarray(), _NAME)[0].reshape(-1)
        value_scale = values.scale
    return sum_of_codes(_NAME, operand, _codes(words, scale, multiples, told), ints, value_scale, "sum", True)


@computes
def attention_codes(
    ways: Directions, outs: Outs, *parts: Any, told: dict[str, Any], slope: float, dropout: float
) -> Any:
    """Attention that gathers codes, and the state that its gradient needs."""
    words, scale, multiples, source, target, seed = parts
    how = Settings(slope, dropout, seed_of(seed))
    return attention_of_codes(ways.forward, _codes(words, scale, multiples, told), source, target, how)


@computes
def attention_codes_vjp(
    ways: Directions,
    outs: Outs,
    *parts: Any,
    told: dict[str, Any],
    gradient_told: dict[str, Any],
    slope: float,
    dropout: float,
) -> Any:
    """Gradients by features and scores; the incoming gradient is gathered as codes too."""
    (words, scale, multiples, source, target, seed), (gradient, *codes), state = parts[:6], parts[6:10], parts[10:]
    features = _codes(words, scale, multiples, told).dequantize()
    return attention_of_codes_vjp(
        ways.backward,
        features.reshape(features.shape[0], source.shape[1], -1),
        (source, target),
        gradient,
        _codes(codes[0], codes[1], codes[2], gradient_told),
        AttentionState(*state),
        Settings(slope, dropout, seed_of(seed)),
    )
