"""Arguments of the kernels of one-bit sums: parameters, tuning, dealing out rows, epilogue chains and bit-sliced thresholds."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop, jit
from bitsparse._records import replace
from bitsparse.backends.cuda.bits import pack as cuda_bits
from bitsparse.backends.cuda.chips import H200, BitRates
from bitsparse.backends.cuda.csr.schedule import Schedule, StreamsParams
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.params import EpilogueParams, OperandParams, Thresholds, packed_words
from bitsparse.errors import KernelError
from bitsparse.jit import cupy

#: The most threads of a block.
THREADS = 128
_WARP = 32
#: Up to `_FEW_ROWS` rows are sorted as a whole; more rows are sorted in windows of `_WINDOW`.
_FEW_ROWS, _WHOLE, _WINDOW = 1 << 17, 1 << 30, 8192
#: Planes of the sums of rows in pieces: as many as most rows need, and the maximum.
_FEW_PLANES, _PLANES = 24, 31
#: Indices are read in fours, so batches start at multiples of four edges.
_QUAD = 4
#: With more rows than this, the latency that `Deal.bounds` saves no longer matters.
_MOST_BOUNDS = 1 << 22


CountParams = jit.struct("binary/bspmm_count.cuh", "CountParams")
ChainParams = jit.struct("binary/bspmm_count.cuh", "CountParams", optional=True)
TileParams = jit.struct("binary/bspmm_tiles.cu", "TileParams")
TileChainParams = jit.struct("binary/bspmm_tiles.cu", "TileParams", optional=True)


class CountTuning(NamedTuple):
    """The tunable parameters of a sum; every choice gives the same bits.

    Attributes
    ----------
    team : int
        Lanes that share the edges of a row: a power of two up to 32.
    unroll : int
        Edges in flight per lane: 4, 8 or 16.
    planes : int
        Planes of a lane's counters, 4 to 8: a row, or a piece of one, has fewer than ``team << planes`` edges.
    blocks : int
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers.
    threads : int
        Threads of a block, 32 to 128.
    few : int
        Planes of a lane's counters that most rows need.
    piece_team : int
        Lanes that share the edges of a piece; 0 for as many as `team`.
    window : int
        If not 0, rows are dealt out one by one to teams, sorted by length within windows of this many rows.
    span, longest : int or None
        Edges and rows of a stream, and edges of a piece of a long row; None to choose by the pattern. If rows are dealt out, those of more
        than `span` edges are cut into pieces.
    """

    team: int = 4
    unroll: int = 8
    planes: int = 8
    blocks: int = 4
    threads: int = THREADS
    few: int = 4
    piece_team: int = 0
    window: int = 0
    span: int | None = None
    longest: int | None = None

    @property
    def piece_planes(self) -> int:
        """Planes of a lane's counters that a piece needs, at least 4; `planes` unless pieces have a length and a team of their own."""
        if self.longest is None or self.piece_team in (0, self.team):
            return self.planes
        return min(self.planes, max(4, (-(-self.longest // self.piece_team) + 3).bit_length()))


#: The tuning of the kernel over tiles, in which four lanes share a strip; here edges are tiles and rows are strips.
TILE_TUNING = CountTuning(team=4, unroll=4, planes=7, blocks=3)


def tuning_of(rows: int, nnz: int, features: int, rates: BitRates = H200.bit_sums) -> CountTuning:
    """The fastest tuning by a chip's measured rates: longer rows get wider teams; short or few rows are dealt out.

    Examples
    --------
    >>> [tuning_of(*size, 128).team for size in ((50_515, 1_638_396), (334_925, 1_686_092), (232_965, 114_615_892))]
    [4, 2, 16]
    """
    mean = nnz / max(1, rows)
    if mean >= rates.long_rows:
        return CountTuning(16, 8, 6, 5)
    if mean >= rates.middling_rows and nnz >= rates.many_edges:
        return CountTuning(4, 8, 7, 5, piece_team=16, span=256, longest=480)
    across = shape_of_row(features, 16)[1]
    lanes, unroll, blocks, each, longest = rates.dealt[(mean >= 16) + (mean >= 32)]
    team = max(1, lanes >> across)
    window = _WHOLE if rows <= _FEW_ROWS else _WINDOW
    return CountTuning(team, unroll, 7, blocks, piece_team=16, window=window, span=each * team, longest=longest)


def shape_of_row(features: int, team: int, most: int = 4) -> tuple[int, int, int]:
    """(words of a lane, up to `most`; log2 of the lanes along a row; slices) for rows of `features` bits.

    Examples
    --------
    >>> [shape_of_row(n, 4) for n in (1, 33, 128, 129, 512, 5000)]
    [(1, 0, 1), (2, 0, 1), (4, 0, 1), (4, 1, 1), (4, 2, 1), (4, 3, 5)]
    >>> [shape_of_row(n, 4, 2) for n in (1, 33, 128, 129, 512, 5000)]
    [(1, 0, 1), (2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 3, 10)]
    """
    if features <= 64:
        return (1 if features <= 32 else 2), 0, 1
    vectors = packed_words(features, 1, "planes") // most
    across = min((vectors - 1).bit_length(), (_WARP // team).bit_length() - 1)
    return most, across, -(-vectors >> across)


def constants(
    tuning: CountTuning, output: int, words: int, many: bool = False, width: int = 0, longest: int = 0
) -> dict[str, int]:
    """Constants of the kernel over edges for int32 indices or, with the `width` of a row in words, of the kernel over tiles.

    `many`: features have thresholds of their own. No row has more than `longest` edges.
    """
    found = {
        "BS_OUT": output,
        "BS_LIMITS": int(many),
        "BS_WORDS": words,
        "BS_TEAM": tuning.team,
        "BS_U": tuning.unroll,
        "BS_PLANES": tuning.planes,
        "BS_BLOCKS": tuning.blocks,
    }
    if longest >= 1 << _FEW_PLANES:  # registers for longer sums
        found["BS_MOST"] = _PLANES
    edges = {
        "BS_PIECE_TEAM": tuning.piece_team or tuning.team,
        "BS_PIECE_PLANES": tuning.piece_planes,
        "BS_FEW": tuning.few,
    }
    return found | ({"BS_WIDTH": width} if width else edges)


def slot_planes(longest: int) -> int:
    """Planes of a word in the slot of a piece, if no row has more than `longest` edges: whole vectors of four."""
    return -(-(_PLANES if longest >= 1 << _FEW_PLANES else _FEW_PLANES) // 4) * 4


class Deal(NamedTuple):
    """A pattern whose rows are dealt out to teams.

    Attributes
    ----------
    order : cupy.ndarray (streams,), dtype of `indptr`
        The rows of up to `short` edges, window by window; in each window rows with the most batches come first.
    bounds : cupy.ndarray (streams, 2) or None
        First edge and end of each of these rows; None if there are too many rows for this to pay.
    piece_row, piece_first : cupy.ndarray (pieces,), dtype of `indptr`
        Row and first edge of each piece of `longest` edges of the other rows. The pieces of a row are consecutive.
    piece_edges : cupy.ndarray (pieces, 4), dtype of `indptr`
        For each piece, the end of its edges, the edges of its row, the number of the row's first piece, and how many pieces the row has.
    streams, pieces, short, longest : int
    """

    order: Any
    bounds: Any
    piece_row: Any
    piece_first: Any
    piece_edges: Any
    streams: int
    pieces: int
    short: int
    longest: int

    def params(self, schedule: Schedule, shift: int) -> ctypes.Structure:
        """The argument of a kernel whose teams have 2**shift lanes."""
        at = (schedule.indptr, schedule.indices, None, self.piece_row, self.piece_first)
        addresses = (None if array is None else array.data.ptr for array in at)
        return StreamsParams(*addresses, self.streams, self.pieces, self.longest, shift, 0)


def deal(schedule: Schedule, *, short: int, longest: int, batch: int, window: int) -> Deal:
    """Deal out a pattern for teams that take `batch` edges at a time; done once per schedule. Waits for the stream.

    Parameters
    ----------
    short : int
        Rows with more edges are cut into pieces of `longest`.
    window : int
        Rows of a window. Rows are sorted only within windows, so that adjacent rows stay close.
    """
    key = ("dealt", short, longest, batch, window)
    with schedule.lock:
        if key not in schedule.products:
            schedule.products[key] = _dealt(schedule, *key[1:])
        return schedule.products[key]


def _dealt(schedule: Schedule, short: int, longest: int, batch: int, window: int) -> Deal:
    indptr, rows = schedule.indptr, schedule.shape[0]
    first = indptr[:-1]
    lengths = indptr[1:] - first
    most = (short + _QUAD) // batch + 2
    batches = (lengths + (first % _QUAD) + (batch - 1)) // batch
    number = cupy.arange(rows, dtype=np.int64)
    place = (number // window + 1) * most - batches  # within a window, more batches sort first
    keys = cupy.sort(cupy.where(lengths > short, -1, place * rows + number))
    away = int((lengths > short).sum())
    order = (keys[away:] % rows).astype(indptr.dtype)
    long_rows = cupy.flatnonzero(lengths > short).astype(indptr.dtype)
    piece_row, piece_first = schedule.pieces_of(long_rows, (lengths[long_rows] + (longest - 1)) // longest, longest)
    earlier = (piece_first - first[piece_row]) // longest  # pieces of the same row
    edges, row_first = lengths[piece_row], cupy.arange(piece_row.size, dtype=np.int64) - earlier
    end = cupy.minimum(piece_first + longest, indptr[piece_row + 1])
    piece_edges = cupy.stack([end, edges, row_first, (edges + (longest - 1)) // longest], axis=1).astype(indptr.dtype)
    bounds = cupy.stack([indptr[order], indptr[order + 1]], axis=1) if rows <= _MOST_BOUNDS else None
    counts = int(order.size), int(piece_row.size)
    return Deal(order, bounds, piece_row, piece_first, piece_edges, *counts, short, longest)


def device_chain(
    params: EpilogueParams | None, operand: OperandParams | None, shape: tuple[int, int], words: bool
) -> DeviceEpilogue:
    """The chain on the device, including what the operands contribute."""
    params = params or (EpilogueParams(out="bits", binarize=True) if words else EpilogueParams())
    if words and not (params.out == "bits" and params.binarize and params.bits == 1 and params.axis == -1):
        raise KernelError("bspmm: the chain must binarise along the features to give bits; binarise, then repack")
    if not words:
        params = replace(params, out="float", binarize=False)
    return DeviceEpilogue(params, shape, 2.0**31).with_operand(operand or OperandParams())


def set_thresholds(raw: Any, thresholds: Thresholds, features: int, bipolar: bool) -> Any:
    """Store one threshold as a number, or many thresholds bit-sliced; returns the device arrays that must be kept alive."""
    values, longest, single = thresholds.values, int(thresholds.longest), thresholds.single
    if single is not None:
        raw.limit = min(max(single[0], -longest - 1), longest + 1, (1 << 31) - 1)
        raw.flip = int(single[1])
        return None
    base = longest if bipolar else 0
    shape = (values.shape[0], features)
    raised = cupy.clip(interop.uploaded(values, "bspmm"), -base, longest + 1) + base
    planes = max(1, (base + longest + 1).bit_length())
    sliced = partial(cuda_bits.pack, axis=-1, layout="planes", encoding="unsigned", check=False)
    words = sliced(cupy.broadcast_to(raised, shape), planes)
    flips = sliced(cupy.broadcast_to(interop.uploaded(thresholds.flips, "bspmm"), shape), 1)
    class_of = None if thresholds.class_of is None else interop.uploaded(thresholds.class_of, "bspmm", np.int32)
    raw.limits, raw.flips, raw.limit_planes, raw.base = words.data.ptr, flips.data.ptr, planes, base
    raw.class_of = None if class_of is None else class_of.data.ptr
    return words, flips, class_of
