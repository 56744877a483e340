"""Sparse products as functions of JAX, with gradients of any order.

Two operators are closed under differentiation: the gradient of a product by its features is the product with the transpose, that by its
values one number per edge, whose gradients are products again. All others have calls for their gradients, which are not differentiated
again. What they get is checked; shapes and dtypes of results are known while tracing, and nothing is computed then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bitsparse.jax import batches
from bitsparse.jax import computing as computing  # registers what calls compute
from bitsparse.jax import preparing as preparing  # and what prepares them on a GPU
from bitsparse.jax.axes import alike
from bitsparse.jax.calls import Kind, call
from bitsparse.jax.ways import Ways


@jax.tree_util.register_static
class Options(tuple[Any, ...]):
    """Settings of an operator, which are not traced."""


def _like(x: Any) -> Any:
    return Kind(x.shape, x.dtype)


def sums_dtype(dtype: Any) -> Any:
    """What weights of attention and their sums are computed in."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def _folding(kept: tuple[int, ...], loops: Callable[[Options], bool] = lambda _: False) -> Callable[..., Any]:
    """Decorate a call over a pattern: batches are heads, or columns, of its arrays, of which each has so many axes behind these."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def rule(size: int, which: Any, ways: Ways, options: Options, *arrays: Any) -> Any:
            if batches.any_of(which[0]) or loops(options):
                return None
            ones = jax.eval_shape(
                function, ways, options, *(x[0] if has else x for x, has in zip(arrays, which[2:], strict=True))
            )
            parts = [
                None if x is None else batches.folded(batches.second(x, has, size), last)
                for x, has, last in zip(arrays, which[2:], kept, strict=False)
            ]
            made = mapped(ways, options, *parts)
            unfolded = jax.tree.map(lambda x, one: batches.unfolded(x, size, one.shape[1:]), made, ones)
            return unfolded, jax.tree.map(lambda _: True, made)

        mapped = batches.batched(function, rule)
        return mapped

    return decorate


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is traced once for calls of a kind; what JAX keeps of it must not keep graphs that others close over."""
    jitted = jax.jit(function)

    def called(*arguments: Any) -> Any:
        ways, *rest = alike(arguments)
        return (jitted if ways.known is None else function)(ways, *rest)

    return called


def not_differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that says so where somebody differentiates it."""
    refusing: Any = jax.custom_jvp(function)

    @refusing.defjvp
    def refuse(arguments: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "bitsparse.jax: only sums, means and dot products of edges have gradients of gradients, and nothing has one in forward mode; "
            "differentiate once, in reverse mode"
        )

    found: Callable[..., Any] = refusing
    return found


def first_gradient(
    function: Callable[..., Any], gradient: Callable[..., Any], jitted: bool = True
) -> Callable[..., Any]:
    """A function whose gradients ``gradient(*arguments, by_result)`` gives, once."""
    differentiable = jax.custom_vjp(function)
    differentiable.defvjp(
        not_differentiated(lambda *arrays: (function(*arrays), arrays)),
        not_differentiated(lambda arrays, by_result: gradient(*arrays, by_result)),
    )
    made = jax.jit(differentiable) if jitted else differentiable
    return lambda *arguments: made(*alike(arguments))


def _once(
    function: Callable[..., Any], gradient: Callable[..., tuple[Any, ...]], keeping: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A function of ways, options and arrays with a first gradient.

    ``gradient(ways, options, arrays, result, by_result)`` gives one for each array. With `keeping` the result is the first of those that
    this function gives, and the gradient gets all of them.
    """

    @jax.custom_vjp
    def differentiable(ways: Ways, options: Options, *arrays: Any) -> Any:
        return function(ways, options, *arrays)

    @not_differentiated
    def forward(ways: Ways, options: Options, *arrays: Any) -> Any:
        made = function(ways, options, *arrays) if keeping is None else keeping(ways, options, *arrays)
        return made if keeping is None else made[0], (ways, options, arrays, made)

    @not_differentiated
    def gradients(kept: Any, by_result: Any) -> Any:
        return gradient(*kept, by_result)

    def backward(kept: Any, by_result: Any) -> Any:
        return None, None, *gradients(kept, by_result)

    differentiable.defvjp(forward, backward)
    return _jitted(differentiable)


# ---- products and their values, of any order
def _product_call(ways: Ways, options: Options, values: Any, x: Any) -> Any:
    kind = Kind((ways.shape[0], *x.shape[1:]), x.dtype)
    return call("spmm", ways.only("forward"), [values, x], [kind], reduce=options[0])[0]


def _product_of_batches(size: int, which: Any, ways: Ways, options: Options, values: Any, x: Any) -> Any:
    """Batches as columns, or as heads where each has values of its own."""
    if batches.any_of(which[0]):
        return None
    x = batches.second(x, which[3], size)
    inner = x.shape[2:]
    if values is None or (not which[2] and values.ndim == 1):
        features = batches.folded(x, 0)
    else:
        values = batches.folded(batches.second(values, which[2], size), 0)
        features = x.reshape(x.shape[0], values.shape[1], math.prod(x.shape[1:]) // max(values.shape[1], 1))
    made = _product(ways, options, values, features)
    return batches.unfolded(made, size, inner), True


_product = batches.batched(_product_call, _product_of_batches)
_SUM = Options(("sum",))


@jax.custom_vjp
def _spmm(ways: Ways, values: Any, x: Any) -> Any:
    return _product(ways, _SUM, values, x)


def _spmm_forward(ways: Ways, values: Any, x: Any) -> Any:
    return _spmm(ways, values, x), (ways, values, x)


def _spmm_backward(kept: Any, gradient: Any) -> Any:
    ways, values, x = kept
    back = None if values is None else turned(ways, values)
    by_x = spmm(ways.turned, back, gradient)
    if values is None:
        return None, None, by_x
    ends = (gradient, x) if values.ndim == 2 else (batches.folded(gradient, 0), batches.folded(x, 0))
    return None, sddmm(ways.without_weights(), *ends), by_x


_spmm.defvjp(_spmm_forward, _spmm_backward)


@_folding((1, 1))
def _dots(ways: Ways, options: Options, x: Any, y: Any) -> Any:
    return call("sddmm", ways.only("forward"), [x, y], [Kind((ways.nnz, *x.shape[1:-1]), x.dtype)], op="dot")[0]


@jax.custom_vjp
def _sddmm(ways: Ways, x: Any, y: Any) -> Any:
    return _dots(ways, Options(), x, y)


def _sddmm_forward(ways: Ways, x: Any, y: Any) -> Any:
    return _sddmm(ways, x, y), (ways, x, y)


def _sddmm_backward(kept: Any, gradient: Any) -> Any:
    ways, x, y = kept
    return None, spmm(ways, gradient, y), spmm(ways.turned, turned(ways, gradient), x)


_sddmm.defvjp(_sddmm_forward, _sddmm_backward)


@_folding((0,))
def _permuted(ways: Ways, options: Options, values: Any) -> Any:
    return call("turned", ways.only("order"), [values], [_like(values)])[0]


@jax.custom_vjp
def _turned(ways: Ways, values: Any) -> Any:
    return _permuted(ways, Options(), values)


_turned.defvjp(
    lambda ways, values: (_turned(ways, values), ways),
    lambda ways, gradient: (None, turned(ways.turned, gradient)),
)
_JITTED_SPMM, _JITTED_SDDMM, _JITTED_TURNED = map(_jitted, (_spmm, _sddmm, _turned))


def spmm(ways: Ways, values: Any, x: Any) -> Any:
    """``y[i] = rows[i] * sum over j of values[i, j] * columns[j] * x[j]``; without values with the graph's weights."""
    return _JITTED_SPMM(ways, values, x)


def sddmm(ways: Ways, x: Any, y: Any) -> Any:
    """``rows[i] * columns[j] * <x[i], y[j]>`` for every edge and head."""
    return _JITTED_SDDMM(ways, x, y)


def turned(ways: Ways, values: Any) -> Any:
    """Values of the edges in the order of the transpose."""
    return _JITTED_TURNED(ways, values)


# ---- with a first gradient
def _extreme_vjp_call(ways: Ways, options: Options, values: Any, x: Any, gradient: Any) -> Any:
    kinds = [_like(part) for part in (x, values) if part is not None]
    return tuple(call("spmm_extreme_vjp", ways.only("forward"), [values, x, gradient], kinds, reduce=options[0]))


_extreme_vjp = batches.batched(_extreme_vjp_call)


def _extreme_gradient(ways: Ways, options: Options, arrays: Any, _: Any, gradient: Any) -> tuple[Any, Any]:
    values, x = arrays
    by_x, *by_values = _extreme_vjp(ways, options, values, x, gradient)
    return by_values[0] if by_values else None, by_x


#: The largest or smallest of ``values[i, j] * x[j]`` over each row: ``spmm_extreme(ways, Options((reduce,)), values, x)``.
spmm_extreme = _once(_product, _extreme_gradient)


@_folding((0, 0))
def _combined(ways: Ways, options: Options, x: Any, y: Any) -> Any:
    return call("sddmm", ways.only("forward"), [x, y], [Kind((ways.nnz, *x.shape[1:]), x.dtype)], op=options[0])[0]


@_folding((0, 0, 0))
def _combined_vjp(ways: Ways, options: Options, x: Any, y: Any, gradient: Any) -> Any:
    return tuple(call("sddmm_vjp", ways.only("forward"), [x, y, gradient], [_like(x), _like(y)], op=options[0]))


#: Elements of both ends of every edge added, subtracted, multiplied or divided: ``combined(ways, Options((op,)), x, y)``.
combined = _once(_combined, lambda ways, options, arrays, _, gradient: _combined_vjp(ways, options, *arrays, gradient))


@_folding((0,))
def _softmax(ways: Ways, options: Options, scores: Any) -> Any:
    return call("edge_softmax", ways.only("forward"), [scores], [_like(scores)])[0]


@_folding((0, 0))
def _softmax_vjp(ways: Ways, options: Options, weights: Any, gradient: Any) -> Any:
    return call("edge_softmax_vjp", ways.only("forward"), [weights, gradient], [_like(weights)])[0]


#: The softmax of the edges' scores over each row: ``edge_softmax(ways, Options(), scores)``.
edge_softmax = _once(
    _softmax, lambda ways, options, _, weights, gradient: (_softmax_vjp(ways, options, weights, gradient),)
)

_drops = lambda options: options[1] > 0  # noqa: E731  # a head's number decides which of its weights are kept


def _attended(ways: Ways, x: Any) -> Any:
    return Kind((ways.shape[0], *x.shape[1:]), x.dtype)


def _of_attention(options: Options) -> dict[str, float]:
    return dict(zip(("slope", "dropout"), options, strict=True))


@_folding((1, 0, 0, 0), _drops)
def _attention(ways: Ways, options: Options, x: Any, source: Any, target: Any, seed: Any) -> Any:
    arrays = [x, source, target, seed]
    return call("attention", ways.only("forward"), arrays, [_attended(ways, x)], **_of_attention(options))[0]


@_folding((1, 0, 0, 0), _drops)
def _attention_state(ways: Ways, options: Options, x: Any, source: Any, target: Any, seed: Any) -> Any:
    result = _attended(ways, x)
    rows = Kind(result.shape[:-1], sums_dtype(x.dtype))
    kinds = [result, rows, rows, result]
    return tuple(call("attention", ways.only("forward"), [x, source, target, seed], kinds, **_of_attention(options)))


@_folding((1, 0, 0, 0, 1, 0, 0, 1, 1), _drops)
def _attention_vjp(ways: Ways, options: Options, x: Any, source: Any, target: Any, *rest: Any) -> Any:
    kinds = [_like(part) for part in (x, source, target)]
    arrays = [x, source, target, *rest]
    return tuple(call("attention_vjp", ways.only("backward"), arrays, kinds, **_of_attention(options)))


#: Sums weighted with the softmax of ``leaky_relu(source[j] + target[i])``: ``attention(ways, Options((slope, dropout)), x, source, target,
#: seed)``.
attention = _once(
    _attention,
    lambda ways, options, arrays, kept, gradient: (*_attention_vjp(ways, options, *arrays, *kept, gradient), None),
    _attention_state,
)


def _cosines_call(ways: Ways, options: Options, x: Any, beta: Any) -> Any:
    return call("cosine_attention", ways.only("forward"), [x, beta], [_like(x)])[0]


def _cosines_state_call(ways: Ways, options: Options, x: Any, beta: Any) -> Any:
    kinds = [_like(x), Kind(x.shape[:1], sums_dtype(x.dtype))]
    return tuple(call("cosine_attention", ways.only("forward"), [x, beta], kinds))


def _cosines_vjp_call(ways: Ways, options: Options, x: Any, beta: Any, *rest: Any) -> Any:
    return tuple(call("cosine_attention_vjp", ways.only("both"), [x, beta, *rest], [_like(x), _like(beta)]))


_cosines, _cosines_state, _cosines_vjp = map(batches.batched, (_cosines_call, _cosines_state_call, _cosines_vjp_call))
#: Sums weighted with the softmax of ``beta * cos(x[i], x[j])``: ``cosine_attention(ways, Options(), x, beta)``.
cosine_attention = _once(
    _cosines,
    lambda ways, options, arrays, kept, gradient: _cosines_vjp(ways, options, *arrays, *kept, gradient),
    _cosines_state,
)


def _of_edges(options: Options) -> dict[str, str]:
    return dict(zip(("reduce", "side"), options, strict=True))


@_folding((0,))
def _aggregated(ways: Ways, options: Options, edges: Any) -> Any:
    kind = Kind((ways.shape[options[1] == "cols"], *edges.shape[1:]), edges.dtype)
    return call("aggregate_edges", ways.only("forward"), [edges], [kind], **_of_edges(options))[0]


@_folding((0, 0))
def _aggregated_vjp(ways: Ways, options: Options, edges: Any, gradient: Any) -> Any:
    given = [edges, gradient]
    return call("aggregate_edges_vjp", ways.only("forward"), given, [_like(edges)], **_of_edges(options))[0]


#: Features of edges reduced to nodes: ``aggregate_edges(ways, Options((reduce, side)), edges)``.
aggregate_edges = _once(
    _aggregated, lambda ways, options, arrays, _, gradient: (_aggregated_vjp(ways, options, *arrays, gradient),)
)

_SAMPLING = ("width", "strategy", "rescale", "seed", "stream")


def _sampled_call(ways: Ways, options: Options, values: Any, x: Any) -> Any:
    how: dict[str, Any] = dict(zip(_SAMPLING, options, strict=True))
    return call("sampled_spmm", ways.only("forward"), [values, x], [_attended(ways, x)], **how)[0]


def _sampled_vjp_call(ways: Ways, options: Options, values: Any, x: Any, gradient: Any) -> Any:
    how: dict[str, Any] = dict(zip(_SAMPLING, options, strict=True))
    kinds = [_like(part) for part in (x, values) if part is not None]
    return tuple(call("sampled_spmm_vjp", ways.only("forward"), [values, x, gradient], kinds, **how))


def _sampled_of_batches(size: int, which: Any, ways: Ways, options: Options, values: Any, x: Any) -> Any:
    if batches.any_of(which[0]) or batches.any_of(which[2]):
        return None
    made = _sampled(ways, options, values, batches.folded(batches.second(x, True, size), 0))
    return batches.unfolded(made, size, x.shape[2:]), True


_sampled, _sampled_vjp = batches.batched(_sampled_call, _sampled_of_batches), batches.batched(_sampled_vjp_call)


def _sampled_gradient(ways: Ways, options: Options, arrays: Any, _: Any, gradient: Any) -> tuple[Any, Any]:
    by_x, *by_values = _sampled_vjp(ways, options, *arrays, gradient)
    return by_values[0] if by_values else None, by_x


#: Sums over sampled edges: ``sampled_spmm(ways, Options((width, strategy, rescale, seed, stream)), values, x)``.
sampled_spmm = _once(_sampled, _sampled_gradient)
