# cython: language_level=3, boundscheck=False, wraparound=False
"""Products per edge and the softmax over the edges of a row, on the host. Arrays come as flat buffers of bytes in C order."""
from drive cimport *
from drive_sparse cimport *

include "pool.pxi"
include "checks.pxi"
include "checks_sparse.pxi"


def sddmm(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz, int dtype,
          int op, const unsigned char[::1] x, const unsigned char[::1] y, object heads, object width, unsigned char[::1] out):
    """dot (0), sum (1), product (2), difference (3) or quotient of floats (4) of x[row] and y[column] for every edge, into `out`."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef int status
    _between("dtype", dtype, 0, BS_SDDMM_TYPES - 1)
    _between("op", op, 0, BS_DIV if dtype <= BS_SD_F64 else BS_DIV - 1)
    cdef bs_sddmm_job job = _job(dtype, op, indices is None, shape, x, y, heads, width)
    job.out = _writable_items("out", out, nnz * heads * (width if op else 1), _size_of(dtype))
    with nogil:
        status = bs_sddmm(run, &a, &job)
    _sparse_status(status, &a)


def leaky_dots(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz,
               bint double_precision, const unsigned char[::1] x, const unsigned char[::1] y, object heads, object width,
               const unsigned char[::1] weights, double slope, unsigned char[::1] out):
    """Dot product of `weights` and leaky(x[row] + y[column]) for every edge and head, into `out`."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef int status, dtype = BS_SD_F64 if double_precision else BS_SD_F32
    cdef bs_sddmm_job job = _job(dtype, BS_LEAKY, indices is None, shape, x, y, heads, width)
    job.weights = _items("weights", weights, heads * width, _size_of(dtype))
    job.slope = slope
    job.out = _writable_items("out", out, nnz * heads, _size_of(dtype))
    with nogil:
        status = bs_sddmm(run, &a, &job)
    _sparse_status(status, &a)


def steep_sums(tuple on, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz,
               bint double_precision, const unsigned char[::1] x, const unsigned char[::1] y, object heads, object width,
               const unsigned char[::1] weights, double slope, unsigned char[::1] out):
    """Sum over each row of the edges' weights, where x[row] + y[column] is not positive of `slope` times the weight, into `out`."""
    cdef bs_run_on run = _on(on)
    cdef bs_csr a = _csr(indptr, indices, wide, shape, nnz)
    cdef int status, dtype = BS_SD_F64 if double_precision else BS_SD_F32
    cdef bs_sddmm_job job = _job(dtype, BS_STEEP, indices is None, shape, x, y, heads, width)
    job.weights = _items("weights", weights, nnz * heads, _size_of(dtype))
    job.slope = slope
    job.out = _writable_items("out", out, shape[0] * heads * width, _size_of(dtype))
    with nogil:
        status = bs_steep_sums(run, &a, &job)
    _sparse_status(status, &a)


cdef int _size_of(int dtype):
    return 4 if dtype % 2 == 0 else 8


cdef bs_sddmm_job _job(int dtype, int op, bint no_indices, tuple shape, const unsigned char[::1] x, const unsigned char[::1] y,
                       object heads, object width) except *:
    """The ends of the edges; weights and the result are the caller's to add."""
    cdef bs_sddmm_job job
    _between("heads", heads, 0, 2**40)
    _between("width", width, 0, 2**40)
    if no_indices:
        raise ValueError("indices is None but every edge needs its column; pass the column indices")
    job.type, job.op, job.heads, job.width = dtype, op, heads, width
    job.x = _items("x", x, shape[0] * heads * width, _size_of(dtype))
    job.y = _items("y", y, shape[1] * heads * width, _size_of(dtype))
    job.weights = NULL
    job.slope = 0
    return job


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
