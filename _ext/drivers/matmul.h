/* Products of packed operands: their kernels, the fused epilogue, and what the kernels share. */
#ifndef BITSPARSE_MATMUL_H
#define BITSPARSE_MATMUL_H

#include "drivers/drive.h"

/* BS_RESULT_BYTES: see drivers/bytes.h */
enum bs_result { BS_RESULT_INT32, BS_RESULT_INT64, BS_RESULT_FLOAT, BS_RESULT_BITS, BS_RESULT_BYTES };

/* The epilogue of an accumulator; the step of an operand whose data is NULL is skipped. See EpilogueParams in Python. */
typedef struct {
    int result;
    bs_operand row_scale, col_scale, row_term[2], col_term[2], bias, bn_scale, bn_shift;
    int activation, binarize;
    float slope;
    bs_operand offset, divisor;
    bs_quantizer quantizer;
    uint64_t seed;
    uint32_t stream;
    size_t batch, rows, cols; /* of the result */
    void *out;                /* C order (batch, rows, cols), or words as `packed` says */
    bs_packed packed;
    int found_nan; /* set if a NaN reaches requantisation */
} bs_epilogue;

/* Operands in planes, a: (a_batch, m, a_bits, width) and b: (b_batch, n, b_bits, width). Result i is the product of the matrices a_index[i]
 * and b_index[i]. */
typedef struct {
    const uint32_t *a, *b, *bitmap;
    const int64_t *a_index, *b_index;
    size_t a_batch, b_batch, batch, m, n, k, width;
    int a_bits, b_bits, a_encoding, b_encoding;
    int narrow; /* every result fits int32 */
} bs_product;

/* All return 0, or -1 if memory cannot be allocated. The bytes kernel takes at most 8 bits of each operand. */
int bs_matmul_planes(bs_run_on on, const bs_product *p, bs_epilogue *e);
int bs_matmul_digits(bs_run_on on, const bs_product *p, bs_epilogue *e);
int bs_matmul_bytes(bs_run_on on, const bs_product *p, bs_epilogue *e);
/* acc: BS_I32, BS_I64 or BS_F32, C order (batch, rows, cols) */
void bs_epilogue_only(bs_run_on on, const void *acc, int dtype, bs_epilogue *e);

/* ---- shared by the kernels ---- */

/* A tile of accumulators that is being finished: each row is stored at once, or its codes are collected until the tile is packed. */
typedef struct {
    size_t batch, r0, c0, rows, cols;   /* at most 128 x 128 */
    uint32_t codes[BS_TILE * BS_TILE];  /* only when packed along the rows' axis */
} bs_out_tile;

/* Finish `count` rows of the tile from row `first` on, from acc[count][BS_TILE]. */
void bs_finish_rows(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t first, size_t count, const int64_t *acc, int narrow);
/* Whether int32 sums may be stored as the result by bs_finish_int32; a large result may not, since it is written past the caches. */
int bs_takes_int32(const bs_epilogue *e);
/* bs_finish_rows for sums that are int32 already, if bs_takes_int32. */
void bs_finish_int32(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t first, size_t count, const int32_t *acc);
/* Pack what bs_finish_rows collected, and make stored rows visible to other threads; called once, after the last row. */
void bs_finish_tile(const bs_kernels *k, const bs_epilogue *e, const bs_out_tile *tile);

/* Find the runs of non-zero 128-bit tiles in [t0, t1) of a block of eight rows, or a single run without a bitmap, and return how many there
 * are. `runs` has room for (t1 - t0 + 1) / 2. */
size_t bs_runs(const bs_product *p, size_t batch, size_t row, size_t t0, size_t t1, bs_run *runs);

#endif
