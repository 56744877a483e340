"""Scores of nodes for graph attention, their gradients, and sums over nodes, on the GPU."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.counters import counters
from bitsparse.backends.cuda.csr import vectors as edges

_THREADS = 256
#: The fewest rows that a thread sums, and the blocks per multiprocessor.
_ROWS, _BLOCKS = 8, 4
_SOURCE = "edges/head_scores.cu"

HeadScoresParams = jit.struct(_SOURCE, "HeadScoresParams")


def head_scores(x: Any, first: Any, second: Any, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Dot products of each head's features with two vectors.

    Parameters
    ----------
    x : cupy.ndarray (nodes, heads, width)
        float32, float16, bfloat16 or float64, C-contiguous.
    first, second : cupy.ndarray (heads, width)
        C-contiguous, in the dtype in which `x` is summed.
    out : tuple of cupy.ndarray, optional
        Arrays for both results.

    Returns
    -------
    cupy.ndarray (nodes, heads), twice
        In the dtype of `first`.
    """
    cupy, (nodes, heads, width) = jit.require_cupy("head_scores"), x.shape
    made = out or (cupy.empty((nodes, heads), first.dtype), cupy.empty((nodes, heads), first.dtype))
    if not width:
        made[0].fill(0), made[1].fill(0)
    elif nodes and heads:
        vector = edges.vector_bytes(width * x.dtype.itemsize, x.dtype.itemsize, (x,))
        params = _params(x, vector, first=first, second=second, by_first=made[0], by_second=made[1])
        defines = edges.rows_defines(x.dtype, vector, params.head_vectors)
        blocks = -(-nodes * heads * defines["BS_LANES"] // _THREADS)
        jit.kernel(_SOURCE, "head_scores", defines).run(blocks, _THREADS, params)
    return made


def head_scores_vjp(x: Any, first: Any, second: Any, by_first: Any, by_second: Any, dx: Any, out: Any = None) -> Any:
    """Gradients of :func:`head_scores` with respect to the two vectors, (2, heads, width); that of the features is added to `dx`.

    `dx` has the shape and dtype of `x`. `by_first` and `by_second` (nodes, heads) are the gradients of the scores, in the dtype of `first`.
    """
    fields = {"first": first, "second": second, "by_first": by_first, "by_second": by_second, "dx": dx}
    into = None if out is None else out.reshape(2, first.size)
    return _over_nodes(x, first.dtype, 2, first.shape[1], into, **fields).reshape(2, *first.shape)


def column_sums(x: Any, out: Any = None, *, wide: bool = False) -> Any:
    """Sums of the columns of a C-contiguous matrix (nodes, columns), with the same bits in every run.

    The result has the dtype in which `x` is summed; `wide` sums are computed in float64 and rounded once.
    """
    into = None if out is None else out[None]
    return _over_nodes(x, edges.sum_dtype(x.dtype), 1, x.shape[1], into, wide)[0]


def _over_nodes(x: Any, sums: Any, sets: int, width: int, out: Any = None, wide: bool = False, **fields: Any) -> Any:
    """Sums over the nodes, (sets, columns): each block sums its nodes in order, then the sums of the blocks are added in order."""
    cupy, columns = jit.require_cupy("column_sums"), x.size // len(x) if len(x) else 0
    made = cupy.empty((sets, columns or math.prod(x.shape[1:])), sums) if out is None else out
    if not x.size:
        made.fill(0)
        return made
    vector = edges.vector_bytes(width * x.dtype.itemsize, x.dtype.itemsize, (x, fields.get("dx", x)))
    gpu = cupy.cuda.runtime.getDevice()
    kernel, blocks, across = _summing(gpu, x.dtype, vector, columns * x.dtype.itemsize // vector, sets, wide, len(x))
    together = {}
    if blocks > 1:
        partial = cupy.empty((blocks, sets, columns), np.float64 if wide else sums)
        together = {"partial": partial, "arrived": counters(across)}
    params = _params(x, vector, out=made, blocks=blocks, **together, **fields)
    kernel.run(blocks * across, _THREADS, params)
    return made


@functools.lru_cache(maxsize=256)
def _summing(
    gpu: int, dtype: Any, vector: int, vectors: int, sets: int, wide: bool, nodes: int
) -> tuple[jit.Kernel, int, int]:
    """The kernel for sums over `nodes` nodes on the current GPU, the number of blocks that share the nodes, and the stripes of columns."""
    defines = stripes(dtype, vector, vectors, sets) | jit.flags(wide=wide)
    lanes = defines["BS_LANES"]
    across, stripe = -(-vectors // lanes), _THREADS // lanes * _ROWS
    blocks = max(1, min(-(-nodes // stripe), jit.capability(gpu).multiprocessors * _BLOCKS // across))
    return jit.kernel(_SOURCE, "sum_nodes", defines), blocks, across


def _params(x: Any, vector: int, **fields: Any) -> Any:
    heads = x.shape[1] if x.ndim == 3 else 1
    vectors = x.size // len(x) * x.dtype.itemsize // vector
    return jit.filled(
        HeadScoresParams(nodes=len(x), heads=heads), x=x, vectors=vectors, head_vectors=vectors // heads, **fields
    )


def stripes(dtype: Any, vector: int, vectors: int, sets: int) -> dict[str, int]:
    """Constants of ``sum_nodes`` for rows of `vectors` vectors of `vector` bytes.

    Examples
    --------
    >>> stripes(np.float32, 16, 32, 1)["BS_LANES"], stripes(np.float32, 4, 7, 1)["BS_LANES"]
    (32, 8)
    """
    return edges.rows_defines(dtype, vector, vectors, _THREADS) | {"BS_SETS": sets}


def _variants() -> list[jit.Variant]:
    """Variants for rows of the usual widths and heads, for every kind of floats."""
    kinds = (("float32", 16), ("float32", 4), ("float16", 16), ("bfloat16", 16), ("float64", 16))
    found = [edges.rows_defines(dtype, vector, lanes) for dtype, vector in kinds for lanes in (4, 8, 32)]
    striped = [one | {"BS_SETS": sets} for one in found for sets in (1, 2)]
    striped += [stripes(dtype, np.dtype(dtype).itemsize, 1, 1) | {"BS_WIDE": 1} for dtype in ("float32", "float64")]
    return [*jit.variants_of(_SOURCE, "head_scores", found), *jit.variants_of(_SOURCE, "sum_nodes", striped)]


VARIANTS = _variants()
