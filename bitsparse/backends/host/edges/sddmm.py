"""Products per edge and the softmax over the edges of a row, on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import numpy as np

from bitsparse._ext import sddmm as _ext
from bitsparse.backends.host.buffers import arrays_of, as_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Array, Pattern

_TYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
_OPS = {"dot": 0, "add": 1, "mul": 2, "sub": 3, "div": 4}


def sddmm(
    pattern: Pattern,
    x: Array,
    y: Array,
    *,
    op: str,
    heads: int,
    out: Array | None = None,
) -> Array:
    """Apply `op` to ``x[row]`` and ``y[column]`` for every edge, in edge order.

    A dot product is summed in 64 bytes of interleaved lanes (16 of 32 bits, 8 of 64 bits). Each lane is summed in order, and the lanes are
    then folded in halves. Every step is rounded once at every SIMD level.

    Parameters
    ----------
    x, y : ndarray (rows, heads * width), (cols, heads * width)
        Both float32, float64, int32 or int64; the caller has made sure that integer results fit.
    op : "dot", "add", "mul", "sub" or, of floats, "div"
        The result of ``"dot"`` is (nnz, heads), that of the others (nnz, heads * width).

    Examples
    --------
    >>> x = np.array([[1.0, 2.0]], np.float32)
    >>> sddmm(Pattern(np.array([0, 1]), np.array([0]), (1, 1)), x, x, op="dot", heads=1)
    array([[5.]], dtype=float32)
    """
    columns = heads if op == "dot" else x.shape[1]
    result = np.empty((pattern.indices.size, columns), x.dtype) if out is None else out
    kind, width = _TYPES[x.dtype.name], x.shape[1] // heads if heads else 0
    left, right = as_bytes(x), as_bytes(y)
    _ext.sddmm(run_on(), *arrays_of(pattern), kind, _OPS[op], left, right, heads, width, as_bytes(result))
    return result


def edge_softmax(pattern: Pattern, scores: Array, *, out: Array | None = None) -> Array:
    """Softmax of `scores` (nnz, heads), float32 or float64, over the edges of each row.

    Examples
    --------
    >>> edge_softmax(Pattern(np.array([0, 2, 3]), np.zeros(3, int), (2, 1)), np.zeros((3, 1), np.float32))[:, 0]
    array([0.5, 0.5, 1. ], dtype=float32)
    """
    result = np.empty_like(scores) if out is None else out
    indptr, (nnz, heads) = pattern.indptr, scores.shape
    rows = as_bytes(indptr), indptr.dtype.itemsize == 8, indptr.size - 1, nnz
    _ext.edge_softmax(run_on(), *rows, scores.dtype == np.float64, as_bytes(scores), heads, as_bytes(result))
    return result
