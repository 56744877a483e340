"""Sparse products as functions of JAX, with gradients of any order.

Two operators, spmm and sddmm, are closed under differentiation. The gradient of spmm by its features is spmm with the transpose; that by
its values is sddmm, one number per edge, whose own gradients are spmm again. All others have separate calls for their gradients, which
cannot be differentiated again. Callers check the arguments. Tracing only determines shapes and dtypes of results and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from bitsparse.jax import batches
from bitsparse.jax import computing as computing  # registers what calls compute
from bitsparse.jax import preparing as preparing  # registers what prepares calls on a GPU
from bitsparse.jax.axes import alike
from bitsparse.jax.calls import Kind, call
from bitsparse.jax.ways import Ways


@jax.tree_util.register_static
class Options(tuple[tuple[str, Any], ...]):
    """Settings of an operator by name, which are not traced."""

    def __new__(cls, **settings: Any) -> Self:
        """Make options from keyword arguments; ``dict(options)`` returns them."""
        return super().__new__(cls, settings.items())


def _like(x: Any) -> Any:
    return Kind(x.shape, x.dtype)


def sums_dtype(dtype: Any) -> Any:
    """The dtype in which weights of attention and their sums are computed."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def call_of(
    function: str, results: Callable[..., Any], only: Literal["forward", "backward", "both", "order"] = "forward"
) -> Callable[..., Any]:
    """A function of ways, options and arrays that makes a call of the function registered under a name.

    ``results(...)`` of the same arguments is the kind of the result, or a tuple of kinds; `only` says which part of the ways is read.
    """

    def called(ways: Ways | None, options: Options, *arrays: Any) -> Any:
        kinds = results(ways, options, *arrays)
        several = isinstance(kinds, tuple)
        made = call(function, ways and ways.only(only), arrays, kinds if several else [kinds], **dict(options))
        return tuple(made) if several else made[0]

    return called


def _folding(
    function: Callable[..., Any], kept: tuple[int, ...], loops: Callable[[Options], bool] = lambda _: False
) -> Callable[..., Any]:
    """Batch a call over a pattern by making the batch part of the heads or columns; `kept` counts each array's axes after these."""

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


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Trace a function once for calls of a kind, but not for graphs that are closed over: JAX's cache would keep them alive."""
    jitted = jax.jit(function)

    def called(*arguments: Any) -> Any:
        ways, *rest = alike(arguments)
        return (jitted if ways is None or ways.known is None else function)(ways, *rest)

    return called


def _not_differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function raise an error if it is differentiated."""
    refusing: Any = jax.custom_jvp(function)

    @refusing.defjvp
    def refuse(arguments: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "bitsparse.jax: only sums, means and dot products of edges have gradients of gradients, and nothing has one in forward mode; "
            "differentiate once, in reverse mode"
        )

    found: Callable[..., Any] = refusing
    return found


def with_gradient(
    forward: Callable[..., Any], backward: Callable[..., Any], function: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A function with a first gradient, ``backward(kept, by_result)``; `forward` returns the result and what to keep.

    `function`, if given, is a shorter way to the result for calls that are not differentiated.
    """
    plain = (lambda *arguments: forward(*arguments)[0]) if function is None else function
    differentiable = jax.custom_vjp(plain)
    differentiable.defvjp(_not_differentiated(forward), _not_differentiated(backward))
    return differentiable


def once(
    function: Callable[..., Any], gradient: Callable[..., tuple[Any, ...]], keeping: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A function of ways, options and arrays with a first gradient.

    ``gradient(ways, options, *arrays, by_result)`` returns one gradient for each array. With `keeping`, that function computes the result
    and further state, and the gradient gets all of these after the arrays.
    """

    def forward(ways: Ways | None, options: Options, *arrays: Any) -> Any:
        state = () if keeping is None else keeping(ways, options, *arrays)
        made = state[0] if state else function(ways, options, *arrays)
        return made, (ways, options, *arrays, *state)

    def backward(kept: Any, by_result: Any) -> Any:
        return None, None, *gradient(*kept, by_result)

    return _jitted(with_gradient(forward, backward, function))


# ---- products and their values, of any order
def _any_order(function: Callable[..., Any], gradient: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """A function of ways and arrays with gradients of any order: ``gradient(ways, *arrays, by_result)`` uses only such functions."""
    differentiable = jax.custom_vjp(function)
    differentiable.defvjp(
        lambda *given: (differentiable(*given), given), lambda given, by_result: (None, *gradient(*given, by_result))
    )
    return _jitted(differentiable)


def _of_rows(ways: Ways, options: Options, values: Any, x: Any) -> Any:
    return Kind((ways.shape[0], *x.shape[1:]), x.dtype)


def _product_of_batches(size: int, which: Any, ways: Ways, options: Options, values: Any, x: Any) -> Any:
    """Make a batch part of the columns, or of the heads if its elements have values of their own."""
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


def _spmm_gradient(ways: Ways, values: Any, x: Any, by_result: Any) -> tuple[Any, Any]:
    back = None if values is None else turned(ways, values)
    by_x = _spmm_of_gradient(ways.turned, back, by_result)
    if values is None:
        return None, by_x
    ends = (by_result, x) if values.ndim == 2 else (batches.folded(by_result, 0), batches.folded(x, 0))
    return sddmm(ways.without_weights(), *ends), by_x


_SUM, _SUM_OF_GRADIENT, _DOT = Options(reduce="sum"), Options(reduce="sum", is_gradient=True), Options(op="dot")
_product = batches.batched(call_of("spmm", _of_rows), _product_of_batches)
_dots = _folding(
    call_of("sddmm", lambda ways, options, x, y: Kind((ways.nnz, *x.shape[1:-1]), x.dtype)),
    (1, 1),
)
_permuted = _folding(call_of("turned", lambda ways, options, values: _like(values), "order"), (0,))

#: ``y[i] = rows[i] * sum over j of values[i, j] * columns[j] * x[j]``; values default to the graph's weights: ``spmm(ways, values, x)``.
spmm: Callable[..., Any] = _any_order(lambda ways, values, x: _product(ways, _SUM, values, x), _spmm_gradient)
#: The same of a gradient, which may have many rows of zeros.
_spmm_of_gradient: Callable[..., Any] = _any_order(
    lambda ways, values, x: _product(ways, _SUM_OF_GRADIENT, values, x), _spmm_gradient
)
#: ``rows[i] * columns[j] * <x[i], y[j]>`` for every edge and head: ``sddmm(ways, x, y)``.
sddmm: Callable[..., Any] = _any_order(
    lambda ways, x, y: _dots(ways, _DOT, x, y),
    lambda ways, x, y, by_result: (spmm(ways, by_result, y), spmm(ways.turned, turned(ways, by_result), x)),
)
#: Values of the edges in the order of the transpose: ``turned(ways, values)``.
turned: Callable[..., Any] = _any_order(
    lambda ways, values: _permuted(ways, Options(), values),
    lambda ways, values, by_result: (turned(ways.turned, by_result),),
)


# ---- with a first gradient
def _by_values_and_x(function: str) -> Callable[..., tuple[Any, Any]]:
    """The gradients of a call by values, if there are any, and by features: the order of the operators' arguments."""
    computed = batches.batched(
        call_of(function, lambda ways, options, values, x, _: tuple(_like(p) for p in (x, values) if p is not None))
    )

    def gradient(*arguments: Any) -> tuple[Any, Any]:
        by_x, *by_values = computed(*arguments)
        return by_values[0] if by_values else None, by_x

    return gradient


#: The largest or smallest of ``values[i, j] * x[j]`` over each row: ``spmm_extreme(ways, Options(reduce=), values, x)``.
spmm_extreme = once(_product, _by_values_and_x("spmm_extreme_vjp"))

#: Elements of both ends of every edge added, subtracted, multiplied or divided: ``combined(ways, Options(op=), x, y)``.
combined = once(
    _folding(call_of("sddmm", lambda ways, options, x, y: Kind((ways.nnz, *x.shape[1:]), x.dtype)), (0, 0)),
    _folding(call_of("sddmm_vjp", lambda ways, options, x, y, _: (_like(x), _like(y))), (0, 0, 0)),
)

_softmax = _folding(call_of("edge_softmax", lambda ways, options, scores: _like(scores)), (0,))
_softmax_vjp = _folding(call_of("edge_softmax_vjp", lambda ways, options, weights, _: (_like(weights),)), (0, 0))
#: The softmax of the edges' scores over each row: ``edge_softmax(ways, Options(), scores)``.
edge_softmax = once(
    _softmax,
    lambda ways, options, scores, weights, by_result: _softmax_vjp(ways, options, weights, by_result),
    lambda *arguments: (_softmax(*arguments),),
)


def _attention_kinds(ways: Ways, options: Options, x: Any, *rest: Any) -> tuple[Any, ...]:
    result = _of_rows(ways, options, None, x)
    rows = Kind(result.shape[:-1], sums_dtype(x.dtype))
    return result, rows, rows, result


def _drops(options: Options) -> bool:
    """Whether there is dropout, which depends on the number of a head: a batch must then not become part of the heads."""
    return dict(options)["dropout"] > 0


_attention_vjp = _folding(
    call_of("attention_vjp", lambda ways, options, *arrays: tuple(map(_like, arrays[:3])), "backward"),
    (1, 0, 0, 0, 1, 0, 0, 1, 1),
    _drops,
)
#: Sums weighted with the softmax of ``leaky_relu(source[j] + target[i])``: ``attention(ways, Options(slope=, dropout=), x, source,
#: target, seed)``.
attention = once(
    _folding(call_of("attention", lambda *arguments: _attention_kinds(*arguments)[0]), (1, 0, 0, 0), _drops),
    lambda *arguments: (*_attention_vjp(*arguments), None),
    _folding(call_of("attention", _attention_kinds), (1, 0, 0, 0), _drops),
)

_COSINES = "cosine_attention"
#: Sums weighted with the softmax of ``beta * cos(x[i], x[j])``: ``cosine_attention(ways, Options(), x, beta)``.
cosine_attention = once(
    batches.batched(call_of(_COSINES, lambda ways, options, x, beta: _like(x))),
    batches.batched(
        call_of(f"{_COSINES}_vjp", lambda ways, options, x, beta, *rest: (_like(x), _like(beta)), "both"),
    ),
    batches.batched(
        call_of(_COSINES, lambda ways, options, x, beta: (_like(x), Kind(x.shape[:1], sums_dtype(x.dtype))))
    ),
)


def _of_nodes(ways: Ways, options: Options, edges: Any) -> Any:
    return Kind((ways.shape[dict(options)["side"] == "cols"], *edges.shape[1:]), edges.dtype)


#: Features of edges reduced to nodes: ``aggregate_edges(ways, Options(reduce=, side=), edges)``.
aggregate_edges = once(
    _folding(call_of("aggregate_edges", _of_nodes), (0,)),
    _folding(call_of("aggregate_edges_vjp", lambda ways, options, edges, _: (_like(edges),)), (0, 0)),
)


def _sampled_of_batches(size: int, which: Any, ways: Ways, options: Options, values: Any, x: Any) -> Any:
    if batches.any_of(which[0]) or batches.any_of(which[2]):
        return None
    made = _sampled(ways, options, values, batches.folded(batches.second(x, True, size), 0))
    return batches.unfolded(made, size, x.shape[2:]), True


_sampled = batches.batched(call_of("sampled_spmm", _of_rows), _sampled_of_batches)
#: Sums over sampled edges: ``sampled_spmm(ways, Options(width=, strategy=, rescale=, seed=, stream=), values, x)``.
sampled_spmm = once(_sampled, _by_values_and_x("sampled_spmm_vjp"))
