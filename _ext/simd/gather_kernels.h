/* Weighted sums of chosen feature rows, each element summed in the order of the rows: the per-ISA table. */
#ifndef BITSPARSE_GATHER_KERNELS_H
#define BITSPARSE_GATHER_KERNELS_H

#include "simd/kernels.h"

enum bs_feature_kind { BS_FEATURE_FLOAT, BS_FEATURE_DOUBLE, BS_FEATURE_CODES, BS_FEATURE_KINDS };

/* A feature matrix: floating-point rows, or rows of 1, 2, 4 or 8-bit codes that are dequantised to fl(fl(q * scale) + offset) when read. */
typedef struct {
    int kind;
    const void *data;
    size_t stride; /* items from row to row: values, or uint32 words */
    size_t features;
    int bits, encoding;
    const float *scale, *offset;       /* NULL: codes are not scaled or shifted */
    size_t scale_row, scale_col;       /* 0 or 1 each, never both 1 */
    size_t offset_row, offset_col;
} bs_features;

#define BS_GATHER_CHUNK 256 /* the most rows per call */

typedef struct {
    /* out[j] += weight[k] * x[column[k]][j] for k in order; products and sums are rounded one by one, the same on every level */
    void (*add_rows)(const bs_features *x, const int64_t *column, const float *weight, size_t n, float *out);
    void (*add_rows_double)(const bs_features *x, const int64_t *column, const double *weight, size_t n, double *out);
} bs_gather_kernels;

extern const bs_gather_kernels bs_gather_kernels_scalar;
#ifdef BS_X86
extern const bs_gather_kernels bs_gather_kernels_avx2;
extern const bs_gather_kernels bs_gather_kernels_avx512;
#endif

#endif
