"""Attention over the edges of each row in one pass, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import edges, geometry
from bitsparse.backends.cuda.schedule import Cut, Schedule, StreamsParams
from bitsparse.backends.cuda.sddmm import edge_softmax, sddmm

__all__ = ["attention", "cosine_attention", "inverse_norms", "layout"]

#: Edges of a row at a time, vectors of a row to a lane at most, lanes of a row's norm.
_STEPS, _MOST_PARTS, _NORM_LANES = 8, 4, 32
_THREADS = 256
#: Below this, weights relative to the largest possible score do not vanish.
_SAFE_BETA = 40.0


class AttentionParams(ctypes.Structure):
    """The argument of ``attention_csr.cu``, field by field."""

    _fields_ = (
        ("streams", StreamsParams),
        *((name, ctypes.c_void_p) for name in ("x", "out", "lse", "source", "target", "inverse", "partial")),
        *((name, ctypes.c_double) for name in ("factor", "lowest")),
        *((name, ctypes.c_int) for name in ("heads", "vectors", "head_vectors", "bounded")),
    )


class AttentionRowsParams(ctypes.Structure):
    """The argument of ``attention_rows.cu``, field by field."""

    _fields_ = (
        ("streams", StreamsParams),
        *((name, ctypes.c_void_p) for name in ("x", "out", "lse", "partial")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("heads", "vectors", "head_elements")),
    )


class Layout(NamedTuple):
    """How rows lie on lanes: constants of the kernel, and what goes into its argument."""

    defines: dict[str, int]
    vectors: int
    head_vectors: int
    slices: int

    @property
    def lanes(self) -> int:
        """Lanes of a group."""
        return self.defines["BS_LANES"]


def layout(
    dtype: Any,
    vector: int,
    columns: int,
    heads: int,
    cosine: bool,
    *,
    large: bool = False,
    steps: int | None = None,
    blocks: int | None = None,
) -> Layout:
    """The layout for rows of `columns` elements that are moved `vector` bytes at a time.

    Parameters
    ----------
    large : bool
        64-bit indices.
    steps, blocks : int, optional
        Edges of a row at a time (a power of two), and blocks of a multiprocessor.

    Examples
    --------
    >>> made = layout(np.float32, 16, 128, 4, False)
    >>> made.lanes, made.defines["BS_TOGETHER"], made.slices
    (32, 8, 1)
    """
    itemsize = np.dtype(dtype).itemsize
    vectors = columns * itemsize // vector
    head_vectors = vectors // heads
    lanes = min(32, edges.power_of_two(vectors))
    parts = edges.power_of_two(-(-vectors // lanes)) if cosine else 1
    many = cosine and vector // itemsize > 4  # sums to a lane, and elements of the row that attends
    if steps is None:
        steps = max(2, (_STEPS // 2 if many else _STEPS) // parts)
        if cosine and parts == 1 and not many and itemsize == 4:  # more warps were quicker than more gathers for each
            steps, blocks = _STEPS // 2, blocks or 4
    together = 1  # lanes of one head
    if heads == 1 or head_vectors % lanes == 0:
        together = lanes
    elif head_vectors & (head_vectors - 1) == 0:
        together = head_vectors
    defines = {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": vector, "BS_LANES": lanes, "BS_PARTS": parts}
    defines |= {"BS_STEPS": steps, "BS_TOGETHER": together, "BS_THREADS": _THREADS}
    defines |= {} if blocks is None else {"BS_BLOCKS": blocks}
    defines |= {"BS_LARGE": 1} if large else {}
    defines |= {"BS_COSINE": 1} if cosine else {}
    return Layout(defines, vectors, head_vectors, 1 if cosine else -(-vectors // lanes))


def attention(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    source: Any,
    target: Any,
    *,
    negative_slope: float,
    out: Any = None,
    lse: Any = None,
    schedule: Schedule | None = None,
    steps: int | None = None,
    blocks: int | None = None,
    span: int | None = None,
    longest: int | None = None,
) -> Any:
    """Softmax-weighted sums of rows of `x` (cols, heads * width), without storing a value per edge.

    Parameters
    ----------
    x : cupy.ndarray
        float32, float16, bfloat16 or float64, summed in float32 or float64 and rounded once.
    source, target : cupy.ndarray (cols, heads), (rows, heads)
        float64 for float64 features, else float32. The score of an edge is ``leaky_relu(source[column] + target[row])``.
    lse : cupy.ndarray (rows, heads), optional
        Receives the logarithm of the sum of ``exp(score)`` over each row, in the dtype of `source`; minus infinity for a row without edges.
    schedule : Schedule, optional
        Of this pattern, so that nothing is prepared for this call.
    steps, blocks : int, optional
        Variants, see :func:`layout`.
    span, longest : int, optional
        How the rows are cut up, see :meth:`Schedule.cut`.
    """
    heads = source.shape[1]
    source, target = (geometry.contiguous(part) for part in (source, target))
    given = {"source": source.data.ptr, "target": target.data.ptr, "factor": negative_slope}
    return _run(indptr, indices, shape, x, heads, given, False, None, out, lse, schedule, steps, blocks, span, longest)


def cosine_attention(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    *,
    beta: float,
    out: Any = None,
    lse: Any = None,
    schedule: Schedule | None = None,
    steps: int | None = None,
    blocks: int | None = None,
    span: int | None = None,
    longest: int | None = None,
) -> Any:
    """Sums of rows of `x` (n, width) with weights ``softmax(beta * cos(x[row], x[column]))`` over each row; see :func:`attention`.

    A row of zeros has the cosine 0 with every other. Rows of more than 2 KiB go through :func:`sddmm`, :func:`edge_softmax` and ``spmm``.
    """
    x = geometry.contiguous(x)
    schedule = edges.schedule_of(schedule, indptr, shape, int(indices.size))
    inverse = inverse_norms(x, schedule.workspace("norms", x.shape[:1], edges.sum_dtype(x.dtype)))
    row_bytes = x.shape[1] * x.dtype.itemsize
    vector = edges.vector_bytes(row_bytes, x.dtype.itemsize, (x,))
    if row_bytes // vector > 32 * _MOST_PARTS:
        return _composed(indptr, indices, shape, x, inverse, beta, out, lse, schedule)
    given = {"source": inverse.data.ptr, "target": x.data.ptr, "inverse": inverse.data.ptr, "factor": beta}
    lowest = abs(beta) if abs(beta) <= _SAFE_BETA else None
    return _run(indptr, indices, shape, x, 1, given, True, lowest, out, lse, schedule, steps, blocks, span, longest)


def inverse_norms(x: Any, out: Any = None) -> Any:
    """Inverses of the Euclidean norms of the rows of `x`, in what `x` is summed in; 0 for rows of zeros."""
    cupy = jit.require_cupy("cosine_attention")
    result = cupy.empty(x.shape[0], edges.sum_dtype(x.dtype)) if out is None else out
    if 0 in x.shape:
        result.fill(0)
        return result
    x = geometry.contiguous(x)
    row_bytes = x.shape[1] * x.dtype.itemsize
    vector = edges.vector_bytes(row_bytes, x.dtype.itemsize, (x,))
    lanes = min(_NORM_LANES, edges.power_of_two(row_bytes // vector))
    params = AttentionRowsParams(x=x.data.ptr, out=result.data.ptr, rows=x.shape[0], vectors=row_bytes // vector)
    defines = {"BS_TYPE": edges.element_type(x.dtype), "BS_VECTOR": vector, "BS_LANES": lanes}
    blocks = -(-x.shape[0] * lanes // _THREADS)
    jit.kernel("attention_rows.cu", "inverse_norms", defines).launch(blocks, _THREADS, params)()
    return result


def _run(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    heads: int,
    given: dict[str, Any],
    cosine: bool,
    lowest: float | None,
    out: Any,
    lse: Any,
    schedule: Schedule | None,
    steps: int | None,
    blocks: int | None,
    span: int | None,
    longest: int | None,
) -> Any:
    cupy = jit.require_cupy("attention")
    x = geometry.contiguous(x)
    result = cupy.empty((shape[0], x.shape[1]), x.dtype) if out is None else out
    nnz, sums = int(indices.size), edges.sum_dtype(x.dtype)
    if nnz == 0 or 0 in result.shape:
        edges.fill(result, 0)
        if lse is not None:
            lse.fill(-np.inf)
        return result
    schedule = edges.schedule_of(schedule, indptr, shape, nnz)
    part_bytes = x.shape[1] // heads * x.dtype.itemsize
    vector = edges.vector_bytes(part_bytes, x.dtype.itemsize, (x, result))
    made = layout(x.dtype, vector, x.shape[1], heads, cosine, large=schedule.large, steps=steps, blocks=blocks)
    cut = schedule.cut(made.lanes, span=span, longest=longest)
    params = AttentionParams(schedule.params(cut, indices, made.lanes), x.data.ptr, result.data.ptr, **given)
    params.lse = None if lse is None else lse.data.ptr
    params.lowest, params.bounded = np.finfo(sums).min if lowest is None else lowest, int(lowest is not None)
    params.heads, params.vectors, params.head_vectors = heads, made.vectors, made.head_vectors
    partial = schedule.workspace("attention", (cut.pieces, 2 * heads + x.shape[1]), sums) if cut.pieces else None
    params.partial = None if partial is None else partial.data.ptr
    grid = (-(-cut.units * made.lanes // _THREADS), made.slices, 1)
    jit.kernel("attention_csr.cu", "attention", made.defines).launch(grid, _THREADS, params)()
    if partial is not None:
        _join(schedule, cut, made, x, heads, result, lse, partial)
    return result


def _join(schedule: Schedule, cut: Cut, made: Layout, x: Any, heads: int, result: Any, lse: Any, partial: Any) -> None:
    params = AttentionRowsParams(schedule.params(cut, None, made.lanes), None, result.data.ptr)
    params.lse, params.partial = None if lse is None else lse.data.ptr, partial.data.ptr
    params.heads, params.vectors, params.head_elements = heads, x.shape[1], x.shape[1] // heads
    defines = {"BS_TYPE": edges.element_type(x.dtype), "BS_VECTOR": x.dtype.itemsize, "BS_LANES": 1}
    threads = min(256, -(-x.shape[1] // 32) * 32)
    jit.kernel("attention_rows.cu", "join_pieces", defines | schedule.defines).launch(cut.pieces, threads, params)()


def _composed(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    inverse: Any,
    beta: float,
    out: Any,
    lse: Any,
    schedule: Schedule | None,
) -> Any:
    """Step by step, with values per edge in memory: for rows that do not fit into the registers of a warp."""
    cupy = jit.require_cupy("cosine_attention")
    from bitsparse.backends.cuda.spmm import spmm

    sums, nnz = edges.sum_dtype(x.dtype), int(indices.size)
    schedule = edges.schedule_of(schedule, indptr, shape, nnz)
    unit = edges.widened_features(x) * inverse[:, None]
    scores = sddmm(indptr, indices, shape, unit, unit, op="dot", heads=1, schedule=schedule)
    scores *= sums.type(beta)
    weights = edge_softmax(indptr, scores, schedule=schedule)
    result = spmm(
        indptr, indices, shape, x, nnz=nnz, acc_dtype=sums, values=weights.ravel(), out=out, schedule=schedule
    )
    if lse is not None:
        # Of every edge, score minus log(weight) is what is wanted; its mean by weight leaves out those whose weight has vanished.
        each = cupy.where(weights > 0, weights * (scores - cupy.log(weights)), sums.type(0))
        spmm(indptr, None, (shape[0], nnz), each, nnz=nnz, acc_dtype=sums, out=lse, schedule=schedule)
        lse[indptr[1:] == indptr[:-1]] = -np.inf
    return result
