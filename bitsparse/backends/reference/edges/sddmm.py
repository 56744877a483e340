"""Products per edge and the softmax over the edges of a row, in the defined order of summation."""

from __future__ import annotations

import numpy as np

from bitsparse.backends.params import SEGMENT, Array, Pattern
from bitsparse.backends.reference.scalar import into, lane_sum

_f32 = np.float32
_ELEMENTWISE = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "div": np.divide}


def sddmm(
    pattern: Pattern,
    x: Array,
    y: Array,
    *,
    op: str,
    heads: int,
    out: Array | None = None,
) -> Array:
    """Apply `op` to ``x[row]`` and ``y[column]`` for every edge; see the host's function of the same name.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0]], np.float32)
    >>> sddmm(Pattern(np.array([0, 1]), np.array([0]), (1, 1)), x, x, op="dot", heads=1)
    array([[5.]], dtype=float32)
    """
    indptr, indices, shape, _ = pattern
    starts = indptr.astype(np.int64)
    rows = np.repeat(np.arange(shape[0]), starts[1:] - starts[:-1])
    if indices.size and (indices.min() < 0 or indices.max() >= shape[1]):
        raise ValueError(f"indices hold a column outside 0..{shape[1] - 1}; rebuild the sparse array")
    left, right = x[rows], y[indices]
    with np.errstate(all="ignore"):
        if op == "dot":
            split = (rows.size, heads, x.shape[1] // heads if heads else 0)
            result = lane_sum(left.reshape(split) * right.reshape(split))
        else:
            result = _ELEMENTWISE[op](left, right)
    return into(out, result)


def edge_softmax(pattern: Pattern, scores: Array, *, out: Array | None = None) -> Array:
    """Softmax of `scores` (nnz, heads) over the edges of each row.

    Examples
    --------
    >>> edge_softmax(Pattern(np.array([0, 2, 3]), np.zeros(3, int), (2, 1)), np.zeros((3, 1), np.float32))[:, 0]
    array([0.5, 0.5, 1. ], dtype=float32)
    """
    indptr, result = pattern.indptr, np.empty_like(scores)
    for first, end in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        if first == end:
            continue
        part = scores[first:end]
        with np.errstate(all="ignore"):
            shifted = part - part.max(axis=0)
            powers = _exp32(shifted) if scores.dtype == _f32 else np.exp(shifted)
            total = lane_sum(powers[:SEGMENT].T)
            for piece in range(SEGMENT, end - first, SEGMENT):
                total = total + lane_sum(powers[piece : piece + SEGMENT].T)
            result[first:end] = powers / total
    return into(out, result)


def _exp32(x: Array) -> Array:
    """The float32 steps of exp in ``_ext/simd/softmax_kernels.inc``, one NumPy operation each."""
    clipped = np.where(np.isnan(x), _f32(-104.0), np.clip(x, _f32(-104.0), _f32(88.0)))
    # exp(x) = 2**n * exp(r): n is x / ln 2, rounded by adding and subtracting 1.5 * 2**23; r is x - n ln 2, with ln 2 in two parts.
    n = (clipped * _f32(1.44269504) + _f32(12582912.0)) - _f32(12582912.0)
    r = (clipped - n * _f32(0.693359375)) - n * _f32(-2.12194440e-4)
    p = r * _f32(1.9875691500e-4) + _f32(1.3981999507e-3)
    for coefficient in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + _f32(coefficient)
    p = (p * (r * r) + r) + _f32(1.0)
    # 2**n is applied in two factors, since the smallest 2**n are subnormal.
    whole = n.astype(np.int32)
    half = whole >> 1
    result = (p * np.ldexp(_f32(1.0), half)) * np.ldexp(_f32(1.0), whole - half)
    return np.where(np.isnan(x), x, result)
