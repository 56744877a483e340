"""A CSR pattern in C."""
from libc.stdint cimport int64_t


cdef extern from "drivers/csr.h" nogil:
    ctypedef struct bs_csr:
        const void *indptr
        const void *indices
        int wide
        size_t rows
        size_t cols
        size_t nnz

    int64_t bs_row_start(const bs_csr *a, size_t row)
