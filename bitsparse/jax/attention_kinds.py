"""Attention over a graph, by scores of nodes (GAT) and by cosines of features (AGNN)."""

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
        A graph without repeated edges; its weights are ignored.
    x : array (sources, D) or (sources, H, D)
    source, target : array (sources,) or (sources, H), and (targets,) or (targets, H)
        Scores of the nodes as sources and as targets; the score of an edge is ``leaky_relu(source[j] + target[i])``.
    negative_slope : float
        Slope of the leaky ReLU; a Python number, not a traced value.
    dropout : float
        The probability with which a weight is set to 0, after which the others are scaled up; not a traced value.
    key : key of jax.random, optional
        Decides which weights are set to 0; needed for dropout. No mask is stored.

    Returns
    -------
    array (targets, D) or (targets, H, D)
        The result of :func:`bitsparse.attention`, in the dtype of `x`; differentiable once, with respect to `x`, `source` and `target`.

    Raises
    ------
    ShapeError
        Shapes do not match.
    DTypeError
        `x` or scores are not floating.
    ValueError
        Edges are repeated, `dropout` is not between 0 and 1, or it is given without a key.

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
    """A 64-bit seed as two uint32, 32 random bits and 32 zeros, which kernels read from the array's memory."""
    return jnp.concatenate([jax.random.bits(key, (1,), jnp.uint32), jnp.zeros(1, jnp.uint32)])


def cosine_attention(graph: Graph, x: Any, beta: Any = 1.0) -> Any:
    """Attention by cosines (AGNN, Thekumparampil et al., 2018): sums of `x` with weights ``softmax_j(beta * cos(x[i], x[j]))``.

    Parameters
    ----------
    graph : Graph
        A square graph without repeated edges; its weights are ignored.
    x : array (nodes, D)
    beta : float, or array of one element

    Returns
    -------
    array (nodes, D)
        The result of :func:`bitsparse.cosine_attention`, in the dtype of `x`; differentiable once, with respect to `x` and `beta`. On a
        GPU nothing is stored per edge, not even for the gradient.

    Raises
    ------
    ShapeError
        The graph is not square, or shapes do not match.
    DTypeError
        `x` or `beta` is not floating.
    ValueError
        Edges are repeated.

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
            f"{function}: the graph has {graph.num_targets} targets but {graph.num_sources} sources, and nodes attend to each other; pass "
            f"a square graph"
        )
    if x.ndim != 2:
        raise ShapeError(
            f"{function}: x has {x.ndim} dimensions, shape {x.shape}, but needs 2; reshape it to (nodes, D)"
        )
    beta = floating(
        function, "beta", jnp.asarray(beta, None if hasattr(beta, "dtype") else operators.sums_dtype(x.dtype))
    )
    if beta.size != 1:
        raise ShapeError(f"{function}: beta has shape {beta.shape}, but all edges share one factor; pass one element")
    return operators.cosine_attention(graph.ways((x, beta)), Options(), x, beta)
