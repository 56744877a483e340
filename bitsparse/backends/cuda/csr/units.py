"""CSR patterns cut into rows for warps and streams of rows for groups of lanes, for the sparse products on the CUDA cores."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, launch
from bitsparse.jit import cupy

#: Warps that a multiprocessor runs at the same time.
WARPS = 28
#: The fewest edges of a piece for each group that shares it (eight batches), and the most edges of a piece.
_SHORTEST, _LONGEST = 64, 1024
#: The fewest and most edges and rows of a stream.
_LEAST_SPAN, _MOST_SPAN = 8, 64
#: Groups with at least this many lanes count as wide.
_WIDE = 16
#: Edges per warp below which there is little work, and from which there is plenty.
_LITTLE, _PLENTY = 64, 2000
#: The most pieces and rows that a warp takes one after the other, and the rounds of warps that there are at least.
_EACH, _ROUNDS = 4, 4


#: The most blocks of a grid along y; further slices go along z.
_GRID_Y = 65535

_SOURCE = "csr/units.cu"
#: The most chunks of rows that are counted separately, and the fewest rows of a chunk.
_CHUNKS, _LEAST_CHUNK = 1024, 1024

UnitsParams = jit.struct("csr/units.cuh", "Units")
CutParams = jit.struct(_SOURCE, "CutParams")


def group_lanes(vectors: int) -> int:
    """Lanes of a group for rows of `vectors` vectors: one per vector up to 32, or fewer if more than a quarter of them would be idle.

    Examples
    --------
    >>> [group_lanes(n) for n in (1, 4, 16, 25, 32, 33, 40, 64)]
    [1, 4, 16, 32, 32, 8, 16, 32]
    """
    lanes = min(32, 1 << (vectors - 1).bit_length())
    while lanes > 8 and vectors > 32 and -(-vectors // lanes) * lanes * 3 > vectors * 4:
        lanes //= 2
    return lanes


class Units(NamedTuple):
    """A pattern cut up for warps and groups of lanes, in one table (``csr/units.cuh``).

    Attributes
    ----------
    table : cupy.ndarray (pieces + whole + streams, 4)
        Row, number of pieces of the row (for a stream: the end of its rows), first edge, and the end of the edges.
    pieces : int
        Pieces of rows of more than `longest` edges; a warp takes one piece.
    whole : int
        Other rows of more than `limit` edges; a warp takes one row.
    streams : int
        Streams of the remaining rows; a group takes one stream.
    span : int
        Approximate number of edges and rows of a stream.
    limit, longest : int
    """

    table: Any
    pieces: int
    whole: int
    streams: int
    span: int
    limit: int
    longest: int

    def params(self, each: int = 1) -> ctypes.Structure:
        """The argument of a kernel whose warps take `each` pieces or rows."""
        return UnitsParams(self.table.data.ptr, self.pieces, self.whole, self.streams, each)

    def grid(self, lanes: int, threads: int, slices: int, each: int = 1) -> tuple[int, int, int]:
        """The grid of a launch with groups of `lanes` lanes, for `slices` slices of the columns."""
        across = -(-slices // _GRID_Y)
        return -(-self.warps(lanes, each) * 32 // threads), -(-slices // across), across

    def warps(self, lanes: int, each: int = 1) -> int:
        """Warps that a launch with groups of `lanes` lanes needs."""
        return -(-(self.pieces + self.whole) // each) + -(-self.streams * lanes // 32)


def edges_of_a_warp(nnz: int) -> float:
    """Edges per warp, for the warps that the current device runs at the same time."""
    return nnz / max(1, jit.capability().multiprocessors * WARPS)


def limits_of(share: float, lanes: int) -> tuple[int, int]:
    """(limit, longest) for groups of `lanes` lanes, with `share` edges per warp.

    An H200 was fastest if whole warps take rows of more than about three batches of a group: earlier if there is hardly work for all warps,
    later if there is plenty. It was fastest with pieces as long as the total work of a warp: longer ones finish last, and the sums of
    shorter ones cost time to add up. Wide groups, few of which share a piece, use the shorter of two possible lengths.

    Examples
    --------
    >>> limits_of(24, 4), limits_of(443, 4), limits_of(443, 32), limits_of(133, 32), limits_of(24, 32)
    ((16, 256), (24, 512), (64, 256), (48, 128), (48, 64))
    """
    power = math.log2(max(share, 1.0))
    longest = 1 << (math.floor(power) if lanes >= _WIDE else round(power))
    longest = min(_LONGEST, max(_SHORTEST * min(4, 32 // lanes), longest))
    if share >= _PLENTY:
        return 64, longest
    if lanes == 32:
        return (48 if share < 200 else 64), longest
    return (16 if share < _LITTLE else 24 if lanes < _WIDE else 48), longest


def units_of_a_warp(units: int) -> int:
    """How many pieces and rows a warp takes one after the other: up to four, as long as there are several rounds of warps."""
    return min(_EACH, max(1, units // (_ROUNDS * jit.capability().multiprocessors * WARPS)))


def span_of(work: int, lanes: int, warps: int, share: float) -> int:
    """Edges and rows of a stream, given `work` in all streams: each group gets about one stream, and a wide group two of half the size.

    Examples
    --------
    >>> span_of(330_000, 4, 3696, 443), span_of(2_020_000, 4, 3696, 456), span_of(217_000, 32, 3696, 133)
    (12, 64, 28)
    """
    groups = warps * 32 // lanes * (2 if lanes >= _WIDE and share >= _LITTLE else 1)
    return min(_MOST_SPAN, max(_LEAST_SPAN, round(work / groups / 4) * 4))


def units_of(
    schedule: Schedule, lanes: int, *, span: int | None = None, limit: int | None = None, longest: int | None = None
) -> Units:
    """The units for groups of `lanes` lanes (a power of two up to 32); computed on first use, with some synchronisations, and kept.

    Parameters
    ----------
    span, limit, longest : int, optional
        As in :class:`Units`; by default chosen by the pattern. `longest` must be a multiple of 4.
    """
    chosen = limits_of(edges_of_a_warp(schedule.nnz), lanes)
    longest = longest or chosen[1]
    limit = min(max(1, chosen[0] if limit is None else limit), longest)
    key = (lanes if span is None else 0, span, limit, longest)
    with schedule.lock:
        if key not in schedule.units:
            schedule.units[key] = _tabulated(schedule, lanes, span, limit, longest)
        found: Units = schedule.units[key]
    return found


def _tabulated(schedule: Schedule, lanes: int, span: int | None, limit: int, longest: int) -> Units:
    indptr, rows = schedule.indptr, schedule.shape[0]
    chunk = -(-max(rows, _LEAST_CHUNK * _CHUNKS) // (THREADS * _CHUNKS)) * THREADS
    chunks = -(-rows // chunk)
    found = cupy.zeros((1 + chunks, 4), "int64")
    params = jit.filled(CutParams(), indptr=indptr, totals=found, counts=found[1:], rows=rows, chunk=chunk)
    jit.filled(params, limit=limit, longest=longest)
    launch(_SOURCE, "count_rows", indptr.dtype, chunks, params)
    short, whole, pieces, _ = (int(count) for count in found[0].get())
    if span is None:
        span = span_of(short, lanes, jit.capability().multiprocessors * WARPS, edges_of_a_warp(schedule.nnz))
    jit.filled(params, span=span, whole=whole, pieces=pieces)
    launch(_SOURCE, "count_streams", indptr.dtype, chunks, params)
    streams = int(found[0, 3].get())
    table = cupy.empty((pieces + whole + streams, 4), indptr.dtype)
    launch(_SOURCE, "write_units", indptr.dtype, chunks, jit.filled(params, table=table))
    return Units(table, pieces, whole, streams, span, limit, longest)


VARIANTS = jit.variants_of(_SOURCE, "write_units", BOTH_INDICES)
