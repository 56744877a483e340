"""Attention over the edges of each row in one pass, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.sddmm import edge_softmax, sddmm

__all__ = ["AttentionProduct", "attention", "cosine_attention", "fits_registers", "inverse_norms", "layout"]

#: Edges of a row at a time, vectors of a row to a lane at most, lanes of a row's norm.
_STEPS, _MOST_PARTS, _NORM_LANES = 8, 4, 32
_THREADS = 256
#: Below this, weights relative to the largest possible score do not vanish.
_SAFE_BETA = 40.0


AttentionParams = jit.struct("edges/attention.cu", "AttentionParams")
AttentionRowsParams = jit.struct("edges/attention_rows.cu", "AttentionRowsParams")


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


def join_defines(dtype: Any) -> dict[str, int]:
    """Constants of ``join_pieces`` for int32 indices."""
    return {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": np.dtype(dtype).itemsize, "BS_LANES": 1}


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
    cupy = jit.require_cupy("attention")
    heads, nnz = source.shape[1], int(indices.size)
    x, source, target = (geometry.contiguous(part) for part in (x, source, target))
    result = cupy.empty((shape[0], x.shape[1]), x.dtype) if out is None else out
    if nnz == 0 or 0 in result.shape:
        return _nothing(result, lse)
    schedule = edges.schedule_of(schedule, indptr, shape, nnz)
    how: dict[str, Any] = {"steps": steps, "blocks": blocks, "span": span, "longest": longest}
    kind = {"dtype": x.dtype, "columns": x.shape[1], "heads": heads, "factor": negative_slope}
    product = AttentionProduct(schedule, indices, alignment=edges.vector_bytes(16, 1, (x, result)), **kind, **how)
    return product(x, source, target, result, lse=lse)


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
    cupy = jit.require_cupy("cosine_attention")
    x, nnz = geometry.contiguous(x), int(indices.size)
    schedule = edges.schedule_of(schedule, indptr, shape, nnz)
    if not fits_registers(x.dtype, x.shape[1], edges.vector_bytes(16, 1, (x,))):
        inverse = inverse_norms(x, schedule.workspace("norms", x.shape[:1], edges.sum_dtype(x.dtype)))
        return _composed(indptr, indices, shape, x, inverse, beta, out, lse, schedule)
    result = cupy.empty(x.shape, x.dtype) if out is None else out
    if nnz == 0 or 0 in result.shape:
        return _nothing(result, lse)
    how: dict[str, Any] = {"steps": steps, "blocks": blocks, "span": span, "longest": longest}
    kind = {"dtype": x.dtype, "columns": x.shape[1], "factor": beta, "cosine": True}
    product = AttentionProduct(schedule, indices, alignment=edges.vector_bytes(16, 1, (x, result)), **kind, **how)
    return product(x, None, None, result, lse=lse)


def fits_registers(dtype: Any, columns: int, alignment: int = 16) -> bool:
    """Whether rows of so many columns fit into the registers of a warp, so that cosines are computed in one pass.

    Examples
    --------
    >>> fits_registers(np.float32, 512), fits_registers(np.float32, 516)
    (True, False)
    """
    row_bytes, itemsize = columns * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
    return bool(row_bytes // edges.vector_bytes(row_bytes | alignment, itemsize, ()) <= 32 * _MOST_PARTS)


def _nothing(result: Any, lse: Any) -> Any:
    """The results of no edges."""
    edges.fill(result, 0)
    if lse is not None:
        lse.fill(-np.inf)
    return result


class AttentionProduct:
    """Attention in one pass, prepared for one pattern and features of one kind: ``product(x, source, target, out)``.

    Building it compiles the kernels and cuts the pattern up; the first call on a stream allocates what such calls work in, later ones
    allocate nothing. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Of a pattern with edges.
    indices : cupy.ndarray
        As `indptr` of the schedule.
    dtype : dtype
    columns, heads : int
        Of the features, all heads together; not 0.
    factor : float
        The negative slope, or beta if `cosine`.
    cosine : bool
        Scores are cosines of the features (see :func:`cosine_attention`), so that calls bring none.
    alignment : int
        Bytes of which the addresses of features and results are multiples, at most 16.
    steps, blocks, span, longest : int, optional
        See :func:`attention`.
    """

    def __init__(
        self,
        schedule: Schedule,
        indices: Any,
        *,
        dtype: Any,
        columns: int,
        factor: float,
        heads: int = 1,
        cosine: bool = False,
        alignment: int = 16,
        steps: int | None = None,
        blocks: int | None = None,
        span: int | None = None,
        longest: int | None = None,
    ) -> None:
        self._schedule, self._indices, self._cosine = schedule, indices, cosine
        self._sums, self._lock = edges.sum_dtype(dtype), threading.Lock()
        part_bytes, itemsize = columns // heads * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
        vector = edges.vector_bytes(part_bytes | alignment, itemsize, ())
        made = layout(dtype, vector, columns, heads, cosine, large=schedule.large, steps=steps, blocks=blocks)
        cut = schedule.cut(made.lanes, span=span, longest=longest)
        params = self._params = AttentionParams(schedule.params(cut, indices, made.lanes), factor=factor)
        bounded = cosine and abs(factor) <= _SAFE_BETA
        params.lowest, params.bounded = abs(factor) if bounded else np.finfo(self._sums).min, int(bounded)
        params.heads, params.vectors, params.head_vectors = heads, made.vectors, made.head_vectors
        grid = (-(-cut.units * made.lanes // _THREADS), made.slices, 1)
        self._launch = jit.kernel("edges/attention.cu", "attention", made.defines).launch(grid, _THREADS, params)
        self._partial = (cut.pieces, 2 * heads + columns)
        self._join: Any = None
        if cut.pieces:
            rows = self._rows = AttentionRowsParams(schedule.params(cut, None, made.lanes))
            rows.heads, rows.vectors, rows.head_elements = heads, columns, columns // heads
            defines = join_defines(dtype) | schedule.defines
            threads = min(256, -(-columns // 32) * 32)
            self._join = jit.kernel("edges/attention_rows.cu", "join_pieces", defines).launch(cut.pieces, threads, rows)

    def __call__(self, x: Any, source: Any, target: Any, out: Any, lse: Any = None) -> Any:
        """The weighted sums of C-contiguous features, in `out`; `source` and `target` are None for cosines."""
        if self._cosine:
            source = inverse = inverse_norms(x, self._schedule.workspace("norms", x.shape[:1], self._sums))
            target = x
        partial = None if self._join is None else self._schedule.workspace("attention", self._partial, self._sums)
        with self._lock:
            params = self._params
            params.x, params.out, params.lse = x.data.ptr, out.data.ptr, None if lse is None else lse.data.ptr
            params.source, params.target = source.data.ptr, target.data.ptr
            params.inverse = inverse.data.ptr if self._cosine else None
            params.partial = None if partial is None else partial.data.ptr
            self._launch()
            if partial is not None:
                rows = self._rows
                rows.out, rows.lse, rows.partial = params.out, params.lse, params.partial
                self._join()
        return out


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
    jit.kernel("edges/attention_rows.cu", "inverse_norms", defines).launch(blocks, _THREADS, params)()
    return result


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
    from bitsparse.backends.cuda.spmm.spmm import spmm

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


def _variants() -> list[jit.Variant]:
    """Scores and cosines of rows of the usual widths and heads, for every kind of floats; pieces of long rows."""
    large, bfloat16 = {"BS_LARGE": 1}, {"BS_TYPE": edges.element_type("bfloat16")}
    usual = ((64, 1), (64, 8), (128, 1), (128, 4), (128, 8), (128, 16))
    rows = [layout("float32", 16, columns, heads, False).defines for columns, heads in usual]
    rows += [layout("float32", 16, columns, 1, True).defines for columns in (16, 32, 64, 128, 256)]
    half = [layout("float16", 16, 128, heads, cosine).defines for heads, cosine in ((1, False), (4, False), (1, True))]
    rows += [*half, *(one | bfloat16 for one in half), layout("float64", 16, 64, 1, False).defines]
    rows += [layout("float32", 16, 128, 4, False, large=True).defines]
    pieces = [join_defines(dtype) for dtype in ("float32", "float16", "float64")]
    pieces += [pieces[1] | bfloat16, pieces[0] | large]
    return [
        *jit.variants_of("edges/attention.cu", "attention", rows),
        *jit.variants_of("edges/attention_rows.cu", "join_pieces", pieces),
    ]


VARIANTS = _variants()
