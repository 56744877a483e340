"""Attention over the edges of each row, one defined step after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse.backends.params import Array, Dropout, Pattern
from bitsparse.backends.reference.edges.sddmm import edge_softmax, sddmm
from bitsparse.backends.reference.scalar import edges_kept
from bitsparse.backends.reference.spmm.spmm import spmm


def attention(
    pattern: Pattern,
    x: Array,
    source: Array,
    target: Array,
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    state: tuple[Array, Array] | None = None,
) -> Array:
    """Softmax-weighted sums of rows of `x`, and log-sum-exps in `lse`; see the host's function of the same name.

    Examples
    --------
    >>> one = np.ones((2, 1), np.float32)
    >>> pattern = Pattern(np.array([0, 2]), np.array([0, 1]), (1, 2))
    >>> attention(pattern, np.array([[2.0], [4.0]], np.float32), one, one[:1], negative_slope=0.2)
    array([[3.]], dtype=float32)
    """
    (indptr, indices, shape, _), heads = pattern, source.shape[1]
    scores = sddmm(pattern, target, source, op="add", heads=heads)
    steep = scores > 0
    scores = np.where(scores >= 0, scores, scores * scores.dtype.type(negative_slope))
    if lse is not None:
        lse[...] = logsumexp(indptr, scores)
    weights = edge_softmax(pattern, scores)
    rows = np.repeat(np.arange(shape[0]), indptr[1:] - indptr[:-1])
    dropped = weights * _factors(rows, indices, heads, dropout, source.dtype)
    how: dict[str, Any] = {"acc_dtype": source.dtype, "heads": heads}
    if state is not None:
        state[0][...] = _summed(np.where(steep, weights, 0), rows, shape[0])
        spmm(pattern, x, values=np.where(steep, dropped, 0).astype(source.dtype), **how, out=state[1])
    return spmm(pattern, x, values=dropped, **how, out=out)


def attention_vjp(
    pattern: Pattern,
    x: Array,
    source: Array,
    target: Array,
    gradient: Array,
    state: tuple[Array, Array, Array, Array],
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    wrt: tuple[str, ...] = ("x", "source", "target"),
) -> dict[str, Array]:
    """Gradients of :func:`attention` over the transpose of its pattern, edge by edge; see the host's function of the same name.

    Only the log-sum-exps of the state are used: the weights and their gradients are computed for each edge, as autograd would do.

    Examples
    --------
    >>> one, none = np.ones((1, 1)), np.zeros((2, 1))
    >>> turned = Pattern(np.array([0, 2]), np.array([0, 1]), (1, 2))
    >>> state = none, np.ones((2, 1)), none, none
    >>> attention_vjp(turned, one, none[:1], np.ones((2, 1)), np.array([[3.0], [4.0]]), state, negative_slope=0.2)["x"]
    array([[7.]])
    """
    indptr, indices, shape, _ = pattern
    heads, nodes = source.shape[1], np.repeat(np.arange(shape[0]), indptr[1:] - indptr[:-1])
    z = (source[nodes] + target[indices]).astype(np.float64)
    slopes = np.where(z > 0, 1, negative_slope)
    weights = np.exp(z * slopes - state[1][indices])
    kept = _factors(indices, nodes, heads, dropout, np.dtype(np.float64))
    wide, gradients = (
        part.astype(np.float64).reshape(len(part), heads, part.shape[1] // heads) for part in (x, gradient)
    )
    by_weights = kept * np.einsum("ehd,ehd->eh", wide[nodes], gradients[indices])
    by_scores = weights * (by_weights - _summed(weights * by_weights, indices, shape[1])[indices]) * slopes
    made = {
        "x": _summed((weights * kept)[:, :, None] * gradients[indices], nodes, shape[0]).reshape(x.shape),
        "source": _summed(by_scores, nodes, shape[0]),
        "target": _summed(by_scores, indices, shape[1]),
    }
    return {name: made[name].astype(x.dtype if name == "x" else source.dtype) for name in wrt}


def _factors(rows: Array, columns: Array, heads: int, dropout: Dropout | None, dtype: np.dtype[Any]) -> Array:
    """The factors (edges, heads) by which dropout multiplies the weights of edges."""
    if dropout is None:
        return np.ones((len(rows), heads), dtype)
    kept = edges_kept(rows, columns, heads, int(dropout.seed), dropout.threshold)
    return np.asarray(kept * dtype.type(dropout.scale))


def _summed(edges: Array, nodes: Array, count: int) -> Array:
    """The sum of edge values at each of `count` nodes, added edge by edge."""
    made = np.zeros((count, *edges.shape[1:]))
    np.add.at(made, nodes, edges)
    return made


def cosine_attention(
    pattern: Pattern,
    x: Array,
    *,
    beta: float,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """Sums of rows of `x` with weights ``softmax(beta * cos(x[row], x[column]))``; see the host's function of the same name.

    Examples
    --------
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> cosine_attention(Pattern(np.array([0, 2, 2]), np.array([0, 1]), (2, 2)), x, beta=np.log(3)).round(3)
    array([[1.5 , 0.25],
           [0.  , 0.  ]])
    """
    compute = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    wide = x.astype(np.float64)
    # The largest element of each row is scaled into [1/2, 1), so that squares neither overflow nor vanish.
    wide = np.ldexp(wide, -np.frexp(np.abs(wide).max(axis=1, initial=0.0, keepdims=True))[1])
    norms = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    unit = (wide / np.where(norms == 0, 1, norms)).astype(compute)
    scores = sddmm(pattern, unit, unit, op="dot", heads=1) * compute.type(beta)
    if lse is not None:
        lse[...] = logsumexp(pattern.indptr, scores)
    weights = edge_softmax(pattern, scores).ravel()
    return spmm(pattern, x, acc_dtype=compute, values=weights, out=out)


def logsumexp(indptr: Array, scores: Array) -> Array:
    """Logarithm of the sum of ``exp(score)`` over the edges of each row.

    Examples
    --------
    >>> logsumexp(np.array([0, 2, 2]), np.zeros((2, 1)))
    array([[0.69314718],
           [      -inf]])
    """
    result = np.full((indptr.size - 1, scores.shape[1]), -np.inf)
    for row, (first, end) in enumerate(zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)):
        if first < end:
            with np.errstate(all="ignore"):
                part = scores[first:end].astype(np.float64)
                most = part.max(axis=0)
                most[np.isneginf(most)] = 0
                result[row] = most + np.log(np.exp(part - most).sum(axis=0))
    return result.astype(scores.dtype)
