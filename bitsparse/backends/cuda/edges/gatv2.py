"""What GATv2 computes per edge, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from typing import Any

from bitsparse import interop, jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.sddmm import combine_defines, walked
from bitsparse.backends.cuda.sparse.checks import THREADS
from bitsparse.jit import cupy

#: Edges of a stretch of rows that a lane gathers at a time.
_STEPS = 4

Gatv2ScoresParams = jit.struct("edges/gatv2.cu", "Gatv2ScoresParams")
SteepParams = jit.struct("edges/gatv2.cu", "SteepParams")


def steep_defines(dtype: Any, vector: int, vectors: int) -> dict[str, int]:
    """Constants of ``steep_sums`` for rows of `vectors` vectors of `vector` bytes and int32 indices."""
    return edges.rows_defines(dtype, vector, vectors) | {"BS_STEPS": _STEPS}


def gatv2_scores(
    schedule: Schedule,
    x: Any,
    y: Any,
    weights: Any,
    *,
    negative_slope: float,
) -> Any:
    """Dot products of `weights` with the leaky ReLU of ``x[row] + y[column]`` for every edge and head, (nnz, heads), in edge order.

    Groups of at most 32 lanes take interleaved vectors of at most 16 bytes. Each lane sums its vectors in order with fused steps, and the
    sums of the lanes are added in a fixed tree.

    Parameters
    ----------
    x, y : cupy.ndarray (rows, heads * width), (cols, heads * width)
    weights : cupy.ndarray (heads, width)
        All three arrays are float32, or all are float64.
    """
    (heads, width), nnz = weights.shape, schedule.nnz
    if 0 in (heads, width, nnz):
        return cupy.zeros((nnz, heads), x.dtype)
    result = cupy.empty((nnz, heads), x.dtype)
    x, y, weights = (interop.contiguous(part) for part in (x, y, weights))
    params = Gatv2ScoresParams(slope=negative_slope, heads=heads)
    schedule = walked(params.ends, schedule, 1)
    vector = edges.vector_bytes(width * x.dtype.itemsize, x.dtype.itemsize, (x, y))
    params.ends.vectors = width * x.dtype.itemsize // vector
    jit.filled(params.ends, x=x, y=y, out=result)
    jit.filled(params, weights=weights)
    defines = combine_defines(x.dtype, vector, params.ends.vectors) | schedule.defines
    blocks = -(-params.ends.warps // (THREADS // 32))
    jit.kernel("edges/gatv2.cu", "gatv2_scores", defines).run(blocks, THREADS, params)
    return result


def steep_sums(schedule: Schedule, x: Any, y: Any, weights: Any, *, negative_slope: float) -> Any:
    """Sums over each row of the `weights` of edges, times `negative_slope` unless ``x[row] + y[column] > 0``.

    Parameters
    ----------
    x, y : cupy.ndarray (rows, heads * width), (cols, heads * width)
    weights : cupy.ndarray (nnz, heads)
        All three arrays are float32, or all are float64.

    Returns
    -------
    cupy.ndarray (rows, heads * width)
        Edges of a row are added in order. Long rows are summed in pieces, and the pieces are added in order.
    """
    (nnz, heads), columns = weights.shape, x.shape[1]
    if 0 in (nnz, *x.shape):
        return cupy.zeros(x.shape, x.dtype)
    result = cupy.empty(x.shape, x.dtype)
    x, y, weights = (interop.contiguous(part) for part in (x, y, weights))
    schedule, itemsize = schedule.indexed(), x.dtype.itemsize
    vector = edges.vector_bytes(columns // heads * itemsize, itemsize, (x, y, result))
    vectors = columns * itemsize // vector
    defines = steep_defines(x.dtype, vector, vectors) | schedule.defines
    lanes = defines["BS_LANES"]
    plan = schedule.cut(lanes)
    partial = cupy.empty((plan.pieces, columns), x.dtype)
    params = SteepParams(schedule.params(plan, lanes), slope=negative_slope)
    sizes = {"heads": heads, "vectors": vectors, "head_vectors": vectors // heads}
    jit.filled(params, x=x, y=y, weights=weights, out=result, partial=partial, **sizes)
    grid = (-(-plan.units * lanes // THREADS), -(-vectors // lanes), 1)
    jit.kernel("edges/gatv2.cu", "steep_sums", defines).run(grid, THREADS, params)
    if plan.pieces:
        jit.kernel("edges/gatv2.cu", "join_sums", defines).run(plan.pieces, THREADS, params)
    return result


def _variants() -> list[jit.Variant]:
    """Variants for heads of 8, 32 and 64 float32 or 32 float64 elements, and for rows of four such heads or one."""
    large = {"BS_LARGE": 1}
    scores = [combine_defines("float32", 16, vectors) for vectors in (8, 2, 16)]
    scores += [combine_defines("float64", 16, 16), scores[0] | large]
    sums = [steep_defines("float32", 16, vectors) for vectors in (32, 8)]
    sums += [steep_defines("float64", 16, 32), sums[0] | large]
    return [
        *jit.variants_of("edges/gatv2.cu", "gatv2_scores", scores),
        *jit.variants_of("edges/gatv2.cu", "steep_sums", sums),
    ]


VARIANTS = _variants()
