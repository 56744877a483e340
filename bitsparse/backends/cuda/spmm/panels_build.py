"""The index of a pattern by panels: which rows of features are staged for the edges of 256 rows, in what order, and the other edges."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.chips import H200
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.sparse.checks import rows_of
from bitsparse.jit import cupy

#: Warps that sum, and rows of each; together the rows of a panel.
WARPS, ROWS = 16, 16
PANEL = WARPS * ROWS
#: Where the two stages begin in shared memory.
_STAGES, _RING_AT = 2, 128 + WARPS * 256
#: In place of a row of the result, and of the offset of a staged row.
_NO_ROW, _NO_EDGE = -(1 << 31), 1 << 31
#: Rows of at least so many edges may form panels of their own, in the order of their number of edges: all rows, or those of hubs.
_HUBS = (0, 1000)
#: Panels with more edges are cut into pieces: at least so many edges, and pieces of a block if all blocks had equal work.
_PIECE, _PIECES = 1024, 6
#: Edges that are written into records at a time, which bounds the memory for it.
_SLICE = 1 << 22
#: Instructions of a record, and the share of the rows of a panel that a chunk has edges to, as each begins a record.
_RECORD_SLOTS, _BEGUN = 39.0, 0.45
_RATES = H200.panels


class Shape(NamedTuple):
    """What an index is built for.

    Attributes
    ----------
    blocks : int
    vectors, part : int
        16-byte vectors of a row of features, and of a slice of its columns; sums of a slice fit into the registers.
    stage_rows : int
        Rows of features that a stage holds.
    """

    blocks: int
    vectors: int
    part: int
    stage_rows: int

    @classmethod
    def of(cls, columns: int, blocks: int, shared_bytes: int) -> Shape:
        """The fewest slices, and the largest stages that fit.

        Examples
        --------
        >>> Shape.of(128, 132, 232_448), Shape.of(300, 132, 232_448)[1:]
        (Shape(blocks=132, vectors=32, part=32, stage_rows=222), (75, 25, 285))
        """
        vectors = -(-columns // 4)
        part = -(-vectors // -(-vectors // 32))
        return cls(blocks, vectors, part, (shared_bytes - _RING_AT) // (_STAGES * part * 16))

    @property
    def groups(self) -> int:
        """Edges that a warp sums at once."""
        return 1 if self.part > 16 else 2 if self.part > 8 else 4

    @property
    def slices(self) -> int:
        """Slices of the columns; the last one overlaps the one before if the vectors cannot be shared out."""
        return -(-self.vectors // self.part)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return _RING_AT + _STAGES * self.stage_rows * self.part * 16

    def clocks(self, edges: Any, sources: Any) -> Any:
        """Estimated clocks of a multiprocessor for an item: of shared memory, instructions or the L2, whichever takes longest.

        Parameters
        ----------
        edges, sources : array
            Staged edges, and the rows of features that they share.
        """
        waves, chunks = -(-self.part // 8), -(-sources // self.stage_rows)
        records = edges / (4 * self.groups) + _BEGUN * PANEL * chunks
        pipe = ((edges + sources) * waves + records) / _RATES.shared_share
        issued, fetched = records * _RECORD_SLOTS / _RATES.starts, sources * self.part * 16 / _RATES.l2_bytes
        return self.slices * (cupy.maximum(pipe, cupy.maximum(issued, fetched)) + _RATES.item_clocks)

    def clocks_alone(self, edges: Any) -> Any:
        """The same for edges that are gathered one by one."""
        return edges * (self.vectors * 16 / _RATES.l2_bytes)


class Runs(NamedTuple):
    """Edges by panel and row of features; those of a run share both.

    Attributes
    ----------
    place : cupy.ndarray (rows,)
        PANEL times the panel of a row, plus its place there: the warp, and its turn among the warp's rows.
    key : cupy.ndarray (edges,) of int64
        Ascending: panel and row of features, which are those of the run, times PANEL, plus the place in the panel.
    at, edges, panel, source : cupy.ndarray (runs,) of int32
        First edge, number of edges, panel, and row of features.
    staged : cupy.ndarray (runs,) of bool
    saved : float
        Clocks that staging saves.
    """

    place: Any
    key: Any
    at: Any
    edges: Any
    panel: Any
    source: Any
    staged: Any
    saved: float


class PanelIndex:
    """A canonical pattern by panels, for features of one width; made once, and kept by the pattern's owner.

    Building sorts the edges five times, and for a moment takes some 40 bytes an edge.

    Parameters
    ----------
    indptr, indices : cupy.ndarray of int32 or int64
    shape : tuple of int
        Rows and columns of the pattern, like its edges fewer than 2**31.
    columns : int
        Columns of the features.

    Attributes
    ----------
    arrays : dict of cupy.ndarray
        The arrays of ``PanelParams`` in ``spmm/panels.cu``; none if no edges are staged.
    pieces : cupy.ndarray (rows, 3) of int32
        Rows that are summed in pieces, their first slots, and the numbers of their pieces.
    slots : int
        Rows of the memory for sums of pieces.
    left : Schedule
        The edges that are not staged.
    share, reuse : float
        The share of the edges that are staged, and how many of them take one staged row.
    """

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int], columns: int) -> None:
        chip = jit.capability()
        self.shape = Shape.of(columns, chip.multiprocessors, chip.shared_bytes)
        pattern = (indptr, indices, shape, _mixed(shape[1]), self.shape)
        found = _runs(*pattern, max(_HUBS, key=lambda hubs: _runs(*pattern, hubs).saved))
        first = cupy.zeros(found.key.size, bool)
        first[found.at] = True
        run = cupy.cumsum(first, dtype=np.int32) - 1
        staged = found.staged[run]
        self.left = _left(found, found.key[~staged], shape)
        run = (cupy.cumsum(found.staged, dtype=np.int32) - 1)[run[staged]]
        seat = (found.key[staged] % PANEL).astype(np.uint8)
        runs = tuple(part[found.staged] for part in (found.edges, found.panel, found.source))
        place = found.place
        del first, staged, found
        self.share, self.reuse = int(run.size) / int(indices.size), int(run.size) / max(1, int(runs[0].size))
        self.arrays: dict[str, Any] = {}
        self.pieces, self.slots = cupy.empty((0, 3), np.int32), 0
        if run.size:
            self.arrays, self.pieces, self.slots = _arranged(self.shape, place, runs, run, seat)

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without the schedule of the edges that are not staged and without workspaces."""
        arrays = (*self.arrays.values(), self.pieces, self.left.indptr, self.left.indices)
        return sum(int(array.nbytes) for array in arrays)


def _mixed(columns: int) -> Any:
    """Rows of features in an order that looks random, the same in all panels.

    Neighbouring rows of features have edges to the same few rows of a panel, so one warp would have most of the edges of a chunk.
    """
    return cupy.argsort(cupy.arange(columns) * 2_654_435_761 % (1 << 32), kind="stable").astype(np.int32)


def _runs(indptr: Any, indices: Any, shape: tuple[int, int], mixed: Any, form: Shape, hubs: int) -> Runs:
    """The runs if rows of at least `hubs` edges form panels in the order of their number of edges, before all others as they are."""
    (rows, columns), panels = shape, -(-shape[0] // PANEL)
    degrees = cupy.diff(indptr).astype(np.int64)
    most = int(degrees.max()) + 1
    order = cupy.argsort(cupy.where(degrees >= hubs, most - degrees, most), kind="stable")
    panel = cupy.empty(rows, np.int64)
    panel[order] = cupy.arange(rows) // PANEL
    # Rows of a panel are dealt to its warps by their number of edges, forth and back, so that warps have equal work.
    dealt = cupy.argsort(panel * most + (most - 1 - degrees), kind="stable")
    turn, seat = cupy.arange(rows) % PANEL // WARPS, cupy.arange(rows) % WARPS
    place = cupy.empty(rows, np.int64)
    place[dealt] = panel[dealt] * PANEL + cupy.where(turn % 2 == 0, seat, WARPS - 1 - seat) * ROWS + turn
    turns = cupy.empty(columns, np.int32)
    turns[mixed] = cupy.arange(columns, dtype=np.int32)
    key = place[rows_of(indptr, indices.size)]
    low = (key % PANEL).astype(np.uint8)
    key //= PANEL
    key *= columns
    key += turns[indices]
    key *= PANEL
    key += low
    del low
    key.sort()
    first = cupy.ones(key.size, bool)
    first[1:] = (key[1:] ^ key[:-1]) >= PANEL
    at = cupy.flatnonzero(first).astype(np.int32)
    edges = cupy.diff(cupy.concatenate([at, cupy.asarray([key.size], np.int32)]))
    panel, source = (key[at] // (PANEL * columns)).astype(np.int32), mixed[key[at] // PANEL % columns]
    shared = edges > 1
    panel_edges, panel_runs = (_totals(panel, panels, part) for part in (edges * shared, shared))
    saved = form.clocks_alone(panel_edges) - form.clocks(panel_edges, panel_runs)
    return Runs(place, key, at, edges, panel, source, shared & (saved > 0)[panel], float(cupy.maximum(saved, 0).sum()))


def _left(found: Runs, key: Any, shape: tuple[int, int]) -> Schedule:
    """The edges with these keys as a pattern."""
    rows, columns = shape
    row_at = cupy.empty(-(-rows // PANEL) * PANEL, np.int64)
    row_at[found.place] = cupy.arange(rows)
    turn = key // PANEL
    edges = row_at[turn // columns * PANEL + key % PANEL]
    edges *= columns
    edges += _mixed(columns)[turn % columns]
    edges.sort()
    starts = cupy.searchsorted(edges, cupy.arange(rows + 1) * columns).astype(np.int32)
    return Schedule(starts, (edges % columns).astype(np.int32), shape, int(edges.size))


def _arranged(form: Shape, place: Any, runs: tuple[Any, ...], run: Any, seat: Any) -> tuple[dict[str, Any], Any, int]:
    """The kernel's arrays, the table of pieces and the number of slots.

    Parameters
    ----------
    place : cupy.ndarray (rows,)
        As for :class:`Runs`.
    runs : tuple of cupy.ndarray (runs,)
        Number of edges, panel, and row of features of the staged runs.
    run, seat : cupy.ndarray of int32, uint8 (staged edges,)
        The run of an edge, and the place of its row in the panel.
    """
    run_edges, run_panel, run_source = runs
    rows, panels = int(place.size), -(-int(place.size) // PANEL)
    # Items: panels, or pieces of panels, cut between runs.
    panel_edges = _totals(run_panel, panels, run_edges)
    pieces = -(-panel_edges // max(_PIECE, int(run.size) // (form.blocks * _PIECES)))
    before = _starts(run_edges)[:-1] - _starts(panel_edges)[run_panel]
    first_item = _starts(pieces)
    item = first_item[run_panel] + before * pieces[run_panel] // panel_edges[run_panel]
    items = int(first_item[-1])
    item_edges, item_runs = _totals(item, items, run_edges), _totals(item, items)
    block_items, order = _shared_out(form.clocks(item_edges, item_runs).get(), form.blocks)
    number = cupy.empty(items, np.int64)
    number[order] = cupy.arange(items)
    at = cupy.arange(item.size) - _starts(item_runs)[item]
    item = number[item]

    # Chunks of items, and their rows of features.
    item_chunk = _starts(-(-item_runs[order] // form.stage_rows))
    chunks = int(item_chunk[-1])
    chunk = item_chunk[item] + at // form.stage_rows
    sources = cupy.empty(at.size, np.int32)
    sources[_starts(item_runs[order])[item] + at] = run_source
    chunk_sources = _starts(_totals(chunk, chunks))
    block_chunks = item_chunk[block_items]
    last_of_item = cupy.zeros(chunks, np.int64)
    last_of_item[item_chunk[1:] - 1] = 1

    # A cell is a chunk of a warp. The cells of a block lie warp by warp, so that the records of a warp are one stream.
    each_block = cupy.diff(block_chunks)
    block = cupy.searchsorted(block_chunks, cupy.arange(chunks), side="right") - 1
    cell_at, cell_step = block_chunks[block] * (WARPS - 1) + cupy.arange(chunks), each_block[block]
    cell_chunk = cupy.empty(chunks * WARPS, np.int64)
    cell_chunk[cell_at[:, None] + cell_step[:, None] * cupy.arange(WARPS)] = cupy.arange(chunks)[:, None]
    summed = cupy.zeros(items * PANEL, bool)
    summed[item[run] * PANEL + seat] = True
    key = cell_step[chunk][run]
    key *= seat // ROWS
    key += cell_at[chunk][run]
    key *= ROWS
    key += seat % ROWS
    key *= form.stage_rows
    key += (at % form.stage_rows)[run]
    key.sort()
    stream_at = (block_chunks[:-1, None] * WARPS + cupy.arange(WARPS) * each_block[:, None]).ravel()
    lines, records = _streams(form, key, stream_at, last_of_item[cell_chunk])

    # Where sums go: rows of the result, or slots of pieces.
    item_panel = cupy.searchsorted(first_item, order, side="right") - 1
    row_at = cupy.full(panels * PANEL, _NO_ROW, np.int64)
    row_at[place] = cupy.arange(rows)
    row_at = row_at.reshape(panels, PANEL)
    cut = pieces > 1
    first_slot = _starts(pieces * cut) * PANEL
    slot = (first_slot[item_panel] + (order - first_item[item_panel]) * PANEL)[:, None] + cupy.arange(PANEL)
    whole = cupy.where(summed.reshape(-1, PANEL), row_at[item_panel], _NO_ROW)
    in_pieces = cupy.where(row_at[item_panel] == _NO_ROW, _NO_ROW, -1 - slot)
    cut = cupy.flatnonzero(cut)
    slots = first_slot[cut][:, None] + cupy.arange(PANEL)
    table = cupy.stack([row_at[cut], slots, cupy.broadcast_to(pieces[cut][:, None], slots.shape)], axis=-1)
    table = table.reshape(-1, 3)
    arrays = {
        "block_items": block_items,
        "block_chunks": block_chunks,
        "chunk_sources": chunk_sources,
        "sources": sources,
        "lines": lines,
        "rows": cupy.where((pieces[item_panel] > 1)[:, None], in_pieces, whole),
    }
    narrow = {name: cupy.ascontiguousarray(array.astype(np.int32)) for name, array in arrays.items()}
    table = cupy.ascontiguousarray(table[table[:, 0] != _NO_ROW].astype(np.int32))
    return {**narrow, "records": records}, table, int(first_slot[-1])


def _streams(form: Shape, key: Any, stream_at: Any, ends: Any) -> tuple[Any, Any]:
    """The first line of every warp's stream, and all lines.

    Parameters
    ----------
    key : cupy.ndarray (staged edges,)
        Ascending: cell, row of the warp, row of the stage.
    stream_at : cupy.ndarray (streams,)
        The first cell of every stream.
    ends : cupy.ndarray (cells,)
        Whether the item ends with a cell.
    """
    each, a_line, cells = 4 * form.groups, 8 // form.groups, int(ends.size)
    first = cupy.ones(key.size, bool)
    destination = key // form.stage_rows
    first[1:] = destination[1:] != destination[:-1]
    group_at = cupy.flatnonzero(first)
    group = cupy.cumsum(first, dtype=np.int32) - 1
    group_cell, group_row = destination[group_at] // ROWS, destination[group_at] % ROWS
    del destination, first
    records_of = -(-cupy.diff(cupy.concatenate([group_at, cupy.asarray([key.size])])) // each)
    before = _starts(records_of)
    in_cell = cupy.searchsorted(group_cell, cupy.arange(cells + 1))
    cell_record = _starts(1 + before[in_cell[1:]] - before[in_cell[:-1]])  # a header first
    lengths = cupy.diff(cell_record[cupy.concatenate([stream_at, cupy.asarray([cells])])])
    lines = _starts(-(-lengths // a_line))
    stream = cupy.searchsorted(stream_at, cupy.arange(cells), side="right") - 1
    header = lines[stream] * a_line + cell_record[:-1] - cell_record[stream_at[stream]]
    words = cupy.full(((int(lines[-1]) + 4) * a_line, form.groups, 4), _NO_EDGE, np.uint32)
    bits = _starts(np.int64(1) << group_row)
    words[header, :, 0] = (bits[in_cell[1:]] - bits[in_cell[:-1]]).astype(np.uint32)[:, None]
    words[header, :, 1] = ends.astype(np.uint32)[:, None]
    first_record = header[group_cell] + 1 + before[:-1] - before[in_cell[group_cell]]
    for start in range(0, key.size, _SLICE):
        part = slice(start, min(start + _SLICE, key.size))
        nth = cupy.arange(part.start, part.stop) - group_at[group[part]]
        at = (first_record[group[part]] + nth // each) * each + nth % form.groups * 4 + nth % each // form.groups
        words.reshape(-1)[at] = (key[part] % form.stage_rows * (form.part * 16)).astype(np.uint32)
    words[first_record + records_of - 1, :, 0] |= np.uint32(1)
    return lines[:-1], words.reshape(-1)


def _shared_out(cost: Any, blocks: int) -> tuple[Any, Any]:
    """Items in the order of blocks, and where each block's items start: the costliest item left goes to the block with the least work."""
    block, heap = np.empty(cost.size, np.int64), [(0.0, number) for number in range(blocks)]
    ranked = np.argsort(-cost, kind="stable")
    for item in ranked:
        load, number = heap[0]
        heapq.heapreplace(heap, (load + float(cost[item]), number))
        block[item] = number
    order = ranked[np.argsort(block[ranked], kind="stable")]
    return cupy.asarray(np.searchsorted(block[order], np.arange(blocks + 1))), cupy.asarray(order)


def _totals(of: Any, length: int, values: Any = None) -> Any:
    """The number, or the sum of the values, of what belongs to each of `length` parts."""
    weights = None if values is None else values.astype(np.float64)
    return cupy.bincount(of, weights, minlength=length).astype(np.int64)


def _starts(counts: Any) -> Any:
    """Where each of some consecutive parts starts, and the end."""
    return cupy.concatenate([cupy.zeros(1, np.int64), cupy.cumsum(counts, dtype=np.int64)])
