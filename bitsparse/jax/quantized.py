"""Products and sums in integers of a few bits, forward and backward (TANGO, Chen et al., SC 2023), as functions of JAX."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp

from bitsparse import _check
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.jax import batches
from bitsparse.jax.calls import Kind
from bitsparse.jax.edges import once_each
from bitsparse.jax.graphs import Graph, factors_of
from bitsparse.jax.operators import Options, call_of, once
from bitsparse.jax.sums import features
from bitsparse.jax.ways import Ways

_NARROW = ("float32", "float16", "bfloat16")


def quantized_matmul(
    x: Any, w: Any, bits: int = 8, *, rounding: Literal["nearest", "stochastic"] = "nearest", seed: Any = None
) -> Any:
    """``x @ w`` of real matrices, multiplied as integers of a few bits and scaled back (TANGO section 3.2); gradients as well.

    Parameters
    ----------
    x : array (m, k) of float32, float16 or bfloat16
    w : array (k, n)
    bits : {8, 4}
    rounding : {"nearest", "stochastic"}
    seed : int or integer array of one element, optional
        Seed of stochastic rounding, which requires one; it may be traced, so that every training step can have its own. A call on a GPU
        waits until the seed is computed.

    Returns
    -------
    float32 array (m, n)
        The same bits as :func:`bitsparse.quantized_matmul`. Gradients are those of :func:`bitsparse.quantized_matmul_vjp`, for which `x`
        and `w` are quantised again, with the streams that follow those of the forward pass.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Raised while tracing, for operands and options that do not fit.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> x, w = jnp.array([[1.0, -2.0]]), jnp.array([[0.5], [1.0]])
    >>> jax.grad(lambda w: bsj.quantized_matmul(x, w).sum())(w).round(1).ravel().tolist()
    [1.0, -2.0]
    """
    function = "quantized_matmul"
    x, w = _narrow(function, "x", x), _narrow(function, "w", w)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise ShapeError(f"{function}: x has shape {x.shape} and w {w.shape}; pass (m, k) and (k, n)")
    if bits not in (4, 8):
        raise ValueError(f"{function}: bits must be 8 or 4, got {_check.shown(bits)}")
    return _product(None, Options(bits=bits, rounding=rounding), _seed(function, rounding, seed), x, w)


def quantized_spmm(
    graph: Graph,
    x: Any,
    bits: int = 8,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    norm: Literal["gcn", "symmetric"] | None = None,
    granularity: Literal["tensor", "node"] | None = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: Any = None,
) -> Any:
    """Sums or means of neighbours' features, quantised and summed as integers (TANGO section 3.3); gradients as well.

    Parameters
    ----------
    graph : Graph
        A graph without repeated edges; its weights are quantised to 8 bits.
    x : array (sources, D) or (sources, H, D) of float32, float16 or bfloat16
    bits : {8, 4, 2}
    reduce : {"sum", "mean"}
    norm : {"gcn", "symmetric"}, optional
        As in :func:`spmm`; for "gcn" the graph must be made with ``self_loops=True``.
    granularity, rounding
        As in :func:`bitsparse.quantized_spmm`.
    seed : int or integer array of one element, optional
        Seed of stochastic rounding, which requires one; it may be traced. A call on a GPU waits until the seed is computed.

    Returns
    -------
    float32 array (targets, ...)
        The same bits as :func:`bitsparse.quantized_spmm`. The gradient is a sum over the transpose in the same number of bits.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Raised while tracing, for operands and options that do not fit.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 2], [2, 2, 0]]))
    >>> bsj.quantized_spmm(g, jnp.array([[1.0], [-2.0], [0.5]])).round(1)[2, 0].item()
    -1.0
    """
    function = "quantized_spmm"
    x = _narrow(function, "x", features(function, graph, x))
    once_each(function, graph)
    _check.choice(function, "reduce", reduce, ("sum", "mean"))
    if bits not in (2, 4, 8):
        raise ValueError(f"{function}: bits must be 8, 4 or 2, got {_check.shown(bits)}")
    if granularity is not None:
        _check.choice(function, "granularity", granularity, ("tensor", "node"))
    if norm is not None:
        _check.choice(function, "norm", norm, ("gcn", "symmetric"))
        if reduce != "sum" or graph.num_targets != graph.num_sources or (norm == "gcn" and graph.alone is not None):
            raise ValueError(
                f'{function}: norm={norm!r} is for sums over square graphs, "gcn" with an edge from every node to itself; leave reduce '
                f"out, and make the graph with self_loops=True"
            )
    number = _seed(function, rounding, seed)
    rows, columns = factors_of(norm, reduce == "mean")
    ways = graph.ways((x, number), weights="weight", rows=rows, columns=columns)
    return _sum(ways, Options(bits=bits, granularity=granularity, rounding=rounding, stream=0), number, x)


def _narrow(function: str, name: str, x: Any) -> Any:
    x = jnp.asarray(x)
    if x.dtype.name not in _NARROW:
        raise DTypeError(f"{function}: {name} is {x.dtype}; pass float32, float16 or bfloat16")
    return x


def _seed(function: str, rounding: str, seed: Any) -> Any:
    """The seed as an array of one element, or None without stochastic rounding."""
    _check.choice(function, "rounding", rounding, ("nearest", "stochastic"))
    if (rounding == "stochastic") != (seed is not None):
        raise ValueError(
            f"{function}: rounding={rounding!r} with seed={_check.shown(seed)}; a seed goes with 'stochastic'"
        )
    if seed is None:
        return None
    number = jnp.asarray(seed)
    if number.size != 1 or not jnp.issubdtype(number.dtype, jnp.integer):  # refuses keys too
        raise DTypeError(f"{function}: seed is {number.dtype} of shape {number.shape}; pass one integer")
    return number.reshape(1)


def _product_vjp(ways: None, options: Options, seed: Any, x: Any, w: Any, by_result: Any) -> Any:
    by_x, by_w = _product_vjp_call(ways, options, seed, x, w, by_result)
    return None, by_x.astype(x.dtype), by_w.astype(w.dtype)


def _sum_vjp(ways: Ways, options: Options, seed: Any, x: Any, by_result: Any) -> Any:
    return None, _summed(ways.turned, Options(**dict(options) | {"stream": 1}), seed, by_result).astype(x.dtype)


_product_vjp_call = batches.batched(
    call_of(
        "quantized_matmul_vjp", lambda ways, options, seed, *ends: tuple(Kind(p.shape, jnp.float32) for p in ends[:2])
    )
)
_product = once(
    batches.batched(
        call_of("quantized_matmul", lambda ways, options, seed, x, w: Kind((x.shape[0], w.shape[1]), jnp.float32))
    ),
    _product_vjp,
)
_summed = batches.batched(
    call_of("quantized_spmm", lambda ways, options, seed, x: Kind((ways.shape[0], *x.shape[1:]), jnp.float32))
)
_sum = once(_summed, _sum_vjp)
