/* Geometry of packed words and tiles of codes, shared by the drivers. */
#ifndef BITSPARSE_PACKED_H
#define BITSPARSE_PACKED_H

#include "drivers/parallel.h"

/* The words of a logical (batch, rows, cols) array that is packed along its last axis (axis == -1) or the one before it (-2). */
typedef struct {
    uint32_t *words;
    size_t batch, rows, cols;
    int bits, axis, layout;
} bs_packed;

BS_FN size_t bs_packed_length(const bs_packed *p) { return p->axis == -1 ? p->cols : p->rows; }
BS_FN size_t bs_packed_outer(const bs_packed *p) { return p->axis == -1 ? p->rows : p->cols; }
/* Words of one outer index: of one plane (planes) or of all fields (rows). */
BS_FN size_t bs_packed_width(const bs_packed *p)
{
    return bs_ceil_div(bs_packed_length(p) * (p->layout == BS_PLANES ? 1 : (size_t)p->bits), 128) * 4;
}
BS_FN size_t bs_packed_stride(const bs_packed *p) { return bs_packed_width(p) * (p->layout == BS_PLANES ? (size_t)p->bits : 1); }

/* Copies a row of `n` codes starting at column c0 (a multiple of 128); codes are zero up to the next multiple of 128. axis == -1. */
void bs_put_row(const bs_kernels *k, const bs_packed *p, size_t batch, size_t row, size_t c0, size_t n, const uint32_t *codes);
void bs_get_row(const bs_kernels *k, const bs_packed *p, size_t batch, size_t row, size_t c0, size_t n, uint32_t *codes);

/* Copies a tile codes[BS_TILE][BS_TILE] at (r0, c0), multiples of 128; for axis == -1 its rows are zero up to the next multiple of 128. */
void bs_put_tile(const bs_kernels *k, const bs_packed *p, size_t batch, size_t r0, size_t c0, size_t rows, size_t cols,
                 const uint32_t *tile);
void bs_get_tile(const bs_kernels *k, const bs_packed *p, size_t batch, size_t r0, size_t c0, size_t rows, size_t cols, uint32_t *tile);

/* A vector that broadcasts over a logical array: strides in elements, 0 along axes where it is constant. */
typedef struct {
    const void *data;
    size_t batch_stride, row_stride, col_stride;
} bs_operand;

#endif
