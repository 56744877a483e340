/* Conversions from CSR to the sparse formats and back. Every function is stateless; its arrays are of one index type, int32 or int64.
 *
 * The functions bs_<name>_i32 and bs_<name>_i64 differ in that type alone. They return BS_BUILD_OK, or a code of enum bs_build_status with
 * the row, window or position in *where (the smallest one, whatever the number of threads). */
#ifndef BITSPARSE_SPARSE_BUILD_H
#define BITSPARSE_SPARSE_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "simd/kernels.h"

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

/* Where the cells of all windows are stored, one window after the other. */
typedef struct {
    /* Where the cells of each window start. If NULL, the starts are found on the way, and there is room for as many cells as entries. */
    const void *starts;
    void *cells;
    uint16_t *tiles; /* the bits of each block; NULL if cells are columns */
    void *edge_col;  /* for columns: the position of each entry's column among those of its window, an integer of `bytes` bytes */
    int bytes;
} bs_cells;

/* Whether a transpose puts entries directly in their places, without sorting them by ranges of columns first. */
int bs_transposes_directly(int64_t cols, int64_t nnz);

#define BS_BUILD_FUNCTIONS(I, SUFFIX)                                                                                                      \
    /* Checks that indices are sorted, unique and in range. */                                                                             \
    int bs_csr_check_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, int64_t nnz, int level, int threads,          \
                              int64_t *where);                                                                                             \
    /* Counts each window's non-empty cells (`window` rows by 2^shift columns) into counts[0..windows); with `to`, stores them too. */     \
    int bs_window_cells_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, int window, int shift, int spread,         \
                                 I *counts, const bs_cells *to, int level, int threads, int64_t *where);                                   \
    /* The largest number of entries of a window. */                                                                                       \
    int64_t bs_longest_window_##SUFFIX(const I *indptr, int64_t rows, int window);                                                         \
    /* Back to CSR: the first function makes all checks and counts the edges of each row into counts[0..rows); the second one, given \
     * indptr, stores the indices. */     \
    int bs_blocks_counts_##SUFFIX(const I *block_indptr, const I *block_indices, const uint16_t *tiles, int64_t rows, int64_t cols,        \
                                  I *counts, int threads, int64_t *where);                                                                 \
    void bs_blocks_fill_##SUFFIX(const I *block_indptr, const I *block_indices, const uint16_t *tiles, int64_t rows, const I *indptr,      \
                                 I *indices, int threads);                                                                                 \
    /* One bit per element, `width` words to a row. */                                                                                     \
    void bs_csr_to_words_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t width, uint32_t *words, int threads);           \
    void bs_words_counts_##SUFFIX(const uint32_t *words, int64_t rows, int64_t width, I *counts, int threads);                             \
    void bs_words_fill_##SUFFIX(const uint32_t *words, int64_t rows, int64_t width, const I *indptr, I *indices, int threads);             \
    /* The transpose of a pattern: starts[0..cols], the row of each entry (unless *same: the transpose is the pattern itself), and which \
     * entry of the pattern it is. If bs_transposes_directly, `order` may be NULL, and values of `item` bytes may be moved along. */ \
    int bs_transpose_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t cols, I *starts, I *row_of, I *order,               \
                              const void *values, size_t item, void *values_out, int *same, int threads);                                  \
    /* Turns counts in data[0..length) into starts in data[0..length]. Returns the sum; if I cannot hold it, the starts are invalid. */    \
    int64_t bs_starts_##SUFFIX(I *data, int64_t length);

BS_BUILD_FUNCTIONS(int32_t, i32)
BS_BUILD_FUNCTIONS(int64_t, i64)

#endif
