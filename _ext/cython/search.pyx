# cython: language_level=3, boundscheck=False, wraparound=False
"""Nearest lines of bits, and pairs of lines. Arrays come as flat buffers of bytes in C order."""
from libc.stdint cimport int32_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from drive cimport *

include "checks.pxi"


cdef extern from "drivers/search.h" nogil:
    enum:
        BS_TOO_MANY

    ctypedef struct bs_codes:
        const uint32_t *words
        const int32_t *ones
        size_t n

    ctypedef struct bs_nearest_job:
        bs_codes queries
        bs_codes database
        size_t width
        size_t k
        int jaccard
        uint32_t *keys
        int64_t *rows

    ctypedef struct bs_test:
        int64_t weight
        int64_t share
        int64_t bound

    ctypedef struct bs_pairs_job:
        bs_codes a
        bs_codes b
        size_t width
        bs_test test
        int triangle
        size_t most

    ctypedef struct bs_pair:
        int64_t a
        int64_t b
        int32_t common
        int32_t sum

    int bs_nearest(bs_run_on on, const bs_nearest_job *job)
    int bs_pairs(bs_run_on on, const bs_pairs_job *job, bs_pair **pairs, size_t *count)
    void bs_line_ones(bs_run_on on, const uint32_t *words, size_t n, size_t width, int32_t *ones)
    void bs_jaccard_distances(const uint32_t *keys, size_t n, float *distances)


cdef bs_codes _codes(str what, const unsigned char[::1] words, const unsigned char[::1] ones, object n, object width) except *:
    cdef bs_codes c
    _between(f"the number of {what}", n, 0, 2**48)
    _between("the words of a line", width, 0, 2048)
    if width % 4:
        raise ValueError(f"the words of a line are {width} but come in fours")
    _size_is(f"words of {what}", words.shape[0], n * width * 4)
    c.words, c.ones, c.n = <const uint32_t *>_at(words), NULL, n
    if ones is not None:
        _size_is(f"ones of {what}", ones.shape[0], n * 4)
        c.ones = <const int32_t *>_at(ones)
    return c


def ones(tuple on, const unsigned char[::1] words, object n, object width, unsigned char[::1] out):
    """How many bits are set in each of `n` lines, int32."""
    cdef bs_run_on run = _on(on)
    cdef bs_codes c = _codes("lines", words, None, n, width)
    cdef size_t wide = width
    _size_is("out", out.shape[0], n * 4)
    with nogil:
        bs_line_ones(run, c.words, c.n, wide, <int32_t *>_into(out))


def nearest(tuple on, const unsigned char[::1] queries, const unsigned char[::1] database, const unsigned char[::1] ones, tuple sizes,
            object k, bint jaccard, unsigned char[::1] keys, unsigned char[::1] rows):
    """Keys (uint32) and rows (int64) of the `k` nearest lines to each query; `sizes` is (queries, lines, words of a line)."""
    cdef bs_run_on run = _on(on)
    cdef bs_nearest_job job
    cdef int status
    n_queries, n, width = sizes
    _between("k", k, 0, 2**20)
    job.queries = _codes("queries", queries, None, n_queries, width)
    job.database = _codes("the database", database, ones, n, width)
    job.width, job.k, job.jaccard = width, k, jaccard
    _size_is("keys", keys.shape[0], n_queries * k * 4)
    _size_is("rows", rows.shape[0], n_queries * k * 8)
    job.keys, job.rows = <uint32_t *>_into(keys), <int64_t *>_into(rows)
    with nogil:
        status = bs_nearest(run, &job)
    if status:
        raise MemoryError("nearest: no memory for the candidates")


def pairs(tuple on, const unsigned char[::1] a, const unsigned char[::1] a_ones, const unsigned char[::1] b,
          const unsigned char[::1] b_ones, tuple sizes, tuple test, bint triangle, object most):
    """Pairs that pass a test as a buffer of (int64, int64, int32, int32): lines of a and b, ones in common, ones of both together.

    None if there are more than `most`.
    """
    cdef bs_run_on run = _on(on)
    cdef bs_pairs_job job
    cdef bs_pair *found = NULL
    cdef size_t count = 0
    cdef int status
    cdef unsigned char[::1] into
    m, n, width = sizes
    job.a, job.b = _codes("a", a, a_ones, m, width), _codes("b", b, b_ones, n, width)
    job.width, job.triangle = width, triangle
    weight, share, bound = test
    _between("weight", weight, 0, 2**20)
    _between("share", share, 0, 2**20)
    _between("bound", bound, -2**40, 2**40)
    job.test.weight, job.test.share, job.test.bound = weight, share, bound
    _between("most", most, 0, 2**62)
    job.most = most
    with nogil:
        status = bs_pairs(run, &job, &found, &count)
    if status == BS_TOO_MANY:
        return None
    if status:
        raise MemoryError("pairs: no memory for the pairs")
    try:
        out = bytearray(count * sizeof(bs_pair))
        if count:
            into = out
            memcpy(&into[0], found, count * sizeof(bs_pair))
    finally:
        free(found)
    return out


def jaccard_distances(const unsigned char[::1] keys, object n, unsigned char[::1] out):
    """float32 distances of keys."""
    cdef size_t count = n
    _size_is("keys", keys.shape[0], n * 4)
    _size_is("out", out.shape[0], n * 4)
    with nogil:
        bs_jaccard_distances(<const uint32_t *>_at(keys), count, <float *>_into(out))
