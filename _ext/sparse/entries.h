/* Functions that pick, keep, find and sum the entries of a CSR array. All arrays of a call are of one index type, int32 or int64.
 *
 * Row pointers are a private copy and have been checked. Other threads might still write into indices and the other arrays, so what is
 * loaded from those is bounded at the load. A value is moved as `item` bytes, whatever it means; `values` is NULL if there are none. */
#ifndef BITSPARSE_SPARSE_ENTRIES_H
#define BITSPARSE_SPARSE_ENTRIES_H

#include "sparse/build.h"

/* out[i] = values[order[i]], items of `item` bytes; if order[i] is not in [0, count), out[i] is an arbitrary item. */
void bs_gather_i32(const void *values, size_t item, int64_t count, const int32_t *order, int64_t n, void *out, int threads);
void bs_gather_i64(const void *values, size_t item, int64_t count, const int64_t *order, int64_t n, void *out, int threads);

/* clang-format off */
#define BS_ENTRY_FUNCTIONS(I, SUFFIX)                                                                                                   \
    /* Counts the entries of each row that a mask keeps into counts[0..rows); then copies them, given where each row starts. */         \
    void bs_keep_counts_##SUFFIX(const I *indptr, int64_t rows, const uint8_t *mask, I *counts, int threads);                           \
    void bs_keep_##SUFFIX(const I *indptr, const I *indices, int64_t rows, const uint8_t *mask, const void *values, size_t item,        \
                          const I *starts, I *columns, void *out, int threads);                                                         \
    /* Copies rows that begin at `firsts` in the array; starts[0..picked] says where they go, and so how long they are. */              \
    void bs_take_rows_##SUFFIX(const I *indices, int64_t picked, const I *firsts, const void *values, size_t item, const I *starts,     \
                               I *columns, void *out, int threads);                                                                     \
    /* Columns from `low` up to `high`: first counts such entries of each row and finds the first one; then copies them. */             \
    void bs_columns_counts_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t low, int64_t high, I *firsts, I *counts,   \
                                    int threads);                                                                                       \
    void bs_take_columns_##SUFFIX(const I *indices, int64_t rows, int64_t low, const I *firsts, const void *values, size_t item,        \
                                  const I *starts, I *columns, void *out, int threads);                                                 \
    /* Where the entry at (rows[i], cols[i]) is, or -1. */                                                                              \
    void bs_find_##SUFFIX(const I *indptr, const I *indices, const int64_t *rows, const int64_t *cols, int64_t n, int64_t *places,      \
                          int threads);                                                                                                 \
    /* Elements (row + i, column + i) for i in [0, count), zero if not stored; without values a byte that says whether it is stored. */    \
    void bs_diagonal_##SUFFIX(const I *indptr, const I *indices, int64_t row, int64_t column, int64_t count, const void *values,        \
                              size_t item, void *out, int threads);                                                                     \
    /* Two canonical arrays of one shape: first counts the columns that a row has in either array; then stores these columns and the    \
     * sums or differences of the values, given where each row starts. Returns how many of them are zero; -1 for an unknown dtype. */   \
    void bs_merge_counts_##SUFFIX(const I *indptr, const I *indices, const I *other_indptr, const I *other_indices, int64_t rows,       \
                                  int64_t cols, I *counts, int threads);                                                                              \
    int64_t bs_merge_##SUFFIX(const I *indptr, const I *indices, const void *values, const I *other_indptr, const I *other_indices,     \
                              const void *other_values, int64_t rows, int dtype, int subtract, const I *starts, I *columns, void *out,  \
                              int threads);                                                                                             \
    /* The product of two patterns, the second of which has `inner` rows: with `counts`, counts the columns of each row; without it,    \
     * stores them in ascending order, given where each row starts. */                                                                  \
    int bs_product_##SUFFIX(const I *indptr, const I *indices, int64_t rows, const I *other_indptr, const I *other_indices,             \
                            int64_t inner, int64_t cols, I *counts, const I *starts, I *columns, int threads);                          \
    /* Sums of rows: floats in their own type, in eight lanes; integers in 64 bits. Returns whether the dtype is known. */              \
    int bs_row_sums_##SUFFIX(const I *indptr, int64_t rows, const void *values, int dtype, void *sums, int threads);
/* clang-format on */

BS_ENTRY_FUNCTIONS(int32_t, i32)
BS_ENTRY_FUNCTIONS(int64_t, i64)

#endif
