# cython: language_level=3, boundscheck=False, wraparound=False
"""Entries of CSR arrays: picked, kept, found, summed. Arrays come as flat buffers of bytes with `wide` for int64 indices, values as
items of `item` bytes or None; results are new NumPy arrays, of values the bytes.

Row pointers are copied and checked. Columns are not: what is done with wrong ones is bounded, and gives wrong columns.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np

include "pool.pxi"

cdef extern from "sparse/entries.h":
    enum:
        BS_DTYPES
        BS_BUILD_OK
    int64_t bs_starts_i32(int32_t *, int64_t) nogil
    int64_t bs_starts_i64(int64_t *, int64_t) nogil
    void bs_gather_i32(const void *, size_t, int64_t, const int32_t *, int64_t, void *, int) nogil
    void bs_gather_i64(const void *, size_t, int64_t, const int64_t *, int64_t, void *, int) nogil
    void bs_keep_counts_i32(const int32_t *, int64_t, const uint8_t *, int32_t *, int) nogil
    void bs_keep_counts_i64(const int64_t *, int64_t, const uint8_t *, int64_t *, int) nogil
    void bs_keep_i32(const int32_t *, const int32_t *, int64_t, const uint8_t *, const void *, size_t, const int32_t *, int32_t *,
                     void *, int) nogil
    void bs_keep_i64(const int64_t *, const int64_t *, int64_t, const uint8_t *, const void *, size_t, const int64_t *, int64_t *,
                     void *, int) nogil
    void bs_take_rows_i32(const int32_t *, int64_t, const int32_t *, const void *, size_t, const int32_t *, int32_t *, void *, int) nogil
    void bs_take_rows_i64(const int64_t *, int64_t, const int64_t *, const void *, size_t, const int64_t *, int64_t *, void *, int) nogil
    void bs_columns_counts_i32(const int32_t *, const int32_t *, int64_t, int64_t, int64_t, int32_t *, int32_t *, int) nogil
    void bs_columns_counts_i64(const int64_t *, const int64_t *, int64_t, int64_t, int64_t, int64_t *, int64_t *, int) nogil
    void bs_take_columns_i32(const int32_t *, int64_t, int64_t, const int32_t *, const void *, size_t, const int32_t *, int32_t *,
                             void *, int) nogil
    void bs_take_columns_i64(const int64_t *, int64_t, int64_t, const int64_t *, const void *, size_t, const int64_t *, int64_t *,
                             void *, int) nogil
    void bs_find_i32(const int32_t *, const int32_t *, const int64_t *, const int64_t *, int64_t, int64_t *, int) nogil
    void bs_find_i64(const int64_t *, const int64_t *, const int64_t *, const int64_t *, int64_t, int64_t *, int) nogil
    void bs_diagonal_i32(const int32_t *, const int32_t *, int64_t, int64_t, int64_t, const void *, size_t, void *, int) nogil
    void bs_merge_counts_i32(const int32_t *, const int32_t *, const int32_t *, const int32_t *, int64_t, int64_t, int32_t *, int) nogil
    int64_t bs_merge_i32(const int32_t *, const int32_t *, const void *, const int32_t *, const int32_t *, const void *, int64_t, int, int,
                         const int32_t *, int32_t *, void *, int) nogil
    int bs_product_i32(const int32_t *, const int32_t *, int64_t, const int32_t *, const int32_t *, int64_t, int64_t, int32_t *,
                       const int32_t *, int32_t *, int) nogil
    int bs_row_sums_i32(const int32_t *, int64_t, const void *, int, void *, int) nogil
    void bs_diagonal_i64(const int64_t *, const int64_t *, int64_t, int64_t, int64_t, const void *, size_t, void *, int) nogil
    void bs_merge_counts_i64(const int64_t *, const int64_t *, const int64_t *, const int64_t *, int64_t, int64_t, int64_t *, int) nogil
    int64_t bs_merge_i64(const int64_t *, const int64_t *, const void *, const int64_t *, const int64_t *, const void *, int64_t, int, int,
                         const int64_t *, int64_t *, void *, int) nogil
    int bs_product_i64(const int64_t *, const int64_t *, int64_t, const int64_t *, const int64_t *, int64_t, int64_t, int64_t *,
                       const int64_t *, int64_t *, int) nogil
    int bs_row_sums_i64(const int64_t *, int64_t, const void *, int, void *, int) nogil

include "index_arrays.pxi"


cdef int64_t _rows(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object threads) except -1:
    """The number of rows of a CSR array, whose row pointers are right."""
    cdef int item = 8 if wide else 4
    _between("the number of threads", threads, 1, 4096)
    nnz, rows = _length("indices", indices, item), _length("indptr", indptr, item) - 1
    if rows < 0:
        raise ValueError("indptr is empty; it has one entry more than there are rows")
    if not wide:
        _between("the number of indices", nnz, 0, 2**31 - 1)
    _check_indptr("indptr", indptr, wide, rows, nnz)
    return rows


cdef int _items(object values, object item, object wanted) except -1:
    """Whether values hold `wanted` items."""
    if values is not None:
        _between("the bytes of an item", item, 0, 2**40)
        if values.size != item * wanted:
            raise ValueError(f"values hold {values.size} bytes, but {wanted} items of {item} are needed; the array belongs to another one")
    return 0


cdef object _starts(object counts, bint wide, int64_t rows):
    """Counts and room for one more as starts, in place; their sum fits the dtype."""
    cdef unsigned char[::1] data = _bytes(counts)
    cdef int64_t total
    with nogil:
        total = bs_starts_i64(<int64_t *>_at(data), rows) if wide else bs_starts_i32(<int32_t *>_at(data), rows)
    _between("the number of entries", total, 0, 2**62 if wide else 2**31 - 1)
    return total


def gather(const unsigned char[::1] values, size_t item, const unsigned char[::1] order, bint wide, threads):
    """The items in another order, as bytes."""
    cdef int64_t n = _length("order", order, 8 if wide else 4), count
    cdef int t = threads
    _between("the number of threads", threads, 1, 4096)
    count = 0 if item == 0 else values.shape[0] // item
    if count == 0 and n and item:
        raise ValueError("gather: there are no values to gather from")
    out = np.empty(n * item, np.uint8)
    cdef unsigned char[::1] b_out = out
    with nogil:
        if wide:
            bs_gather_i64(_at(values), item, count, <const int64_t *>_at(order), n, _at(b_out), t)
        else:
            bs_gather_i32(_at(values), item, count, <const int32_t *>_at(order), n, _at(b_out), t)
    return out


def keep(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, const unsigned char[::1] mask,
         const unsigned char[::1] values, size_t item, threads):
    """(indptr, indices, values) of the entries that the mask, a byte for each, keeps."""
    indptr = _own(indptr)
    cdef int64_t m = _rows(indptr, indices, wide, threads)
    cdef int t = threads
    _holds("mask", mask, 1, indices.shape[0] // (8 if wide else 4))
    _items(None if values is None else np.asarray(values), item, mask.shape[0])
    index = np.int64 if wide else np.int32
    starts = np.empty(m + 1, index)
    cdef unsigned char[::1] b_starts = _bytes(starts), b_columns, b_out
    with nogil:
        if wide:
            bs_keep_counts_i64(<const int64_t *>_at(indptr), m, <const uint8_t *>_at(mask), <int64_t *>_at(b_starts), t)
        else:
            bs_keep_counts_i32(<const int32_t *>_at(indptr), m, <const uint8_t *>_at(mask), <int32_t *>_at(b_starts), t)
    total = _starts(starts, wide, m)
    columns = np.empty(total, index)
    out = None if values is None else np.empty(total * item, np.uint8)
    b_columns, b_out = _bytes(columns), _or_nothing(out)
    cdef const void *from_values = NULL if values is None else _at(values)
    with nogil:
        if wide:
            bs_keep_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, <const uint8_t *>_at(mask), from_values, item,
                        <const int64_t *>_at(b_starts), <int64_t *>_at(b_columns), _at(b_out), t)
        else:
            bs_keep_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, <const uint8_t *>_at(mask), from_values, item,
                        <const int32_t *>_at(b_starts), <int32_t *>_at(b_columns), _at(b_out), t)
    return starts, columns, out


cdef object _or_nothing(object out):
    return np.empty(0, np.uint8) if out is None else out


cdef const unsigned char[::1] _numbers(str what, const unsigned char[::1] given, object high):
    """A copy of int64 that all are in 0 .. high - 1."""
    _length(what, given, 8)
    own = np.array(given)
    numbers = own.view(np.int64)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < high:
        raise ValueError(f"{what} reach {int(numbers.min())}..{int(numbers.max())}, but there are {high}")
    return own


def take_rows(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, const unsigned char[::1] rows,
              const unsigned char[::1] values, size_t item, threads):
    """(indptr, indices, values) of the rows that int64 numbers name."""
    cdef int size = 8 if wide else 4, t = threads
    cdef int64_t picked, nnz = _length("indices", indices, size), m = _length("indptr", indptr, size) - 1
    _between("the number of threads", threads, 1, 4096)
    picks = np.asarray(_numbers("rows", rows, m)).view(np.int64)
    picked = picks.size
    _items(None if values is None else np.asarray(values), item, nnz)
    index = np.int64 if wide else np.int32
    # Of these rows alone it is looked where they are, in copies.
    ends = np.asarray(indptr).view(index)
    firsts, stops = ends[picks], ends[picks + 1]
    if picked and not (firsts.min() >= 0 and (firsts <= stops).all() and stops.max() <= nnz):
        raise ValueError(f"indptr must start at 0, never fall and end at {nnz}; the arrays are damaged or belong to another shape")
    starts = np.zeros(picked + 1, np.int64)
    np.cumsum(stops - firsts, out=starts[1:])
    total = int(starts[picked])
    _between("the number of entries", total, 0, 2**62 if wide else 2**31 - 1)
    starts = starts.astype(index, copy=False)
    columns, out = np.empty(total, index), None if values is None else np.empty(total * item, np.uint8)
    cdef unsigned char[::1] b_firsts = _bytes(firsts), b_starts = _bytes(starts), b_columns = _bytes(columns), b_out = _or_nothing(out)
    cdef const void *from_values = NULL if values is None else _at(values)
    with nogil:
        if wide:
            bs_take_rows_i64(<const int64_t *>_at(indices), picked, <const int64_t *>_at(b_firsts), from_values, item,
                             <const int64_t *>_at(b_starts), <int64_t *>_at(b_columns), _at(b_out), t)
        else:
            bs_take_rows_i32(<const int32_t *>_at(indices), picked, <const int32_t *>_at(b_firsts), from_values, item,
                             <const int32_t *>_at(b_starts), <int32_t *>_at(b_columns), _at(b_out), t)
    return starts, columns, out


def take_columns(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, low, high,
                 const unsigned char[::1] values, size_t item, threads):
    """(indptr, indices, values) of the columns from `low` up to `high`, which are counted from `low`."""
    indptr = _own(indptr)
    cdef int64_t m = _rows(indptr, indices, wide, threads), from_column, to_column
    cdef int t = threads
    _between("the first column", low, 0, 2**62 if wide else 2**31 - 1)
    _between("the last column", high, low, 2**62 if wide else 2**31 - 1)
    _items(None if values is None else np.asarray(values), item, indices.shape[0] // (8 if wide else 4))
    from_column, to_column, index = low, high, np.int64 if wide else np.int32
    firsts, starts = np.empty(m, index), np.empty(m + 1, index)
    cdef unsigned char[::1] b_firsts = _bytes(firsts), b_starts = _bytes(starts), b_columns, b_out
    with nogil:
        if wide:
            bs_columns_counts_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, from_column, to_column,
                                  <int64_t *>_at(b_firsts), <int64_t *>_at(b_starts), t)
        else:
            bs_columns_counts_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, from_column, to_column,
                                  <int32_t *>_at(b_firsts), <int32_t *>_at(b_starts), t)
    total = _starts(starts, wide, m)
    columns, out = np.empty(total, index), None if values is None else np.empty(total * item, np.uint8)
    b_columns, b_out = _bytes(columns), _or_nothing(out)
    cdef const void *from_values = NULL if values is None else _at(values)
    with nogil:
        if wide:
            bs_take_columns_i64(<const int64_t *>_at(indices), m, from_column, <const int64_t *>_at(b_firsts), from_values, item,
                                <const int64_t *>_at(b_starts), <int64_t *>_at(b_columns), _at(b_out), t)
        else:
            bs_take_columns_i32(<const int32_t *>_at(indices), m, from_column, <const int32_t *>_at(b_firsts), from_values, item,
                                <const int32_t *>_at(b_starts), <int32_t *>_at(b_columns), _at(b_out), t)
    return starts, columns, out


def find(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, const unsigned char[::1] rows,
         const unsigned char[::1] cols, threads):
    """Where the entries at int64 rows and columns are, as int64; -1 where there is none."""
    indptr = _own(indptr)
    cdef int64_t m = _rows(indptr, indices, wide, threads), n
    cdef int t = threads
    cdef const unsigned char[::1] picks = _numbers("rows", rows, m)
    n = picks.shape[0] // 8
    _holds("columns", cols, 8, n)
    places = np.empty(n, np.int64)
    cdef unsigned char[::1] out = _bytes(places)
    with nogil:
        if wide:
            bs_find_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), <const int64_t *>_at(picks),
                        <const int64_t *>_at(cols), n, <int64_t *>_at(out), t)
        else:
            bs_find_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), <const int64_t *>_at(picks),
                        <const int64_t *>_at(cols), n, <int64_t *>_at(out), t)
    return places


def diagonal(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, row, column, count,
             const unsigned char[::1] values, size_t item, threads):
    """Elements (row + i, column + i), as bytes: zero where none is stored; without values a byte that says whether one is."""
    indptr = _own(indptr)
    cdef int64_t m = _rows(indptr, indices, wide, threads), first, low, n
    cdef int t = threads
    _between("the number of elements", count, 0, m)
    _between("the first row", row, 0, m - count)
    _between("the first column", column, 0, 2**62 if wide else 2**31 - 1)
    _items(None if values is None else np.asarray(values), item, indices.shape[0] // (8 if wide else 4))
    first, low, n = row, column, count
    elements = np.empty(n * (1 if values is None else item), np.uint8)
    cdef unsigned char[::1] out = elements
    cdef const void *from_values = NULL if values is None else _at(values)
    with nogil:
        if wide:
            bs_diagonal_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), first, low, n, from_values, item, _at(out), t)
        else:
            bs_diagonal_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), first, low, n, from_values, item, _at(out), t)
    return elements


def merge(const unsigned char[::1] indptr, const unsigned char[::1] indices, const unsigned char[::1] values,
          const unsigned char[::1] other_indptr, const unsigned char[::1] other_indices, const unsigned char[::1] other_values,
          bint wide, cols, dtype, item, bint subtract, threads):
    """(indptr, indices, values, zeros) of the sum or difference of two canonical arrays, and how many of its values are zero."""
    indptr, other_indptr = _own(indptr), _own(other_indptr)
    cdef int64_t m = _rows(indptr, indices, wide, threads), n = cols, zeros
    cdef int t = threads, code = dtype, size = 8 if wide else 4
    _between("the number of columns", cols, 0, 2**62 if wide else 2**31 - 1)
    _between("the rows of the other array", _rows(other_indptr, other_indices, wide, threads), m, m)
    _between("the bytes of an item", item, 4, 8)
    _items(np.asarray(values), item, indices.shape[0] // size)
    _items(np.asarray(other_values), item, other_indices.shape[0] // size)
    index = np.int64 if wide else np.int32
    starts = np.empty(m + 1, index)
    cdef unsigned char[::1] b_starts = _bytes(starts), b_columns, b_out
    with nogil:
        if wide:
            bs_merge_counts_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), <const int64_t *>_at(other_indptr),
                                <const int64_t *>_at(other_indices), m, n, <int64_t *>_at(b_starts), t)
        else:
            bs_merge_counts_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), <const int32_t *>_at(other_indptr),
                                <const int32_t *>_at(other_indices), m, n, <int32_t *>_at(b_starts), t)
    total = _starts(starts, wide, m)
    columns, out = np.empty(total, index), np.empty(total * item, np.uint8)
    b_columns, b_out = _bytes(columns), out
    with nogil:
        if wide:
            zeros = bs_merge_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), _at(values),
                                 <const int64_t *>_at(other_indptr), <const int64_t *>_at(other_indices), _at(other_values), m, code,
                                 subtract, <const int64_t *>_at(b_starts), <int64_t *>_at(b_columns), _at(b_out), t)
        else:
            zeros = bs_merge_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), _at(values),
                                 <const int32_t *>_at(other_indptr), <const int32_t *>_at(other_indices), _at(other_values), m, code,
                                 subtract, <const int32_t *>_at(b_starts), <int32_t *>_at(b_columns), _at(b_out), t)
    if zeros < 0:
        raise ValueError(f"merge: there are no sums of dtype {dtype}")
    return starts, columns, out, zeros


def product(const unsigned char[::1] indptr, const unsigned char[::1] indices, const unsigned char[::1] other_indptr,
            const unsigned char[::1] other_indices, bint wide, cols, threads):
    """(indptr, indices) of the product of two patterns."""
    indptr, other_indptr = _own(indptr), _own(other_indptr)
    cdef int64_t m = _rows(indptr, indices, wide, threads), inner = _rows(other_indptr, other_indices, wide, threads), n = cols
    cdef int t = threads, code, turn
    _between("the number of columns", cols, 0, 2**62 if wide else 2**31 - 1)
    index = np.int64 if wide else np.int32
    starts, columns = np.empty(m + 1, index), np.empty(0, index)
    cdef unsigned char[::1] b_starts = _bytes(starts), b_columns = _bytes(columns)
    for turn in range(2):
        if turn:
            columns = np.empty(_starts(starts, wide, m), index)
            b_columns = _bytes(columns)
        with nogil:
            if wide:
                code = bs_product_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, <const int64_t *>_at(other_indptr),
                                      <const int64_t *>_at(other_indices), inner, n, NULL if turn else <int64_t *>_at(b_starts),
                                      <const int64_t *>_at(b_starts), <int64_t *>_at(b_columns), t)
            else:
                code = bs_product_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, <const int32_t *>_at(other_indptr),
                                      <const int32_t *>_at(other_indices), inner, n, NULL if turn else <int32_t *>_at(b_starts),
                                      <const int32_t *>_at(b_starts), <int32_t *>_at(b_columns), t)
        if code != BS_BUILD_OK:
            raise MemoryError(f"matmul: no memory for a bit for each of {n} columns on {t} threads; multiply columns in parts, as in "
                              f"A @ B[:, i:j]")
    return starts, columns


def row_sums(const unsigned char[::1] indptr, bint wide, const unsigned char[::1] values, dtype, item, threads):
    """Sums of rows, as bytes: of floats in their type, of integers in 64 bits."""
    indptr = _own(indptr)
    cdef int64_t m = _length("indptr", indptr, 8 if wide else 4) - 1
    cdef int t = threads, code = dtype, done
    _between("the number of threads", threads, 1, 4096)
    _between("the number of rows", m, 0, 2**62)
    _between("the bytes of an item", item, 1, 8)
    _check_indptr("indptr", indptr, wide, m, _length("values", values, item))
    sums = np.empty(m * (item if dtype >= BS_DTYPES - 2 else 8), np.uint8)
    cdef unsigned char[::1] out = sums
    with nogil:
        if wide:
            done = bs_row_sums_i64(<const int64_t *>_at(indptr), m, _at(values), code, _at(out), t)
        else:
            done = bs_row_sums_i32(<const int32_t *>_at(indptr), m, _at(values), code, _at(out), t)
    if not done:
        raise ValueError(f"row_sums: there are none of dtype {dtype}")
    return sums
