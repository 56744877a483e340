/* Aggregation of one-bit features over a 0/1 adjacency: the per-ISA table and the job it works on. */
#ifndef BITSPARSE_BSPMM_KERNELS_H
#define BITSPARSE_BSPMM_KERNELS_H

#include "drivers/csr.h"

/* Three ways of multiplying 0/1 by -1/+1 (BitGNN section 3.2.2): 2 popc(a & b) - popc(a), popc(a & b) - popc(a & ~b), bit by bit. */
enum bs_bspmm_kernel { BS_TWICE_PLUS, BS_PLUS_MINUS, BS_SELECT, BS_BSPMM_KERNELS };

typedef struct {
    bs_csr csr;
    const uint32_t *words; /* (cols, width) features packed along their own axis */
    size_t width;          /* a multiple of 4 */
    size_t features;
    int bipolar; /* bits stand for -1/+1, else for 0/1 */
    int kernel;
    /* counts out: int32 (rows, features) */
    int32_t *counts;
    /* bits out: (rows, width); bit = (sum >= threshold) ^ flip, zero outside mask */
    uint32_t *bits;
    const uint32_t *mask; /* (width) */
    /* one threshold for all, or bit-sliced ones per class of rows and feature, shifted by `base` so that nothing is negative */
    int uniform, uniform_flip;
    int64_t uniform_threshold;
    const uint32_t *thresholds; /* (classes, planes, width): threshold + base */
    const uint32_t *flips;      /* (classes, width) */
    const int32_t *class_of;    /* (rows), or NULL for class 0 */
    size_t planes, classes;
    int64_t base;
} bs_bspmm_job;

enum bs_bspmm_status { BS_BSPMM_OK, BS_BSPMM_PATTERN, BS_BSPMM_MEMORY };

/* The columns of one row, in the width of the indices. They are checked and copied in one pass, since every block of features reads them
 * again and another thread may write into the caller's array meanwhile. All zeros at first. */
typedef struct {
    void *columns;
    size_t count, room;
} bs_own_row;

typedef struct {
    /* Rows r0 .. r1; BS_BSPMM_PATTERN if the pattern or a class is not valid there, and nothing outside the buffers has been touched. */
    int (*count_rows)(const bs_bspmm_job *job, size_t r0, size_t r1, bs_own_row *own);
    int (*sign_rows)(const bs_bspmm_job *job, size_t r0, size_t r1, bs_own_row *own);
} bs_bspmm_kernels;

extern const bs_bspmm_kernels bs_bspmm_kernels_scalar;
#ifdef BS_X86
extern const bs_bspmm_kernels bs_bspmm_kernels_avx2;
extern const bs_bspmm_kernels bs_bspmm_kernels_avx512;
#endif

#endif
