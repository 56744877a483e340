/* Products of packed operands: what the kernels share, and the fused epilogue. */
#ifndef BITSPARSE_MATMUL_H
#define BITSPARSE_MATMUL_H

#include "drivers/drive.h"

/* BS_RESULT_BYTES: see drivers/bytes.h */
enum bs_result { BS_RESULT_INT32, BS_RESULT_INT64, BS_RESULT_FLOAT, BS_RESULT_BITS, BS_RESULT_BYTES };

/* The chain applied to an accumulator; an operand whose data is NULL is skipped. See EpilogueParams in Python. */
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
    int found_nan; /* set when NaN reaches requantisation */
} bs_epilogue;

/* a: (a batches, m, a_bits, width), b: (b batches, n, b_bits, width) planes; a_index and b_index name the operand of each result. */
typedef struct {
    const uint32_t *a, *b, *bitmap;
    const int64_t *a_index, *b_index;
    size_t a_batch, b_batch, batch, m, n, k, width;
    int a_bits, b_bits, a_encoding, b_encoding;
    int narrow; /* every result fits int32 */
} bs_product;

/* All return 0, or -1 when memory is short. That of bytes takes at most 8 bits of each operand. */
int bs_matmul_planes(bs_run_on on, const bs_product *p, bs_epilogue *e);
int bs_matmul_digits(bs_run_on on, const bs_product *p, bs_epilogue *e);
int bs_matmul_bytes(bs_run_on on, const bs_product *p, bs_epilogue *e);
/* acc: BS_I32, BS_I64 or BS_F32, C order (batch, rows, cols) */
void bs_epilogue_only(bs_run_on on, const void *acc, int dtype, bs_epilogue *e);

/* ---- shared by the kernels ---- */

/* A tile of accumulators being finished: rows are stored, or collected as codes until the tile is packed. */
typedef struct {
    size_t batch, r0, c0, rows, cols;   /* at most 128 x 128 */
    uint32_t codes[BS_TILE * BS_TILE];  /* only when packed along the rows' axis */
} bs_out_tile;

/* Rows first .. first + count of the tile, from acc[count][BS_TILE]. */
void bs_finish_rows(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t first, size_t count, const int64_t *acc, int narrow);
/* Whether int32 sums may be written to where the result is, as they are: a large result goes there past the caches. */
int bs_takes_int32(const bs_epilogue *e);
/* The same of sums that are int32 already, for a result that is. */
void bs_finish_int32(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t first, size_t count, const int32_t *acc);
/* Packs what bs_finish_rows collected and makes stored rows visible; call it once after the last row. */
void bs_finish_tile(const bs_kernels *k, const bs_epilogue *e, const bs_out_tile *tile);

/* Runs of non-zero 128-bit tiles in [t0, t1) of a block of eight rows; one run without a bitmap. Room for (t1 - t0 + 1) / 2. */
size_t bs_runs(const bs_product *p, size_t batch, size_t row, size_t t0, size_t t1, bs_run *runs);

#endif
