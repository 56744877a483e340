"""Packets of subgraphs on the host. Arguments are validated by the callers; the compiled part checks all sizes and indices again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import packets as _ext
from bitsparse.backends.host.buffers import pattern_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Array

_Graph = tuple[NDArray[np.uint8], NDArray[np.uint8], bool, Array, Array, Array, Array, bool]

#: A packet stores its rows in chunks of at most this many.
CHUNK_ROWS = _ext.CHUNK_ROWS


def _graph(graph: tuple[Array, ...], loops: bool, chunks: Array) -> _Graph:
    indptr, indices, order, place, blocks = graph
    return *pattern_bytes(indptr, indices), order, place, blocks, np.ascontiguousarray(chunks), loops


def chunk_sizes(graph: tuple[Array, ...], chunks: Array, loops: bool) -> NDArray[np.int64]:
    """What each chunk of rows will take.

    Parameters
    ----------
    graph : tuple
        indptr and indices, of one dtype; order and place, int32: the node with each new number, and the reverse; blocks, int64: where
        blocks of new numbers start. An edge stays if both its ends lie in one block.
    chunks : ndarray of int64, shape (n, 4)
        First row (a new number), rows, block of the first row, nodes of the largest block.
    loops : bool
        An edge from every node to itself is put in.

    Returns
    -------
    ndarray of int64, shape (n, 4)
        Entries (loops included), bytes of the stream, code, edges that left.
    """
    sizes = np.zeros((len(chunks), 4), np.int64)
    _ext.sizes(run_on(), *_graph(graph, loops, chunks), sizes)
    return sizes


def encode_chunks(
    graph: tuple[Array, ...], chunks: Array, loops: bool, sizes: Array, starts: Array, stream: Array
) -> None:
    """Write the streams of chunks, each from its start on."""
    work = (np.ascontiguousarray(sizes), np.ascontiguousarray(starts))
    _ext.encode(run_on(), *_graph(graph, loops, chunks), *work, stream)


def expand(packet: Array, nodes: int, entries: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The CSR pattern in a packet; of a row's edges the loop comes first where loops are put in."""
    indptr, indices = np.zeros(nodes + 1, np.int32), np.empty(entries, np.int32)
    _ext.expand(run_on(nodes + entries), packet, indptr, indices)
    return indptr, indices


def copy_runs(to: Array, to_stride: int, source: Array, from_stride: int, used: int, count: int) -> None:
    """The first `used` bytes of each of `count` runs of bytes; the rest of a run of `to` is zeroed."""
    _ext.copy_runs(run_on(count * used), to, to_stride, source, from_stride, used, count)
