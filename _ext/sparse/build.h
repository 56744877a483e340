/* Builders of the sparse formats from CSR, and back. Every function is stateless; arrays are of one index type, int32 or int64.
 *
 * The functions bs_<name>_i32 and bs_<name>_i64 differ in that type alone. They return BS_BUILD_OK, or a code of enum bs_build_status with
 * the row, window or position in *where (the smallest one, whatever the number of threads). */
#ifndef BITSPARSE_SPARSE_BUILD_H
#define BITSPARSE_SPARSE_BUILD_H

#include <stddef.h>
#include <stdint.h>

enum bs_build_status {
    BS_BUILD_OK,
    BS_BUILD_MEMORY,      /* no memory for the workspace */
    BS_BUILD_INDPTR,      /* indptr does not start at 0, falls, or does not end at the number of indices; at entry *where */
    BS_BUILD_INDEX,       /* an index is negative or too large; in row *where */
    BS_BUILD_UNSORTED,    /* indices of row *where are not ascending */
    BS_BUILD_DUPLICATE,   /* indices of row *where are ascending, but repeat */
    BS_BUILD_WIDE,        /* window *where has more unique columns than an int32 counts */
    BS_BUILD_COLUMNS,     /* columns of window *where are not ascending or out of range */
    BS_BUILD_TILE,        /* a tile of block row *where is zero or has bits beyond the shape */
};

/* A window of `count` entries over more than count << spread columns is sorted as keys, a denser one goes through a panel;
 * spread < 0 always sorts. */
#define BS_SPREAD 12

/* Tallest window: a row in a window is one bit of a 16-bit mask. */
#define BS_WINDOW_MAX 16

#define BS_BUILD_FUNCTIONS(I, SUFFIX)                                                                                                      \
    /* Sorted, unique and in range? */                                                                                                     \
    int bs_csr_check_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, int64_t nnz, int threads, int64_t *where);    \
    /* Non-empty tiles of `window` rows by 2^shift columns in each window into counts[0..windows): unique columns with shift 0. */         \
    int bs_window_counts_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, int window, int shift, int spread,        \
                                  I *counts, int threads, int64_t *where);                                                                 \
    /* Columns of each window, and of each entry its column's position among them, as an integer of `bytes` (1, 2, 4) bytes. */            \
    int bs_translate_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, int window, int spread, const I *cols_indptr, \
                              I *columns, void *edge_col, int bytes, int threads);                                                         \
    int bs_frdc_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, int spread, const I *block_indptr,                 \
                         I *block_indices, uint16_t *tiles, int threads);                                                                  \
    /* Back to CSR: first the edges of each row into counts[0..rows) with all checks, then, knowing indptr, the indices. */                \
    int bs_blocks_counts_##SUFFIX(const I *block_indptr, const I *block_indices, const uint16_t *tiles, int64_t rows, int64_t cols,        \
                                  I *counts, int threads, int64_t *where);                                                                 \
    void bs_blocks_fill_##SUFFIX(const I *block_indptr, const I *block_indices, const uint16_t *tiles, int64_t rows, const I *indptr,      \
                                 I *indices, int threads);                                                                                 \
    /* One bit per element, `width` words to a row. */                                                                                     \
    void bs_csr_to_words_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t width, uint32_t *words, int threads);           \
    void bs_words_counts_##SUFFIX(const uint32_t *words, int64_t rows, int64_t width, I *counts, int threads);                             \
    void bs_words_fill_##SUFFIX(const uint32_t *words, int64_t rows, int64_t width, const I *indptr, I *indices, int threads);             \
    /* Counts in data[0..length) to starts in data[0..length], in place. Returns their sum; beyond I the starts are meaningless. */        \
    int64_t bs_starts_##SUFFIX(I *data, int64_t length);

BS_BUILD_FUNCTIONS(int32_t, i32)
BS_BUILD_FUNCTIONS(int64_t, i64)

#endif
