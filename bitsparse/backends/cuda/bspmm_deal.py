"""Rows of a CSR pattern dealt out one by one, rows of as many batches side by side, so that the lanes of a warp end together."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.schedule import Schedule

__all__ = ["Deal", "deal"]

#: Indices are read in fours, so that batches begin at multiples of four edges.
_QUAD = 4


class Deal(NamedTuple):
    """A pattern dealt out.

    Attributes
    ----------
    order : cupy.ndarray (streams,), dtype of `indptr`
        The rows of up to `short` edges: windows of the pattern one after another, in each the rows of most batches first.
    piece_row, piece_first : cupy.ndarray (pieces,), dtype of `indptr`
        Row and first edge of each piece of `longest` edges of the other rows. The pieces of a row follow each other.
    streams, pieces, short, longest : int
    """

    order: Any
    piece_row: Any
    piece_first: Any
    streams: int
    pieces: int
    short: int
    longest: int


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
    return Deal(order, piece_row, piece_first, int(order.size), pieces, short, longest)
