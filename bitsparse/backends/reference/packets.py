"""Packets of subgraphs in slow, plain Python; compiled packets must equal these bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array

#: The most rows of a chunk, and the possible bits of a unit of a stream.
CHUNK_ROWS = 256
_UNITS = (3, 4, 5, 6, 7, 8, 12, 16)


def _rows(graph: tuple[Array, ...], chunk: Array, loops: bool) -> Iterator[tuple[list[int], int]]:
    """For each row, its columns inside its block (relative to the block of the chunk's first row) and how many edges leave the block."""
    indptr, indices, order, place, blocks = graph
    base = int(blocks[chunk[2]])
    for row in range(int(chunk[0]), int(chunk[0] + chunk[1])):
        block = int(np.searchsorted(blocks, row, side="right")) - 1
        node = int(order[row])
        columns = [int(place[c]) for c in indices[indptr[node] : indptr[node + 1]] if not (loops and c == node)]
        inside = [c for c in columns if blocks[block] <= c < blocks[block + 1]]
        yield sorted({c - base for c in inside}), len(columns) - len(inside)


def _gaps(columns: list[int], bits: int, following: int) -> list[int]:
    """The gaps between columns as units of `bits` bits; a unit of all ones adds its value to the gap and stands for no entry."""
    full, units = (1 << bits) - 1, []
    for column in columns:
        gap, following = column - following, column + 1
        units += [full] * (gap // full) + [gap % full]
    return units


def _packed(values: list[int], bits: int) -> bytes:
    number = sum(value << bits * i for i, value in enumerate(values))
    return number.to_bytes(-(-len(values) * bits // 8), "little")


def _chunk(graph: tuple[Array, ...], chunk: Array, loops: bool) -> tuple[int, bytes, int, int]:
    """A chunk's number of entries, its shortest stream, the code that says how to read it, and how many edges leave their block."""
    rows = list(_rows(graph, chunk, loops))
    first = int(chunk[0] - graph[4][chunk[2]]) + 1 - int(chunk[3])
    entries = sum(len(columns) for columns, _ in rows) + (len(rows) if loops else 0)
    streams: list[tuple[bytes, int]] = []
    for unit, bits in enumerate(_UNITS):
        units = [_gaps(columns, bits, max(0, first + i)) for i, (columns, _) in enumerate(rows)]
        longest = max(map(len, units), default=0)
        head = next(h for h in range(4) if h == 3 or longest < 1 << (4 << h))
        stream = _packed([len(u) for u in units], 4 << head) + _packed([v for u in units for v in u], bits)
        streams.append((stream, head << 3 | unit))
    stream, code = min(streams, key=lambda each: len(each[0]))
    return entries, stream, code, sum(left for _, left in rows)


def chunk_sizes(graph: tuple[Array, ...], chunks: Array, loops: bool) -> NDArray[np.int64]:
    """The reference for :func:`bitsparse.backends.host.packets.chunk_sizes`."""
    sizes = np.zeros((len(chunks), 4), np.int64)
    for i, chunk in enumerate(chunks):
        entries, stream, code, left = _chunk(graph, chunk, loops)
        sizes[i] = entries, len(stream), code, left
    return sizes


def encode_chunks(
    graph: tuple[Array, ...], chunks: Array, loops: bool, sizes: Array, starts: Array, stream: Array
) -> None:
    """The reference for :func:`bitsparse.backends.host.packets.encode_chunks`."""
    for chunk, size, start in zip(chunks, sizes, starts, strict=True):
        data = _chunk(graph, chunk, loops)[1]
        stream[start : start + size[1]] = np.frombuffer(data, np.uint8)


def expand(packet: Array, nodes: int, entries: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The reference for :func:`bitsparse.backends.host.packets.expand`."""
    head = packet[:32].view(np.uint32).tolist()
    chunks, table, stream, loops = head[1], head[3], head[4], bool(head[7] & 1)
    each = packet[table : table + 20 * (chunks + 1)].view(np.uint32).reshape(-1, 5).tolist()
    indptr, indices = np.zeros(nodes + 1, np.int32), []
    for (first, base, _, place, span), (after, *_) in pairwise(each):
        unit, width = _UNITS[place & 7], 4 << (place >> 3 & 3)
        at = stream + 4 * (place >> 5)
        rows = after - first
        lengths = _unpacked(packet[at:], width, rows)
        units = _unpacked(packet[at + -(-rows * width // 8) :], unit, sum(lengths))
        for row, length in enumerate(lengths):
            columns, column = ([first + row] if loops else []), max(base, first + row + 1 - span)
            for value in units[:length]:
                column += value
                if value != (1 << unit) - 1:
                    columns.append(column)
                    column += 1
            units = units[length:]
            indices += columns
            indptr[first + row + 1] = len(indices)
    return indptr, np.array(indices, np.int32)


def _unpacked(data: Array, bits: int, count: int) -> list[int]:
    number = int.from_bytes(data[: -(-count * bits // 8)].tobytes(), "little")
    return [number >> bits * i & ((1 << bits) - 1) for i in range(count)]


def copy_runs(to: Array, to_stride: int, source: Array, from_stride: int, used: int, count: int) -> None:
    """The reference for :func:`bitsparse.backends.host.packets.copy_runs`."""
    runs = to.reshape(count, to_stride)
    runs[...] = 0
    runs[:, :used] = source.reshape(count, from_stride)[:, :used]
