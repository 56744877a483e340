/* The table of sparse hot loops that is compiled once per instruction set, and the plain data they share with the drivers. */
#ifndef BITSPARSE_SPMM_KERNELS_H
#define BITSPARSE_SPMM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/reductions.h"
#include "common/scalar.h"

/* How a feature is read and what it is summed in. Fields are integers of 1, 2 or 4 bits side by side. */
enum bs_spmm_load {
    BS_X_F32,
    BS_X_F16,
    BS_X_BF16,
    BS_X_I8_F32,
    BS_X_U8_F32,
    BS_X_I16_F32,
    BS_X_U16_F32,
    BS_X_FIELD_F32,
    BS_X_F64,
    BS_X_I8_I32,
    BS_X_U8_I32,
    BS_X_I16_I32,
    BS_X_U16_I32,
    BS_X_FIELD_I32,
    BS_X_I32_I64,
    BS_X_U32_I64,
    BS_X_I64,
    BS_SPMM_LOADS
};
/* What becomes of the edges of a row: sums, or a reduction that selects, by its number. Their terms are weighted. */
enum bs_spmm_op { BS_SUM, BS_WEIGHTED_SUM, BS_SPMM_OPS = BS_REDUCTIONS };

#define BS_SEGMENT 1024        /* edges summed one after another; longer rows are summed in pieces of so many */
#define BS_AHEAD 16            /* edges by which gathers are asked for in advance; pointer lists are that much longer */
#define BS_UNIT_EDGES (2 * BS_SEGMENT)
#define BS_SLACK 64            /* bytes that may be read beyond the last feature of a row */

/* Where the rows of x lie. The last rows have a padded copy, so that whole vectors can be read everywhere. */
typedef struct {
    const unsigned char *base, *tail;
    size_t stride, tail_stride, tail_first, rows;
} bs_gather;

/* Some rows of A times one block of columns of x, at most four vectors wide. */
typedef struct {
    const unsigned char *const *at;   /* per edge: its row of x; or, for `run_columns` and `run_factors`, */
    const uint32_t *column;           /* per edge: its column, which may be out of range, and BS_AHEAD more */
    const bs_gather *gather;          /* and where the rows of x lie */
    size_t x_offset;                  /* bytes from there to the block */
    const void *weight;               /* per edge, in the accumulator's type; for `run_factors` per row of x */
    const float *edge_scale, *edge_offset; /* per edge: dequantisation by rows of x, or NULL */
    const float *col_scale, *col_offset;   /* per column of the block, padded to whole vectors */
    uint32_t sign;                    /* fields: sign bit of a code, or 0 */
    int bits, twice, shift;           /* fields: width; value = code + shift, or 2 code + shift where twice is -1, else 0 */
    const uint32_t *first;            /* rows + 1 positions in the edge list */
    size_t rows;
    unsigned char *out;               /* of the first row, at the block's first column */
    size_t out_stride;                /* bytes */
    int width;                        /* columns of the block */
    int raw;                          /* store accumulators as they are: a piece of a long row */
    int mean;                         /* divide by the number of edges */
    const float *row_scale;           /* per row, or NULL */
} bs_spmm_block;

/* One edge-parallel product of rows: x row against y rows. */
typedef struct {
    const unsigned char *x;           /* the row of x, padded like the rows of y */
    const unsigned char *const *at;   /* per edge: its row of y */
    size_t edges, heads, width;       /* width: elements of one head */
    unsigned char *out;               /* (edges, heads) or, elementwise, (edges, heads * width); BS_STEEP: (heads * width) */
    const unsigned char *weights;     /* BS_LEAKY: (heads * width), padded; BS_STEEP: (edges, heads) */
    double slope;                     /* of both */
} bs_sddmm_block;

enum bs_sddmm_type { BS_SD_F32, BS_SD_F64, BS_SD_I32, BS_SD_I64, BS_SDDMM_TYPES };
/* BS_LEAKY: dot products of `weights` with leaky relus of x + y. BS_STEEP adds to a row of sums every edge's weight where x + y is positive,
 * `slope` of it elsewhere. Integers have dot products, sums, products and differences. */
enum bs_sddmm_op { BS_DOT, BS_ADD, BS_MUL, BS_SUB, BS_DIV, BS_LEAKY, BS_STEEP, BS_SDDMM_OPS };

typedef struct {
    size_t vector_bytes;
    void (*run[BS_SPMM_LOADS][BS_SPMM_OPS])(const bs_spmm_block *b);
    /* Sums that find the rows of x by themselves, NULL where there are none; the result is not 0 if a column is out of range. */
    int (*run_columns[BS_SPMM_LOADS][BS_WEIGHTED_SUM + 1])(const bs_spmm_block *b);
    /* The same for float32, where the edges of a column all weigh the same: nobody has to write down the weights of edges before. */
    int (*run_factors)(const bs_spmm_block *b);
    /* Sums of one column over short rows, see simd/short_rows.inc; NULL if this level has no such kernels. `order`, if there is one,
     * is that of the rows and readable BS_SLACK bytes past its end. */
    int (*short_rows_f32)(const uint32_t *columns, const float *weights, const unsigned char *x, size_t limit, const uint32_t *first,
                          const uint16_t *order, size_t rows, float *out);
    int (*short_rows_f64)(const uint32_t *columns, const double *weights, const unsigned char *x, size_t limit, const uint32_t *first,
                          const uint16_t *order, size_t rows, double *out);
    /* Rows of `width` floats, `stride` bytes apart, to where they are `to_stride` bytes apart, with zeros between them; row r times its factor. */
    void (*lay_f32)(const unsigned char *from, size_t stride, size_t rows, size_t width, const float *factors, unsigned char *to,
                    size_t to_stride);
    /* Row addresses of n edges; the result is not 0 if a column is out of range, and then no address may be followed. */
    int (*locate32)(const uint32_t *indices, size_t n, const bs_gather *g, const unsigned char **at);
    int (*locate64)(const uint64_t *indices, size_t n, const bs_gather *g, const unsigned char **at);
    void (*sddmm[BS_SDDMM_TYPES][BS_SDDMM_OPS])(const bs_sddmm_block *b);
    /* Softmax pieces. exp of n differences in place; sums in 16 (float) or 8 (double) interleaved lanes, folded pairwise, which read up
     * to BS_SLACK bytes beyond the row. */
    void (*exp_f32)(float *x, size_t n);
    void (*exp_f64)(double *x, size_t n);
    float (*max_f32)(const float *x, size_t n);
    double (*max_f64)(const double *x, size_t n);
    float (*sum_f32)(const float *x, size_t n);
    double (*sum_f64)(const double *x, size_t n);
    void (*shift_f32)(float *x, size_t n, float by);
    void (*shift_f64)(double *x, size_t n, double by);
    void (*divide_f32)(float *x, size_t n, float by);
    void (*divide_f64)(double *x, size_t n, double by);
    void (*shift_row_f32)(float *x, size_t n);
    void (*shift_row_f64)(double *x, size_t n);
    void (*normalise_row_f32)(float *x, size_t n);
    void (*normalise_row_f64)(double *x, size_t n);
} bs_spmm_kernels;

extern const bs_spmm_kernels bs_spmm_kernels_scalar;
#ifdef BS_X86
extern const bs_spmm_kernels bs_spmm_kernels_avx2;
extern const bs_spmm_kernels bs_spmm_kernels_avx512;
#endif

#endif
