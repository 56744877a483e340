/* A CSR pattern for the sparse functions: indices of one width, rows checked as they are read. */
#ifndef BITSPARSE_CSR_H
#define BITSPARSE_CSR_H

#include "simd/kernels.h"

typedef struct {
    const void *indptr, *indices; /* int32, or int64 if wide */
    int wide;
    size_t rows, cols, nnz;
} bs_csr;

/* Loads are atomic, so that no compiler reads a value twice: the GIL is not held, so another thread may write into the caller's arrays
 * meanwhile, and what has been checked must be what is used. The worst outcome is then a wrong number. */
BS_FN int64_t bs_row_start(const bs_csr *a, size_t row)
{
    return a->wide ? __atomic_load_n((const int64_t *)a->indptr + row, __ATOMIC_RELAXED)
                   : __atomic_load_n((const int32_t *)a->indptr + row, __ATOMIC_RELAXED);
}

/* The column of an edge that has been checked; column 0 if another thread has written something else since. */
BS_FN int64_t bs_column(const bs_csr *a, size_t edge)
{
    const int64_t c = a->wide ? __atomic_load_n((const int64_t *)a->indices + edge, __ATOMIC_RELAXED)
                              : __atomic_load_n((const int32_t *)a->indices + edge, __ATOMIC_RELAXED);
    return (uint64_t)c < a->cols ? c : 0;
}

/* The first edge of a row and the number of its edges, loading each pointer once; 0 if this range does not lie within the edges. */
BS_FN int bs_row(const bs_csr *a, size_t row, size_t *first, size_t *count)
{
    const uint64_t start = (uint64_t)bs_row_start(a, row), end = (uint64_t)bs_row_start(a, row + 1);
    *first = (size_t)start;
    *count = (size_t)(end - start);
    return start <= end && end <= a->nnz;
}

/* Whether all column indices of some edges are below cols. A negative index is a large unsigned one. */
BS_FN int bs_columns_valid(const bs_csr *a, size_t first, size_t count)
{
    if (a->wide) {
        const uint64_t *index = (const uint64_t *)a->indices + first;
        uint64_t wrong = 0;
        for (size_t e = 0; e < count; e++)
            wrong |= index[e] >= a->cols;
        return !wrong;
    }
    const uint32_t *index = (const uint32_t *)a->indices + first;
    uint32_t largest = 0;
    for (size_t e = 0; e < count; e++)
        largest = index[e] > largest ? index[e] : largest;
    return !count || largest < a->cols;
}

#endif
