"""CSR patterns cut into streams of edges and pieces of long rows, on the GPU: what the kernels over CSR patterns walk."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

from bitsparse import jit

__all__ = ["Cut", "Schedule", "StreamsParams", "choose_cut"]

#: Warps of a multiprocessor, unless a kernel says otherwise, and rounds of streams for all of them: a stream lasts for an eighth of the
#: whole at most, as the last ones run alone.
_WARPS, _ROUNDS = 32, 8
#: Edges and rows of a stream: what is worth a group's start, and what balances well enough.
_SHORT, _LEAST, _MOST = 8, 32, 512
#: A row is cut into pieces if it is longer than so many streams; of a multiple of so many edges.
_STREAMS_IN_PIECE, _PIECE_STEP = 2, 32
#: Edges of a batch, and what share of them must be within a row throughout a warp to be treated as such.
_BATCH, _OFTEN = 8, 0.4
_THREADS = 256


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


def _summed(counts: Any, dtype: Any) -> Any:
    """Sums of the counts in front of each and of all of them."""
    cupy = jit.require_cupy("schedule")
    before = cupy.zeros(int(counts.size) + 1, dtype)
    before[1:] = cupy.cumsum(counts)
    return before


class Schedule:
    """How the kernels walk one CSR pattern; made once for a pattern and kept by its owner, as the arrays must not change.

    Parameters
    ----------
    indptr : cupy.ndarray of int32 or int64
        Valid: from 0 to `nnz`, never decreasing.
    shape : tuple of int
    nnz : int

    A cut is made when it is first asked for, with at most three synchronisations, and kept.
    """

    def __init__(self, indptr: Any, shape: tuple[int, int], nnz: int) -> None:
        self.indptr, self.shape, self.nnz = indptr, (int(shape[0]), int(shape[1])), int(nnz)
        self._cuts: dict[tuple[int, int], Cut] = {}
        #: What ``units.py`` made of the pattern, by its settings.
        self.units: dict[tuple[Any, ...], Any] = {}
        self._edge_rows: tuple[Any, Any] | None = None
        self._workspaces: dict[tuple[Any, ...], dict[int, Any]] = {}
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
        return {"BS_LARGE": 1} if self.large else {}

    @property
    def nbytes(self) -> int:
        """Bytes of all that was made, on the device."""
        tables = 0 if self._edge_rows is None else sum(int(table.nbytes) for table in self._edge_rows)
        spaces = sum(int(space.nbytes) for kind in self._workspaces.values() for space in kind.values())
        units = {id(units): int(units.table.nbytes) for units in self.units.values()}
        return tables + spaces + sum(units.values()) + sum(cut.nbytes for cut in self._cuts.values())

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

    def params(self, cut: Cut, indices: Any, lanes: int) -> ctypes.Structure:
        """The argument of a kernel. `indices` is None, or a C-contiguous array aligned to 16 bytes."""
        found = self.walk_params(indices, lanes, cut.longest)
        found.starts, found.piece_row, found.piece_first = (
            array.data.ptr for array in (cut.starts, cut.piece_row, cut.piece_first)
        )
        found.streams, found.pieces = cut.streams, cut.pieces
        return found

    def walk_params(self, indices: Any, lanes: int, longest: int) -> ctypes.Structure:
        """The same for kernels that are told their stretches otherwise (``units.py``)."""
        found = StreamsParams(self.indptr.data.ptr, None if indices is None else indices.data.ptr)
        found.longest, found.shift = longest, lanes.bit_length() - 1
        found.whole = whole_batches(self.shape[0], self.nnz, lanes)
        return found

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
                cupy = jit.require_cupy("schedule")
                edges = cupy.arange(-(-self.nnz // 32) + 1, dtype=self.indptr.dtype) * 32
                found = cupy.searchsorted(self.indptr, cupy.minimum(edges, self.nnz - 1), side="right") - 1
                rows, behind = found.astype(self.indptr.dtype), cupy.empty(self.nnz, "uint8")
                self._launch("rows_behind", self.nnz, rows[:0], rows, behind, None, self.nnz, 32)
                self._edge_rows = rows, behind
            return self._edge_rows

    def workspace(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory of calls on the current stream, the same for every call with these arguments: a captured graph holds its address."""
        cupy = jit.require_cupy("schedule")
        stream = cupy.cuda.get_current_stream().ptr
        with self.lock:
            spaces = self._workspaces.setdefault((name, shape, str(dtype)), {})
            if stream not in spaces:
                # A capture begins after a synchronisation and cannot allocate: it takes over what calls have worked in before.
                taken = spaces and cupy.cuda.runtime.streamIsCapturing(stream)
                spaces[stream] = spaces.pop(next(iter(spaces))) if taken else cupy.empty(shape, dtype)
            return spaces[stream]

    def _make(self, span: int, longest: int) -> Cut:
        cupy = jit.require_cupy("schedule")
        lengths = self.indptr[1:] - self.indptr[:-1]
        long_rows = cupy.flatnonzero(lengths > longest).astype(self.indptr.dtype)
        each = (lengths[long_rows] + (longest - 1)) // longest
        piece_row, piece_first = self.pieces_of(long_rows, each, longest)
        starts = self.stream_starts(span, long_rows, lengths[long_rows])
        return Cut(
            starts,
            piece_row,
            piece_first,
            int(starts.size) - 1,
            int(piece_row.size),
            int(long_rows.size),
            span,
            longest,
        )

    def pieces_of(self, long_rows: Any, each: Any, longest: int) -> tuple[Any, Any]:
        """Rows and first edges of the pieces of long rows, of which they have `each`."""
        cupy = jit.require_cupy("schedule")
        dtype, count = self.indptr.dtype, int(long_rows.size)
        if not count:
            return cupy.empty(0, dtype), cupy.empty(0, dtype)
        before = _summed(each, dtype)
        pieces = int(before[-1].get())
        piece_row, piece_first = cupy.empty(pieces, dtype), cupy.empty(pieces, dtype)
        self._launch("piece_edges", pieces, long_rows, before, piece_row, piece_first, pieces, longest)
        return piece_row, piece_first

    def stream_starts(self, span: int, away: Any, edges: Any) -> Any:
        """First rows of streams of about `span` edges and rows; each of the rows `away`, of so many `edges`, is one of its own."""
        cupy = jit.require_cupy("schedule")
        rows, dtype, gone = self.shape[0], self.indptr.dtype, int(away.size)
        before = _summed(edges, dtype)
        count = -(-(self.nnz - (int(before[-1].get()) if gone else 0) + rows) // span)
        starts = cupy.empty(count + 1 + 2 * gone, dtype)
        self._launch("stream_starts", count + 1, away, before, starts, None, count, span)
        if gone:
            starts[count + 1 : count + 1 + gone] = away
            starts[count + 1 + gone :] = away + 1
            starts = cupy.sort(starts)
        return starts

    def _launch(
        self, name: str, items: int, long_rows: Any, before: Any, out: Any, first: Any, count: int, span: int
    ) -> None:
        params = ScheduleParams(self.indptr.data.ptr, long_rows.data.ptr, before.data.ptr, out.data.ptr)
        params.first = None if first is None else first.data.ptr
        params.rows, params.count, params.span, params.long_count = self.shape[0], count, span, int(long_rows.size)
        kernel = jit.kernel("csr/schedule.cu", name, self.defines)
        kernel.launch(-(-items // _THREADS), _THREADS, params)()


VARIANTS = jit.variants_of("csr/schedule.cu", "stream_starts", ({}, {"BS_LARGE": 1}))
