"""Products and reductions of edges, with gradients."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp

from bitsparse import _check
from bitsparse.errors import ShapeError
from bitsparse.jax import operators
from bitsparse.jax.graphs import Graph, checked
from bitsparse.jax.operators import Options
from bitsparse.jax.sums import edge_values, features, floating
from bitsparse.ops.sampling.sample import DEFAULT, sampling_of


def sddmm(graph: Graph, x: Any, y: Any = None, *, op: Literal["dot", "add", "sub", "mul", "div"] = "dot") -> Any:
    """For every edge from j to i, combine ``x[i]`` and ``y[j]``: their dot product, or an operation on their elements.

    Parameters
    ----------
    graph : Graph
        A graph; its weights are ignored.
    x : array (targets,), (targets, D) or (targets, H, D)
        float16, bfloat16, float32 or float64.
    y : array (sources, ...), optional
        Features of the sources; by default `x`, on a square graph.
    op : {"dot", "add", "sub", "mul", "div"}

    Returns
    -------
    array (edges,) or (edges, H) for "dot", else (edges, ...)
        The result of :func:`bitsparse.sddmm`, in the order of the graph's CSR arrays and the dtype to which JAX promotes `x` and `y`. Dot
        products have gradients of any order, all other operations a first one only.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The operands do not fit, or are not floating.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> bsj.sddmm(g, jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [11.0, 11.0]
    """
    function = "sddmm"
    _check.choice(function, "op", op, ("dot", "add", "sub", "mul", "div"))
    x, y = features(function, graph, x, nodes="targets"), features(function, graph, x if y is None else y, "y")
    if x.shape[1:] != y.shape[1:] or (op == "dot" and x.ndim == 1):
        raise ShapeError(
            f"{function}: x has shape {x.shape} and y {y.shape}; pass ({graph.num_targets}, D) and ({graph.num_sources}, D), or both with "
            f"heads"
        )
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)
    ways = graph.ways((x, y))
    return operators.sddmm(ways, x, y) if op == "dot" else operators.combined(ways, Options(op=op), x, y)


def edge_softmax(graph: Graph, scores: Any) -> Any:
    """The softmax of the edges' scores over the edges of each target.

    Parameters
    ----------
    graph : Graph
        A graph without repeated edges; its weights are ignored.
    scores : array (edges,) or (edges, H)
        Scores in the order of the graph's CSR arrays.

    Returns
    -------
    array of the shape and dtype of `scores`
        The result of :func:`bitsparse.edge_softmax`; once differentiable.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Scores do not fit or are not floating, or edges are repeated.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 1], [1, 0, 1]]))
    >>> bsj.edge_softmax(g, jnp.zeros(3)).tolist()
    [1.0, 0.5, 0.5]
    """
    function = "edge_softmax"
    once_each(function, graph)
    scores = _of_edges(function, graph, "scores", scores, 2)
    return operators.edge_softmax(graph.ways((scores,)), Options(), scores)


def aggregate_edges(
    graph: Graph,
    edges: Any,
    *,
    reduce: Literal["sum", "mean", "max", "min"] = "sum",
    side: Literal["rows", "cols"] = "rows",
) -> Any:
    """Reduce features of edges to their targets, or with ``side="cols"`` to their sources.

    Parameters
    ----------
    graph : Graph
        A graph; its weights are ignored.
    edges : array (edges,), (edges, D) or (edges, H, D)
        Features in the order of the graph's CSR arrays.
    reduce : {"sum", "mean", "max", "min"}
    side : {"rows", "cols"}

    Returns
    -------
    array (targets, ...) or (sources, ...)
        The result of :func:`bitsparse.aggregate_edges`, in the dtype of `edges`; once differentiable.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        `edges` do not fit or are not floating.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 1], [1, 0, 1]]))
    >>> bsj.aggregate_edges(g, jnp.array([1.0, 10.0, 100.0])).tolist()
    [1.0, 110.0]
    """
    function = "aggregate_edges"
    _check.choice(function, "reduce", reduce, ("sum", "mean", "max", "min"))
    _check.choice(function, "side", side, ("rows", "cols"))
    edges = _of_edges(function, graph, "edges", edges, 3)
    return operators.aggregate_edges(graph.ways((edges,)), Options(reduce=reduce, side=side), edges)


def sampled_spmm(
    graph: Graph,
    x: Any,
    width: int,
    strategy: Literal["aes", "afs", "sfs", "uniform"] | None = None,
    *,
    values: Any = None,
    rescale: bool = False,
    seed: int | None = None,
    stream: int = 0,
) -> Any:
    """Sums over at most `width` sampled edges of each target (AES-SpMM); every call draws its sample anew and never stores it.

    Parameters
    ----------
    graph : Graph
        A graph without repeated edges; its weights are used if there are no `values`.
    x : array (sources, D)
        float16, bfloat16, float32 or float64.
    width, strategy, rescale, seed, stream
        As in :func:`bitsparse.sampled_spmm`; not traced.
    values : array (edges,), optional

    Returns
    -------
    array (targets, D)
        The result of :func:`bitsparse.sampled_spmm`; once differentiable by `x` and `values`, over the same sample.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands do not fit or are not floating, or the strategy "uniform" has no seed.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(np.stack([np.arange(8), np.zeros(8, int)]))
    >>> bsj.sampled_spmm(g, jnp.ones((8, 1)), 4, "sfs", rescale=True)[0].tolist()
    [8.0]
    """
    function = "sampled_spmm"
    once_each(function, graph)
    x = features(function, graph, x)
    if x.ndim != 2:
        raise ShapeError(f"{function}: x has shape {x.shape}, but features are (sources, D); reshape them")
    strategy = DEFAULT if strategy is None else strategy
    if strategy == "uniform" and seed is None:
        raise ValueError(
            f"{function}: strategy='uniform' draws by a seed, which its gradient must know as well; pass seed="
        )
    sampling_of(function, width, strategy, seed, stream)
    rescale = _check.flag(function, "rescale", rescale)
    if values is not None:
        values = edge_values(function, graph, values, x.shape)
        dtype = jnp.promote_types(x.dtype, values.dtype)
        x, values = x.astype(dtype), values.astype(dtype)
    ways = graph.ways((x, values), weights="" if values is not None else "weight")
    how = Options(width=width, strategy=strategy, rescale=rescale, seed=seed, stream=stream)
    return operators.sampled_spmm(ways, how, values, x)


def _of_edges(function: str, graph: Graph, name: str, x: Any, most: int) -> Any:
    """Check that features of edges are floating and have at most `most` dimensions."""
    x = floating(function, name, jnp.asarray(x))
    if x.shape[:1] != (graph.num_edges,) or x.ndim > most:
        raise ShapeError(
            f"{function}: the graph has {graph.num_edges} edges but {name} has shape {x.shape}; pass one row for each"
        )
    return x


def once_each(function: str, graph: Graph) -> None:
    """Refuse anything that is no graph, and graphs with repeated edges."""
    checked(function, graph)
    if graph.counts is not None:
        raise ValueError(
            f"{function}: the graph has repeated edges, which count one by one here; make it of each edge once"
        )
