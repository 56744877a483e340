"""Edge sampling, and sums over sampled edges. Every argument is checked here or in the C drivers; a wrong one raises ValueError."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from csr cimport bs_csr, bs_row_start

include "pool.pxi"


cdef extern from "drivers/sample.h" nogil:
    enum:
        BS_STRATEGIES
        BS_FEATURE_KINDS
        BS_FEATURE_CODES
        BS_FEATURE_DOUBLE

    ctypedef struct bs_sampler:
        int strategy
        int64_t width
        uint64_t seed
        uint32_t stream

    ctypedef struct bs_features:
        int kind
        const void *data
        size_t stride
        size_t features
        int bits
        int encoding
        const float *scale
        const float *offset
        size_t scale_row
        size_t scale_col
        size_t offset_row
        size_t offset_col

    ctypedef struct bs_gather_job:
        bs_csr csr
        bs_sampler sampler
        bs_features x
        const void *values
        const void *col_scale
        const void *row_scale
        int rescale
        int mean
        void *out

    int bs_sample_counts(int threads, const bs_csr *a, const bs_sampler *s, int64_t *counts)
    int bs_sample_edges(int threads, const bs_csr *a, const bs_sampler *s, const int64_t *starts, size_t total, int64_t *edges)
    int bs_gather(int level, int threads, const bs_gather_job *job)


include "csr_checks.pxi"


cdef bs_sampler _sampler(tuple sampler) except *:
    cdef bs_sampler s
    strategy, width, seed, stream = sampler
    _between("strategy", strategy, 0, BS_STRATEGIES - 1)
    _between("width", width, 1, 2**48)
    _between("seed", seed, 0, 2**64 - 1)
    _between("stream", stream, 0, 2**32 - 1)
    s.strategy, s.width, s.seed, s.stream = strategy, width, seed, stream
    return s


cdef int _threads(tuple on) except -1:
    _between("the number of threads", on[1], 1, 4096)
    return on[1]


cdef bs_csr _starts(const unsigned char[::1] indptr, bint wide, object rows, object nnz) except *:
    """A pattern of which only indptr is read."""
    cdef bs_csr a
    cdef size_t item = 8 if wide else 4
    _between("the number of rows", rows, 0, 2**48)
    _between("the number of entries", nnz, 0, 2**48)
    _size_is("indptr", indptr.shape[0], (rows + 1) * item)
    a.indptr, a.indices, a.wide = _at(indptr), NULL, wide
    a.rows, a.cols, a.nnz = rows, 0, nnz
    _aligned("indptr", a.indptr, item)
    _whole(&a)
    return a


def counts(tuple on, const unsigned char[::1] indptr, bint wide, object rows, object nnz, tuple sampler, unsigned char[::1] out):
    """int64 number of sampled edges of each row."""
    cdef int ok, threads = _threads(on)
    cdef bs_csr a = _starts(indptr, wide, rows, nnz)
    cdef bs_sampler s = _sampler(sampler)
    cdef int64_t *to = <int64_t *>_into(out)
    _size_is("counts", out.shape[0], rows * 8)
    _aligned("counts", to, 8)
    with nogil:
        ok = bs_sample_counts(threads, &a, &s, to)
    _valid(ok)


def edges(tuple on, const unsigned char[::1] indptr, bint wide, object rows, object nnz, tuple sampler, const unsigned char[::1] starts,
          unsigned char[::1] out):
    """int64 numbers of the sampled edges, row after row; `starts` are the running sums of :func:`counts`."""
    cdef int ok, threads = _threads(on)
    cdef bs_csr a = _starts(indptr, wide, rows, nnz)
    cdef bs_sampler s = _sampler(sampler)
    cdef const int64_t *begin = <const int64_t *>_at(starts)
    cdef int64_t *to = <int64_t *>_into(out)
    cdef size_t total = <size_t>out.shape[0] // 8
    _size_is("starts", starts.shape[0], (rows + 1) * 8)
    if <size_t>out.shape[0] % 8:
        raise ValueError(f"edges hold {out.shape[0]} bytes, which is no whole number of int64; pass a buffer of int64")
    _aligned("starts", begin, 8)
    _aligned("edges", to, 8)
    with nogil:
        ok = bs_sample_edges(threads, &a, &s, begin, total, to)
    _valid(ok)


cdef size_t _vector(str what, const unsigned char[::1] data, object n, size_t item) except? 0:
    """Address of an optional vector, 0 where it is absent (empty)."""
    if data.shape[0] == 0:
        return 0
    _size_is(what, data.shape[0], n * item)
    _aligned(what, _at(data), item)
    return <size_t>_at(data)


cdef size_t _affine(str what, const unsigned char[::1] data, object row, object col, object rows, object cols) except? 0:
    """Address of a scale or offset that is constant, per row or per column."""
    _between(f"the row stride of {what}", row, 0, 1)
    _between(f"the column stride of {what}", col, 0, 1 - row)
    return _vector(what, data, rows if row else cols if col else 1, 4)


def gather(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols, tuple sampler,
           int kind, const unsigned char[::1] x, object features, int bits, int encoding, const unsigned char[::1] scale,
           tuple scale_strides,
           const unsigned char[::1] offset, tuple offset_strides, const unsigned char[::1] values, const unsigned char[::1] col_scale,
           const unsigned char[::1] row_scale, bint rescale, bint mean, unsigned char[::1] out):
    """Sums of the sampled neighbours' features, (rows, features) of float32, or float64 for float64 features.

    Empty buffers stand for absent scales and values. Strides of scale and offset are (1, 0) per row, (0, 1) per column, (0, 0) constant.
    """
    cdef bs_gather_job job
    cdef int ok, level = on[0], threads = _threads(on)
    cdef size_t item
    job.csr = _pattern(indptr, indices, wide, rows, cols)
    _whole(&job.csr)
    job.sampler = _sampler(sampler)
    _between("kind", kind, 0, BS_FEATURE_KINDS - 1)
    _between("the number of features", features, 0, 2**48)
    item = 8 if kind == BS_FEATURE_DOUBLE else 4
    stride = features
    if kind == BS_FEATURE_CODES:
        if bits not in (1, 2, 4, 8):
            raise ValueError(f"bits is {bits}, but codes of 1, 2, 4 or 8 bits are dequantised on the fly; dequantize the features first")
        _between("encoding", encoding, 0, 2 if bits == 1 else 1)
        stride = -(-(features * bits) // 128) * 4
    _size_is("the features", x.shape[0], cols * stride * item)
    _size_is("out", out.shape[0], rows * features * item)
    if out.shape[0] == 0:
        return
    job.x.kind, job.x.data, job.x.stride, job.x.features = kind, _at(x), stride, features
    job.x.bits, job.x.encoding = bits, encoding
    job.x.scale_row, job.x.scale_col = scale_strides
    job.x.offset_row, job.x.offset_col = offset_strides
    job.x.scale = <const float *>_affine("scale", scale, scale_strides[0], scale_strides[1], cols, features)
    job.x.offset = <const float *>_affine("offset", offset, offset_strides[0], offset_strides[1], cols, features)
    job.values = <const void *>_vector("values", values, job.csr.nnz, item)
    job.col_scale = <const void *>_vector("col_scale", col_scale, cols, item)
    job.row_scale = <const void *>_vector("row_scale", row_scale, rows, item)
    job.rescale, job.mean, job.out = rescale, mean, _into(out)
    _aligned("the features", job.x.data, item)
    _aligned("out", job.out, item)
    with nogil:
        ok = bs_gather(level, threads, &job)
    _valid(ok)
