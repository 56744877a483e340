/* Steps of low-bit networks on codes that lie in bytes, one row of `stride` bytes (a multiple of 16, zero behind its codes) to a node. */
#ifndef BITSPARSE_BYTES_H
#define BITSPARSE_BYTES_H

#include "matmul.h"

/* x times weights, where there are panels ([columns / 16][k / 4][16][4], zero beyond k and the columns), else sums of rows of x: row r of
 * the result is that of indices[indptr[r]] .. indices[indptr[r + 1] - 1]. Every sum fits int32. */
typedef struct {
    const uint8_t *x;
    size_t stride, k;
    const int8_t *panels;
    const int32_t *indptr, *indices;
} bs_bytes_step;

/* Columns that a step takes at most. */
size_t bs_bytes_longest(void);
/* Into e->out: floats without gaps (BS_RESULT_FLOAT), or bytes in rows of whole blocks of 16 (BS_RESULT_BYTES). One batch. */
void bs_bytes_run(bs_run_on on, const bs_bytes_step *s, bs_epilogue *e);

#endif
