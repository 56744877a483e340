"""Products per edge and the softmax over the edges of a row, in the defined order of summation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import SEGMENT

__all__ = ["attention_weights", "edge_softmax", "sddmm"]

Array = NDArray[Any]
_f32 = np.float32


def sddmm(
    indptr: Array,
    indices: Array,
    shape: tuple[int, int],
    x: Array,
    y: Array,
    *,
    op: str,
    heads: int,
    out: Array | None = None,
) -> Array:
    """Dot product, sum or product of ``x[row]`` and ``y[column]`` for every edge; see the host's function of the same name.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0]], np.float32)
    >>> sddmm(np.array([0, 1]), np.array([0]), (1, 1), x, x, op="dot", heads=1)
    array([[5.]], dtype=float32)
    """
    starts = indptr.astype(np.int64)
    rows = np.repeat(np.arange(shape[0]), starts[1:] - starts[:-1])
    if indices.size and (indices.min() < 0 or indices.max() >= shape[1]):
        raise ValueError(f"indices hold a column outside 0..{shape[1] - 1}; rebuild the sparse array")
    left, right = x[rows], y[indices]
    with np.errstate(all="ignore"):
        if op == "add":
            result = left + right
        elif op == "mul":
            result = left * right
        else:
            split = (rows.size, heads, x.shape[1] // heads if heads else 0)
            result = _lane_sum(left.reshape(split) * right.reshape(split))
    if out is None:
        return np.asarray(result)
    out[...] = result
    return out


def edge_softmax(indptr: Array, scores: Array, *, out: Array | None = None) -> Array:
    """Softmax of `scores` (nnz, heads) over the edges of each row.

    Examples
    --------
    >>> edge_softmax(np.array([0, 2, 3]), np.zeros((3, 1), np.float32))[:, 0]
    array([0.5, 0.5, 1. ], dtype=float32)
    """
    result = np.empty_like(scores)
    for first, end in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        if first == end:
            continue
        part = scores[first:end]
        with np.errstate(all="ignore"):
            shifted = part - part.max(axis=0)
            powers = _exp32(shifted) if scores.dtype == _f32 else np.exp(shifted)
            total = _lane_sum(powers[:SEGMENT].T)
            for piece in range(SEGMENT, end - first, SEGMENT):
                total = total + _lane_sum(powers[piece : piece + SEGMENT].T)
            result[first:end] = powers / total
    if out is None:
        return result
    out[...] = result
    return out


def attention_weights(
    indptr: Array, indices: Array, shape: tuple[int, int], source: Array, target: Array, negative_slope: float
) -> Array:
    """Softmax over each row's edges of ``leaky(source[column] + target[row])``, shape (nnz, heads).

    Examples
    --------
    >>> one = np.ones((2, 1), np.float32)
    >>> attention_weights(np.array([0, 2]), np.array([0, 1]), (1, 2), one, one[:1], 0.2)[:, 0]
    array([0.5, 0.5], dtype=float32)
    """
    scores = sddmm(indptr, indices, shape, target, source, op="add", heads=source.shape[1])
    scores = np.where(scores >= 0, scores, scores * scores.dtype.type(negative_slope))
    return edge_softmax(indptr, scores)


def _lane_sum(terms: Array) -> Array:
    """Sum along the last axis in 64 bytes' worth of interleaved lanes, each in order, then folded in halves."""
    ways = 64 // terms.dtype.itemsize
    steps = -(-terms.shape[-1] // ways)
    padded = np.zeros((*terms.shape[:-1], steps * ways), terms.dtype)
    padded[..., : terms.shape[-1]] = terms
    lanes = np.zeros((*terms.shape[:-1], ways), terms.dtype)
    for step in range(steps):
        lanes = lanes + padded[..., step * ways : (step + 1) * ways]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return np.asarray(lanes[..., 0])


def _exp32(x: Array) -> Array:
    """The float32 steps of exp in ``_ext/simd/softmax_kernels.inc``, one NumPy operation each."""
    clipped = np.where(np.isnan(x), _f32(-104.0), np.clip(x, _f32(-104.0), _f32(88.0)))
    n = (clipped * _f32(1.44269504) + _f32(12582912.0)) - _f32(12582912.0)
    r = (clipped - n * _f32(0.693359375)) - n * _f32(-2.12194440e-4)
    p = r * _f32(1.9875691500e-4) + _f32(1.3981999507e-3)
    for coefficient in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + _f32(coefficient)
    p = (p * (r * r) + r) + _f32(1.0)
    whole = n.astype(np.int32)
    half = whole >> 1
    result = (p * np.ldexp(_f32(1.0), half)) * np.ldexp(_f32(1.0), whole - half)
    return np.where(np.isnan(x), x, result)
