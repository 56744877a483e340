# cython: language_level=3, boundscheck=False, wraparound=False
"""Sparse times dense on the host. Every array comes as a flat buffer of bytes in C order with its dimensions."""
from drive cimport *
from drive_sparse cimport *

include "pool.pxi"
include "checks.pxi"
include "checks_sparse.pxi"

SEGMENT = BS_SEGMENT


def longest_row(const unsigned char[::1] indptr, bint wide, object rows, object nnz):
    """Most edges in a row; indptr is checked."""
    cdef bs_csr a = _csr(indptr, None, wide, (rows, 0), nnz)
    cdef int64_t longest
    with nogil:
        longest = bs_longest_row(&a)
    _sparse_status(BS_BAD_INDPTR if longest < 0 else BS_SPARSE_OK, &a)
    return longest


cdef bs_spmm_job _job(bs_csr *a, int load, int reduce, const unsigned char[::1] x, tuple layout, int bits,
                      int encoding, unsigned char[::1] out, object slice_blocks) except *:
    """A job of :func:`_job_like` with its features and result."""
    cdef bs_spmm_job job = _job_like(a, load, reduce, layout, bits, encoding, slice_blocks)
    if x.shape[0] < _gathered_bytes(a, layout):
        raise ValueError(f"x holds {x.shape[0]} bytes but {<object>a.cols} rows of {layout[0]} bytes are gathered; pass all of them")
    job.x = <const unsigned char *>_at(x)
    job.out = _writable_items("out", out, <object>a.rows * layout[3] * layout[4], <int>bs_spmm_out_bytes(load))
    return job


cdef object _gathered_bytes(bs_csr *a, tuple layout):
    return (<object>a.cols - 1) * layout[0] + layout[2] if a.cols else 0


cdef bs_spmm_job _job_like(bs_csr *a, int load, int reduce, tuple layout, int bits, int encoding, object slice_blocks) except *:
    """`layout`: bytes from row to row, from head to head and of a row; heads; columns of a head."""
    cdef bs_spmm_job job
    stride, head_stride, row_bytes, heads, width = layout
    _between("load", load, 0, BS_SPMM_LOADS - 1)
    for n in layout:
        _between("a size of x", n, 0, 2**60)
    field = load in (BS_X_FIELD_F32, BS_X_FIELD_I32)
    if field and bits not in (1, 2, 4):
        raise ValueError(f"bits is {bits} but fields have 1, 2 or 4 bits; pass wider integers as they are")
    _between("reduce", reduce, 0, BS_REDUCTIONS - 1)
    _between("encoding", encoding, 0, 2)
    needed = (heads - 1) * head_stride + _ceil_div(width * bs_spmm_x_bits(load, bits), 8) if heads else 0
    if row_bytes < needed or stride < row_bytes:
        raise ValueError(f"rows of x take {needed} bytes but row_bytes is {row_bytes} and the stride is {stride}; pass larger ones")
    _between("slice_blocks", slice_blocks, 0, 2**60)
    job.load, job.reduce, job.bits, job.encoding = load, reduce, bits if field else 1, encoding
    job.stride, job.head_stride, job.row_bytes, job.heads, job.width = layout
    job.slice_blocks = slice_blocks
    job.x, job.out, job.values = NULL, NULL, NULL
    job.value_heads = 1
    job.row_scale = job.col_scale = job.scale = job.offset = NULL
    job.affine = 0
    job.attention = NULL
    return job


def spmm(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz, int load,
         int reduce, const unsigned char[::1] x, tuple layout, int bits, int encoding,
         const unsigned char[::1] values, object value_heads, const unsigned char[::1] row_scale, const unsigned char[::1] col_scale,
         int affine, const unsigned char[::1] scale, const unsigned char[::1] offset, unsigned char[::1] out, object slice_blocks):
    """A reduction over the edges of each row into `out`; None for parts that are absent."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef bs_spmm_job job = _job(&a, load, reduce, x, layout, bits, encoding, out, slice_blocks)
    cdef int status
    heads, width = layout[3:]
    if values is not None:
        if value_heads != 1 and value_heads != heads:
            raise ValueError(f"values have {value_heads} heads but x has {heads}; pass one or as many")
        job.values = _items("values", values, nnz * value_heads, <int>bs_spmm_acc_bytes(load))
        job.value_heads = value_heads
    if row_scale is not None:
        job.row_scale = <const float *>_items("row_scale", row_scale, shape[0], 4)
    if col_scale is not None:
        job.col_scale = <const float *>_items("col_scale", col_scale, shape[1], 4)
    _between("affine", affine, 0, 2)
    if affine:
        job.affine = affine
        job.scale = <const float *>_items("scale", scale, shape[1] if affine == 1 else heads * width, 4)
        job.offset = <const float *>_items("offset", offset, shape[1] if affine == 1 else heads * width, 4)
    with nogil:
        status = bs_spmm(run, &a, &job)
    _sparse_status(status, &a)


cdef class Sums:
    """Reductions of floating features over one pattern, again and again, wherever features, values and results lie.

    Rows are looked at and shared out once: row pointers that change later do not count, columns are checked in every call. Parameters are
    those of :func:`spmm`, without these; `value_heads` is 0 where edges have no values.
    """
    cdef bs_split _split
    cdef bs_spmm_job _job
    cdef object _x_bytes, _value_bytes, _out_bytes
    cdef int _acc, _out
    cdef tuple _held

    def __cinit__(self, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz, int load,
                  int reduce, tuple layout, object value_heads, const unsigned char[::1] row_scale, const unsigned char[::1] col_scale):
        cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
        self._job = _job_like(&a, load, reduce, layout, 1, 0, 0)
        heads, width = layout[3:]
        if value_heads:
            if value_heads != 1 and value_heads != heads:
                raise ValueError(f"values have {value_heads} heads but x has {heads}; pass one or as many")
            self._job.value_heads = value_heads
        if row_scale is not None:
            self._job.row_scale = <const float *>_items("row_scale", row_scale, shape[0], 4)
        if col_scale is not None:
            self._job.col_scale = <const float *>_items("col_scale", col_scale, shape[1], 4)
        self._acc, self._out = <int>bs_spmm_acc_bytes(load), <int>bs_spmm_out_bytes(load)
        self._x_bytes = _gathered_bytes(&a, layout)
        self._value_bytes, self._out_bytes = nnz * value_heads * self._acc, shape[0] * heads * width * self._out
        self._held = (indices, row_scale, col_scale)
        _sparse_status(bs_split_make(&self._split, &a), &a)
        if heads * width == 1:
            _sparse_status(bs_split_order(&self._split), &a)

    def __dealloc__(self):
        bs_split_free(&self._split)

    def __call__(self, tuple on, object x, object values, object out):
        """Sums into `out`. Each is a contiguous buffer, or the address of one: then the caller knows that it is as large and aligned to its
        items, and stays where it is."""
        cdef bs_run_on run = _on(on)
        cdef bs_spmm_job job = self._job
        cdef Py_buffer held[3]
        cdef int count = 0, status
        try:
            job.x = <const unsigned char *>_place("x", x, self._x_bytes, 1, False, held, &count)
            job.out = _place("out", out, self._out_bytes, self._out, True, held, &count)
            if self._value_bytes:
                job.values = _place("values", values, self._value_bytes, self._acc, False, held, &count)
            with nogil:
                status = bs_spmm_split(run, &self._split, &job)
        finally:
            while count:
                count -= 1
                PyBuffer_Release(&held[count])
        _sparse_status(status, &self._split.a)


def attention(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz,
              int load, const unsigned char[::1] x, tuple layout, const unsigned char[::1] ends, const unsigned char[::1] target,
              double slope, tuple dropout, bint turned, unsigned char[::1] out, unsigned char[::1] lse, unsigned char[::1] share,
              unsigned char[::1] above, object slice_blocks):
    """Sums over the edges of each row, weighted by the softmax of leaky(source[column] + target[row]), into `out`; or their gradient.

    `ends` is (cols, heads), or (cols, heads, 3) if `turned`; `dropout` None or (threshold, scale, seed). For the rest see bs_attention.
    """
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef bs_spmm_job job = _job(&a, load, 0, x, layout, 1, 0, out, slice_blocks)
    cdef bs_attention given
    cdef int status, size
    heads, width = layout[3:]
    if load in (BS_X_FIELD_F32,) or load >= BS_X_FIELD_F32 + 2:
        raise ValueError(f"load is {load} but attention sums in floating point; pass float features")
    if turned and lse is not None:
        raise ValueError("lse is given and turned is true, but a gradient has no logarithms of sums; pass None")
    given.scores.wide = load == BS_X_FIELD_F32 + 1
    given.scores.heads = heads
    given.scores.scores = NULL
    given.scores.slope = slope
    size = 8 if given.scores.wide else 4
    given.scores.source = _items("ends", ends, shape[1] * heads * (3 if turned else 1), size)
    given.scores.target = _items("target", target, shape[0] * heads, size)
    given.ends = NULL
    if turned:
        # Without columns there are no edges, which any memory serves.
        given.ends = given.scores.source if given.scores.source != NULL else a.indptr
    given.dropout = dropout is not None
    given.threshold, given.kept_scale, given.seed = dropout or (0, 1.0, 0)
    given.lse = given.share = given.above = NULL
    if lse is not None:
        given.lse = _writable_items("lse", lse, shape[0] * heads, size)
    if share is not None:
        given.share = _writable_items("share", share, shape[0] * heads, size)
    if above is not None:
        item = size if turned else <int>bs_spmm_out_bytes(load)
        given.above = _writable_items("above", above, shape[0] * heads * width, item)
    job.attention = &given
    with nogil:
        status = bs_spmm(run, &a, &job)
    _sparse_status(status, &a)
