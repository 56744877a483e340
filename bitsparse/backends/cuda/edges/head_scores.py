"""Scores of nodes for graph attention, their gradients, and sums over nodes, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.csr import vectors as edges

_THREADS = 256
#: Rows that a thread sums at least, and blocks of a multiprocessor.
_ROWS, _BLOCKS = 8, 4
_SOURCE = "edges/head_scores.cu"

HeadScoresParams = jit.struct(_SOURCE, "HeadScoresParams")


def head_scores(x: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """Dot products of each head's features with two vectors.

    Parameters
    ----------
    x : cupy.ndarray (nodes, heads, width)
        float32, float16, bfloat16 or float64, C-contiguous.
    first, second : cupy.ndarray (heads, width)
        In what `x` is summed in, C-contiguous.

    Returns
    -------
    cupy.ndarray (nodes, heads), twice
        In the dtype of `first`.
    """
    cupy, (nodes, heads, width) = jit.require_cupy("head_scores"), x.shape
    if not width:
        return cupy.zeros((nodes, heads), first.dtype), cupy.zeros((nodes, heads), first.dtype)
    made = cupy.empty((nodes, heads), first.dtype), cupy.empty((nodes, heads), first.dtype)
    if nodes and heads:
        vector = edges.vector_bytes(width * x.dtype.itemsize, x.dtype.itemsize, (x,))
        params = _params(x, vector, first=first, second=second, by_first=made[0], by_second=made[1])
        defines = edges.rows_defines(x.dtype, vector, params.head_vectors)
        blocks = -(-nodes * heads * defines["BS_LANES"] // _THREADS)
        jit.kernel(_SOURCE, "head_scores", defines).launch(blocks, _THREADS, params)()
    return made


def head_scores_vjp(x: Any, first: Any, second: Any, by_first: Any, by_second: Any, dx: Any) -> tuple[Any, Any]:
    """Gradients of :func:`head_scores` by the two vectors (heads, width); that by the features is added to `dx`, of the kind of `x`.

    `by_first` and `by_second` (nodes, heads) are the gradients by the scores, in the dtype of `first`.
    """
    shape = first.shape
    sums = _over_nodes(
        x, first.dtype, 2, shape[1], first=first, second=second, by_first=by_first, by_second=by_second, dx=dx
    )
    return sums[0].reshape(shape), sums[1].reshape(shape)


def column_sums(x: Any) -> Any:
    """Sums of the columns of a C-contiguous matrix (nodes, columns), in what its dtype is summed in; the same bits in every run."""
    return _over_nodes(x, edges.sum_dtype(x.dtype), 1, x.shape[1])[0]


def _over_nodes(x: Any, sums: Any, sets: int, width: int, **fields: Any) -> Any:
    """Sums over the nodes (sets, columns), of blocks' and then of these, each in its order."""
    cupy, columns = jit.require_cupy("column_sums"), int(np.prod(x.shape[1:], dtype=np.int64))
    if 0 in x.shape:
        return cupy.zeros((sets, columns), sums)
    vector = edges.vector_bytes(width * x.dtype.itemsize, x.dtype.itemsize, (x, fields.get("dx", x)))
    vectors = columns * x.dtype.itemsize // vector
    defines = stripes(x.dtype, vector, vectors, sets)
    lanes = defines["BS_LANES"]
    across, stripe = -(-vectors // lanes), _THREADS // lanes * _ROWS
    blocks = max(1, min(-(-len(x) // stripe), jit.capability().multiprocessors * _BLOCKS // across))
    partial = cupy.empty((blocks, sets, columns), sums)
    params = _params(x, vector, partial=partial, **fields)
    jit.kernel(_SOURCE, "sum_nodes", defines).launch((blocks, across, 1), _THREADS, params)()
    return partial[0] if blocks == 1 else partial.sum(axis=0)


def _params(x: Any, vector: int, **fields: Any) -> Any:
    heads = x.shape[1] if x.ndim == 3 else 1
    vectors = int(np.prod(x.shape[1:], dtype=np.int64)) * x.dtype.itemsize // vector
    return jit.filled(
        HeadScoresParams(nodes=len(x), heads=heads), x=x, vectors=vectors, head_vectors=vectors // heads, **fields
    )


def stripes(dtype: Any, vector: int, vectors: int, sets: int) -> dict[str, int]:
    """What ``sum_nodes`` is compiled with for rows of so many vectors of `vector` bytes.

    Examples
    --------
    >>> stripes(np.float32, 16, 32, 1)["BS_LANES"], stripes(np.float32, 4, 7, 1)["BS_LANES"]
    (32, 8)
    """
    return edges.rows_defines(dtype, vector, vectors, _THREADS) | {"BS_SETS": sets}


def _variants() -> list[jit.Variant]:
    """Rows of the usual widths and heads, for every kind of floats."""
    kinds = (("float32", 16), ("float32", 4), ("float16", 16), ("bfloat16", 16), ("float64", 16))
    found = [edges.rows_defines(dtype, vector, lanes) for dtype, vector in kinds for lanes in (4, 8, 32)]
    striped = [one | {"BS_SETS": sets} for one in found for sets in (1, 2)]
    return [*jit.variants_of(_SOURCE, "head_scores", found), *jit.variants_of(_SOURCE, "sum_nodes", striped)]


VARIANTS = _variants()
