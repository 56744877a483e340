"""CSR patterns cut into streams of edges and pieces of long rows, on the GPU: what the kernels over CSR patterns walk."""

from __future__ import annotations

import ctypes
import threading
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bitsparse import interop, jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, constants, launch
from bitsparse.jit import cupy

#: Warps of a multiprocessor, unless a kernel says otherwise, and rounds of streams for all of them: a stream lasts for an eighth of the
#: whole at most, as the last ones run alone.
_WARPS, _ROUNDS = 32, 8
#: Edges and rows of a stream: what is worth a group's start, and what balances well enough.
_SHORT, _LEAST, _MOST = 8, 32, 512
#: A row is cut into pieces if it is longer than so many streams; of a multiple of so many edges.
_STREAMS_IN_PIECE, _PIECE_STEP = 2, 32
#: Edges of a batch, and what share of them must be within a row throughout a warp to be treated as such.
_BATCH, _OFTEN = 8, 0.4


StreamsParams = jit.struct("csr/streams.cuh", "Streams")
ScheduleParams = jit.struct("csr/schedule.cu", "ScheduleParams")


class Cut(NamedTuple):
    """A pattern cut up.

    Attributes
    ----------
    starts : cupy.ndarray (streams + 1,)
        First row of each stream, ascending; the last is the number of rows. Stream s holds the rows ``starts[s] .. starts[s + 1] - 1``,
        which may be none. A long row is a stream of its own, which kernels leave out.
    piece_row, piece_first : cupy.ndarray (pieces,)
        Row and first edge of each piece of `longest` edges (the last of a row has fewer). The pieces of a row follow each other.
    streams, pieces, long_rows : int
    most : int
        Pieces of the longest row.
    span : int
        Edges and rows that a stream has about.
    longest : int
        Edges of a piece; rows of more are long.
    """

    starts: Any
    piece_row: Any
    piece_first: Any
    streams: int
    pieces: int
    long_rows: int
    most: int
    span: int
    longest: int

    @property
    def units(self) -> int:
        """Groups of lanes that a launch needs."""
        return self.streams + self.pieces

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.starts.nbytes + self.piece_row.nbytes + self.piece_first.nbytes)


def choose_cut(rows: int, nnz: int, lanes: int, multiprocessors: int, warps: int = _WARPS) -> tuple[int, int]:
    """(span, longest) for groups of `lanes` lanes: several rounds of streams where there are edges enough, else one.

    An H200 was quickest with streams of 64 edges and rows from 16 lanes on, and of 48 or 32 for narrower groups, of which a warp walks
    several at a time; with longer ones where there are edges for more than eight rounds of warps.

    Examples
    --------
    >>> choose_cut(372_474, 24_574_995, 32, 132), choose_cut(50_515, 1_638_396, 4, 132), choose_cut(19_717, 88_651, 16, 132)
    ((512, 1024), (52, 128), (12, 32))
    """
    total, round_of = rows + nnz, max(1, multiprocessors * warps)
    if total < round_of * _LEAST:
        span = min(_LEAST, max(_SHORT, total // (round_of * (32 // lanes))))
    else:
        least = 2 * _LEAST if lanes >= 16 else _LEAST * 3 // 2 if lanes == 8 else _LEAST
        span = max(least, min(_MOST, total // (round_of * _ROUNDS)))
    span = -(-span // 4) * 4
    return span, -(-_STREAMS_IN_PIECE * span // _PIECE_STEP) * _PIECE_STEP


def whole_batches(rows: int, nnz: int, lanes: int) -> bool:
    """Whether all groups of a warp are often within a row at the same time, so that a way without questions for rows pays.

    Examples
    --------
    >>> [whole_batches(100, nnz, lanes) for nnz, lanes in ((1000, 32), (1000, 4), (6000, 4), (6000, 16))]
    [True, False, False, True]
    """
    edges = nnz / max(1, rows)
    return lanes == 32 or (edges > _BATCH and (1 - _BATCH / edges) ** (32 // lanes) > _OFTEN)


class Workspace(NamedTuple):
    """Memory of a kernel's calls on one stream; a captured graph holds its addresses.

    Attributes
    ----------
    partial : cupy.ndarray
        Sums of pieces of rows, uninitialised.
    arrived : cupy.ndarray of int32
        How many pieces of a row have arrived: zeros between calls.
    """

    partial: Any
    arrived: Any


class Workspaces:
    """A workspace for each stream, allocated by its first call, which then waits for what was prepared on another stream.

    Built when all that calls read has been enqueued on the current stream. The owner's lock is held around :meth:`on`.

    Parameters
    ----------
    shape, dtype
        Of `partial`.
    counters : int or tuple of int
        Shape of `arrived`.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike, counters: int | tuple[int, ...] = 0) -> None:
        self._shape, self._dtype, self._counters = shape, dtype, counters
        self._spaces: dict[int, Workspace] = {}
        #: Streams whose counters only replays of a captured graph have set to zero so far.
        self._unset: set[int] = set()
        self._made_on = cupy.cuda.get_current_stream().ptr
        self._made = cupy.cuda.Event(disable_timing=True)
        if not cupy.cuda.runtime.streamIsCapturing(self._made_on):
            self._made.record()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(part.nbytes) for space in self._spaces.values() for part in space)

    def on(self, stream: int) -> Workspace:
        """The workspace of the current stream, whose address is `stream`; of a call that is being recorded, one of its own."""
        recording = jit.recorder()
        if recording is not None:
            partial = recording.scratch((id(self), "partial"), self._shape, self._dtype, zero=False)
            return Workspace(partial, recording.scratch((id(self), "arrived"), self._counters, "int32", zero=True))
        found = self._spaces.get(stream) or self._first(stream)
        if self._unset and stream in self._unset:
            found.arrived.fill(0)
            if not cupy.cuda.runtime.streamIsCapturing(stream):
                self._unset.discard(stream)
        return found

    def is_settled(self, stream: int) -> bool:
        """Whether later calls on a stream that has a workspace need not ask for it again."""
        return stream not in self._unset

    def _first(self, stream: int) -> Workspace:
        spaces = self._spaces
        if cupy.cuda.runtime.streamIsCapturing(stream):
            # A capture begins after a synchronisation and cannot allocate: it takes over what calls have worked in before.
            if spaces:
                before = next(iter(spaces))
                spaces[stream] = spaces.pop(before)
                if before in self._unset:
                    self._unset = self._unset - {before} | {stream}
                return spaces[stream]
            if self._counters:
                # Nothing that is enqueued now happens before a replay: whoever comes first has to set the counters, this graph or another.
                self._unset.add(stream)
        elif stream != self._made_on:
            cupy.cuda.get_current_stream().wait_event(self._made)
        counters = (cupy.zeros if self.is_settled(stream) else cupy.empty)(self._counters, "int32")
        made = spaces[stream] = Workspace(cupy.empty(self._shape, self._dtype), counters)
        return made


class Rooms:
    """Memory of kernels' calls, by what it is for and by streams: the same for every call alike, so that a captured graph may hold it.

    Prepared kernels of a schedule hold its rooms and not the schedule, which can keep them for that.
    """

    def __init__(self) -> None:
        self._spaces: dict[tuple[Any, ...], Workspaces] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(spaces.nbytes for spaces in self._spaces.values())

    def on_stream(self, name: str, shape: tuple[int, ...], dtype: Any, counters: int = 0) -> Workspace:
        """The room of calls on the current stream, with so many counters."""
        stream, key = cupy.cuda.get_current_stream().ptr, (name, shape, np.dtype(dtype), counters)
        with self._lock:
            spaces = self._spaces.get(key)
            if spaces is None:
                spaces = self._spaces[key] = Workspaces(shape, dtype, counters)
            return spaces.on(stream)


def _summed(counts: Any, dtype: Any) -> Any:
    """Sums of the counts in front of each and of all of them."""
    before = cupy.zeros(int(counts.size) + 1, dtype)
    before[1:] = cupy.cumsum(counts)
    return before


def _as_read(indices: Any) -> Any:
    """Indices as kernels read them, sixteen bytes at once; None for none."""
    if indices is None or (indices.flags.c_contiguous and indices.data.ptr % 16 == 0):
        return indices
    return interop.aligned(indices)


class Schedule:
    """How the kernels walk one CSR pattern; made once for a pattern and kept by its owner, as the arrays must not change.

    Parameters
    ----------
    indptr : cupy.ndarray of int32 or int64
        Valid: from 0 to `nnz`, never decreasing.
    shape : tuple of int
    nnz : int

    A cut is made when it is first asked for, with at most four synchronisations, and kept.
    """

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int], nnz: int) -> None:
        self.indptr, self.shape, self.nnz = indptr, (int(shape[0]), int(shape[1])), int(nnz)
        self.indices: Any = _as_read(indices)
        self._cuts: dict[tuple[int, int], Cut] = {}
        #: What ``units.py`` made of the pattern, by its settings.
        self.units: dict[tuple[Any, ...], Any] = {}
        self._edge_rows: tuple[Any, Any] | None = None
        self.rooms = Rooms()
        #: Kernels prepared for the pattern, by their settings; they hold its arrays and rooms.
        self.products: dict[Any, Any] = {}
        self.lock = threading.Lock()
        #: Held while kernels are enqueued of which one reads what another left in a workspace: threads may share a stream.
        self.order = threading.RLock()

    @property
    def large(self) -> bool:
        """Whether the indices are int64."""
        return bool(self.indptr.dtype.itemsize == 8)

    @property
    def defines(self) -> dict[str, int]:
        """What kernels over this pattern are compiled with."""
        return constants(self.indptr.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all that was made, on the device."""
        tables = 0 if self._edge_rows is None else sum(int(table.nbytes) for table in self._edge_rows)
        units = {id(units): int(units.table.nbytes) for units in self.units.values()}
        return tables + self.rooms.nbytes + sum(units.values()) + sum(cut.nbytes for cut in self._cuts.values())

    @property
    def prepared(self) -> int:
        """How many things were made for the pattern: with one more, other streams have to wait for it."""
        return len(self._cuts) + len(self.units) + (self._edge_rows is not None)

    def along(self, indices: Any) -> Schedule:
        """The same rows, with all that was made for them, whose edges lie in other columns."""
        other = copy(self)
        other.indices, other.products = _as_read(indices), {}
        return other

    def indexed(self) -> Schedule:
        """The same with a column for each edge, also where an edge is its own column."""
        if self.indices is not None:
            return self
        return self.along(cupy.arange(self.nnz, dtype=self.indptr.dtype))

    def cut(self, lanes: int, *, warps: int = _WARPS, span: int | None = None, longest: int | None = None) -> Cut:
        """The cut for groups of `lanes` lanes (a power of two up to 32), or of a given span and length of pieces.

        `warps` is how many of them a multiprocessor runs at the same time. `longest` must be a multiple of 4.
        """
        chosen = choose_cut(self.shape[0], self.nnz, lanes, jit.capability().multiprocessors, warps)
        key = (span or chosen[0], longest or chosen[1])
        with self.lock:
            if key not in self._cuts:
                self._cuts[key] = self._make(*key)
            return self._cuts[key]

    def params(self, cut: Cut, lanes: int) -> ctypes.Structure:
        """The argument of a kernel."""
        arrays = {"starts": cut.starts, "piece_row": cut.piece_row, "piece_first": cut.piece_first}
        walk = self.walk_params(lanes, cut.longest)
        return jit.filled(walk, **arrays, streams=cut.streams, pieces=cut.pieces)

    def walk_params(self, lanes: int, longest: int) -> ctypes.Structure:
        """The same for kernels that are told their stretches otherwise (``units.py``)."""
        whole = whole_batches(self.shape[0], self.nnz, lanes)
        own = {"indptr": self.indptr, "indices": self.indices, "shift": lanes.bit_length() - 1, "whole": whole}
        return jit.filled(StreamsParams(longest=longest), **own)

    def edge_rows(self) -> tuple[Any, Any]:
        """Where the rows of edges are found, for kernels that deal out edges (``edges/ends.cuh``); made once.

        Returns
        -------
        rows : cupy.ndarray, dtype of `indptr`
            Rows of edges 0, 32, 64, ... and of the last one.
        behind : cupy.ndarray (nnz,), uint8
            For each edge, its row less that of the first edge of its 32, or 255 if that is more.
        """
        with self.lock:
            if self._edge_rows is None:
                edges = cupy.arange(-(-self.nnz // 32) + 1, dtype=self.indptr.dtype) * 32
                found = cupy.searchsorted(self.indptr, cupy.minimum(edges, self.nnz - 1), side="right") - 1
                rows, behind = found.astype(self.indptr.dtype), cupy.empty(self.nnz, "uint8")
                self._launch("rows_behind", self.nnz, rows[:0], before=rows, out=behind, count=self.nnz, span=32)
                self._edge_rows = rows, behind
            return self._edge_rows

    def workspace(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory of calls on the current stream, the same for every call with these arguments: a captured graph holds its address."""
        return self.rooms.on_stream(name, shape, dtype).partial

    def _make(self, span: int, longest: int) -> Cut:
        lengths = self.indptr[1:] - self.indptr[:-1]
        long_rows = cupy.flatnonzero(lengths > longest).astype(self.indptr.dtype)
        each = (lengths[long_rows] + (longest - 1)) // longest
        piece_row, piece_first = self.pieces_of(long_rows, each, longest)
        starts = self.stream_starts(span, long_rows, lengths[long_rows])
        most = int(each.max().get()) if long_rows.size else 0
        counts = int(starts.size) - 1, int(piece_row.size), int(long_rows.size), most
        return Cut(starts, piece_row, piece_first, *counts, span, longest)

    def pieces_of(self, long_rows: Any, each: Any, longest: int) -> tuple[Any, Any]:
        """Rows and first edges of the pieces of long rows, of which they have `each`."""
        dtype, count = self.indptr.dtype, int(long_rows.size)
        if not count:
            return cupy.empty(0, dtype), cupy.empty(0, dtype)
        before = _summed(each, dtype)
        pieces = int(before[-1].get())
        piece_row, piece_first = cupy.empty(pieces, dtype), cupy.empty(pieces, dtype)
        into = {"out": piece_row, "first": piece_first, "count": pieces, "span": longest}
        self._launch("piece_edges", pieces, long_rows, before=before, **into)
        return piece_row, piece_first

    def stream_starts(self, span: int, away: Any, edges: Any) -> Any:
        """First rows of streams of about `span` edges and rows; each of the rows `away`, of so many `edges`, is one of its own."""
        rows, dtype, gone = self.shape[0], self.indptr.dtype, int(away.size)
        before = _summed(edges, dtype)
        count = -(-(self.nnz - (int(before[-1].get()) if gone else 0) + rows) // span)
        starts = cupy.empty(count + 1 + 2 * gone, dtype)
        self._launch("stream_starts", count + 1, away, before=before, out=starts, count=count, span=span)
        if gone:
            starts[count + 1 : count + 1 + gone] = away
            starts[count + 1 + gone :] = away + 1
            starts = cupy.sort(starts)
        return starts

    def _launch(self, name: str, items: int, long_rows: Any, **fields: Any) -> None:
        params = ScheduleParams(rows=self.shape[0], long_count=int(long_rows.size))
        jit.filled(params, indptr=self.indptr, long_rows=long_rows, **fields)
        launch("csr/schedule.cu", name, self.indptr.dtype, -(-items // THREADS), params)


VARIANTS = jit.variants_of("csr/schedule.cu", "stream_starts", BOTH_INDICES)
