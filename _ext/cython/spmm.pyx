# cython: language_level=3, boundscheck=False, wraparound=False
"""Sparse times dense on the host. Every array comes as a flat buffer of bytes in C order with its dimensions."""
from drive cimport *
from drive_sparse cimport *

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
    cols = <object>a.cols
    if cols and x.shape[0] < (cols - 1) * stride + row_bytes:
        raise ValueError(f"x holds {x.shape[0]} bytes but {cols} rows of {stride} bytes are gathered; pass all of them")
    _between("slice_blocks", slice_blocks, 0, 2**60)
    job.load, job.reduce, job.bits, job.encoding = load, reduce, bits if field else 1, encoding
    job.stride, job.head_stride, job.row_bytes, job.heads, job.width = layout
    job.slice_blocks = slice_blocks
    job.x = <const unsigned char *>_at(x)
    job.out = _writable_items("out", out, <object>a.rows * heads * width, <int>bs_spmm_out_bytes(load))
    job.values = NULL
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


def attention(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz,
              int load, const unsigned char[::1] x, tuple layout, const unsigned char[::1] source, const unsigned char[::1] target,
              double slope, unsigned char[::1] out, object slice_blocks):
    """Sum over the edges of each row, weighted by the softmax of leaky(source[column] + target[row]), into `out`."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef bs_spmm_job job = _job(&a, load, 0, x, layout, 1, 0, out, slice_blocks)
    cdef bs_scores scores
    cdef int status
    heads = layout[3]
    if load in (BS_X_FIELD_F32,) or load >= BS_X_FIELD_F32 + 2:
        raise ValueError(f"load is {load} but attention sums in floating point; pass float features")
    scores.wide = load == BS_X_FIELD_F32 + 1
    scores.heads = heads
    scores.scores = NULL
    scores.slope = slope
    scores.source = _items("source", source, shape[1] * heads, 8 if scores.wide else 4)
    scores.target = _items("target", target, shape[0] * heads, 8 if scores.wide else 4)
    job.attention = &scores
    with nogil:
        status = bs_spmm(run, &a, &job)
    _sparse_status(status, &a)
