"""Attention over the edges of each row: the defined steps one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.reference.edges.sddmm import edge_softmax, sddmm
from bitsparse.backends.reference.spmm import spmm as _spmm

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
    """Softmax-weighted sums of rows of `x`, and the logarithms of sums; see the host's function of the same name.

    Examples
    --------
    >>> one = np.ones((2, 1), np.float32)
    >>> attention(np.array([0, 2]), np.array([0, 1]), (1, 2), np.array([[2.0], [4.0]], np.float32), one, one[:1], negative_slope=0.2)
    array([[3.]], dtype=float32)
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
    """Sums of rows of `x` with weights ``softmax(beta * cos(x[row], x[column]))``; see the host's function of the same name.

    Examples
    --------
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> cosine_attention(np.array([0, 2, 2]), np.array([0, 1]), (2, 2), x, beta=np.log(3)).round(3)
    array([[1.5 , 0.25],
           [0.  , 0.  ]])
    """
    compute = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    wide = x.astype(np.float64)
    # The largest element of each row is brought into 1/2 to 1, so that squares neither overflow nor vanish.
    wide = np.ldexp(wide, -np.frexp(np.abs(wide).max(axis=1, initial=0.0, keepdims=True))[1])
    norms = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    unit = (wide / np.where(norms == 0, 1, norms)).astype(compute)
    scores = sddmm(indptr, indices, shape, unit, unit, op="dot", heads=1) * compute.type(beta)
    if lse is not None:
        lse[...] = logsumexp(indptr, scores)
    weights = edge_softmax(indptr, scores).ravel()
    return _spmm.spmm(indptr, indices, shape, x, nnz=indices.size, acc_dtype=compute, values=weights, out=out)


def logsumexp(indptr: Array, scores: Array) -> Array:
    """Logarithm of the sum of ``exp(score)`` over the edges of each row, row by row.

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
