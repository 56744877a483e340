/* A CSR pattern as the sparse families take it: indices of one width, rows checked just before they are used. */
#ifndef BITSPARSE_CSR_H
#define BITSPARSE_CSR_H

#include "kernels.h"

typedef struct {
    const void *indptr, *indices; /* int32, or int64 if wide */
    int wide;
    size_t rows, cols, nnz;
} bs_csr;

BS_FN int64_t bs_row_start(const bs_csr *a, size_t row)
{
    return a->wide ? ((const int64_t *)a->indptr)[row] : (int64_t)((const int32_t *)a->indptr)[row];
}

BS_FN int64_t bs_column(const bs_csr *a, size_t edge)
{
    return a->wide ? ((const int64_t *)a->indices)[edge] : (int64_t)((const int32_t *)a->indices)[edge];
}

/* Whether indptr does not decrease over rows r0 .. r1 and stays within nnz. */
BS_FN int bs_rows_ordered(const bs_csr *a, size_t r0, size_t r1)
{
    int64_t before = bs_row_start(a, r0);
    if (before < 0)
        return 0;
    for (size_t r = r0 + 1; r <= r1; r++) {
        const int64_t here = bs_row_start(a, r);
        if (here < before || (uint64_t)here > a->nnz)
            return 0;
        before = here;
    }
    return 1;
}

/* Whether rows r0 .. r1 may be followed: ordered, and every column index below cols. Read while the indices come into the cache anyway. */
BS_FN int bs_rows_valid(const bs_csr *a, size_t r0, size_t r1)
{
    if (!bs_rows_ordered(a, r0, r1))
        return 0;
    const size_t first = (size_t)bs_row_start(a, r0), last = (size_t)bs_row_start(a, r1);
    if (a->wide) {
        const uint64_t *index = (const uint64_t *)a->indices;
        uint64_t wrong = 0;
        for (size_t e = first; e < last; e++)
            wrong |= index[e] >= a->cols;
        return !wrong;
    }
    /* A negative index is a large unsigned one. */
    const uint32_t *index = (const uint32_t *)a->indices;
    uint32_t largest = 0;
    for (size_t e = first; e < last; e++)
        largest = index[e] > largest ? index[e] : largest;
    return first == last || largest < a->cols;
}

#endif
