# cython: language_level=3, boundscheck=False, wraparound=False
"""Products per edge and the softmax over the edges of a row, on the host. Arrays come as flat buffers of bytes in C order."""
from drive cimport *
from drive_sparse cimport *

include "checks.pxi"
include "checks_sparse.pxi"


def sddmm(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz, int dtype,
          int op, const unsigned char[::1] x, const unsigned char[::1] y, object heads, object width, unsigned char[::1] out):
    """dot (0), sum (1) or product (2) of row x[row] and row y[column] for every edge, into `out`."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef int status, size
    cdef const void *left
    cdef const void *right
    cdef void *into
    _between("dtype", dtype, 0, BS_SDDMM_TYPES - 1)
    _between("op", op, 0, BS_SDDMM_OPS - 1)
    _between("heads", heads, 0, 2**40)
    _between("width", width, 0, 2**40)
    if indices is None:
        raise ValueError("indices is None but every edge needs its column; pass the column indices")
    size = 4 if dtype % 2 == 0 else 8
    left = _items("x", x, shape[0] * heads * width, size)
    right = _items("y", y, shape[1] * heads * width, size)
    into = _writable_items("out", out, nnz * heads * (width if op else 1), size)
    cdef size_t h = heads, w = width
    with nogil:
        status = bs_sddmm(run, &a, dtype, op, left, right, h, w, into)
    _sparse_status(status, &a)


def edge_softmax(tuple on, const unsigned char[::1] indptr, bint wide, object rows, object nnz, bint double_precision,
                 const unsigned char[::1] scores, object heads, unsigned char[::1] out):
    """Softmax over the edges of each row, for every head, into `out`."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, None, wide, (rows, nnz), nnz)
    cdef bs_scores given
    cdef int status, size = 8 if double_precision else 4
    cdef void *into
    _between("heads", heads, 0, 2**40)
    given.wide = double_precision
    given.heads = heads
    given.scores = _items("scores", scores, nnz * heads, size)
    given.source = given.target = NULL
    given.slope = 0
    into = _writable_items("out", out, nnz * heads, size)
    if nnz == 0:
        given.heads = 0
    with nogil:
        status = bs_edge_softmax(run, &a, &given, into)
    _sparse_status(status, &a)
