"""What GATv2, graph attention of the second kind, computes per edge, in the defined order of summation."""

from __future__ import annotations

import numpy as np

from bitsparse.backends.params import SEGMENT, Array, Pattern
from bitsparse.backends.reference.edges.sddmm import sddmm
from bitsparse.backends.reference.scalar import lane_sum


def gatv2_scores(pattern: Pattern, x: Array, y: Array, weights: Array, *, negative_slope: float) -> Array:
    """Dot products of `weights` with the leaky ReLU of ``x[row] + y[column]``; see the host's function of the same name.

    Examples
    --------
    >>> x, y = np.array([[1.0, 2.0]]), np.array([[1.0, -7.0]])
    >>> gatv2_scores(Pattern(np.array([0, 1]), np.array([0]), (1, 1)), x, y, np.array([[1.0, 10.0]]), negative_slope=0.2)
    array([[-8.]])
    """
    both = sddmm(pattern, x, y, op="add", heads=len(weights))
    with np.errstate(all="ignore"):
        leaky = np.where(both < 0, both * both.dtype.type(negative_slope), both)
        return lane_sum(leaky.reshape(pattern.indices.size, *weights.shape) * weights)


def steep_sums(pattern: Pattern, x: Array, y: Array, weights: Array, *, negative_slope: float) -> Array:
    """Sums of `weights` over edges, times the slope unless ``x[row] + y[column] > 0``; see the host's function of the same name.

    Examples
    --------
    >>> x, y = np.array([[1.0, 2.0]]), np.array([[1.0, -7.0]])
    >>> steep_sums(Pattern(np.array([0, 1]), np.array([0]), (1, 1)), x, y, np.array([[10.0]]), negative_slope=0.2)
    array([[10.,  2.]])
    """
    (indptr, indices, *_), heads, columns = pattern, weights.shape[1], x.shape[1]
    both = sddmm(pattern, x, y, op="add", heads=heads).reshape(indices.size, heads, columns // heads)
    with np.errstate(all="ignore"):
        terms = np.where(both > 0, weights[..., None], (weights * weights.dtype.type(negative_slope))[..., None])
        terms, result = terms.reshape(indices.size, columns), np.zeros(x.shape, x.dtype)
        for row, (first, end) in enumerate(zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)):
            pieces = []
            for start in range(first, end, SEGMENT):
                piece = np.zeros(columns, x.dtype)
                for edge in range(start, min(start + SEGMENT, end)):
                    piece = piece + terms[edge]
                pieces.append(piece)
            for number, piece in enumerate(pieces):
                result[row] = result[row] + piece if number else piece
    return result
