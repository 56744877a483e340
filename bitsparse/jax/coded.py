"""Products and sums in integers of a few bits as JAX functions: they take and return real numbers, but multiply and keep codes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bitsparse._records import as_dict
from bitsparse.jax import batches
from bitsparse.jax import computing_codes as computing_codes  # registers what calls compute
from bitsparse.jax.axes import alike
from bitsparse.jax.bits import BitTensor, Settings, words_of
from bitsparse.jax.calls import Kind, call
from bitsparse.jax.operators import Options, with_gradient
from bitsparse.jax.ways import Ways


class Coding(NamedTuple):
    """Settings for quantising an array.

    Attributes
    ----------
    bits : int
    granularity : {"tensor", "node"}
        One scale for the whole array, or one for each row, a multiple of a common step.
    seed : int
    number : int or None
        The number of the draw within a training step; None for rounding to nearest.
    """

    bits: int
    granularity: str
    seed: int
    number: int | None


class Codes(NamedTuple):
    """Integers, and for each row a multiple of their scale, or None if all rows have the same scale."""

    integers: BitTensor
    multiples: Any

    @property
    def parts(self) -> list[Any]:
        """The arrays that a call takes."""
        return [self.integers.words, self.integers.scale, self.multiples]

    @property
    def told(self) -> dict[str, Any]:
        """The settings of the words, for a call."""
        return as_dict(self.integers.settings)


# ---- calls
def _codes_call(options: Options, draw: Any, x: Any) -> Codes:
    coding = Coding(**dict(options))
    settings = Settings(x.shape, coding.bits, -1, "rows", "signed")
    kinds = [words_of(settings), Kind((), jnp.float32)]
    kinds += [Kind(x.shape[:1], jnp.uint8)] if coding.granularity == "node" else []
    how = {"bits": coding.bits, "granularity": coding.granularity, "seed": coding.seed}
    words, scale, *multiples = call("scaled", None, [draw, x], kinds, **how)
    return Codes(BitTensor(words, scale, None, settings), multiples[0] if multiples else None)


def _dequantized_call(codes: Codes) -> Any:
    return call("dequantized", None, codes.parts, [Kind(codes.integers.shape, jnp.float32)], told=codes.told)[0]


def _product_call(options: Options, a: Codes, b: Codes) -> Any:
    columns = b.integers.shape[0 if dict(options)["turned"] else 1]
    return _factors_call("product_codes", (a.integers.shape[0], columns), a, b, **dict(options))


def _rows_call(a: Codes, b: Codes) -> Any:
    return _factors_call("product_rows", (a.integers.shape[1], b.integers.shape[1]), a, b)


def _factors_call(function: str, shape: tuple[int, int], a: Codes, b: Codes, **options: Any) -> Any:
    parts = [*a.parts[:2], *b.parts[:2]]
    return call(function, None, parts, [Kind(shape, jnp.float32)], left=a.told, right=b.told, **options)[0]


def _sum_call(ways: Ways, codes: Codes) -> Any:
    kind = Kind((ways.shape[0], codes.integers.shape[1]), jnp.float32)
    return call("sum_codes", ways.only("forward"), codes.parts, [kind], told=codes.told)[0]


def _attention_call(options: Options, ways: Ways, codes: Codes, source: Any, target: Any, seed: Any) -> Any:
    rows, columns = target.shape, codes.integers.shape
    result = Kind((*rows, columns[-1] if len(columns) == 3 else columns[1] // rows[1]), jnp.float32)
    kinds = [result, Kind(rows, jnp.float32), Kind(rows, jnp.float32), result]
    parts = [*codes.parts, source, target, seed]
    return tuple(call("attention_codes", ways.only("forward"), parts, kinds, told=codes.told, **dict(options)))


def _attention_vjp_call(options: Options, ways: Ways, kept: Any, gradient: Any, coded: Codes) -> Any:
    codes, source, target, seed, state = kept
    kinds = [Kind((*source.shape, gradient.shape[2]), jnp.float32), *(Kind(p.shape, p.dtype) for p in (source, target))]
    parts = [*codes.parts, source, target, seed, gradient, *coded.parts, *state]
    how = {"told": codes.told, "gradient_told": coded.told}
    return call("attention_codes_vjp", ways.only("backward"), parts, kinds, **how, **dict(options))


_quantized, _dequantized = batches.batched(_codes_call), batches.batched(_dequantized_call)
_product, _rows, _sum = batches.batched(_product_call), batches.batched(_rows_call), batches.batched(_sum_call)
_attention, _attention_vjp = batches.batched(_attention_call), batches.batched(_attention_vjp_call)


def codes_of(x: Any, coding: Coding, draws: Any) -> Codes:
    """The codes of an array; `draws` is the number of draws before this training step. No gradient passes through."""
    draw = None if coding.number is None else (draws + jnp.uint32(coding.number)).reshape(1)
    made: Codes = _quantized(Options(**as_dict(coding)), draw, jax.lax.stop_gradient(x))
    return made


# ---- with gradients
def _linear_forward(options: Options, draws: Any, x: Any, weight: Any, left: Codes, right: Codes) -> Any:
    return _product(_TURNED, left, right), (options, draws, left, right)


def _linear_backward(kept: Any, gradient: Any) -> tuple[Any, ...]:
    options, draws, left, right = kept
    how = dict(options)
    coded = codes_of(gradient, how["coding"], draws)
    by_x, by_weight = _product(_STRAIGHT, coded, right), _rows(coded, left)
    return None, None, by_x.astype(how["x"]), by_weight.astype(how["weight"]), None, None


_TURNED, _STRAIGHT = Options(turned=True), Options(turned=False)
_linear = with_gradient(_linear_forward, _linear_backward)


def linear(x: Any, weight: Any, codes: tuple[Codes, Codes], coding: Coding, draws: Any) -> Any:
    """``x @ weight.T`` as a product of codes of both; its gradients are products with codes of the incoming gradient."""
    how = Options(coding=coding, x=x.dtype, weight=weight.dtype)
    return _linear(how, *alike((draws, x, weight, *codes)))


def _spmm_forward(options: Options, draws: Any, ways: Ways, rows: Any, x: Any, codes: Codes) -> Any:
    return _sum(ways, codes).reshape(ways.shape[0], *x.shape[1:]), (options, draws, ways, rows)


def _spmm_backward(kept: Any, gradient: Any) -> tuple[Any, ...]:
    options, draws, ways, rows = kept
    how = dict(options)
    coded = codes_of(scaled_rows(gradient, rows), how["coding"], draws)
    by_x = _sum(ways.turned, coded).reshape(how["shape"])
    return None, None, None, None, by_x.astype(how["dtype"]), None


_spmm = with_gradient(_spmm_forward, _spmm_backward)


def scaled_rows(x: Any, factors: Any) -> Any:
    """Reshape features to a matrix, and multiply each row by its factor."""
    flat = x if x.ndim == 2 else x.reshape(x.shape[0], -1)
    return flat if factors is None else flat * factors[:, None]


def spmm(ways: Ways, rows: Any, x: Any, codes: Codes, coding: Coding, draws: Any) -> Any:
    """Sums of codes: of features times the columns' factors, and for the gradient of gradients times `rows`; `ways` has both factors."""
    how = Options(coding=coding, shape=x.shape, dtype=x.dtype)
    return _spmm(how, *alike((draws, ways, rows, x, codes)))


def _scores_forward(codes: Codes, x: Any, first: Any, second: Any) -> Any:
    return ((x * first).sum(axis=-1), (x * second).sum(axis=-1)), (codes, first, second)


def _scores_backward(kept: Any, gradients: Any) -> tuple[Any, ...]:
    codes, first, second = kept
    by_first, by_second = gradients
    by_x = by_first[..., None] * first + by_second[..., None] * second
    x = _dequantized(codes).reshape(by_x.shape)
    return None, by_x, *(jnp.einsum("nh,nhd->hd", part, x) for part in gradients)


_scores = with_gradient(_scores_forward, _scores_backward)


def scores(x: Any, first: Any, second: Any, codes: Codes) -> tuple[Any, Any]:
    """Float dot products of heads (N, H, D) with two vectors (H, D); codes of `x` are kept for the gradients by the vectors."""
    made: tuple[Any, Any] = _scores(*alike((codes, x, first, second)))
    return made


def _attended_forward(
    options: Options, coding: Options, draws: Any, ways: Ways, x: Any, source: Any, target: Any, seed: Any, codes: Codes
) -> Any:
    state = _attention(options, ways, codes, source, target, seed)
    return state[0], (options, coding, draws, ways, (codes, source, target, seed, state))


def _attended_backward(kept: Any, gradient: Any) -> tuple[Any, ...]:
    options, coding, draws, ways, rest = kept
    how = Coding(**dict(coding))
    given = gradient if how.granularity == "tensor" else gradient.reshape(gradient.shape[0], -1)
    made = _attention_vjp(options, ways, rest, gradient, codes_of(given, how, draws))
    return None, None, None, None, *made, None, None


_attended = with_gradient(_attended_forward, _attended_backward)


def attention(
    ways: Ways,
    x: Any,
    ends: tuple[Any, Any],
    seed: Any,
    how: tuple[float, float],
    codes: Codes,
    coding: Coding,
    draws: Any,
) -> Any:
    """Attention of heads (N, H, D) that gathers codes of features and of the gradient; `how` holds the slope and the dropout."""
    slope, dropout = how
    options = Options(slope=slope, dropout=dropout), Options(**as_dict(coding))
    return _attended(*options, *alike((draws, ways, x, *ends, seed, codes)))
