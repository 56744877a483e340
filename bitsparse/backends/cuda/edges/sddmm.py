"""Products per edge and the softmax over the edges of a row, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.chips import H200
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.bounds import PAIRED
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.sparse.checks import THREADS, launch, streaming
from bitsparse.backends.cuda.spmm.windows import ROWS, Windows
from bitsparse.jit import cupy

#: Numbers of operations in ``edges/ends.cuh``.
OPS = {"dot": 0, "add": 1, "mul": 2, "sub": 3, "div": 4}
_DOT_THREADS = 128
#: Blocks per multiprocessor for dot products with two vectors per lane: in general, and for 64-bit elements or indices.
_TWO_ROUNDS = (6, 4)
#: The most vectors of a row per lane for which a dot product is unrolled.
_ROUNDS_UNROLLED = 2
#: Edges of a row that a lane keeps between the steps of a softmax, and the most that it gets of a row of mean length.
_KEEP, _EACH = 8, 4
#: The most columns and edges that windows of eight rows can take.
_WINDOWS_COLUMNS, _WINDOWS_EDGES = 512, 1 << 28
#: For a softmax: scores of a block, the number of blocks per multiprocessor that is aimed at, and the least edges and rows of a block.
_ROOM, _SOFTMAX_ROUNDS, _LEAST_SPAN = 4096, 4, 16
#: Up to the first number of heads, a block processes all of them; else as many as the second number.
_MOST_HEADS, _HEADS = 64, 32

DotWindowsParams = jit.struct("edges/sddmm_windows.cu", "DotWindowsParams")
PlacesParams = jit.struct("spmm/windows_fill.cu", "PlacesParams")
SoftmaxParams = jit.struct("edges/softmax.cu", "SoftmaxParams")
EdgesParams = jit.struct("edges/ends.cuh", "EdgesParams")


def dot_defines(
    dtype: Any,
    vector: int,
    vectors: int,
    heads: int,
    *,
    large: bool = False,
    steps: int = 4,
    blocks: int | None = None,
) -> dict[str, int]:
    """Constants of ``sddmm_edges`` for rows whose heads have `vectors` vectors of `vector` bytes each.

    Parameters
    ----------
    large : bool
        Whether indices have 64 bits.
    steps : int
        Gathers that a lane issues at a time, a power of two.
    blocks : int, optional
        Blocks per multiprocessor, which bounds the registers; by default the number that was fastest on an H200.

    Examples
    --------
    >>> made = dot_defines(np.float32, 16, 32, 1)
    >>> made["BS_LANES"], made["BS_STEPS"], made["BS_BLOCKS"]
    (32, 4, 8)
    """
    lanes = edges.lanes_for(vectors)
    rounds = -(-vectors // lanes)
    unrolled = rounds if rounds <= _ROUNDS_UNROLLED else 0
    itemsize = np.dtype(dtype).itemsize
    if blocks is None and unrolled == 2:
        blocks = _TWO_ROUNDS[itemsize == 8 or large]
    elif blocks is None:
        blocks = 12 if lanes <= 4 and itemsize == 4 and not large else 8
    found = {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": vector, "BS_LANES": lanes}
    found |= {"BS_STEPS": min(lanes, steps), "BS_ROUNDS": unrolled, "BS_BLOCKS": blocks}
    return found | jit.flags(full=unrolled and vectors == rounds * lanes, large=large, heads=heads > 1)


def combine_defines(dtype: Any, vector: int, vectors: int) -> dict[str, int]:
    """Constants of ``sddmm_combine`` for rows of `vectors` vectors of `vector` bytes and int32 indices."""
    lanes = edges.lanes_for(vectors)
    found = {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": vector}
    return found | {"BS_LANES": lanes, "BS_STEPS": min(lanes, 2)}


def softmax_defines(dtype: Any, vector: int) -> dict[str, int]:
    """Constants of ``edge_softmax`` for scores that are moved `vector` bytes at a time, and int32 indices."""
    keep = _KEEP if np.dtype(dtype).itemsize < 8 else _KEEP // 2
    return {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": vector, "BS_KEEP": keep}


def window_defines(vectors: int) -> dict[str, int]:
    """Constants of ``sddmm_windows`` for rows of `vectors` vectors of 16 bytes.

    Examples
    --------
    >>> window_defines(32), window_defines(5)
    ({'BS_LANES': 8, 'BS_FULL': 1}, {'BS_LANES': 4})
    """
    lanes = 8 if vectors >= 8 else 4
    return {"BS_LANES": lanes} | jit.flags(full=vectors % lanes == 0)


class EdgeCalls:
    """Products of rows for every edge, prepared for one pattern and features of one kind: ``product(x, y, out)``.

    Building them compiles the kernel and prepares the pattern; calls allocate nothing. They may be shared by threads and streams.
    """

    def __init__(self, launch: jit.Launch, *kept: Any) -> None:
        self._launch, self._params, self._lock = launch, launch.params, threading.Lock()
        #: Keeps the objects alive whose addresses the launch holds.
        self._kept = kept

    def __call__(self, x: Any, y: Any, out: Any) -> Any:
        """Write the products of `x` and `y` into `out` and return it; all C-contiguous, aligned as prepared for."""
        with self._lock:
            params = self._params
            params.x, params.y, params.out = x.data.ptr, y.data.ptr, out.data.ptr
            self._launch()
        return out


def walked(params: ctypes.Structure, schedule: Schedule, heads: int) -> Schedule:
    """Fill the argument of kernels that deal out edges; returns the schedule it points to, with indices wide enough for all heads."""
    schedule = edges.widened(schedule, heads)
    (rows, behind), warps = schedule.edge_rows(), -(-schedule.nnz // 32) * heads
    arrays = {"indptr": schedule.indptr, "indices": schedule.indices, "rows": rows, "behind": behind}
    jit.filled(params, **arrays, edges=schedule.nnz, heads=heads, warps=warps)
    return schedule


class EdgeProduct(EdgeCalls):
    """Dot products, sums, products, differences or quotients of rows, one edge at a time.

    The elements of a dot product are summed in at most 32 interleaved groups of vectors of at most 16 bytes, each group in order with fused
    steps. The sums of the groups are added in a fixed tree. 16-bit elements are widened to float32 and the result is rounded once.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a pattern with edges.
    indices : cupy.ndarray
        As `indptr` of the schedule.
    op : "dot", "add", "mul", "sub" or, of floats, "div"
    dtype : dtype
        Dtype of features and results: float32, float16, bfloat16, float64, int32 or int64. The caller has made sure that integers fit.
    columns : int
        Columns of the features, all heads together; not 0.
    heads : int
    alignment : int
        Alignment in bytes of features (and of results that are not dot products), at most 16.
    variant : optional
        Options of dot products; see :func:`dot_defines`.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        op: str,
        dtype: Any,
        columns: int,
        heads: int = 1,
        alignment: int = 16,
        **variant: Any,
    ) -> None:
        parts, itemsize = (heads if op == "dot" else 1), np.dtype(dtype).itemsize
        params = EdgesParams()
        schedule = walked(params, schedule, parts)
        part_bytes = columns // parts * itemsize
        vector = edges.vector_bytes(part_bytes | alignment, itemsize, ())
        params.vectors, params.op = part_bytes // vector, OPS[op]
        if op == "dot":
            defines = dot_defines(dtype, vector, params.vectors, parts, large=schedule.large, **variant)
            kernel, threads = jit.kernel("edges/sddmm_dot.cu", "sddmm_edges", defines), _DOT_THREADS
        else:
            threads, defines = THREADS, combine_defines(dtype, vector, params.vectors) | schedule.defines
            kernel = PAIRED.kernel("edges/sddmm_combine.cu", "sddmm_combine", defines)
        super().__init__(kernel.launch(-(-params.warps // (threads // 32)), threads, params), schedule)


class DotWindows(EdgeCalls):
    """Dot products of float32 features in the windows of the sparse product, for patterns whose neighbouring rows share columns.

    Each of eight lanes (four below 32 columns) sums every eighth (fourth) vector of four elements of the rows, in order with fused steps.
    The sums of the lanes are added in a fixed tree.

    Parameters
    ----------
    windows : Windows
        Windows of a canonical pattern with edges.
    indptr : cupy.ndarray of int32 or int64
    columns : int
        Columns of the features: a multiple of 4, not 0. Features are aligned to 16 bytes.
    """

    def __init__(self, windows: Windows, indptr: Any, columns: int) -> None:
        units, vectors = windows.units, columns // 4
        count, places = len(units), cupy.empty((len(units), ROWS), np.uint32)
        shared_fields = {"units": units, "entries": windows.entries, "rows": windows.shape[0], "count": count}
        params = jit.filled(PlacesParams(), **shared_fields, indptr=indptr, places=places)
        launch("spmm/windows_fill.cu", "place_units", indptr.dtype, streaming(32 * count), params)
        defines = window_defines(vectors)
        params = jit.filled(DotWindowsParams(), **shared_fields, places=places, row_bytes=16 * vectors, vectors=vectors)
        padded = -(-vectors // defines["BS_LANES"]) * defines["BS_LANES"]
        shared = THREADS // 32 * ROWS * 16 * padded
        kernel = jit.kernel("edges/sddmm_windows.cu", "sddmm_windows", defines)
        super().__init__(kernel.launch(-(-count // (THREADS // 32)), THREADS, params, shared=shared), windows, places)


def sddmm(
    schedule: Schedule,
    x: Any,
    y: Any,
    *,
    op: str,
    heads: int,
    out: Any = None,
    **variant: Any,
) -> Any:
    """Apply `op` to ``x[row]`` and ``y[column]`` for every edge, in edge order; see :class:`EdgeProduct`.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the pattern.
    x, y : cupy.ndarray (rows, heads * width), (cols, heads * width)
    op : "dot", "add", "mul", "sub" or, of floats, "div"
        The result of ``"dot"`` is (nnz, heads), that of the others (nnz, heads * width).
    out : cupy.ndarray, optional
        C-contiguous, of the dtype of `x`.
    variant : optional
        Options of dot products; see :func:`dot_defines`.
    """
    nnz, columns = schedule.nnz, heads if op == "dot" else x.shape[1]
    result = cupy.empty((nnz, columns), x.dtype) if out is None else out
    if 0 in result.shape:
        return result
    if x.shape[1] == 0:
        edges.fill(result, 0)
        return result
    x, y = interop.contiguous(x), interop.contiguous(y)
    alignment = edges.vector_bytes(16, 1, (x, y) if op == "dot" else (x, y, result))
    how: dict[str, Any] = {"op": op, "dtype": x.dtype, "columns": x.shape[1], "heads": heads, **variant}
    return EdgeProduct(schedule, alignment=alignment, **how)(x, y, result)


def windows_can(op: str, dtype: Any, columns: int, heads: int, shape: tuple[int, int], nnz: int) -> bool:
    """Whether windows of eight rows can compute this product.

    Examples
    --------
    >>> windows_can("dot", np.float32, 64, 1, (9, 9), 20), windows_can("dot", np.float32, 64, 2, (9, 9), 20)
    (True, False)
    """
    fits = columns % 4 == 0 and 0 < columns <= _WINDOWS_COLUMNS and shape[1] < 1 << 32 and nnz <= _WINDOWS_EDGES
    return op == "dot" and heads == 1 and np.dtype(dtype) == np.float32 and fits


def windows_pay(nnz: int, entries: int) -> bool:
    """Whether windows are expected to be faster, if the pattern's windows of eight rows have `entries` columns in total.

    Examples
    --------
    >>> windows_pay(24_574_995, 5_280_977), windows_pay(1_638_396, 1_630_000)
    (True, False)
    """
    return nnz >= H200.rows.dots_share * max(1, entries)


class EdgeSoftmax:
    """Softmax over the edges of each row, prepared for one pattern and scores of one kind: ``softmax(scores, out)``.

    Building it compiles the kernels and cuts up the pattern. The first call on a stream allocates workspace; later calls allocate nothing.
    It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a pattern with edges.
    dtype : dtype
    heads : int
    alignment : int
        Alignment in bytes of scores and results, at most 16.
    room : int, optional
        For tuning: the approximate number of scores that fit in a block.
    """

    def __init__(
        self, schedule: Schedule, *, dtype: Any, heads: int, alignment: int = 16, room: int | None = None
    ) -> None:
        (rows, _), nnz, itemsize = schedule.shape, schedule.nnz, np.dtype(dtype).itemsize
        self._schedule, self._sums, self._lock = schedule, edges.sum_dtype(dtype), threading.Lock()
        part = heads if heads <= _MOST_HEADS else _HEADS
        vector = 16 if part == heads and alignment == 16 else itemsize
        across, lanes = softmax_lanes(part, nnz / max(1, rows))
        # Enough blocks for all multiprocessors, within the room of a block; a long row gets a block of its own, up to a size.
        room = room or _ROOM
        span = max(_LEAST_SPAN, min(room // part, (nnz + rows) // (_SOFTMAX_ROUNDS * jit.capability().multiprocessors)))
        span, longest = -(-span // 4) * 4, -(-room // (32 * part)) * 32
        cut = schedule.cut(lanes, span=span, longest=longest)
        params = self._params = SoftmaxParams(schedule.params(cut, lanes))
        params.heads, params.slice, params.across = heads, part, across.bit_length() - 1
        params.room = -(-((span + longest) * part + 16) // 16) * 16
        defines = softmax_defines(dtype, vector) | schedule.defines
        grid, shared = (cut.units, -(-heads // part), 1), params.room * self._sums.itemsize
        kernel = jit.kernel("edges/softmax.cu", "edge_softmax", defines)
        self._launch = kernel.launch(grid, THREADS, params, shared=shared + 4 * (span + 2 + -(-span // 32)))
        self._partial, self._pieces = (cut.pieces, 2, heads), None
        if cut.pieces:
            kernel = jit.kernel("edges/softmax.cu", "softmax_pieces", defines)
            self._pieces = kernel.launch(cut.pieces, THREADS, params)

    def __call__(self, scores: Any, out: Any) -> Any:
        """Write the weights of C-contiguous `scores` into `out`, which may be `scores`, and return it."""
        partial = None if self._pieces is None else self._schedule.workspace("softmax", self._partial, self._sums)
        with self._lock:
            params = self._params
            params.scores, params.out = scores.data.ptr, out.data.ptr
            params.partial = None if partial is None else partial.data.ptr
            self._launch()
            if self._pieces is not None:
                self._pieces()
        return out


def edge_softmax(schedule: Schedule, scores: Any, *, out: Any = None, room: int | None = None) -> Any:
    """Softmax of `scores` (nnz, heads) over the edges of each row; `out` may be `scores`. See :class:`EdgeSoftmax`.

    Scores are float32, float16 or bfloat16 (computed in float32), or float64. With u = 2**-24 (2**-53 for float64), the relative error of a
    weight above 2**-126 is at most ``(|s - max| + ceil(n / 4) + 16) * u`` in a row of n edges, or in a row cut into pieces of at most n.
    """
    scores = interop.contiguous(scores)
    result = cupy.empty(scores.shape, scores.dtype) if out is None else out
    if scores.size == 0:
        return result
    alignment = edges.vector_bytes(16, 1, (scores, result))
    return EdgeSoftmax(schedule, dtype=scores.dtype, heads=scores.shape[1], alignment=alignment, room=room)(
        scores, result
    )


def softmax_lanes(heads: int, mean: float) -> tuple[int, int]:
    """The lanes along the heads and the lanes of a row, for rows of `mean` edges.

    Examples
    --------
    >>> softmax_lanes(1, 32.4), softmax_lanes(8, 5.0), softmax_lanes(3, 100.0)
    ((1, 8), (8, 16), (1, 32))
    """
    # Short rows are fastest with few lanes and many rows in flight. The error bound assumes four lanes along the edges of long rows; rows
    # that exceed what a group keeps get a whole warp.
    across = heads if heads & (heads - 1) == 0 and heads <= 8 else 8 if heads % 8 == 0 else 1
    along = edges.power_of_two(int(mean / _EACH))
    return across, min(32, across * max(2 if across >= 4 else 4, along))


def _variants() -> list[jit.Variant]:
    """Variants for dot products of 16 to 384 float32, 64 to 256 16-bit or 128 float64 elements, sums, products and all softmax kinds."""
    large, bfloat16 = {"BS_LARGE": 1}, {"BS_TYPE": edges.element_type("bfloat16")}
    dots = [dot_defines("float32", 16, vectors, 1) for vectors in (4, 8, 16, 32, 64, 96)]
    half = [dot_defines("float16", 16, vectors, 1) for vectors in (8, 16, 32)]
    dots += [*half, *(one | bfloat16 for one in half), dot_defines("float64", 16, 64, 1)]
    dots += [dot_defines("float32", 16, vectors, 2) for vectors in (8, 16)]
    dots += [dot_defines("float32", 16, 32, 1, large=True)]
    rows = [combine_defines("float32", 16, vectors) for vectors in (1, 2, 32)]
    rows += [combine_defines("float16", 16, 16), rows[-1] | large]
    scores = [softmax_defines(dtype, 16) for dtype in ("float32", "float16", "float64")]
    scores += [scores[1] | bfloat16, scores[0] | large]
    return [
        *jit.variants_of("edges/sddmm_dot.cu", "sddmm_edges", dots),
        *PAIRED.variants("edges/sddmm_combine.cu", "sddmm_combine", rows),
        *jit.variants_of("edges/sddmm_windows.cu", "sddmm_windows", [window_defines(n) for n in (8, 4, 9)]),
        *jit.variants_of("edges/softmax.cu", "edge_softmax", scores),
    ]


VARIANTS = _variants()
