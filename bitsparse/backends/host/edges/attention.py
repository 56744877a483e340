"""Attention over the edges of each row, on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.host.edges.sddmm import edge_softmax, sddmm
from bitsparse.backends.host.spmm import spmm as _spmm

__all__ = ["attention", "cosine_attention", "logsumexp"]

Array = NDArray[Any]


def attention(
    indptr: Array,
    indices: Array,
    shape: tuple[int, int],
    x: Array,
    source: Array,
    target: Array,
    *,
    negative_slope: float,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """Softmax-weighted sums of rows of `x` (cols, heads * width), see :func:`bitsparse.backends.host.spmm.spmm.attention`.

    Parameters
    ----------
    lse : ndarray (rows, heads), optional
        Receives the logarithm of the sum of ``exp(score)`` over each row, in the dtype of `source`; minus infinity for a row without edges.

    Examples
    --------
    >>> one, lse = np.ones((2, 1), np.float32), np.empty((1, 1), np.float32)
    >>> x = np.array([[2.0], [4.0]], np.float32)
    >>> attention(np.array([0, 2]), np.array([0, 1]), (1, 2), x, one, one[:1], negative_slope=0.2, lse=lse), lse
    (array([[3.]], dtype=float32), array([[2.6931472]], dtype=float32))
    """
    if lse is not None:
        scores = sddmm(indptr, indices, shape, target, source, op="add", heads=source.shape[1])
        lse[...] = logsumexp(indptr, np.where(scores >= 0, scores, scores * scores.dtype.type(negative_slope)))
    return _spmm.attention(indptr, indices, shape, x, source, target, negative_slope=negative_slope, out=out)


def cosine_attention(
    indptr: Array,
    indices: Array,
    shape: tuple[int, int],
    x: Array,
    *,
    beta: float,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """Sums of rows of `x` (n, width) with weights ``softmax(beta * cos(x[row], x[column]))`` over each row, step by step.

    float16, bfloat16 (with float32 scores and sums), float32 or float64. A row of zeros has the cosine 0 with every other.

    Examples
    --------
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> cosine_attention(np.array([0, 2, 2]), np.array([0, 1]), (2, 2), x, beta=np.log(3)).round(3)
    array([[1.5 , 0.25],
           [0.  , 0.  ]])
    """
    compute = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    unit = unit_rows(x, compute)
    scores = sddmm(indptr, indices, shape, unit, unit, op="dot", heads=1) * compute.type(beta)
    if lse is not None:
        lse[...] = logsumexp(indptr, scores)
    weights = edge_softmax(indptr, scores).ravel()
    return _spmm.spmm(indptr, indices, shape, x, nnz=indices.size, acc_dtype=compute, values=weights, out=out)


def unit_rows(x: Array, dtype: np.dtype[Any]) -> Array:
    """Rows divided by their Euclidean norms; rows of zeros stay zeros.

    Every row is brought near 1 by a power of two first, which changes no digit, so that no square is too large or too small for float64.

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
