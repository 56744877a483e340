"""Packets of subgraphs on the host. Arguments are validated by the callers; the compiled part checks all sizes and indices again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import packets as _ext
from bitsparse.backends.host.buffers import pattern_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Array

_Graph = tuple[NDArray[np.uint8], NDArray[np.uint8], bool, Array, Array, Array, Array, bool]

#: A packet stores its rows in chunks of at most this many rows.
CHUNK_ROWS = _ext.CHUNK_ROWS


def _graph(graph: tuple[Array, ...], loops: bool, chunks: Array) -> _Graph:
    indptr, indices, order, place, blocks = graph
    return *pattern_bytes(indptr, indices), order, place, blocks, np.ascontiguousarray(chunks), loops


def chunk_sizes(graph: tuple[Array, ...], chunks: Array, loops: bool) -> NDArray[np.int64]:
    """The sizes of the encoded chunks of rows.

    Parameters
    ----------
    graph : tuple
        indptr and indices, of one dtype; order and place, int32: the node of each new number, and the inverse; blocks, int64: where
        blocks of new numbers start. An edge is kept if both its ends lie in one block.
    chunks : ndarray of int64, shape (n, 4)
        First row (a new number), number of rows, block of the first row, nodes of the largest block.
    loops : bool
        Add an edge from every node to itself.

    Returns
    -------
    ndarray of int64, shape (n, 4)
        Entries (loops included), bytes of the stream, its code, edges left out.
    """
    sizes = np.zeros((len(chunks), 4), np.int64)
    _ext.sizes(run_on(), *_graph(graph, loops, chunks), sizes)
    return sizes


def encode_chunks(
    graph: tuple[Array, ...], chunks: Array, loops: bool, sizes: Array, starts: Array, stream: Array
) -> None:
    """Write the stream of each chunk into `stream`, beginning at the chunk's start."""
    work = (np.ascontiguousarray(sizes), np.ascontiguousarray(starts))
    _ext.encode(run_on(), *_graph(graph, loops, chunks), *work, stream)


def expand(packet: Array, nodes: int, entries: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The CSR pattern in a packet; if loops were added, the loop is the first edge of its row."""
    indptr, indices = np.zeros(nodes + 1, np.int32), np.empty(entries, np.int32)
    _ext.expand(run_on(nodes + entries), packet, indptr, indices)
    return indptr, indices


def copy_runs(to: Array, to_stride: int, source: Array, from_stride: int, used: int, count: int) -> None:
    """Copy the first `used` bytes of each of `count` runs of bytes; the rest of each run of `to` is zeroed."""
    _ext.copy_runs(run_on(count * used), to, to_stride, source, from_stride, used, count)
