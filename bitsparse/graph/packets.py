"""Parts of a graph as packets: one compact buffer for each group of batches, quick to copy to a GPU (QGTC section 4.6).

A packet holds these sections, one after the other at multiples of 16 bytes:

- the head, eight uint32: number of nodes, of chunks and of entries; start of chunks, stream and features; total bytes; and flags (1: the
  receiver adds an edge from every node to itself, which the packet leaves out);
- the chunks, five uint32 for each chunk of at most 256 rows, and five more for the end: first row, first column, first entry,
  ``(offset in the stream / 4) << 5 | code``, and the span, which is the number of nodes in the largest block;
- the stream: for each chunk the lengths of its rows, in 4 << (code >> 3) bits each, then the gaps between the ascending columns of each
  row, in units of 3, 4, 5, 6, 7, 8, 12 or 16 bits (code & 7), whichever takes the fewest bytes. A unit of all ones stands for no entry
  but adds its value to the next gap;
- the codes of the features, row after row, without the padding of a BitTensor's rows.

Node numbers are local to the packet. The gaps of row r count from the larger of the chunk's first column and ``r + 1 - span``, before
which its block cannot start. An edge thus takes less than a byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays.packed import Layout
from bitsparse.backends.host import packets as packing
from bitsparse.backends.params import words_shape
from bitsparse.graph.adjacency import square_pattern, tiles_of
from bitsparse.graph.parts import numbered_by_part

_HEAD, _TABLE = 32, 20
_LOOPS = 1
#: Bytes of a group's stream that the offset of a chunk can address.
_STREAM_LIMIT = 1 << 29
_MOST = 2**31 - 1


class FeatureForm(NamedTuple):
    """How a packet stores features: codes of a BitTensor (n, columns) packed along its rows.

    Examples
    --------
    >>> form = FeatureForm(29, 8, "unsigned", "rows")
    >>> form.runs, form.used, form.stride
    (1, 29, 32)
    """

    columns: int
    bits: int
    encoding: str
    layout: Layout

    @property
    def runs(self) -> int:
        """Runs of bytes in each row: one for each plane, or a single one."""
        return self.bits if self.layout == "planes" else 1

    @property
    def used(self) -> int:
        """Bytes of a run in the packet."""
        return -(-self.columns * self.bits // (8 * self.runs))

    @property
    def stride(self) -> int:
        """Bytes of a run in a BitTensor's words."""
        words = words_shape((1, self.columns), self.bits, -1, self.layout)
        return 4 * int(np.prod(words)) // self.runs

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the packet."""
        return self.runs * self.used


class Group(NamedTuple):
    """Batches that are copied and computed together: the range `low` .. `high` of their nodes' new numbers, and their contents."""

    number: int
    batches: int
    low: int
    high: int
    first_chunk: int
    last_chunk: int
    entries: int
    dropped: int
    stream_bytes: int

    @property
    def nodes(self) -> int:
        """Nodes of the group."""
        return self.high - self.low


@dataclass(frozen=True)
class Packet:
    """A packed group, in memory of at least `nbytes` bytes that start at a multiple of 16."""

    group: Group
    buffer: NDArray[np.uint8]
    nbytes: int
    features_at: int
    loops: bool

    def pattern(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The CSR arrays of the group's edges, with self loops first in each row."""
        data, group = self.buffer[: self.nbytes], self.group
        indptr, indices = packing.expand(data, group.nodes, group.entries)
        return indptr, indices

    def features(self, form: FeatureForm) -> NDArray[np.uint32]:
        """The words of the features' BitTensor."""
        nodes = self.group.nodes
        words = np.empty(words_shape((nodes, form.columns), form.bits, -1, form.layout), np.uint32)
        source = self.buffer[self.features_at : self.features_at + nodes * form.row_bytes]
        to = words.reshape(-1).view(np.uint8)
        packing.copy_runs(to, form.stride, source, form.used, form.used, nodes * form.runs)
        return words


class Packets:
    """A graph cut into groups of batches of parts, each of which can be packed.

    Parameters
    ----------
    graph : sparse array of shape (n, n), tuple, TCTiledCSR, FRDC, BitTensor
        Every stored entry is an edge.
    labels : array_like of int, shape (n,)
        The part of each node. Empty parts are left out.
    parts_per_batch : int, default 20
    between : bool, default False
        Keep the edges between parts of one batch.
    self_loops : bool, default False
        Add an edge from each node to itself if it has none.
    group_nodes : int, default 1 << 16
        Most nodes of a group of several batches; a larger batch forms a group of its own.

    Attributes
    ----------
    order, place : ndarray of int32, shape (n,)
        The old number of each new number, part after part, and the new number of each old one.
    bounds, batches : ndarray of int64
        Where parts and batches start, in new node numbers.

    Examples
    --------
    >>> from bitsparse.graph.packets import Packets
    >>> a = np.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    >>> packets = Packets(a, [1, 1, 0, 0], parts_per_batch=1)
    >>> packets.order, packets.batches, len(packets.groups)
    (array([2, 3, 0, 1], dtype=int32), array([0, 2, 4]), 1)
    >>> packet = packets.pack(packets.groups[0])
    >>> packet.pattern(), packet.nbytes
    ((array([0, 1, 2, 3, 4], dtype=int32), array([1, 0, 3, 2], dtype=int32)), 96)
    """

    def __init__(
        self,
        graph: Any,
        labels: Any,
        *,
        parts_per_batch: int = 20,
        between: bool = False,
        self_loops: bool = False,
        group_nodes: int = 1 << 16,
        function: str = "Packets",
    ) -> None:
        pattern = square_pattern(function, graph)
        nodes = pattern.shape[0]
        if nodes > _MOST:
            raise ValueError(f"{function}: the graph has {nodes} nodes, but numbers of nodes have 32 bits; split it")
        per_batch = _check.integer(function, "parts_per_batch", parts_per_batch, 1)
        self.group_nodes = _check.integer(function, "group_nodes", group_nodes, 1)
        self.loops = _check.flag(function, "self_loops", self_loops)
        self.between, self.function = _check.flag(function, "between", between), function
        self.nodes, self.edges = nodes, int(pattern.indices.size)
        self.order, self.place, self.bounds = numbered_by_part(function, nodes, labels)
        self.parts = self.bounds.size - 1
        self.batches: NDArray[np.int64] = np.append(self.bounds[:-1:per_batch], nodes)
        self.blocks = self.batches if between else self.bounds
        arrays = (np.ascontiguousarray(pattern.indptr), np.ascontiguousarray(pattern.indices))
        self._graph = (*arrays, self.order, self.place, self.blocks)

    @cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        """First and last batch of each group."""
        bounds, first = [], 0
        for batch in range(1, self.batches.size):
            if batch - first > 1 and self.batches[batch] - self.batches[first] > self.group_nodes:
                bounds.append((first, batch - 1))
                first = batch - 1
        if first < self.batches.size - 1:
            bounds.append((first, self.batches.size - 1))
        return bounds

    @cached_property
    def _chunks(self) -> NDArray[np.int64]:
        """First row, number of rows, first block and span of each chunk: small blocks of a group share one, large blocks are split."""
        most = packing.CHUNK_ROWS
        ends = {int(self.batches[last]) for _, last in self._bounds}
        chunks: list[tuple[int, int, int, int]] = []
        opened: tuple[int, int, int] | None = None
        for block, (low, high) in enumerate(zip(self.blocks[:-1].tolist(), self.blocks[1:].tolist(), strict=True)):
            if opened is not None and high - opened[0] > most:
                chunks.append((opened[0], low - opened[0], *opened[1:]))
                opened = None
            if high - low > most:
                chunks.extend((row, min(most, high - row), block, high - low) for row in range(low, high, most))
                continue
            opened = (low, block, high - low) if opened is None else (*opened[:2], max(opened[2], high - low))
            if high in ends:
                chunks.append((opened[0], high - opened[0], *opened[1:]))
                opened = None
        return np.array(chunks, np.int64).reshape(-1, 4)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return packing.chunk_sizes(self._graph, self._chunks, self.loops)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups in the order of their nodes, computed by one pass over the edges.

        Raises
        ------
        ValueError
            A batch holds more than 2**31 - 1 edges, or more than a packet can hold.
        """
        groups = []
        for number, (first, last) in enumerate(self._bounds):
            low, high = int(self.batches[first]), int(self.batches[last])
            a, b = (int(i) for i in np.searchsorted(self._chunks[:, 0], (low, high)))
            entries, _, _, dropped = (int(total) for total in self._sizes[a:b].sum(axis=0))
            stream = int((-(-self._sizes[a:b, 1] // 4) * 4).sum())
            if entries > _MOST or stream >= _STREAM_LIMIT:
                raise ValueError(
                    f"{self.function}: batches {first}..{last - 1} hold {entries} edges in {stream} bytes, but a packet takes {_MOST} "
                    f"edges and {_STREAM_LIMIT} bytes; pass a smaller group_nodes or parts_per_batch, or more parts"
                )
            groups.append(Group(number, last - first, low, high, a, b, entries, dropped, stream))
        return tuple(groups)

    def layout(self, group: Group, row_bytes: int) -> tuple[int, int, int, int]:
        """Where chunks, stream and features of a packet start, and its total bytes, which must fit 32 bits."""
        table = _TABLE * (group.last_chunk - group.first_chunk + 1)
        stream = _HEAD + -(-table // 16) * 16
        features = stream + -(-group.stream_bytes // 16) * 16
        total = features + -(-group.nodes * row_bytes // 16) * 16
        if total >> 32:
            raise ValueError(
                f"{self.function}: batches of {group.nodes} nodes need {total} bytes, but a packet takes 4 GiB; pass a smaller "
                f"parts_per_batch or group_nodes, or more parts"
            )
        return _HEAD, stream, features, total

    def nbytes(self, group: Group, row_bytes: int = 0) -> int:
        """Bytes of a group's packet with `row_bytes` of features for each node."""
        return self.layout(group, row_bytes)[3]

    def facts(self, row_bytes: int = 0) -> dict[str, int]:
        """Numbers of nodes, of edges inside blocks and between them (dropped), of batches and groups, and the bytes of all packets."""
        groups, features = self.groups, self.nodes * row_bytes
        return {
            "nodes": self.nodes,
            "edges": sum(group.entries for group in groups),
            "dropped": sum(group.dropped for group in groups),
            "batches": self.batches.size - 1,
            "groups": len(groups),
            "adjacency_bytes": sum(self.nbytes(group, row_bytes) for group in groups) - features,
            "feature_bytes": features,
        }

    def pack(self, group: Group, row_bytes: int = 0, buffer: NDArray[np.uint8] | None = None) -> Packet:
        """Write a group's head, chunks and stream; the space for features is left as it is.

        Parameters
        ----------
        group : Group
        row_bytes : int, default 0
            Bytes of features for each node.
        buffer : ndarray of uint8, optional
            Where to write, at a multiple of 16 bytes; at least :meth:`nbytes` bytes.
        """
        table_at, stream_at, features_at, total = self.layout(group, row_bytes)
        if buffer is None:
            buffer = interop.aligned_bytes(total, 16)
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.size < total or buffer.ctypes.data % 16:
            raise ValueError(
                f"{self.function}: the buffer has {buffer.size} elements of {buffer.dtype}, but the packet needs {total} bytes at a "
                f"multiple of 16; pass a larger one"
            )
        chunks = self._chunks[group.first_chunk : group.last_chunk]
        sizes = self._sizes[group.first_chunk : group.last_chunk]
        places = np.concatenate([[0], np.cumsum(-(-sizes[:, 1] // 4) * 4)])
        count = len(chunks)
        head = (group.nodes, count, group.entries, table_at, stream_at, features_at, total, _LOOPS if self.loops else 0)
        buffer[:_HEAD].view(np.uint32)[:] = head
        table = buffer[table_at : table_at + _TABLE * (count + 1)].view(np.uint32).reshape(count + 1, 5)
        table[:-1, 0], table[-1, 0] = chunks[:, 0] - group.low, group.nodes
        table[:-1, 1], table[-1, 1] = self.blocks[chunks[:, 2]] - group.low, 0
        table[:, 2] = np.concatenate([[0], np.cumsum(sizes[:, 0])])
        table[:-1, 3], table[-1, 3] = places[:-1] // 4 << 5 | sizes[:, 2], places[-1] // 4 << 5
        table[:-1, 4], table[-1, 4] = chunks[:, 3], 0
        packing.encode_chunks(self._graph, chunks, self.loops, sizes, places[:-1], buffer[stream_at:features_at])
        return Packet(group, buffer, total, features_at, self.loops)

    def put_features(self, packet: Packet, first: int, words: NDArray[np.uint32], form: FeatureForm) -> None:
        """Write rows of features, given as a BitTensor's words, into the packet from the group's node `first` on."""
        count = words.shape[0]
        start = packet.features_at + first * form.row_bytes
        to = packet.buffer[start : start + count * form.row_bytes]
        source = words.reshape(-1).view(np.uint8)
        packing.copy_runs(to, form.used, source, form.stride, form.used, count * form.runs)


# -- an epoch that runs more than once ---------------------------------------------------------------------------------
def tiles_in(packets: Iterable[Packet]) -> tuple[int, int]:
    """Number of 8 x 128 tiles in the packets' dense adjacency, and how many hold an edge; needs a pass over the edges."""
    counts = [tiles_of(*packet.pattern()) for packet in packets]
    return sum(every for every, _ in counts), sum(used for _, used in counts)


class PackedEpoch:
    """All packets of one epoch, ready to be copied; made by :meth:`bitsparse.nn.ClusterRunner.pack`.

    Attributes
    ----------
    packets : tuple of Packet
        In page-locked memory if the runner's device is a GPU.
    nbytes : int
        Bytes that one epoch moves from host to device.
    seconds : float
        Time that packing took.
    owner : Packets
        The packets of the runner that packed the epoch; no other runner may run it.
    """

    def __init__(self, packets: tuple[Packet, ...], form: FeatureForm, seconds: float, owner: Packets) -> None:
        self.packets, self.form, self.seconds, self.owner = packets, form, seconds, owner
        self.nbytes = sum(packet.nbytes for packet in packets)

    def facts(self) -> dict[str, int]:
        """The facts of :meth:`Packets.facts` and the numbers of 8 x 128 tiles, which need a pass over the edges."""
        tiles, used = tiles_in(self.packets)
        return self.owner.facts(self.form.row_bytes) | {"tiles": tiles, "tiles_with_edges": used}

    def check_owner(self, function: str, packets: Packets) -> None:
        """Refuse an epoch that another runner packed, since its packets hold other nodes in another order.

        Raises
        ------
        ValueError
            The epoch was not packed by the runner of `packets`.
        """
        if self.owner is not packets:
            raise ValueError(
                f"{function}: the epoch of {self.owner.nodes} nodes in {len(self.packets)} groups was packed by another runner than "
                f"this one of {packets.nodes} nodes in {len(packets.groups)} groups; pack it with this runner's pack()"
            )
