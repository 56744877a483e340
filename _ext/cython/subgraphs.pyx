"""Parts of a graph for training in batches. Every argument is checked here or in the C drivers; a wrong one raises ValueError."""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from csr cimport bs_csr, bs_row_start


cdef extern from "drivers/subgraphs.h" nogil:
    enum:
        BS_NO_MEMORY

    ctypedef struct bs_draws:
        uint64_t seed
        uint32_t stream

    ctypedef struct bs_hop:
        bs_csr a
        const int64_t *targets
        size_t count
        int64_t width
        int own
        bs_draws draws
        int32_t *place
        const int64_t *starts
        size_t total
        int64_t *sources
        size_t room
        int32_t *columns
        int64_t *edges

    int64_t bs_sample_hop(const bs_hop *hop)
    int bs_induced(const bs_csr *a, const int64_t *nodes, size_t count, int32_t *place, int64_t *starts, size_t total, int32_t *columns,
                   int64_t *edges)
    int bs_walks(const bs_csr *a, const int64_t *roots, size_t count, size_t length, bs_draws draws, int64_t *out)
    void bs_draw_numbers(bs_draws draws, uint64_t limit, size_t count, int64_t *out)


include "csr_checks.pxi"

#: Draws of one purpose: the counter has 28 bits for pairs of them.
_MOST = 2**28


cdef bs_draws _draws(tuple draws) except *:
    cdef bs_draws d
    seed, stream = draws
    _between("seed", seed, 0, 2**64 - 1)
    _between("stream", stream, 0, 2**32 - 1)
    d.seed, d.stream = seed, stream
    return d


cdef const int64_t *_numbers(str what, const unsigned char[::1] data) except? NULL:
    if <size_t>data.shape[0] % 8:
        raise ValueError(f"{what} hold {data.shape[0]} bytes, which is no whole number of int64; pass a buffer of int64")
    _aligned(what, _at(data), 8)
    return <const int64_t *>_at(data)


cdef int32_t *_places(unsigned char[::1] place, object columns) except? NULL:
    _size_is("place", place.shape[0], columns * 4)
    _aligned("place", _at(place), 4)
    return <int32_t *>_into(place)


cdef int _done(int64_t outcome) except -1:
    if outcome == BS_NO_MEMORY:
        raise MemoryError("there is no memory for the neighbours of one node")
    if outcome < 0:
        raise ValueError(
            "nodes or the CSR pattern are not valid: nodes must be distinct rows of the pattern, its indptr must not decrease, and every "
            "index must lie in 0..columns-1; check them, or build the pattern with scipy.sparse"
        )
    return 0


def hop(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
        const unsigned char[::1] targets, object width, bint own, tuple draws, unsigned char[::1] place, const unsigned char[::1] starts,
        unsigned char[::1] sources, unsigned char[::1] columns, unsigned char[::1] edges):
    """Sample neighbours of `targets` and number the columns anew; how many columns there are. A width of -1 takes all neighbours."""
    cdef bs_hop h
    cdef int64_t found
    h.a = _pattern(indptr, indices, wide, rows, cols)
    _between("width", width, -1, _MOST)
    h.targets, h.count = _numbers("targets", targets), <size_t>targets.shape[0] // 8
    h.width, h.own, h.draws, h.place = width, own, _draws(draws), _places(place, cols)
    _size_is("starts", starts.shape[0], (h.count + 1) * 8)
    h.starts = _numbers("starts", starts)
    _numbers("sources", sources)
    _numbers("edges", edges)
    h.total, h.room = <size_t>edges.shape[0] // 8, <size_t>sources.shape[0] // 8
    _between("the room of sources", h.room, 0, 2**31 - 1)
    _size_is("columns", columns.shape[0], h.total * 4)
    _aligned("columns", _at(columns), 4)
    h.sources, h.columns, h.edges = <int64_t *>_into(sources), <int32_t *>_into(columns), <int64_t *>_into(edges)
    with nogil:
        found = bs_sample_hop(&h)
    _done(found)
    return found


def induced(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
            const unsigned char[::1] nodes, unsigned char[::1] place, unsigned char[::1] starts, unsigned char[::1] columns,
            unsigned char[::1] edges, bint count):
    """The edges among ascending `nodes`: with `count` how many each row has, into starts[1:], else the edges, from starts on."""
    cdef bs_csr a = _pattern(indptr, indices, wide, rows, cols)
    cdef const int64_t *given = _numbers("nodes", nodes)
    cdef size_t n = <size_t>nodes.shape[0] // 8, total = <size_t>edges.shape[0] // 8
    cdef int32_t *where = _places(place, cols)
    cdef int32_t *to = <int32_t *>_into(columns)
    cdef int64_t *which = <int64_t *>_into(edges)
    cdef int64_t *begin = <int64_t *>_into(starts)
    cdef int outcome
    _between("the number of nodes", n, 0, 2**31 - 1)
    _size_is("starts", starts.shape[0], (n + 1) * 8)
    _numbers("starts", starts)
    _numbers("edges", edges)
    _size_is("columns", columns.shape[0], total * 4)
    _aligned("columns", to, 4)
    if count:
        to = NULL
    elif total == 0:
        return
    with nogil:
        outcome = bs_induced(&a, given, n, where, begin, total, to, which)
    _done(outcome)


def walks(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
          const unsigned char[::1] roots, object length, tuple draws, unsigned char[::1] out):
    """Walks of `length` steps from each root, (roots, length + 1) of int64."""
    cdef bs_csr a = _pattern(indptr, indices, wide, rows, cols)
    cdef const int64_t *given = _numbers("roots", roots)
    cdef size_t n = <size_t>roots.shape[0] // 8, steps
    cdef bs_draws d = _draws(draws)
    cdef int64_t *to = <int64_t *>_into(out)
    cdef int outcome
    _between("length", length, 0, _MOST)
    _size_is("out", out.shape[0], n * (length + 1) * 8)
    _numbers("out", out)
    steps = length
    with nogil:
        outcome = bs_walks(&a, given, n, steps, d, to)
    _done(outcome)


def below(object limit, tuple draws, unsigned char[::1] out):
    """Whole numbers below `limit`, int64."""
    cdef bs_draws d = _draws(draws)
    cdef size_t n = <size_t>out.shape[0] // 8
    cdef uint64_t most
    cdef int64_t *to = <int64_t *>_into(out)
    _between("limit", limit, 1, 2**63 - 1)
    _numbers("out", out)
    most = limit
    with nogil:
        bs_draw_numbers(d, most, n, to)
