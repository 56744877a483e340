"""Attention over the edges of each row, on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bitsparse._ext import spmm as _ext
from bitsparse.backends.host.buffers import arrays_of, as_bytes
from bitsparse.backends.host.edges.sddmm import edge_softmax, sddmm
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.host.spmm.spmm import features_of, spmm
from bitsparse.backends.params import Array, Dropout, Pattern
from bitsparse.backends.row_pieces import RowPieces


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
    """Softmax-weighted sums of rows of `x` (cols, heads * width), without storing a value per edge.

    Parameters
    ----------
    source, target : ndarray (cols, heads), (rows, heads)
        float64 for float64 features, else float32. The score of an edge is ``leaky_relu(source[column] + target[row])``.
    lse : ndarray (rows, heads), optional
        Receives the logarithm of the sum of ``exp(score)`` over each row, in the dtype of `source`; minus infinity for a row without edges.
    dropout : Dropout, optional
        Applied to the weights after the softmax.
    state : tuple of ndarray (rows, heads), (rows, heads * width), optional
        Only with `lse`. Consider the edges of a row whose ``source[column] + target[row]`` is above 0. The first array receives the sum
        of their weights before dropout, in the dtype of `source`; the second one receives their part of the result.

    Examples
    --------
    >>> one, lse = np.ones((2, 1), np.float32), np.empty((1, 1), np.float32)
    >>> x = np.array([[2.0], [4.0]], np.float32)
    >>> pattern = Pattern(np.array([0, 2]), np.array([0, 1]), (1, 2))
    >>> attention(pattern, x, one, one[:1], negative_slope=0.2, lse=lse), lse
    (array([[3.]], dtype=float32), array([[2.6931472]], dtype=float32))
    """
    heads = source.shape[1]
    sums: tuple[Array | None, ...] = (None, None, None)
    if state is not None:
        sums = (lse, *state)
    elif lse is not None:
        scores = sddmm(pattern, target, source, op="add", heads=heads)
        lse[...] = logsumexp(pattern.indptr, np.where(scores >= 0, scores, scores * scores.dtype.type(negative_slope)))
    result = np.empty((pattern.shape[0], x.shape[1]), x.dtype) if out is None else out
    _attend(pattern, x, source, target, negative_slope, dropout, (result, *sums))
    return result


def attention_vjp(
    pattern: Pattern,
    x: Array | RowPieces,
    source: Array,
    target: Array,
    gradient: Array,
    state: tuple[Array | RowPieces, Array, Array, Array | RowPieces],
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    wrt: tuple[str, ...] = ("x", "source", "target"),
) -> dict[str, Array]:
    """Gradients of :func:`attention` over the transpose of its pattern, without storing a value per edge.

    Parameters
    ----------
    pattern : Pattern
        The transpose: its rows are those of `x` and `source`, its columns those of `target`, `gradient` and `state`.
    gradient : ndarray (cols, heads * width)
        Gradient with respect to the result, in the dtype of `x`.
    state : tuple of ndarray
        The result, `lse` and the two arrays `state` of :func:`attention`. The first and the last may be :class:`RowPieces`, as may `x`.
    wrt : tuple of str
        Inputs whose gradients to compute. The gradient of `target` needs no pass over the edges.

    Examples
    --------
    >>> one, state = np.ones((1, 1)), (np.ones((2, 1)), np.empty((2, 1)), np.empty((2, 1)), np.empty((2, 1)))
    >>> pattern = Pattern(np.array([0, 1, 2]), np.array([0, 0]), (2, 1))
    >>> sums = {"lse": state[1], "state": state[2:], "negative_slope": 0.2}
    >>> _ = attention(pattern, one, one, np.ones((2, 1)), out=state[0], **sums)
    >>> turned = Pattern(np.array([0, 2]), np.array([0, 1]), (1, 2))
    >>> attention_vjp(turned, one, one, np.ones((2, 1)), np.array([[3.0], [4.0]]), state, negative_slope=0.2)["x"]
    array([[7.]])
    """
    (result, lse, share, above), compute, heads = state, source.dtype, source.shape[1]
    slope, made = compute.type(negative_slope), {}
    products = _dots(gradient, result, heads, compute)
    if "target" in wrt:
        made["target"] = (1 - slope) * (_dots(gradient, above, heads, compute) - products * share)
    if wrt != ("target",):
        ends = np.stack([target, lse, products], axis=-1)
        made["x"], total, slanted = np.empty(x.shape, x.dtype), None, None
        if "source" in wrt:
            total, slanted = np.empty((pattern.shape[0], heads), compute), np.empty(x.shape, compute)
        sums = (made["x"], None, total, slanted)
        _attend(pattern, gradient, ends, source, negative_slope, dropout, sums)
        if slanted is not None:
            made["source"] = _dots(slanted, x, heads, compute) - total
    return made


def _attend(
    pattern: Pattern,
    x: Array,
    ends: Array,
    target: Array,
    slope: float,
    dropout: Dropout | None,
    sums: tuple[Array | None, ...],
) -> None:
    """Run the compiled pass over the edges. For a gradient, `ends` is (cols, heads, 3). `sums`: the result, `lse` and the state."""
    load, data, layout, _ = features_of(x, None, target.shape[1], target.dtype)
    drop = None if dropout is None else (dropout.threshold, dropout.scale, int(dropout.seed))
    how = as_bytes(ends), as_bytes(target), slope, drop, ends.ndim == 3
    out, lse, share, above = (None if part is None else as_bytes(part) for part in sums)
    _ext.attention(run_on(), *arrays_of(pattern), load, data, layout, *how, cast(Any, out), lse, share, above, 0)


def _dots(x: Array, y: Array | RowPieces, heads: int, dtype: np.dtype[Any]) -> Array:
    """Dot products of the rows of x and y for each head, (rows, heads)."""
    if isinstance(y, RowPieces):
        pieces = [_dots(x[rows], y.make(i), heads, dtype) for i, rows in enumerate(y.pieces)]
        return np.concatenate(pieces) if pieces else np.zeros((len(x), heads), dtype)
    wide = (part.astype(dtype, copy=False).reshape(len(part), heads, part.shape[1] // heads) for part in (x, y))
    return np.einsum("nhd,nhd->nh", *wide)


def cosine_attention(
    pattern: Pattern,
    x: Array,
    *,
    beta: float,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """Sums of rows of `x` (n, width) with weights ``softmax(beta * cos(x[row], x[column]))`` over each row, step by step.

    `x` is float16 or bfloat16 (with float32 scores and sums), float32 or float64. A row of zeros has the cosine 0 with every row.

    Examples
    --------
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> cosine_attention(Pattern(np.array([0, 2, 2]), np.array([0, 1]), (2, 2)), x, beta=np.log(3)).round(3)
    array([[1.5 , 0.25],
           [0.  , 0.  ]])
    """
    compute = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    unit = unit_rows(x, compute)
    scores = sddmm(pattern, unit, unit, op="dot", heads=1) * compute.type(beta)
    if lse is not None:
        lse[...] = logsumexp(pattern.indptr, scores)
    weights = edge_softmax(pattern, scores).ravel()
    return spmm(pattern, x, acc_dtype=compute, values=weights, out=out)


def unit_rows(x: Array, dtype: np.dtype[Any]) -> Array:
    """Rows divided by their Euclidean norms; rows of zeros stay zeros.

    Every row is first scaled near 1 by a power of two, which is exact, so that no square overflows or vanishes in float64.

    Examples
    --------
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]), np.dtype(np.float32))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    wide = x.astype(np.float64)
    _, exponents = np.frexp(np.abs(wide).max(axis=1, initial=0.0, keepdims=True))
    wide = np.ldexp(wide, -exponents)
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))[:, None]
    return np.asarray((wide / np.where(norms == 0, 1, norms)).astype(dtype))


def logsumexp(indptr: Array, scores: Array) -> Array:
    """Logarithm of the sum of ``exp(score)`` over the edges of each row, (rows, heads); minus infinity for a row without edges.

    Examples
    --------
    >>> logsumexp(np.array([0, 2, 2]), np.zeros((2, 1)))
    array([[0.69314718],
           [      -inf]])
    """
    result = np.full((indptr.size - 1, scores.shape[1]), -np.inf)
    rows = np.flatnonzero(indptr[1:] > indptr[:-1])
    if rows.size:
        starts, lengths = indptr[rows], (indptr[1:] - indptr[:-1])[rows]
        with np.errstate(all="ignore"):
            most = np.maximum.reduceat(scores, starts, axis=0).astype(np.float64)
            base = np.where(np.isneginf(most), 0, most)
            powers = np.exp(scores - np.repeat(base, lengths, axis=0))
            result[rows] = base + np.log(np.add.reduceat(powers, starts, axis=0))
    return result.astype(scores.dtype)
