"""Attention over a graph: by scores of nodes, and by cosines."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bitsparse import _check
from bitsparse.errors import ShapeError
from bitsparse.jax import operators
from bitsparse.jax.edges import once_each
from bitsparse.jax.graphs import Graph
from bitsparse.jax.operators import Options
from bitsparse.jax.sums import features, floating


def attention(
    graph: Graph,
    x: Any,
    source: Any,
    target: Any,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    key: Any = None,
) -> Any:
    """Graph attention (Velickovic et al., ICLR 2018): sums of `x` with weights that are a softmax over each target's edges.

    Parameters
    ----------
    graph : Graph
        Without repeated edges. Its weights do not count.
    x : array (sources, D) or (sources, H, D)
    source, target : array (sources,) or (sources, H), and (targets,) or (targets, H)
        Scores of both ends; that of an edge is ``leaky_relu(source[j] + target[i])``.
    negative_slope : float
        Not traced.
    dropout : float
        The share of the weights that is set to 0, after which the others are scaled up; not traced.
    key : key of jax.random, optional
        Decides which weights these are. Nothing of the edges' size is stored.

    Returns
    -------
    array (targets, D) or (targets, H, D)
        As :func:`bitsparse.attention`, in the dtype of `x`; once differentiable by `x`, `source` and `target`.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands do not fit or are not floating, edges are repeated, or dropout comes without a key.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 2], [1, 1, 1]]))
    >>> bsj.attention(g, jnp.array([[1.0], [2.0], [6.0]]), jnp.zeros(3), jnp.zeros(3)).ravel().tolist()
    [0.0, 3.0, 0.0]
    """
    function = "attention"
    x = features(function, graph, x)
    once_each(function, graph)
    slope = _check.number(function, "negative_slope", negative_slope)
    rate = _check.number(function, "dropout", dropout)
    if not 0 <= rate <= 1:
        raise ValueError(f"{function}: dropout must lie between 0 and 1, got {rate}; pass the share of weights to drop")
    seed = None
    if rate:
        if key is None:
            raise ValueError(f"{function}: dropout={rate} needs a key; pass key=jax.random.key(...)")
        seed = drawn_seed(key)
    if x.ndim < 2:
        raise ShapeError(f"{function}: x has shape {x.shape}; pass (sources, D) or (sources, H, D)")
    scores = []
    for name, given, nodes in (("source", source, graph.num_sources), ("target", target, graph.num_targets)):
        score = floating(function, name, jnp.asarray(given))
        if score.shape != (nodes, *x.shape[1:-1]):
            raise ShapeError(
                f"{function}: x has shape {x.shape} but {name} has {score.shape}; pass {(nodes, *x.shape[1:-1])}, one score for each node "
                f"and head"
            )
        scores.append(score)
    given = (x, *scores, seed)
    return operators.attention(graph.ways(given), Options(slope=slope, dropout=rate), *given)


def drawn_seed(key: Any) -> Any:
    """32 random bits and as many zeros: the 64-bit integer that kernels read where it lies."""
    return jnp.concatenate([jax.random.bits(key, (1,), jnp.uint32), jnp.zeros(1, jnp.uint32)])


def cosine_attention(graph: Graph, x: Any, beta: Any = 1.0) -> Any:
    """Attention by cosines (AGNN, Thekumparampil et al., 2018): sums of `x` with weights ``softmax_j(beta * cos(x[i], x[j]))``.

    Parameters
    ----------
    graph : Graph
        Square and without repeated edges. Its weights do not count.
    x : array (nodes, D)
    beta : float, or array of one element

    Returns
    -------
    array (nodes, D)
        As :func:`bitsparse.cosine_attention`, in the dtype of `x`; once differentiable by `x` and `beta`. No value of an edge is kept for
        the gradient on a GPU.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands do not fit or are not floating, or edges are repeated.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 1], [0, 1, 0]]))
    >>> bsj.cosine_attention(g, jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.log(3.0)).round(4).tolist()
    [[1.5, 0.25], [0.0, 1.0]]
    """
    function = "cosine_attention"
    x = features(function, graph, x)
    once_each(function, graph)
    if graph.num_targets != graph.num_sources:
        raise ShapeError(
            f"{function}: the graph is {graph.num_targets} x {graph.num_sources}, but nodes attend to each other by their features; pass a "
            f"square one"
        )
    if x.ndim != 2:
        raise ShapeError(f"{function}: x has shape {x.shape}, but features are (nodes, D); reshape them")
    beta = floating(
        function, "beta", jnp.asarray(beta, None if hasattr(beta, "dtype") else operators.sums_dtype(x.dtype))
    )
    if beta.size != 1:
        raise ShapeError(f"{function}: beta has shape {beta.shape}, but all edges have one; pass one element")
    return operators.cosine_attention(graph.ways((x, beta)), Options(), x, beta)
