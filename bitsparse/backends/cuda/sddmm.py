"""Products per edge and the softmax over the edges of a row, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse.backends.cuda import edges, geometry
from bitsparse.backends.cuda.schedule import Schedule, StreamsParams

__all__ = ["dot_defines", "edge_softmax", "sddmm"]

_THREADS = 256
#: Warps that a multiprocessor runs at a time, rounds of them that are worth more than longer runs, chunks of a run at most.
_RESIDENT, _ROUNDS, _MOST_CHUNKS = 32, 4, 8
#: Vectors of a row to a lane for which a dot product needs no loop.
_ROUNDS_UNROLLED = 2
#: Edges of a row that a lane keeps between the steps of a softmax, and how many of them a row of mean length has at most.
_KEEP, _EACH = 8, 4
#: Edges of a small graph, bytes of a long row of features.
_FEW_EDGES, _WIDE = 1 << 20, 512
#: Scores of a block of a softmax, blocks of a multiprocessor that are more welcome than larger ones, edges and rows of a block at least.
_ROOM, _SOFTMAX_ROUNDS, _LEAST_SPAN = 4096, 4, 16
#: Heads that a block has all of, else so many.
_MOST_HEADS, _HEADS = 64, 32


class EdgesParams(ctypes.Structure):
    """The argument of ``sddmm_edges.cu``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "rows", "behind", "x", "y", "out")),
        *((name, ctypes.c_int64) for name in ("edges", "warps")),
        *((name, ctypes.c_int) for name in ("heads", "vectors")),
    )


class DotTuning(NamedTuple):
    """What may be chosen about dot products.

    Attributes
    ----------
    lanes : int
        Of a group, which takes one edge and head at a time: a power of two up to 32.
    steps : int
        Gathers that a lane issues at a time, a power of two up to `lanes`.
    pairs : int
        Of edge and head that a warp takes: 32, 16 or 8, and as many as it takes in `steps` at least.
    blocks : int
        Blocks of a multiprocessor, which bounds registers.
    threads : int
        Of a block.
    """

    lanes: int
    steps: int = 4
    pairs: int = 32
    blocks: int = 4
    threads: int = 256
    hint: int = 0


def dots(
    schedule: Schedule, indices: Any, x: Any, y: Any, out: Any, vector: int, heads: int, tuning: DotTuning
) -> None:
    vectors = x.shape[1] // heads * x.dtype.itemsize // vector
    rounds = -(-vectors // tuning.lanes)
    steps = min(tuning.lanes, tuning.steps)
    pairs = max(tuning.pairs, 32 // tuning.lanes * steps)
    defines = {"BS_TYPE": edges.element_type(x.dtype), "BS_VECTOR": vector, "BS_LANES": tuning.lanes}
    defines |= {"BS_STEPS": steps, "BS_EDGES": pairs, "BS_BLOCKS": tuning.blocks, "BS_THREADS": tuning.threads}
    defines["BS_ROUNDS"] = rounds if rounds <= 4 else 0
    defines |= {"BS_FULL": 1} if defines["BS_ROUNDS"] and vectors == rounds * tuning.lanes else {}
    defines |= {"BS_HINT": tuning.hint} if tuning.hint else {}
    defines |= schedule.defines | ({"BS_HEADS": 1} if heads > 1 else {})
    warps = -(-schedule.nnz // pairs) * heads
    rows, behind = schedule.edge_rows()
    params = EdgesParams(schedule.indptr.data.ptr, indices.data.ptr, rows.data.ptr, behind.data.ptr)
    params.x, params.y, params.out = x.data.ptr, y.data.ptr, out.data.ptr
    params.edges, params.warps, params.heads, params.vectors = schedule.nnz, warps, heads, vectors
    each = tuning.threads // 32
    jit.kernel("sddmm_edges.cu", "sddmm_edges", defines).launch(-(-warps // each), tuning.threads, params)()


class ChunkParams(ctypes.Structure):
    """The argument of ``sddmm_dot.cu`` and ``sddmm_combine.cu``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "rows", "behind", "x", "y", "out")),
        *((name, ctypes.c_int64) for name in ("edges", "chunks")),
        *((name, ctypes.c_int) for name in ("heads", "vectors", "span", "between", "ahead", "product")),
    )


class SoftmaxParams(ctypes.Structure):
    """The argument of ``edge_softmax.cu``, field by field."""

    _fields_ = (
        ("streams", StreamsParams),
        *((name, ctypes.c_void_p) for name in ("scores", "out", "partial")),
        *((name, ctypes.c_int) for name in ("heads", "slice", "across", "room")),
    )


def dot_defines(
    dtype: Any,
    vector: int,
    vectors: int,
    heads: int,
    *,
    large: bool = False,
    steps: int = 4,
    blocks: int | None = None,
    threads: int | None = None,
) -> dict[str, int]:
    """Constants of ``sddmm_dot`` for rows whose heads have `vectors` vectors each.

    Parameters
    ----------
    large : bool
        64-bit indices.
    steps : int
        Gathers that a lane issues at a time.
    blocks : int, optional
        Blocks of a multiprocessor; as many as registers allow.
    threads : int, optional
        Of a block.

    Examples
    --------
    >>> sorted(dot_defines(np.float32, 16, 32, 1))
    ['BS_FULL', 'BS_LANES', 'BS_ROUNDS', 'BS_STEPS', 'BS_TYPE', 'BS_VECTOR']
    """
    lanes = edges.lanes_for(vectors)
    rounds = -(-vectors // lanes)
    found = {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": vector, "BS_LANES": lanes}
    found |= {"BS_STEPS": min(lanes, steps)} | ({} if blocks is None else {"BS_BLOCKS": blocks})
    found["BS_ROUNDS"] = rounds if rounds <= _ROUNDS_UNROLLED else 0
    found |= {"BS_FULL": 1} if found["BS_ROUNDS"] and vectors == rounds * lanes else {}
    found |= {} if threads is None else {"BS_THREADS": threads}
    found |= {"BS_LARGE": 1} if large else {}
    return found | ({"BS_HEADS": 1} if heads > 1 else {})


def sddmm(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    y: Any,
    *,
    op: str,
    heads: int,
    out: Any = None,
    schedule: Schedule | None = None,
    steps: int | None = None,
    blocks: int | None = None,
    threads: int | None = None,
    ahead: int = 0,
    interleaved: bool = True,
    span: int | None = None,
) -> Any:
    """Dot product, sum or product of ``x[row]`` and ``y[column]`` for every edge, in edge order.

    A dot product of D elements is summed in at most 32 interleaved groups of at most 16 bytes, each in order with fused steps, and the
    sums of the groups in a fixed tree; 16-bit elements are widened to float32 and the result is rounded once.

    Parameters
    ----------
    indptr, indices : cupy.ndarray of int32 or int64
        A valid pattern.
    x, y : cupy.ndarray (rows, heads * width), (cols, heads * width)
        Both float32, float16, bfloat16, float64, int32 or int64; the caller has made sure that integers fit.
    op : "dot", "add" or "mul"
        ``"dot"`` gives (nnz, heads), the others (nnz, heads * width).
    out : cupy.ndarray, optional
        C-contiguous, of the dtype of `x`.
    schedule : Schedule, optional
        Of this pattern, so that nothing is prepared for this call.
    steps, blocks, threads : int, optional
        Variants of the dot product, see :func:`dot_defines`.
    ahead : int
        A variant: which rows are brought to L2 before they are asked for: 0 none, 1 of `x`, 2 of `y`, 3 both.
    interleaved : bool
        Whether the warps of a block take neighbouring edges at the same time, which share rows in L1.
    span : int, optional
        How many times 32 edges a warp takes.
    """
    cupy = jit.require_cupy("sddmm")
    nnz, columns = int(indices.size), heads if op == "dot" else x.shape[1]
    result = cupy.empty((nnz, columns), x.dtype) if out is None else out
    if 0 in result.shape:
        return result
    if x.shape[1] == 0:
        edges.fill(result, 0)
        return result
    schedule = edges.schedule_of(schedule, indptr, shape, nnz)
    x, y = geometry.contiguous(x), geometry.contiguous(y)
    parts = heads if op == "dot" else 1
    schedule, indices = edges.widened(schedule, indices, parts)
    part_bytes = x.shape[1] // parts * x.dtype.itemsize
    vector = edges.vector_bytes(part_bytes, x.dtype.itemsize, (x, y) if op == "dot" else (x, y, result))
    vectors = part_bytes // vector
    if op == "dot":
        source, name = "sddmm_dot.cu", "sddmm_dot"
        if steps is None:
            few = (
                part_bytes > 32 * vector and nnz < _FEW_EDGES
            )  # wide rows of a small graph: more warps, fewer gathers for each
            steps, blocks = (2, blocks or 3) if few else (4, blocks)
        variant: dict[str, Any] = {"steps": steps, "blocks": blocks, "threads": threads}
        defines = dot_defines(x.dtype, vector, vectors, parts, large=schedule.large, **variant)
    else:
        source, name = "sddmm_combine.cu", "sddmm_combine"
        lanes = edges.lanes_for(vectors)
        defines = {"BS_TYPE": edges.element_type(x.dtype), "BS_VECTOR": vector, "BS_LANES": lanes}
        defines |= {"BS_STEPS": min(lanes, 2)} | schedule.defines
    chip, warps = jit.capability(), (threads or _THREADS) // 32
    chunks = -(-nnz // 32) * parts
    if span is None:
        # Long rows of features are gathered best by as many warps as there can be.
        wide = op == "dot" and part_bytes >= _WIDE
        span = 1 if wide else min(_MOST_CHUNKS, max(1, chunks // (_ROUNDS * _RESIDENT * chip.multiprocessors)))
    rows, behind = schedule.edge_rows()
    params = ChunkParams(schedule.indptr.data.ptr, indices.data.ptr, rows.data.ptr, behind.data.ptr)
    params.x, params.y, params.out = x.data.ptr, y.data.ptr, result.data.ptr
    params.edges, params.chunks, params.heads, params.vectors = nnz, chunks, parts, vectors
    params.span, params.between, params.ahead = span, warps if interleaved else 1, ahead
    params.product = int(op == "mul")
    jit.kernel(source, name, defines).launch(-(-chunks // (span * warps)), warps * 32, params)()
    return result


def edge_softmax(
    indptr: Any, scores: Any, *, out: Any = None, schedule: Schedule | None = None, room: int | None = None
) -> Any:
    """Softmax of `scores` (nnz, heads) over the edges of each row; `out` may be `scores`.

    float32, float16, bfloat16 (computed in float32) or float64. With u = 2**-24 (2**-53) the relative error of a weight above 2**-126 is
    at most ``(|s - max| + ceil(n / 4) + 16) * u`` in a row of n edges, or of pieces of at most n edges where rows are cut up.

    `room` is a variant: scores that a block has room for, about.
    """
    cupy = jit.require_cupy("edge_softmax")
    scores = geometry.contiguous(scores)
    result = cupy.empty(scores.shape, scores.dtype) if out is None else out
    nnz, heads = scores.shape
    if scores.size == 0:
        return result
    schedule = edges.schedule_of(schedule, indptr, (int(indptr.size) - 1, 0), nnz)
    rows, sums = schedule.shape[0], edges.sum_dtype(scores.dtype)
    part = heads if heads <= _MOST_HEADS else _HEADS
    vector = edges.vector_bytes(16, scores.dtype.itemsize, (scores, result)) if part == heads else scores.dtype.itemsize
    if vector < 16:
        vector = scores.dtype.itemsize
    across, lanes = softmax_lanes(part, nnz / max(1, rows))
    # Enough blocks for all multiprocessors, each with no more than it has room for; long rows get a block each, up to a size.
    room = room or _ROOM
    span = max(_LEAST_SPAN, min(room // part, (nnz + rows) // (_SOFTMAX_ROUNDS * jit.capability().multiprocessors)))
    span, longest = -(-span // 4) * 4, -(-room // (32 * part)) * 32
    cut = schedule.cut(lanes, span=span, longest=longest)
    params = SoftmaxParams(schedule.params(cut, None, lanes), scores.data.ptr, result.data.ptr)
    params.heads, params.slice, params.across = heads, part, across.bit_length() - 1
    params.room = -(-((span + longest) * part + 16) // 16) * 16
    if cut.pieces:
        params.partial = schedule.workspace("softmax", (cut.pieces, 2, heads), sums).data.ptr
    defines = {
        "BS_TYPE": edges.element_type(scores.dtype),
        "BS_VECTOR": vector,
        "BS_KEEP": _KEEP if scores.dtype.itemsize < 8 else _KEEP // 2,
    }
    defines |= schedule.defines
    grid, shared = (cut.units, -(-heads // part), 1), params.room * sums.itemsize + 4 * (span + 2 + -(-span // 32))
    jit.kernel("edge_softmax.cu", "edge_softmax", defines).launch(grid, _THREADS, params, shared=shared)()
    if cut.pieces:
        jit.kernel("edge_softmax.cu", "softmax_pieces", defines).launch(cut.pieces, _THREADS, params)()
    return result


def softmax_lanes(heads: int, mean: float) -> tuple[int, int]:
    """Lanes along the heads, and lanes of a row, for rows of `mean` edges.

    Examples
    --------
    >>> softmax_lanes(1, 32.4), softmax_lanes(8, 5.0), softmax_lanes(3, 100.0)
    ((1, 8), (8, 32), (1, 32))
    """
    # Four lanes along the edges at least, which is what the bound of errors says.
    across = heads if heads & (heads - 1) == 0 and heads <= 8 else 8 if heads % 8 == 0 else 1
    along = edges.power_of_two(int(mean / _EACH))
    return across, min(32, across * max(4, along))


class RowsParams(ctypes.Structure):
    """The argument of ``softmax_rows.cu``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "piece_row", "piece_first", "scores", "out", "partial")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("pieces", "longest", "heads", "turns", "across", "shift")),
    )


def softmax_rows(
    indptr: Any, scores: Any, *, out: Any = None, schedule: Schedule | None = None, each=4, keep=8, wide=16, blocks=4, longest=4096
) -> Any:
    cupy = jit.require_cupy("edge_softmax")
    scores = geometry.contiguous(scores)
    result = cupy.empty(scores.shape, scores.dtype) if out is None else out
    nnz, heads = scores.shape
    if scores.size == 0:
        return result
    schedule = edges.schedule_of(schedule, indptr, (int(indptr.size) - 1, 0), nnz)
    rows, sums = schedule.shape[0], edges.sum_dtype(scores.dtype)
    across = heads if heads & (heads - 1) == 0 and heads <= 8 else 8 if heads % 8 == 0 else 1
    along = edges.power_of_two(int(nnz / max(1, rows) / each))
    lanes = min(32, across * max(4, along))
    cut = schedule.cut(32, span=512, longest=longest)
    params = RowsParams(schedule.indptr.data.ptr, cut.piece_row.data.ptr, cut.piece_first.data.ptr)
    params.scores, params.out = scores.data.ptr, result.data.ptr
    params.rows, params.pieces, params.longest, params.heads = rows, cut.pieces, longest, heads
    params.turns, params.across, params.shift = -(-heads // across), across.bit_length() - 1, lanes.bit_length() - 1
    if cut.pieces:
        params.partial = schedule.workspace("softmax", (cut.pieces, 2, heads), sums).data.ptr
    defines = {"BS_TYPE": edges.element_type(scores.dtype), "BS_VECTOR": scores.dtype.itemsize, "BS_KEEP": keep, "BS_WIDE": wide, "BS_BLOCKS": blocks}
    defines |= schedule.defines
    warps = cut.pieces + -(-rows * lanes // 32)
    jit.kernel("softmax_rows.cu", "softmax_rows", defines).launch(-(-warps // 8), _THREADS, params)()
    return result
