# cython: language_level=3, boundscheck=False, wraparound=False
"""Low-bit networks on the host: steps on codes in bytes, and whole networks over packets. Every argument is checked here or in C."""
import numpy as np

from libc.stdint cimport int8_t, int32_t, uint8_t
from libc.stdlib cimport free, malloc

from drive cimport *

include "pool.pxi"
include "checks.pxi"
include "epilogue.pxi"


cdef extern from "drivers/network.h" nogil:
    enum:
        BS_BYTES_LONGEST
        BS_BYTES_PATTERN
        BS_BYTES_MEMORY
        BS_PIECE_ROWS
        BS_PACKET_OK
        BS_PACKET_MEMORY
        BS_GCN
        BS_DEGREES

    ctypedef struct bs_bytes_step:
        const uint8_t *x
        size_t stride
        size_t k
        const int8_t *panels
        const int32_t *lines
        const uint8_t *values
        const int32_t *indptr
        const int32_t *indices
        size_t start "from"
        const int32_t *places
        int most

    int bs_bytes_run(bs_run_on on, const bs_bytes_step *s, size_t nnz, bs_epilogue *e)

    ctypedef struct bs_packet:
        const uint8_t *end
        const uint8_t *features
        size_t nodes

    ctypedef struct bs_layer:
        bs_bytes_step step
        bs_epilogue e
        int scale
        int row_term
        int col_term

    ctypedef struct bs_network:
        bs_packet packet
        int normalisation
        size_t columns
        int bits
        int planes
        size_t run
        bs_layer *layers
        size_t count
        const int32_t *places
        int found_nan

    int bs_packet_open(const uint8_t *packet, size_t bytes, bs_packet *p)
    void bs_packet_close(bs_packet *p)
    int bs_network_run(bs_run_on on, bs_network *n)


LONGEST, PIECE_ROWS = BS_BYTES_LONGEST, BS_PIECE_ROWS


cdef int _bytes_fit(bs_epilogue *e) except -1:
    if e.result not in (BS_RESULT_FLOAT, BS_RESULT_BYTES):
        raise ValueError("a step on bytes gives floats or bytes")
    if e.result == BS_RESULT_BYTES and (e.binarize or e.quantizer.bits > 8 or e.quantizer.rounding == 2):
        raise ValueError("a byte takes up to 8 bits, rounded down or to nearest")
    return 0


def bytes_step(tuple on, const unsigned char[::1] x, size_t stride, tuple dims, const unsigned char[::1] panels,
               const int32_t[::1] indptr, const int32_t[::1] indices, int result, tuple chain, unsigned char[::1] out):
    """A step on codes in bytes (see bytes.h); returns whether NaN reached requantisation.

    `dims` is (rows of the result, its columns, columns of x); without `panels` it sums rows of x, which has as many as the result.
    """
    cdef bs_run_on run = _on(on)
    cdef bs_epilogue e
    cdef bs_bytes_step s
    cdef size_t nnz = 0
    for size in dims:
        _between("a dimension", size, 0, 2**62)
    m, n, k = dims
    _between("the columns of the result", n, 0, BS_BYTES_LONGEST)
    if stride % 16 or stride < k:
        raise ValueError(f"stride is {stride} but must be a multiple of 16 and at least {k}")
    _size_is("x", x.shape[0], m * stride)
    _set_epilogue(&e, result, (1, m, n), chain, out)
    _bytes_fit(&e)
    s.x, s.stride, s.k = <const uint8_t *>_at(x), stride, k
    s.panels, s.lines, s.values, s.indptr, s.indices = NULL, NULL, NULL, NULL, NULL
    s.start, s.places, s.most = 0, NULL, 255
    if panels is not None:
        _size_is("panels", panels.shape[0], _ceil_div(n, 16) * _ceil_div(k, 4) * 64)
        s.panels = <const int8_t *>_at(panels)
    else:
        if k != n:
            raise ValueError(f"sums of {k} columns have {k} columns, not {n}")
        _set_pattern(&s, m, m, indptr, indices)
        nnz = indices.shape[0]
    if m * n == 0:
        return False
    if panels is not None and k == 0:
        raise ValueError("a product of no columns is all zeros; make it without this function")
    _run(run, &s, nnz, &e)
    return bool(e.found_nan)


def sparse_step(tuple on, const int32_t[::1] lines, tuple dims, const int32_t[::1] indptr, const int32_t[::1] indices,
                const unsigned char[::1] values, int result, tuple chain, unsigned char[::1] out):
    """A product of sparse codes with weights, which lie in lines of 32-bit numbers; otherwise as :func:`bytes_step`.

    `dims` is (rows of the result, its columns, columns of the codes); without `values` every code is 1. Weights are of 16 bits.
    """
    cdef bs_run_on run = _on(on)
    cdef bs_epilogue e
    cdef bs_bytes_step s
    for size in dims:
        _between("a dimension", size, 0, 2**31 - 1)
    m, n, k = dims
    _between("the columns of the result", n, 0, BS_BYTES_LONGEST)
    _size_is("lines", lines.shape[0], k * _ceil_div(n, 16) * 16)
    _set_epilogue(&e, result, (1, m, n), chain, out)
    _bytes_fit(&e)
    s.x, s.stride, s.k = NULL, 0, k
    s.panels, s.lines, s.values, s.indptr, s.indices = NULL, NULL, NULL, NULL, NULL
    s.start, s.places, s.most = 0, NULL, 255
    _set_pattern(&s, m, k, indptr, indices)
    if values is not None:
        _size_is("values", values.shape[0], indices.shape[0])
        s.values = <const uint8_t *>_at(values)
    if m * n == 0:
        return False
    # Not NULL, which would stand for other steps; without columns no entry names a line.
    s.lines = &lines[0] if lines.shape[0] > 0 else &indptr[0]
    _run(run, &s, indices.shape[0], &e)
    return bool(e.found_nan)


cdef int _set_pattern(bs_bytes_step *s, object rows, object columns, const int32_t[::1] indptr, const int32_t[::1] indices) except -1:
    """The pattern of sums, looked at before anything is written; C looks again at what it copies of it."""
    cdef Py_ssize_t i
    cdef int32_t low = 0, high = -1
    _size_is("indptr", indptr.shape[0], rows + 1)
    with nogil:
        for i in range(indices.shape[0]):
            low = min(low, indices[i])
            high = max(high, indices[i])
    if indptr[0] != 0 or indptr[rows] != indices.shape[0] or low < 0 or high >= columns:
        raise ValueError("indptr does not fit the indices, or an index names no row")
    with nogil:
        for i in range(indptr.shape[0] - 1):
            if indptr[i] > indptr[i + 1]:
                low = -1
    if low < 0:
        raise ValueError("indptr must not descend")
    s.indptr = &indptr[0]
    if indices.shape[0]:
        s.indices = &indices[0]
    return 0


cdef int _run(bs_run_on on, const bs_bytes_step *s, size_t nnz, bs_epilogue *e) except -1:
    cdef int status
    with nogil:
        status = bs_bytes_run(on, s, nnz, e)
    if status == BS_BYTES_PATTERN:
        raise ValueError("indptr does not fit the indices, or an index names no row")
    if status == BS_BYTES_MEMORY:
        raise MemoryError("no memory for the edges of some rows")
    return 0


cdef int _set_layer(bs_layer *layer, object given, object k, int last) except -1:
    """One layer; `given` owns the buffers. Gives its columns."""
    panels, n, chain, vectors = given
    cdef const unsigned char[::1] weights
    cdef int result = BS_RESULT_FLOAT if last else BS_RESULT_BYTES
    cdef bs_epilogue *e = &layer.e
    _between("the columns of a layer", n, 1, BS_BYTES_LONGEST)
    # Of one row: operands hold what columns need, and those of the rows are put in later.
    _set_epilogue(e, result, (1, 1, n), chain, bytearray(_ceil_div(n, 16) * 16 if not last else 4 * n))
    e.out = NULL
    _bytes_fit(e)
    operands = chain[0]
    for i in range(11):
        if operands[i] is not None and operands[i][1][1]:
            raise ValueError("an operand of a layer must be the same for all rows; those of rows are made from the degrees")
    for which in vectors:
        _between("a vector over the rows", which, 0, BS_DEGREES)
    layer.scale, layer.row_term, layer.col_term = vectors
    if (layer.row_term and e.row_term[1].data == NULL) or (layer.col_term and e.col_term[1].data == NULL):
        raise ValueError("a term of a layer has a vector over the rows but none over the columns; give both")
    layer.step.panels, layer.step.lines, layer.step.values, layer.step.k = NULL, NULL, NULL, k
    layer.step.x, layer.step.indptr, layer.step.indices, layer.step.places = NULL, NULL, NULL, NULL
    layer.step.start, layer.step.stride, layer.step.most = 0, 0, 255
    if panels is not None:
        weights = panels
        _size_is("panels", weights.shape[0], _ceil_div(n, 16) * _ceil_div(k, 4) * 64)
        layer.step.panels = <const int8_t *>_at(weights)
    elif n != k:
        raise ValueError(f"sums of {k} columns have {k} columns, not {n}")
    return n


cdef int _packet_status(int status) except -1:
    if status == BS_PACKET_MEMORY:
        raise MemoryError("network: no memory for the codes of a part of the graph; use fewer threads or more parts")
    if status != BS_PACKET_OK:
        raise ValueError("network: the packet is damaged; pack it again")
    return 0


def network(tuple on, const unsigned char[::1] packet, int normalisation, tuple features, tuple layers, const int32_t[::1] places,
            unsigned char[::1] out):
    """A network over a packet: floats of node i into row places[i] of `out`; returns whether NaN reached requantisation.

    `features` is (columns, bits, whether in planes, bytes of a plane of a row or of a row); a layer is (panels or None, columns, chain
    for one row, what multiplies the rows of its sums, of the row term and of the column term: bs_row_vector).
    """
    cdef bs_run_on run = _on(on)
    cdef bs_network net
    cdef Py_ssize_t i
    cdef int32_t low = 0, high = -1
    cdef int status
    columns, bits, planes, row = features
    _between("the columns of the features", columns, 1, BS_PIECE_ROWS - 1)
    _between("the bits of the features", bits, 1, 8)
    _between("the bytes of a row", row, _ceil_div(columns * (1 if planes else bits), 8), 2**31)
    _between("the normalisation", normalisation, 0, BS_GCN)
    _between("the number of layers", len(layers), 1, 1 << 16)
    net.normalisation, net.columns, net.bits, net.planes, net.run = normalisation, columns, bits, planes, row
    net.count, net.found_nan = len(layers), 0
    cdef const uint8_t *source = <const uint8_t *>_at(packet)
    places = np.array(places)  # a copy, which nobody writes into after the check
    with nogil:
        for i in range(places.shape[0]):
            low = min(low, places[i])
            high = max(high, places[i])
    if low < 0 or (high + 1) * 4 * layers[len(layers) - 1][1] > out.shape[0]:
        raise ValueError("network: a place lies outside the result")
    if <size_t>source % 4:
        raise ValueError("network: the packet must begin at a multiple of 4 bytes; pass a copy")
    status = bs_packet_open(source, packet.shape[0], &net.packet)
    if status != BS_PACKET_OK:
        _packet_status(status)
    net.layers = NULL
    try:
        if net.packet.nodes * row * (bits if planes else 1) > net.packet.end - net.packet.features:
            raise ValueError("network: the packet does not hold the features of all its nodes; pack it again")
        if <size_t>places.shape[0] != net.packet.nodes:
            raise ValueError(f"network: there are {places.shape[0]} places for {net.packet.nodes} nodes; give one for each")
        if not net.packet.nodes:
            return False
        net.places = &places[0]
        net.layers = <bs_layer *>malloc(net.count * sizeof(bs_layer))
        if net.layers == NULL:
            raise MemoryError("network: no memory for the layers")
        for number, layer in enumerate(layers):
            columns = _set_layer(&net.layers[number], layer, columns, number + 1 == len(layers))
        net.layers[net.count - 1].e.out = _into(out)
        with nogil:
            status = bs_network_run(run, &net)
    finally:
        free(net.layers)
        bs_packet_close(&net.packet)
    _packet_status(status)
    return bool(net.found_nan)
