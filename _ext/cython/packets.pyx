# cython: language_level=3, boundscheck=False, wraparound=False
"""Packets of subgraphs: written, and read back. Every argument is checked here or in the C drivers; a wrong one raises ValueError.

Blocks, chunks and their sizes are copied before they are checked: another thread may write into them while the GIL is not held.
"""
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t

from csr cimport bs_csr, bs_row_start
from drive cimport bs_run_on

include "pool.pxi"


cdef extern from "drivers/packets.h" nogil:
    enum:
        BS_CHUNK_ROWS
        BS_PACKET_HEAD
        BS_CHUNK_WORDS
        BS_PACKET_MEMORY
        BS_PACKET_PATTERN
        BS_PACKET_DAMAGED

    ctypedef struct bs_packet_job:
        bs_csr csr
        const int32_t *order
        const int32_t *place
        const int64_t *blocks
        size_t block_count
        const int64_t *chunks
        size_t chunk_count
        int loops

    int bs_packet_sizes(int threads, const bs_packet_job *job, int64_t *sizes)
    int bs_packet_encode(int threads, const bs_packet_job *job, const int64_t *sizes, const int64_t *starts, uint8_t *stream, size_t bytes)

cdef extern from "drivers/read_packets.h" nogil:
    int bs_packet_expand(bs_run_on on, const uint8_t *packet, size_t bytes, int32_t *indptr, size_t nodes, int32_t *indices, size_t entries)
    void bs_copy_runs(int threads, uint8_t *to, size_t to_stride, const uint8_t *source, size_t from_stride, size_t used, size_t count)


include "csr_checks.pxi"

CHUNK_ROWS, HEAD_WORDS, CHUNK_WORDS = BS_CHUNK_ROWS, BS_PACKET_HEAD, BS_CHUNK_WORDS


cdef int _raise(int status) except -1:
    if status == BS_PACKET_MEMORY:
        raise MemoryError("packets: not enough memory for the columns of a row")
    if status == BS_PACKET_PATTERN:
        _valid(False)
    if status == BS_PACKET_DAMAGED:
        raise ValueError("packets: the packet is damaged, or sizes do not belong to this pattern; pack it again")
    return 0


cdef int _threads(tuple on) except -1:
    _between("the number of threads", on[1], 1, 4096)
    return on[1]


cdef bs_packet_job _job(
    const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, const int32_t[::1] order, const int32_t[::1] place,
    const int64_t[::1] blocks, const int64_t[:, ::1] chunks, bint loops,
) except *:
    cdef bs_packet_job job
    cdef Py_ssize_t i
    cdef int64_t rows = order.shape[0]
    job.csr = _pattern(indptr, indices, wide, rows, rows)
    _whole(&job.csr)
    if place.shape[0] != rows or blocks.shape[0] < 1 or chunks.shape[1] != 4:
        raise ValueError("packets: order, place, blocks and chunks do not belong together")
    if blocks[0] != 0 or blocks[blocks.shape[0] - 1] != rows:
        raise ValueError("packets: blocks must start at 0 and end at the number of nodes")
    for i in range(blocks.shape[0] - 1):
        if blocks[i + 1] < blocks[i]:
            raise ValueError("packets: blocks must not descend")
    for i in range(chunks.shape[0]):
        if not (0 <= chunks[i, 0] <= rows and 0 < chunks[i, 1] <= BS_CHUNK_ROWS and chunks[i, 1] <= rows - chunks[i, 0]):
            raise ValueError("packets: a chunk reaches beyond the nodes")
        if not (0 <= chunks[i, 2] < blocks.shape[0] - 1 and blocks[chunks[i, 2]] <= chunks[i, 0] < blocks[chunks[i, 2] + 1]):
            raise ValueError("packets: a chunk does not start in its block")
        if not 0 < chunks[i, 3] <= rows:
            raise ValueError("packets: a chunk's span must lie between 1 and the nodes")
    job.order = &order[0] if rows else NULL
    job.place = &place[0] if rows else NULL
    job.blocks, job.block_count = &blocks[0], blocks.shape[0] - 1
    job.chunks = &chunks[0, 0] if chunks.shape[0] else NULL
    job.chunk_count, job.loops = chunks.shape[0], loops
    return job


def sizes(on, indptr, indices, wide, order, place, blocks, chunks, loops, int64_t[:, ::1] out):
    """Entries, bytes, code and edges left out of each chunk, into `out` (chunks, 4)."""
    blocks, chunks = np.array(blocks), np.array(chunks)
    cdef bs_packet_job job = _job(indptr, indices, wide, order, place, blocks, chunks, loops)
    cdef int threads = _threads(on), status
    if <size_t>out.shape[0] != job.chunk_count or out.shape[1] != 4:
        raise ValueError("packets: out must have one row of 4 for each chunk")
    if not job.chunk_count:
        return
    with nogil:
        status = bs_packet_sizes(threads, &job, &out[0, 0])
    _raise(status)


def encode(on, indptr, indices, wide, order, place, blocks, chunks, loops, const int64_t[:, ::1] known, const int64_t[::1] starts,
           unsigned char[::1] stream):
    """The streams of the chunks, each at its start."""
    blocks, chunks, known, starts = np.array(blocks), np.array(chunks), np.array(known), np.array(starts)
    cdef bs_packet_job job = _job(indptr, indices, wide, order, place, blocks, chunks, loops)
    cdef int threads = _threads(on), status
    cdef Py_ssize_t i
    if <size_t>known.shape[0] != job.chunk_count or known.shape[1] != 4 or <size_t>starts.shape[0] != job.chunk_count:
        raise ValueError("packets: sizes and starts must be those of the chunks")
    for i in range(known.shape[0]):
        if not (0 <= known[i, 2] < 32 and known[i, 1] >= 0):
            raise ValueError("packets: sizes hold no code of a chunk")
    cdef uint8_t *into = <uint8_t *>_into(stream)
    if not job.chunk_count:
        return
    with nogil:
        status = bs_packet_encode(threads, &job, &known[0, 0], &starts[0], into, stream.shape[0])
    _raise(status)


def expand(on, const unsigned char[::1] packet, int32_t[::1] indptr, int32_t[::1] indices):
    """The CSR pattern of a packet."""
    cdef bs_run_on run
    cdef int status
    run.level, run.threads = on[0], _threads(on)
    cdef size_t nodes, entries = indices.shape[0]
    if indptr.shape[0] < 1:
        raise ValueError("packets: indptr must hold one more than the nodes")
    nodes = indptr.shape[0] - 1
    cdef const uint8_t *source = <const uint8_t *>_at(packet)
    if <size_t>source % 16:
        raise ValueError("packets: the packet must begin at a multiple of 16 bytes")
    with nogil:
        status = bs_packet_expand(run, source, packet.shape[0], &indptr[0], nodes,
                                  &indices[0] if entries else NULL, entries)
    _raise(status)


def copy_runs(on, unsigned char[::1] to, object to_stride, const unsigned char[::1] source, object from_stride, object used, object count):
    """The first `used` bytes of each of `count` runs; the rest of a run of `to` is zeroed."""
    cdef int threads = _threads(on)
    cdef size_t a, b, c, d
    for what, value in (("to_stride", to_stride), ("from_stride", from_stride), ("used", used), ("count", count)):
        _between(what, value, 0, 2**48)
    _between("used", used, 0, min(to_stride, from_stride))
    _size_is("to", to.shape[0], to_stride * count)
    _size_is("from", source.shape[0], from_stride * count)
    cdef uint8_t *into = <uint8_t *>_into(to)
    cdef const uint8_t *data = <const uint8_t *>_at(source)
    a, b, c, d = to_stride, from_stride, used, count
    if not d:
        return
    with nogil:
        bs_copy_runs(threads, into, a, data, b, c, d)
