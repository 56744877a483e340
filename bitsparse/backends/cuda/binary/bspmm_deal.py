"""Rows of a CSR pattern dealt out one by one, rows of as many batches side by side, so that the lanes of a warp end together."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule, StreamsParams

__all__ = ["Deal", "deal"]

#: Indices are read in fours, so that batches begin at multiples of four edges.
_QUAD = 4
#: Rows from which a latency counts for nothing.
_MOST_BOUNDS = 1 << 22


class Deal(NamedTuple):
    """A pattern dealt out.

    Attributes
    ----------
    order : cupy.ndarray (streams,), dtype of `indptr`
        The rows of up to `short` edges: windows of the pattern one after another, in each the rows of most batches first.
    bounds : cupy.ndarray (streams, 2) or None
        First edge of each of these rows, and the one behind its last; None where there are too many of them to save a latency.
    piece_row, piece_first : cupy.ndarray (pieces,), dtype of `indptr`
        Row and first edge of each piece of `longest` edges of the other rows. The pieces of a row follow each other.
    streams, pieces, short, longest : int
    """

    order: Any
    bounds: Any
    piece_row: Any
    piece_first: Any
    streams: int
    pieces: int
    short: int
    longest: int

    def params(self, schedule: Schedule, indices: Any, shift: int) -> ctypes.Structure:
        """The argument of a kernel whose teams have 2**shift lanes."""
        at = (schedule.indptr, indices, None, self.piece_row, self.piece_first)
        addresses = (None if array is None else array.data.ptr for array in at)
        return StreamsParams(*addresses, self.streams, self.pieces, self.longest, shift, 0)


_deals: weakref.WeakKeyDictionary[Schedule, dict[tuple[int, ...], Deal]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def deal(schedule: Schedule, *, short: int, longest: int, batch: int, window: int) -> Deal:
    """Deal out a pattern for teams that take `batch` edges at a time; made once for a schedule. Waits for the stream.

    Parameters
    ----------
    short : int
        Rows of more edges are cut into pieces of `longest`.
    window : int
        Rows of a window, within which they are put in order: neighbours of the pattern stay close.
    """
    key = (short, longest, batch, window)
    with _lock:
        found = _deals.setdefault(schedule, {})
        if key not in found:
            found[key] = _dealt(schedule, *key)
        return found[key]


def _dealt(schedule: Schedule, short: int, longest: int, batch: int, window: int) -> Deal:
    cupy = jit.require_cupy("bspmm")
    indptr, rows = schedule.indptr, schedule.shape[0]
    first = indptr[:-1]
    lengths = indptr[1:] - first
    most = (short + _QUAD) // batch + 2
    batches = (lengths + (first % _QUAD) + (batch - 1)) // batch
    number = cupy.arange(rows, dtype=np.int64)
    place = (number // window + 1) * most - batches  # ascending within a window as the batches fall
    keys = cupy.sort(cupy.where(lengths > short, -1, place * rows + number))
    away = int((lengths > short).sum())
    order = (keys[away:] % rows).astype(indptr.dtype)
    piece_row = piece_first = cupy.empty(0, indptr.dtype)
    pieces = 0
    if away:
        long_rows = cupy.flatnonzero(lengths > short)
        each = (lengths[long_rows] + (longest - 1)) // longest
        ends = cupy.cumsum(each)
        pieces = int(ends[-1])
        piece = cupy.arange(pieces, dtype=np.int64)
        which = cupy.searchsorted(ends, piece, side="right")
        piece_row = long_rows[which].astype(indptr.dtype)
        piece_first = (first[long_rows][which] + (piece - (ends - each)[which]) * longest).astype(indptr.dtype)
    bounds = cupy.stack([indptr[order], indptr[order + 1]], axis=1) if rows <= _MOST_BOUNDS else None
    return Deal(order, bounds, piece_row, piece_first, int(order.size), pieces, short, longest)
