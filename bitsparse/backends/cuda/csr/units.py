"""CSR patterns cut into rows for warps and streams of rows for groups of lanes: what the sparse products on the CUDA cores walk."""

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
#: Edges of a piece at least, for each group that shares it: eight batches; and at most.
_SHORTEST, _LONGEST = 64, 1024
#: Edges and rows of a stream.
_LEAST_SPAN, _MOST_SPAN = 8, 64
#: Lanes from which groups are wide.
_WIDE = 16
#: Edges for each warp below which there is little to do, and from which there is plenty.
_LITTLE, _PLENTY = 64, 2000


#: Columns of the grid along y; the slices beyond them go along z.
_GRID_Y = 65535

_SOURCE = "csr/units.cu"
#: Chunks of rows that are counted by themselves, at most; and rows of one at least.
_CHUNKS, _LEAST_CHUNK = 1024, 1024

UnitsParams = jit.struct("csr/units.cuh", "Units")
CutParams = jit.struct(_SOURCE, "CutParams")


def group_lanes(vectors: int) -> int:
    """Lanes of a group for rows of so many vectors: as many as there are, unless a quarter of them would have nothing to do.

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
        Row, number of pieces of the row (or the row behind the last), first edge and the one behind the last.
    pieces : int
        Of rows of more than `longest` edges, of which a warp takes one.
    whole : int
        Other rows of more than `limit` edges, of which a warp takes one.
    streams : int
        Of the rows that remain, of which a group takes one.
    span : int
        Edges and rows that a stream has about.
    limit, longest : int
    """

    table: Any
    pieces: int
    whole: int
    streams: int
    span: int
    limit: int
    longest: int

    def params(self) -> ctypes.Structure:
        """The argument of a kernel."""
        return UnitsParams(self.table.data.ptr, self.pieces, self.whole, self.streams)

    def grid(self, lanes: int, threads: int, slices: int) -> tuple[int, int, int]:
        """Blocks of a launch with groups of so many lanes, for each of the slices of the columns."""
        across = -(-slices // _GRID_Y)
        return -(-self.warps(lanes) * 32 // threads), -(-slices // across), across

    def warps(self, lanes: int) -> int:
        """Warps that a launch needs with groups of so many lanes."""
        return self.pieces + self.whole + -(-self.streams * lanes // 32)


def edges_of_a_warp(nnz: int) -> float:
    """Edges for each of the warps that the current device runs at the same time."""
    return nnz / max(1, jit.capability().multiprocessors * WARPS)


def limits_of(share: float, lanes: int) -> tuple[int, int]:
    """(limit, longest) for groups of `lanes` lanes where there are `share` edges for each warp.

    An H200 was quickest with warps taking rows from about three batches of a group on, earlier where there is hardly work for all warps and
    later where there is plenty, and with pieces as long as what a warp gets to do in all: longer ones end last, shorter ones cost their
    adding up. Wide groups, of which few share a piece, take the shorter ones where there is a choice.

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


def span_of(work: int, lanes: int, warps: int, share: float) -> int:
    """Edges and rows of a stream, of `work` in all streams: one for each group at most, half as many for each of the wide ones.

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
    """The units for groups of `lanes` lanes (a power of two up to 32); made when first asked for, with some synchronisations, and kept.

    Parameters
    ----------
    span, limit, longest : int, optional
        As :class:`Units` has them; chosen by the pattern unless given. `longest` must be a multiple of 4.
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
