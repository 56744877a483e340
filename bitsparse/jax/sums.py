"""Sums, means, maxima and minima over a graph, with gradients."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp

from bitsparse import _check
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.jax import operators
from bitsparse.jax.graphs import Graph, checked, factors_of
from bitsparse.jax.operators import Options

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def spmm(
    graph: Graph,
    x: Any,
    values: Any = None,
    *,
    reduce: Literal["sum", "mean", "max", "min"] = "sum",
    norm: Literal["gcn", "symmetric"] | None = None,
) -> Any:
    """Reduce the features of neighbours: ``y[i] = reduce over j of v[i, j] * x[j]``; differentiable by `x` and `values`.

    Parameters
    ----------
    graph : Graph
    x : array (sources,), (sources, D) or (sources, H, D)
        float16, bfloat16, float32 or float64.
    values : array (edges,) or (edges, H), optional
        One value for each edge, in the order of the graph's CSR arrays (:meth:`Graph.edge_values`). By default the weights of the graph
        or, if it has none, how often each edge occurs, in the dtype of `x`.
    reduce : {"sum", "mean", "max", "min"}
        A mean divides by the number of edges. Targets without edges get 0.
    norm : {"gcn", "symmetric"}, optional
        Replaces A in a sum over a square graph. "gcn": ``D^-1/2 (A + I) D^-1/2`` (Kipf and Welling, ICLR 2017, Eq. 2), where I adds an
        edge of weight 1 for each node without an edge to itself. "symmetric": ``D^-1/2 A D^-1/2``. D holds the sums of each row's weights
        or `values`, and gradients by `values` include it. A graph with ``self_loops=True`` saves a pass over `x`.

    Returns
    -------
    array (targets, ...)
        Results as of :func:`bitsparse.spmm`, in the dtype to which JAX promotes `x` and `values`. Sums and means have gradients of any
        order. Maxima and minima have a first gradient only, shared equally among the edges that attain the extreme. Under ``jax.vmap``,
        a batch of features becomes columns of one sum, and a batch of values becomes heads; batches of graphs are summed in a loop.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        `x` or `values` do not fit the graph, or are not floating. Traced arguments raise while tracing.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 2], [2, 2, 0]]))
    >>> x = jnp.array([[1.0], [3.0], [5.0]])
    >>> jax.jit(lambda x: bsj.spmm(g, x, reduce="mean"))(x).ravel().tolist()
    [5.0, 0.0, 2.0]
    >>> jax.grad(lambda x: bsj.spmm(g, x)[2, 0])(x).ravel().tolist()
    [1.0, 1.0, 0.0]
    """
    function = "spmm"
    _check.choice(function, "reduce", reduce, ("sum", "mean", "max", "min"))
    if norm is not None:
        _check.choice(function, "norm", norm, ("gcn", "symmetric"))
    x, values = features(function, graph, x), None if values is None else edge_values(function, graph, values, x.shape)
    if norm is not None and reduce != "sum":
        raise ValueError(f"{function}: norm={norm!r} goes with sums, but reduce is {reduce!r}; leave one of them out")
    if norm is not None and graph.num_targets != graph.num_sources:
        raise ShapeError(
            f"{function}: the graph is {graph.num_targets} x {graph.num_sources}, but norm={norm!r} is for square ones; use reduce='mean'"
        )
    if values is not None:
        dtype = jnp.promote_types(x.dtype, values.dtype)
        x, values = x.astype(dtype), values.astype(dtype)
    given = (x, values)
    weights = "" if values is not None else "weight" if graph.weight is not None else "counts"
    if reduce in ("max", "min"):
        weights = "" if weights == "counts" else weights  # repeated edges do not make a maximum larger
        return operators.spmm_extreme(graph.ways(given, weights=weights), Options(reduce=reduce), values, x)
    if norm is None and reduce == "sum":
        return operators.spmm(graph.ways(given, weights=weights), values, x)
    if values is None and x.dtype != jnp.float64:  # the factors of sums are float32
        rows, columns = factors_of(norm, reduce == "mean")
        y = operators.spmm(graph.ways(given, weights=weights, rows=rows, columns=columns), None, x)
        if norm != "gcn" or graph.alone is None:
            return y
        return y + _along(graph.gcn_scale**2 * graph.alone, x) * x
    ways = graph.ways(given, weights=weights)
    if norm is None:
        counted = operators.spmm(graph.ways(given, weights="counts"), None, jnp.ones(graph.num_sources, x.dtype))
        return operators.spmm(ways, values, x) / _along(jnp.maximum(counted, 1), x)
    return _normalised(graph, ways, values, x, loops=norm == "gcn")


def _normalised(graph: Graph, ways: Any, values: Any, x: Any, *, loops: bool) -> Any:
    """A normalised sum whose factors are computed from the values, in the dtype of `x`."""
    if values is not None and values.ndim == 2:
        ones = jnp.ones((graph.num_sources, values.shape[1], 1), x.dtype)
        degree = operators.spmm(ways, values, ones)[..., 0]
    else:
        degree = operators.spmm(ways, values, jnp.ones(graph.num_sources, x.dtype))
    alone = None
    if loops and graph.alone is not None:
        alone = graph.alone.astype(x.dtype).reshape(-1, *(1,) * (degree.ndim - 1))
        degree = degree + alone
    some = degree > 0
    scale = jnp.where(some, 1 / jnp.sqrt(jnp.where(some, degree, 1)), 0).astype(x.dtype)
    y = operators.spmm(ways, values, x * _along(scale, x)) * _along(scale, x)
    return y if alone is None else y + _along(scale**2 * alone, x) * x


def _along(factor: Any, x: Any) -> Any:
    """A factor for each row of `x`, or each row and head, shaped to be multiplied with `x`."""
    return factor.astype(x.dtype).reshape(*factor.shape, *(1,) * (x.ndim - factor.ndim))


def features(function: str, graph: Graph, x: Any, name: str = "x", nodes: str = "sources") -> Any:
    """Check that features of nodes fit the graph and are floating."""
    checked(function, graph)
    x = jnp.asarray(x)
    size = graph.num_sources if nodes == "sources" else graph.num_targets
    if x.shape[:1] != (size,) or x.ndim > 3:
        raise ShapeError(
            f"{function}: the graph has {size} {nodes} but {name} has shape {x.shape}; pass ({nodes}, D) or ({nodes}, H, D)"
        )
    return floating(function, name, x)


def floating(function: str, name: str, x: Any) -> Any:
    """Check that an array has one of the float dtypes that have gradients."""
    if x.dtype.name not in _FLOATS:
        raise DTypeError(f"{function}: {name} is {x.dtype}; pass floats, {name}.astype('float32')")
    return x


def edge_values(function: str, graph: Graph, values: Any, shape: tuple[int, ...]) -> Any:
    """Check that values of edges are floating, and fit the graph and the shape of features."""
    values = floating(function, "values", jnp.asarray(values))
    fits = values.shape == (graph.num_edges,) or (len(shape) == 3 and values.shape == (graph.num_edges, shape[1]))
    if not fits:
        raise ShapeError(
            f"{function}: the graph has {graph.num_edges} edges and x has shape {shape}, but values have {values.shape}; pass one value "
            f"per edge, or one per edge and head"
        )
    return values
