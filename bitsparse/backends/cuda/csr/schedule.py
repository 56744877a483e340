"""CSR patterns cut into streams of edges and pieces of long rows on the GPU, which the kernels over CSR patterns walk."""

from __future__ import annotations

import ctypes
import threading
from copy import copy
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike

from bitsparse import interop, jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, constants, launch
from bitsparse.jit import cupy

#: Warps per multiprocessor, unless a kernel says otherwise, and rounds of streams for all of them. So a stream takes at most an eighth of
#: the total time, which matters since the last streams run alone.
_WARPS, _ROUNDS = 32, 8
#: Edges and rows of a stream: the fewest in small patterns, the fewest in others, and the most that still balance well.
_SHORT, _LEAST, _MOST = 8, 32, 512
#: A row longer than this many streams is cut into pieces, whose length is a multiple of `_PIECE_STEP` edges.
_STREAMS_IN_PIECE, _PIECE_STEP = 2, 32
#: Edges of a batch, and the share of batches that must lie within rows in all groups of a warp for a special path to pay.
_BATCH, _OFTEN = 8, 0.4
#: Bytes from which a workspace is allocated anew by each call under lent memory. Smaller ones are kept, which saves small calls time.
LENT_FROM = 1 << 20


StreamsParams = jit.struct("csr/streams.cuh", "Streams")
ScheduleParams = jit.struct("csr/schedule.cu", "ScheduleParams")


class Cut(NamedTuple):
    """A pattern cut into streams and pieces.

    Attributes
    ----------
    starts : cupy.ndarray (streams + 1,)
        First row of each stream, ascending; the last element is the number of rows. Stream s holds the rows
        ``starts[s] .. starts[s + 1] - 1``, possibly none. A long row is a stream of its own, which kernels skip.
    piece_row, piece_first : cupy.ndarray (pieces,)
        Row and first edge of each piece of `longest` edges (the last of a row may have fewer). The pieces of a row are consecutive.
    streams, pieces, long_rows : int
    most : int
        Pieces of the longest row.
    span : int
        Approximate number of edges and rows of a stream.
    longest : int
        Edges of a piece; rows with more edges are long.
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
    """(span, longest) for groups of `lanes` lanes: several rounds of streams if there are enough edges, else one.

    An H200 was fastest with streams of 64 edges and rows for 16 lanes or more, and of 48 or 32 for narrower groups, several of which share
    a warp; and with longer streams if there are edges for more than eight rounds of warps.

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
    """Whether all groups of a warp are often within a row at the same time, so that a code path without checks for row ends pays.

    Examples
    --------
    >>> [whole_batches(100, nnz, lanes) for nnz, lanes in ((1000, 32), (1000, 4), (6000, 4), (6000, 16))]
    [True, False, False, True]
    """
    edges = nnz / max(1, rows)
    return lanes == 32 or (edges > _BATCH and (1 - _BATCH / edges) ** (32 // lanes) > _OFTEN)


class Workspace(NamedTuple):
    """Workspace of a kernel's calls on one stream; captured graphs hold its addresses.

    Attributes
    ----------
    partial : cupy.ndarray
        Sums of pieces of rows, uninitialised.
    arrived : cupy.ndarray of int32
        How many pieces of a row have finished; zeros between calls.
    """

    partial: Any
    arrived: Any


class Workspaces:
    """A workspace for each stream, allocated by the stream's first call, which also waits for what was prepared on another stream.

    Build it after everything that calls read has been enqueued on the current stream. The owner holds its lock around :meth:`on`.

    While another library lends its memory, the sums of a large workspace are allocated for one call: hold what :meth:`on` returns until
    the kernels are enqueued. The library then gives the memory to later work on the stream. The counters, which are zeros between calls,
    are kept in any case.

    Parameters
    ----------
    shape, dtype
        Shape and dtype of `partial`.
    counters : int or tuple of int
        Shape of `arrived`.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike, counters: int | tuple[int, ...] = 0) -> None:
        self._shape, self._dtype, self._counters = shape, dtype, counters
        self._spaces: dict[int, Workspace] = {}
        #: Streams whose counters are zeroed only by replays of a captured graph so far.
        self._unset: set[int] = set()
        #: The counters of calls whose sums lie in lent memory.
        partial_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._lending = None if partial_bytes < LENT_FROM else Workspaces(0, dtype, counters)
        self._made_on = cupy.cuda.get_current_stream().ptr
        self._made = cupy.cuda.Event(disable_timing=True)
        if not cupy.cuda.runtime.streamIsCapturing(self._made_on):
            self._made.record()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        own = sum(int(part.nbytes) for space in self._spaces.values() for part in space)
        return own if self._lending is None else own + self._lending.nbytes

    def on(self, stream: int) -> Workspace:
        """The workspace of the current stream, whose address is `stream`; a call that is being recorded gets one of its own."""
        recording = jit.recorder()
        if recording is not None:
            partial = recording.scratch((id(self), "partial"), self._shape, self._dtype, zero=False)
            return Workspace(partial, recording.scratch((id(self), "arrived"), self._counters, "int32", zero=True))
        if self._lending is not None and interop.is_lent():
            return Workspace(cupy.empty(self._shape, self._dtype), self._lending.on(stream).arrived)
        found = self._spaces.get(stream) or self._first(stream)
        if self._unset and stream in self._unset:
            found.arrived.fill(0)
            if not cupy.cuda.runtime.streamIsCapturing(stream):
                self._unset.discard(stream)
        return found

    def is_settled(self, stream: int) -> bool:
        """Whether later calls on a stream may reuse its workspace without calling :meth:`on` again."""
        return stream not in self._unset and not (self._lending is not None and interop.is_lent())

    def _first(self, stream: int) -> Workspace:
        spaces = self._spaces
        if cupy.cuda.runtime.streamIsCapturing(stream):
            # A capture begins after a synchronisation and cannot allocate, so it takes over the workspace of earlier calls.
            if spaces:
                before = next(iter(spaces))
                spaces[stream] = spaces.pop(before)
                if before in self._unset:
                    self._unset = self._unset - {before} | {stream}
                return spaces[stream]
            if self._counters:
                # Work enqueued now runs only at a replay, so whichever graph or call runs first has to zero the counters.
                self._unset.add(stream)
        elif stream != self._made_on:
            cupy.cuda.get_current_stream().wait_event(self._made)
        counters = (cupy.empty if stream in self._unset else cupy.zeros)(self._counters, "int32")
        made = spaces[stream] = Workspace(cupy.empty(self._shape, self._dtype), counters)
        return made


class Rooms:
    """Workspaces of kernels by purpose and stream; equal calls get the same memory, so that captured graphs may hold it.

    Prepared kernels hold a reference to the rooms instead of the schedule, so that the schedule can keep the kernels without a cycle.
    """

    def __init__(self) -> None:
        self._spaces: dict[tuple[Any, ...], Workspaces] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(spaces.nbytes for spaces in self._spaces.values())

    def on_stream(self, name: str, shape: tuple[int, ...], dtype: Any, counters: int = 0) -> Workspace:
        """The workspace of calls on the current stream, with `counters` counters."""
        stream, key = cupy.cuda.get_current_stream().ptr, (name, shape, np.dtype(dtype), counters)
        with self._lock:
            spaces = self._spaces.get(key)
            if spaces is None:
                spaces = self._spaces[key] = Workspaces(shape, dtype, counters)
            return spaces.on(stream)


def _summed(counts: Any, dtype: Any) -> Any:
    """For each count the sum of those before it, and at the end the total."""
    before = cupy.zeros(int(counts.size) + 1, dtype)
    before[1:] = cupy.cumsum(counts)
    return before


def _as_read(indices: Any) -> Any:
    """Indices aligned to 16 bytes, as kernels read them; None stays None."""
    if indices is None or (indices.flags.c_contiguous and indices.data.ptr % 16 == 0):
        return indices
    return interop.aligned(indices)


class Schedule:
    """How the kernels walk one CSR pattern; built once for a pattern and kept by the pattern's owner. The arrays must not change.

    Parameters
    ----------
    indptr : cupy.ndarray of int32 or int64
        Must be valid: from 0 to `nnz`, never decreasing.
    shape : tuple of int
    nnz : int

    A cut is made on first use, with at most four synchronisations, and kept.
    """

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int], nnz: int) -> None:
        self.indptr, self.shape, self.nnz = indptr, (int(shape[0]), int(shape[1])), int(nnz)
        self.indices: Any = _as_read(indices)
        self._cuts: dict[tuple[int, int], Cut] = {}
        #: The pattern's units from ``units.py``, by their settings.
        self.units: dict[tuple[Any, ...], Any] = {}
        self._edge_rows: tuple[Any, Any] | None = None
        self.rooms = Rooms()
        #: Kernels prepared for the pattern, by their settings; they hold its arrays and rooms.
        self.products: dict[Any, Any] = {}
        #: Factors of edges, by the scales they are made of, as long as a kernel holds them.
        self.factors: WeakValueDictionary[Any, Any] = WeakValueDictionary()
        self.lock = threading.Lock()
        #: Held while kernels are enqueued that pass data through a workspace, since threads may share a stream.
        self.order = threading.RLock()

    @property
    def large(self) -> bool:
        """Whether the indices are int64."""
        return bool(self.indptr.dtype.itemsize == 8)

    @property
    def defines(self) -> dict[str, int]:
        """Compile-time constants of kernels over this pattern."""
        return constants(self.indptr.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes on the device of everything made for the pattern."""
        tables = 0 if self._edge_rows is None else sum(int(table.nbytes) for table in self._edge_rows)
        units = {id(units): int(units.table.nbytes) for units in self.units.values()}
        return tables + self.rooms.nbytes + sum(units.values()) + sum(cut.nbytes for cut in self._cuts.values())

    @property
    def prepared(self) -> int:
        """The number of things made for the pattern; when it grows, other streams have to wait for the new one."""
        return len(self._cuts) + len(self.units) + (self._edge_rows is not None)

    def along(self, indices: Any) -> Schedule:
        """A schedule of the same rows with other columns of edges; it shares everything made for the rows."""
        other = copy(self)
        other.indices, other.products, other.factors = _as_read(indices), {}, WeakValueDictionary()
        return other

    def indexed(self) -> Schedule:
        """The schedule with explicit columns, even if every edge is its own column."""
        if self.indices is not None:
            return self
        return self.along(cupy.arange(self.nnz, dtype=self.indptr.dtype))

    def cut(self, lanes: int, *, warps: int = _WARPS, span: int | None = None, longest: int | None = None) -> Cut:
        """The cut for groups of `lanes` lanes (a power of two up to 32), or with a given span and length of pieces.

        `warps` is the number of warps that a multiprocessor runs at the same time. `longest` must be a multiple of 4.
        """
        chosen = choose_cut(self.shape[0], self.nnz, lanes, jit.capability().multiprocessors, warps)
        key = (span or chosen[0], longest or chosen[1])
        with self.lock:
            if key not in self._cuts:
                self._cuts[key] = self._make(*key)
            return self._cuts[key]

    def params(self, cut: Cut, lanes: int) -> ctypes.Structure:
        """The argument of a kernel that walks `cut`."""
        arrays = {"starts": cut.starts, "piece_row": cut.piece_row, "piece_first": cut.piece_first}
        walk = self.walk_params(lanes, cut.longest)
        return jit.filled(walk, **arrays, streams=cut.streams, pieces=cut.pieces)

    def walk_params(self, lanes: int, longest: int) -> ctypes.Structure:
        """The argument without a cut, for kernels that get their work from ``units.py``."""
        whole = whole_batches(self.shape[0], self.nnz, lanes)
        own = {"indptr": self.indptr, "indices": self.indices, "shift": lanes.bit_length() - 1, "whole": whole}
        return jit.filled(StreamsParams(longest=longest), **own)

    def edge_rows(self) -> tuple[Any, Any]:
        """Tables from which kernels that deal out edges (``edges/ends.cuh``) find the row of an edge; made once.

        Returns
        -------
        rows : cupy.ndarray, dtype of `indptr`
            Rows of edges 0, 32, 64, ... and of the last one.
        behind : cupy.ndarray (nnz,), uint8
            For each edge, its row minus the row of the first edge of its group of 32, but at most 255.
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
        """Memory for calls on the current stream; equal calls get the same memory, since captured graphs hold its address."""
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
        """Rows and first edges of the pieces of long rows; row i has ``each[i]`` pieces."""
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
        """First rows of streams of about `span` edges and rows; each of the rows `away`, which have `edges` edges, is its own stream."""
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
