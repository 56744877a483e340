"""What GATv2 computes per edge, on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bitsparse._ext import sddmm as _ext
from bitsparse.backends.host.buffers import arrays_of, as_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Array, Pattern


def gatv2_scores(pattern: Pattern, x: Array, y: Array, weights: Array, *, negative_slope: float) -> Array:
    """Dot products of `weights` with the leaky ReLU of ``x[row] + y[column]`` for every edge and head, (nnz, heads), in edge order.

    They are summed like the dot products of :func:`bitsparse.backends.host.edges.sddmm.sddmm`.

    Parameters
    ----------
    x, y : ndarray (rows, heads * width), (cols, heads * width)
    weights : ndarray (heads, width)
        All three arrays are float32, or all are float64.

    Examples
    --------
    >>> x, y = np.array([[1.0, 2.0]]), np.array([[1.0, -7.0]])
    >>> gatv2_scores(Pattern(np.array([0, 1]), np.array([0]), (1, 1)), x, y, np.array([[1.0, 10.0]]), negative_slope=0.2)
    array([[-8.]])
    """
    result = np.empty((pattern.indices.size, len(weights)), x.dtype)
    return _run(_ext.leaky_dots, pattern, x, y, weights, weights.shape[0], negative_slope, result)


def steep_sums(pattern: Pattern, x: Array, y: Array, weights: Array, *, negative_slope: float) -> Array:
    """Sums over each row of the `weights` of edges, times `negative_slope` unless ``x[row] + y[column] > 0``.

    Parameters
    ----------
    x, y : ndarray (rows, heads * width), (cols, heads * width)
    weights : ndarray (nnz, heads)
        All three arrays are float32, or all are float64.

    Returns
    -------
    ndarray (rows, heads * width)
        Edges of a row are added in order. Longer rows than 1024 edges are summed in pieces of 1024, and the pieces are added in order.

    Examples
    --------
    >>> x, y = np.array([[1.0, 2.0]]), np.array([[1.0, -7.0]])
    >>> steep_sums(Pattern(np.array([0, 1]), np.array([0]), (1, 1)), x, y, np.array([[10.0]]), negative_slope=0.2)
    array([[10.,  2.]])
    """
    result = np.empty(x.shape, x.dtype)
    return _run(_ext.steep_sums, pattern, x, y, weights, weights.shape[1], negative_slope, result)


def _run(
    compute: Callable[..., None],
    pattern: Pattern,
    x: Array,
    y: Array,
    weights: Array,
    heads: int,
    slope: float,
    out: Array,
) -> Array:
    width = x.shape[1] // heads if heads else 0
    ends = as_bytes(x), as_bytes(y), heads, width
    compute(run_on(), *arrays_of(pattern), x.dtype == np.float64, *ends, as_bytes(weights), slope, as_bytes(out))
    return out
