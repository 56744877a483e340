/* The drivers that the Cython modules call. Those modules have checked sizes against the buffers. */
#ifndef BITSPARSE_DRIVE_H
#define BITSPARSE_DRIVE_H

#include "drivers/packed.h"

typedef struct {
    int level, threads;
} bs_run_on;

/* ---- drivers/bits.c: logical arrays are C-contiguous (batch, rows, cols) ---- */
/* Returns whether a float was NaN, which has no sign; its bit is 0. */
int bs_pack(bs_run_on on, const void *values, int dtype, int how, const bs_packed *to);
/* wide: steps in float64 (offset and divisor are then float64), else float32. x[i] uses the random bits of index first_index + i. */
void bs_quantize(bs_run_on on, const void *x, int dtype, int wide, bs_operand offset, bs_operand divisor, const bs_quantizer *q,
                 uint64_t seed, uint32_t stream, uint64_t first_index, const bs_packed *to);
void bs_unpack(bs_run_on on, const bs_packed *from, int encoding, int dtype, void *values);
void bs_dequantize(bs_run_on on, const bs_packed *from, int encoding, bs_operand scale, bs_operand offset, int dtype, void *values);
void bs_repack(bs_run_on on, const bs_packed *from, const bs_packed *to);
void bs_stochastic_round(bs_run_on on, const void *x, int dtype, size_t n, uint64_t seed, uint32_t stream, void *out);

/* ---- drivers/reduce.c ---- */
enum bs_granularity { BS_PER_TENSOR, BS_PER_ROW, BS_PER_COL };
#define BS_RANGE_LINE 4096
/* lo, hi: float (for 16-bit input as well) or double; BS_PER_TENSOR needs ceil(size / BS_RANGE_LINE) of each. Returns 0 if some value is
 * not finite. */
int bs_calibrate(bs_run_on on, const void *x, int dtype, size_t batch, size_t rows, size_t cols, int granularity, void *lo, void *hi);
void bs_tile_bitmap(bs_run_on on, const uint32_t *words, size_t batch, size_t outer, int bits, size_t width, uint32_t *bitmap);
uint64_t bs_count_nonzero(bs_run_on on, const uint32_t *words, size_t lines, int bits, int layout, size_t width);
void bs_code_sums(bs_run_on on, const uint32_t *words, size_t lines, int bits, int encoding, size_t k, size_t width, int64_t *sums);
int bs_pad_is_zero(const uint32_t *words, size_t planes, size_t used_bits, size_t width);
/* The fingerprint of memory; see common/content.h. */
uint64_t bs_content_sum(const unsigned char *x, size_t bytes, int threads);

#endif
