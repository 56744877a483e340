"""Aggregation of one-bit features over a 0/1 adjacency. Every argument is checked here or in the C drivers.

A wrong one raises ValueError.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t

from csr cimport bs_csr, bs_row_start

include "pool.pxi"


cdef extern from "drivers/bspmm.h" nogil:
    enum:
        BS_BSPMM_KERNELS
        BS_BSPMM_OK
        BS_BSPMM_MEMORY

    ctypedef struct bs_bspmm_job:
        bs_csr csr
        const uint32_t *words
        size_t width
        size_t features
        int bipolar
        int kernel
        int32_t *counts
        uint32_t *bits
        const uint32_t *mask
        int uniform
        int uniform_flip
        int64_t uniform_threshold
        const uint32_t *thresholds
        const uint32_t *flips
        const int32_t *class_of
        size_t planes
        size_t classes
        int64_t base

    int bs_bspmm_count(int level, int threads, const bs_bspmm_job *job)
    int bs_bspmm_sign(int level, int threads, const bs_bspmm_job *job)


include "csr_checks.pxi"


cdef int _raise(int status) except -1:
    if status == BS_BSPMM_MEMORY:
        raise MemoryError("bspmm: no memory for the columns of a row")
    return _valid(status == BS_BSPMM_OK)


cdef bs_bspmm_job _job(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
                       const unsigned char[::1] words, object features, bint bipolar) except *:
    cdef bs_bspmm_job job
    job.csr = _pattern(indptr, indices, wide, rows, cols)
    _whole(&job.csr)
    _between("the number of features", features, 0, 2**48)
    width = -(-features // 128) * 4
    _size_is("words", words.shape[0], cols * width * 4)
    job.words, job.width, job.features, job.bipolar, job.kernel = <const uint32_t *>_at(words), width, features, bipolar, 0
    _aligned("words", job.words, 4)
    job.counts, job.bits, job.mask = NULL, NULL, NULL
    job.thresholds, job.flips, job.class_of = NULL, NULL, NULL
    job.uniform = job.uniform_flip = 0
    job.uniform_threshold = job.base = 0
    job.planes = job.classes = 0
    return job


cdef tuple _on(tuple on):
    level, threads = on
    _between("the number of threads", threads, 1, 4096)
    return level, threads


def count(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
          const unsigned char[::1] words, object features, bint bipolar, int kernel, unsigned char[::1] counts):
    """int32 sums (rows, features) of the 0/1 or -1/+1 features of each row's neighbours."""
    cdef int level, threads, status
    cdef bs_bspmm_job job = _job(indptr, indices, wide, rows, cols, words, features, bipolar)
    level, threads = _on(on)
    _between("kernel", kernel, 0, BS_BSPMM_KERNELS - 1)
    _size_is("counts", counts.shape[0], rows * features * 4)
    if counts.shape[0] == 0:
        return
    job.kernel, job.counts = kernel, <int32_t *>_into(counts)
    _aligned("counts", job.counts, 4)
    with nogil:
        status = bs_bspmm_count(level, threads, &job)
    _raise(status)


def sign(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
         const unsigned char[::1] words, object features, bint bipolar, const unsigned char[::1] mask, object uniform,
         const unsigned char[::1] thresholds, const unsigned char[::1] flips, const unsigned char[::1] class_of, object planes,
         object classes, object base, unsigned char[::1] bits):
    """Bits (rows, width) of ``(sum >= threshold) ^ flip``.

    `uniform`: (threshold, flip) for every row and feature, or None and bit-sliced (classes, planes, width) thresholds, raised by `base` so
    that none is negative, (classes, width) flips, and the class of each row (empty: all 0). `base` must be at least the longest row.
    """
    cdef int level, threads, status
    cdef bs_bspmm_job job = _job(indptr, indices, wide, rows, cols, words, features, bipolar)
    level, threads = _on(on)
    row_bytes = job.width * 4
    _size_is("mask", mask.shape[0], row_bytes)
    _size_is("bits", bits.shape[0], rows * row_bytes)
    if bits.shape[0] == 0:
        return
    job.mask, job.bits = <const uint32_t *>_at(mask), <uint32_t *>_into(bits)
    if uniform is not None:
        threshold, flip = uniform
        _between("the threshold", threshold, -2**48, 2**48)
        job.uniform, job.uniform_flip, job.uniform_threshold = 1, bool(flip), threshold
    else:
        _between("planes", planes, 1, 62)
        _between("classes", classes, 1, 2**31 - 1)
        _between("base", base, 0, 2**48)
        _size_is("thresholds", thresholds.shape[0], classes * planes * row_bytes)
        _size_is("flips", flips.shape[0], classes * row_bytes)
        job.thresholds, job.flips = <const uint32_t *>_at(thresholds), <const uint32_t *>_at(flips)
        if class_of.shape[0]:
            _size_is("class_of", class_of.shape[0], rows * 4)
            job.class_of = <const int32_t *>_at(class_of)
        job.planes, job.classes, job.base = planes, classes, base
    for name, data in (("mask", <size_t>job.mask), ("bits", <size_t>job.bits), ("thresholds", <size_t>job.thresholds),
                       ("flips", <size_t>job.flips), ("class_of", <size_t>job.class_of)):
        if data % 4:
            raise ValueError(f"{name} is not aligned to 4 bytes; pass a copy")
    with nogil:
        status = bs_bspmm_sign(level, threads, &job)
    _raise(status)
