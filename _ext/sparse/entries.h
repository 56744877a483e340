/* Entries of a CSR array with their values: picked, kept, found and summed. Arrays are of one index type, int32 or int64.
 *
 * Row pointers belong to the caller's copy and have been checked; indices and what else the caller's other threads might write into is
 * bounded where it is loaded. Values are moved as `item` bytes, whatever they mean; NULL where there are none. */
#ifndef BITSPARSE_SPARSE_ENTRIES_H
#define BITSPARSE_SPARSE_ENTRIES_H

#include "sparse/build.h"

/* out[i] = values[order[i]], items of `item` bytes; the item of a place outside of `count` is any. */
void bs_gather_i32(const void *values, size_t item, int64_t count, const int32_t *order, int64_t n, void *out, int threads);
void bs_gather_i64(const void *values, size_t item, int64_t count, const int64_t *order, int64_t n, void *out, int threads);

/* clang-format off */
#define BS_ENTRY_FUNCTIONS(I, SUFFIX)                                                                                                   \
    /* How many entries of each row a mask keeps, into counts[0..rows); then these entries, knowing where each row starts. */           \
    void bs_keep_counts_##SUFFIX(const I *indptr, int64_t rows, const uint8_t *mask, I *counts, int threads);                           \
    void bs_keep_##SUFFIX(const I *indptr, const I *indices, int64_t rows, const uint8_t *mask, const void *values, size_t item,        \
                          const I *starts, I *columns, void *out, int threads);                                                         \
    /* Rows of which it is known where they begin: starts[0..picked] tell how many entries each of them has. */                          \
    void bs_take_rows_##SUFFIX(const I *indices, int64_t picked, const I *firsts, const void *values, size_t item, const I *starts,     \
                               I *columns, void *out, int threads);                                                                     \
    /* Columns from `low` up to `high`: first how many entries of each row, and where they begin; then these. */                        \
    void bs_columns_counts_##SUFFIX(const I *indptr, const I *indices, int64_t rows, int64_t low, int64_t high, I *firsts, I *counts,   \
                                    int threads);                                                                                       \
    void bs_take_columns_##SUFFIX(const I *indices, int64_t rows, int64_t low, const I *firsts, const void *values, size_t item,        \
                                  const I *starts, I *columns, void *out, int threads);                                                 \
    /* Where the entry at (rows[i], cols[i]) is, or -1. */                                                                              \
    void bs_find_##SUFFIX(const I *indptr, const I *indices, const int64_t *rows, const int64_t *cols, int64_t n, int64_t *places,      \
                          int threads);                                                                                                 \
    /* Elements (row + i, column + i) for i in [0, count), zero where none is stored; without values a byte that says whether one is. */    \
    void bs_diagonal_##SUFFIX(const I *indptr, const I *indices, int64_t row, int64_t column, int64_t count, const void *values,        \
                              size_t item, void *out, int threads);                                                                     \
    /* Two canonical arrays of one shape: how many columns the rows of both together have; then these columns with the sums or          \
     * differences of their values, knowing where each row starts. Returns how many of those are zero, or -1: no such dtype. */         \
    void bs_merge_counts_##SUFFIX(const I *indptr, const I *indices, const I *other_indptr, const I *other_indices, int64_t rows,       \
                                  int64_t cols, I *counts, int threads);                                                                              \
    int64_t bs_merge_##SUFFIX(const I *indptr, const I *indices, const void *values, const I *other_indptr, const I *other_indices,     \
                              const void *other_values, int64_t rows, int dtype, int subtract, const I *starts, I *columns, void *out,  \
                              int threads);                                                                                             \
    /* The product of two patterns, of which the second has `inner` rows: with `counts` how many columns each row has; else these,          \
     * ascending, knowing where each row starts. */                                                                                     \
    int bs_product_##SUFFIX(const I *indptr, const I *indices, int64_t rows, const I *other_indptr, const I *other_indices,             \
                            int64_t inner, int64_t cols, I *counts, const I *starts, I *columns, int threads);                          \
    /* Sums of rows: floats in their type, in eight lanes; integers as 64 bits. Whether there are sums of this dtype. */                \
    int bs_row_sums_##SUFFIX(const I *indptr, int64_t rows, const void *values, int dtype, void *sums, int threads);
/* clang-format on */

BS_ENTRY_FUNCTIONS(int32_t, i32)
BS_ENTRY_FUNCTIONS(int64_t, i64)

#endif
