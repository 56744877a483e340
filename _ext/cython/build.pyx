# cython: language_level=3, boundscheck=False, wraparound=False
"""Sparse formats from CSR and back. Arrays come as flat buffers of bytes with `wide` for int64 indices; results are new NumPy arrays.

Every function checks all that it is given: a damaged array raises ValueError before anything is read or written out of bounds.
"""
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t

import numpy as np

cdef extern from "sparse/build.h":
    enum bs_build_status:
        BS_BUILD_OK
        BS_BUILD_MEMORY
        BS_BUILD_INDPTR
        BS_BUILD_INDEX
        BS_BUILD_UNSORTED
        BS_BUILD_DUPLICATE
        BS_BUILD_WIDE
        BS_BUILD_COLUMNS
        BS_BUILD_TILE
    enum:
        BS_SPREAD
        BS_WINDOW_MAX
    int bs_csr_check_i32(const int32_t *, const int32_t *, int64_t, int64_t, int64_t, int, int64_t *) nogil
    int bs_csr_check_i64(const int64_t *, const int64_t *, int64_t, int64_t, int64_t, int, int64_t *) nogil
    int bs_window_counts_i32(const int32_t *, const int32_t *, int64_t, int64_t, int, int, int, int32_t *, int, int64_t *) nogil
    int bs_window_counts_i64(const int64_t *, const int64_t *, int64_t, int64_t, int, int, int, int64_t *, int, int64_t *) nogil
    int bs_translate_i32(const int32_t *, const int32_t *, int64_t, int64_t, int, int, const int32_t *, int32_t *, void *,
                         int, int) nogil
    int bs_translate_i64(const int64_t *, const int64_t *, int64_t, int64_t, int, int, const int64_t *, int64_t *, void *,
                         int, int) nogil
    int bs_frdc_i32(const int32_t *, const int32_t *, int64_t, int64_t, int, const int32_t *, int32_t *, uint16_t *, int) nogil
    int bs_frdc_i64(const int64_t *, const int64_t *, int64_t, int64_t, int, const int64_t *, int64_t *, uint16_t *, int) nogil
    int bs_blocks_counts_i32(const int32_t *, const int32_t *, const uint16_t *, int64_t, int64_t, int32_t *, int, int64_t *) nogil
    int bs_blocks_counts_i64(const int64_t *, const int64_t *, const uint16_t *, int64_t, int64_t, int64_t *, int, int64_t *) nogil
    void bs_blocks_fill_i32(const int32_t *, const int32_t *, const uint16_t *, int64_t, const int32_t *, int32_t *, int) nogil
    void bs_blocks_fill_i64(const int64_t *, const int64_t *, const uint16_t *, int64_t, const int64_t *, int64_t *, int) nogil
    void bs_csr_to_words_i32(const int32_t *, const int32_t *, int64_t, int64_t, uint32_t *, int) nogil
    void bs_csr_to_words_i64(const int64_t *, const int64_t *, int64_t, int64_t, uint32_t *, int) nogil
    void bs_words_counts_i32(const uint32_t *, int64_t, int64_t, int32_t *, int) nogil
    void bs_words_counts_i64(const uint32_t *, int64_t, int64_t, int64_t *, int) nogil
    void bs_words_fill_i32(const uint32_t *, int64_t, int64_t, const int32_t *, int32_t *, int) nogil
    void bs_words_fill_i64(const uint32_t *, int64_t, int64_t, const int64_t *, int64_t *, int) nogil
    int64_t bs_starts_i32(int32_t *, int64_t) nogil
    int64_t bs_starts_i64(int64_t *, int64_t) nogil

OK, UNSORTED, DUPLICATE = BS_BUILD_OK, BS_BUILD_UNSORTED, BS_BUILD_DUPLICATE
SPREAD, WINDOW_MAX = BS_SPREAD, BS_WINDOW_MAX


# -- checks -------------------------------------------------------------------------------------------------------------
cdef void *_at(const unsigned char[::1] buffer) noexcept nogil:
    # Never NULL: an empty array still has an address to add zero to.
    return <void *>&buffer[0] if buffer.shape[0] > 0 else <void *>&_NOTHING


cdef int64_t _NOTHING = 0


cdef int _between(str what, object value, object low, object high) except -1:
    if not low <= value <= high:
        raise ValueError(f"{what} is {value} but must lie between {low} and {high}")
    return 0


cdef int64_t _length(str what, const unsigned char[::1] buffer, int item) except -1:
    """Items in a buffer, which must lie aligned in memory."""
    if buffer.shape[0] % item:
        raise ValueError(f"{what} holds {buffer.shape[0]} bytes, which is no multiple of {item}; pass a whole array")
    if buffer.shape[0] and (<size_t>&buffer[0]) % <size_t>item:
        raise ValueError(f"{what} is not aligned to {item} bytes; copy it")
    return buffer.shape[0] // item


cdef int _holds(str what, const unsigned char[::1] buffer, int item, object wanted) except -1:
    have = _length(what, buffer, item)
    if have != wanted:
        raise ValueError(f"{what} has {have} entries, but {wanted} are needed; the array is truncated or belongs to another shape")
    return 0


cdef int _sizes(object rows, object cols, bint wide, object threads) except -1:
    # Four bits of a sort key and the width of a panel are added to an index in 64 bits.
    high = 2**58 if wide else 2**31 - 1
    _between("the number of rows", rows, 0, high)
    _between("the number of columns", cols, 0, high)
    _between("the number of threads", threads, 1, 4096)
    return 0


cdef object _complain(int code, int64_t where, str what):
    if code == BS_BUILD_MEMORY:
        return MemoryError(f"{what}: no memory for the workspace")
    if code == BS_BUILD_WIDE:
        return ValueError(f"{what}: window {where} has more than {2**31 - 1} unique columns; make the window smaller")
    text = {
        BS_BUILD_INDPTR: f"indptr must start at 0, never fall and end at the number of indices, which it breaks at entry {where}",
        BS_BUILD_INDEX: f"row {where} holds a column index that is negative or beyond the last column",
        BS_BUILD_UNSORTED: f"column indices of row {where} are not ascending",
        BS_BUILD_DUPLICATE: f"row {where} holds the same column twice",
        BS_BUILD_COLUMNS: f"columns of window {where} are not ascending within the shape",
        BS_BUILD_TILE: f"block row {where} holds an empty tile or bits beyond the shape",
    }[code]
    return ValueError(f"{what}: {text}; the arrays are damaged or belong to another shape")


cdef int _check_indptr(str what, const unsigned char[::1] indptr, bint wide, object rows, object nnz) except -1:
    """An indptr of `rows` rows over `nnz` entries."""
    cdef int64_t m, count, r
    cdef const int32_t *p32 = <const int32_t *>_at(indptr)
    cdef const int64_t *p64 = <const int64_t *>_at(indptr)
    cdef bint good
    _holds(what, indptr, 8 if wide else 4, rows + 1)
    m, count = rows, nnz
    with nogil:
        good = (p64[0] == 0 and p64[m] == count) if wide else (p32[0] == 0 and p32[m] == count)
        for r in range(m):
            if (p64[r + 1] < p64[r]) if wide else (p32[r + 1] < p32[r]):
                good = False
                break
    if not good:
        raise ValueError(f"{what} must start at 0, never fall and end at {nnz}; the arrays are damaged or belong to another shape")
    return 0


cdef tuple _status(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
                   object threads):
    """(code, row) of bs_csr_check, with lengths checked first."""
    cdef int64_t m, n, nnz, where = 0
    cdef int code, t
    _sizes(rows, cols, wide, threads)
    nnz = _length("indices", indices, 8 if wide else 4)
    _holds("indptr", indptr, 8 if wide else 4, rows + 1)
    if not wide:
        _between("the number of indices", nnz, 0, 2**31 - 1)
    m, n, t = rows, cols, threads
    with nogil:
        if wide:
            code = bs_csr_check_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, nnz, t, &where)
        else:
            code = bs_csr_check_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, nnz, t, &where)
    return code, where


cdef int _canonical(str what, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows,
                    object cols, object threads) except -1:
    code, where = _status(indptr, indices, wide, rows, cols, threads)
    if code != BS_BUILD_OK:
        raise _complain(code, where, what)
    return 0


cdef const unsigned char[::1] _own(const unsigned char[::1] buffer):
    """A copy, for what later passes rely on: another thread may write into the caller's array, as the GIL is not held meanwhile.

    The indices of a CSR array, its largest part, are not copied as a whole: C takes them window by window, or bounds each of them.
    """
    return np.array(buffer)


cdef object _bytes(object array):
    return array.view(np.uint8)


# -- entries ------------------------------------------------------------------------------------------------------------
def check_csr(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, threads):
    """OK, UNSORTED or DUPLICATE, and the first such row; ValueError for anything that is no CSR array at all."""
    indptr = _own(indptr)
    code, where = _status(indptr, indices, wide, rows, cols, threads)
    if code not in (BS_BUILD_OK, BS_BUILD_UNSORTED, BS_BUILD_DUPLICATE):
        raise _complain(code, where, "CSR")
    return code, where


cdef object _cell_starts(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
                         int window, int shift, int spread, int threads, str what):
    """Starts of each window's cells."""
    cdef int64_t m, n, windows, where = 0
    cdef int code
    windows, m, n = -(-rows // window), rows, cols
    starts = np.zeros(windows + 1, np.int64 if wide else np.int32)
    cdef unsigned char[::1] out = _bytes(starts)
    with nogil:
        if wide:
            code = bs_window_counts_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, window, shift, spread,
                                        <int64_t *>_at(out), threads, &where)
            bs_starts_i64(<int64_t *>_at(out), windows)
        else:
            code = bs_window_counts_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, window, shift, spread,
                                        <int32_t *>_at(out), threads, &where)
            bs_starts_i32(<int32_t *>_at(out), windows)
    if code != BS_BUILD_OK:
        raise _complain(code, where, what)
    return starts


def tile_starts(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, window, shift, spread,
                threads):
    """Starts of each window's non-empty tiles of `window` rows by 2**shift columns."""
    indptr = _own(indptr)
    _between("window", window, 1, BS_WINDOW_MAX)
    _between("shift", shift, 0, 30)
    _between("spread", spread, -1, 62)
    _canonical("tile_starts", indptr, indices, wide, rows, cols, threads)
    return _cell_starts(indptr, indices, wide, rows, cols, window, shift, spread, threads, "tile_starts")


def translate(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, window, spread, threads):
    """(cols_indptr, cols, edge_col) of windows of `window` rows; edge_col is uint8, uint16 or int32, the smallest that holds it."""
    indptr = _own(indptr)
    cdef int64_t m, n
    cdef int code, height, far, t, item
    _between("window", window, 1, BS_WINDOW_MAX)
    _between("spread", spread, -1, 62)
    _canonical("translate", indptr, indices, wide, rows, cols, threads)
    height, far, t, m, n = window, spread, threads, rows, cols
    starts = _cell_starts(indptr, indices, wide, rows, cols, height, 0, far, t, "translate")
    most = int(np.diff(starts).max(initial=0))
    edge_col = np.empty(indices.shape[0] // (8 if wide else 4), np.uint8 if most <= 1 << 8 else np.uint16 if most <= 1 << 16 else np.int32)
    columns, item = np.empty(int(starts[starts.size - 1]), starts.dtype), edge_col.itemsize
    cdef unsigned char[::1] b_starts = _bytes(starts), b_columns = _bytes(columns), b_col = _bytes(edge_col)
    with nogil:
        if wide:
            code = bs_translate_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, height, far,
                                    <const int64_t *>_at(b_starts), <int64_t *>_at(b_columns), _at(b_col), item, t)
        else:
            code = bs_translate_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, height, far,
                                    <const int32_t *>_at(b_starts), <int32_t *>_at(b_columns), _at(b_col), item, t)
    if code != BS_BUILD_OK:
        raise _complain(code, 0, "translate")
    return starts, columns, edge_col


def frdc(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, spread, threads):
    """(indptr, indices, tiles) of 4 x 4 blocks."""
    indptr = _own(indptr)
    cdef int64_t m, n
    cdef int code, far, t
    _between("spread", spread, -1, 62)
    _canonical("frdc", indptr, indices, wide, rows, cols, threads)
    far, t, m, n = spread, threads, rows, cols
    starts = _cell_starts(indptr, indices, wide, rows, cols, 4, 2, far, t, "frdc")
    blocks, tiles = np.empty(int(starts[starts.size - 1]), starts.dtype), np.empty(int(starts[starts.size - 1]), np.uint16)
    cdef unsigned char[::1] b_starts = _bytes(starts), b_blocks = _bytes(blocks), b_tiles = _bytes(tiles)
    with nogil:
        if wide:
            code = bs_frdc_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, far,
                               <const int64_t *>_at(b_starts), <int64_t *>_at(b_blocks), <uint16_t *>_at(b_tiles), t)
        else:
            code = bs_frdc_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, far,
                               <const int32_t *>_at(b_starts), <int32_t *>_at(b_blocks), <uint16_t *>_at(b_tiles), t)
    if code != BS_BUILD_OK:
        raise _complain(code, 0, "frdc")
    return starts, blocks, tiles


def unfrdc(const unsigned char[::1] block_indptr, const unsigned char[::1] blocks, const unsigned char[::1] tiles, bint wide, rows,
           cols, threads):
    """(indptr, indices) of the CSR pattern that the tiles hold."""
    block_indptr, blocks, tiles = _own(block_indptr), _own(blocks), _own(tiles)
    cdef int64_t m, n, total, where = 0
    cdef int code, t, item = 8 if wide else 4
    _sizes(rows, cols, wide, threads)
    count = _length("indices", blocks, item)
    _holds("tiles", tiles, 2, count)
    _check_indptr("indptr", block_indptr, wide, -(-rows // 4), count)
    t, m, n = threads, rows, cols
    index = np.int64 if wide else np.int32
    indptr = np.zeros(rows + 1, index)
    cdef unsigned char[::1] b_indptr = _bytes(indptr)
    with nogil:
        if wide:
            code = bs_blocks_counts_i64(<const int64_t *>_at(block_indptr), <const int64_t *>_at(blocks),
                                        <const uint16_t *>_at(tiles), m, n, <int64_t *>_at(b_indptr), t, &where)
            total = bs_starts_i64(<int64_t *>_at(b_indptr), m)
        else:
            code = bs_blocks_counts_i32(<const int32_t *>_at(block_indptr), <const int32_t *>_at(blocks),
                                        <const uint16_t *>_at(tiles), m, n, <int32_t *>_at(b_indptr), t, &where)
            total = bs_starts_i32(<int32_t *>_at(b_indptr), m)
    if code != BS_BUILD_OK:
        raise _complain(code, where, "FRDC")
    _between("the number of set bits", total, 0, 2**62 if wide else 2**31 - 1)
    indices = np.empty(total, index)
    cdef unsigned char[::1] b_indices = _bytes(indices)
    with nogil:
        if wide:
            bs_blocks_fill_i64(<const int64_t *>_at(block_indptr), <const int64_t *>_at(blocks), <const uint16_t *>_at(tiles), m,
                               <const int64_t *>_at(b_indptr), <int64_t *>_at(b_indices), t)
        else:
            bs_blocks_fill_i32(<const int32_t *>_at(block_indptr), <const int32_t *>_at(blocks), <const uint16_t *>_at(tiles), m,
                               <const int32_t *>_at(b_indptr), <int32_t *>_at(b_indices), t)
    return indptr, indices


def csr_to_words(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, width, threads):
    """Words (rows, width) with one bit per stored element."""
    indptr = _own(indptr)
    cdef int64_t m, words_per_row
    cdef int t
    _canonical("csr_to_words", indptr, indices, wide, rows, cols, threads)
    _between("width", width, -(-cols // 32), 2**53)
    t, m, words_per_row = threads, rows, width
    words = np.zeros(rows * width, np.uint32)
    cdef unsigned char[::1] out = _bytes(words)
    with nogil:
        if wide:
            bs_csr_to_words_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, words_per_row,
                                <uint32_t *>_at(out), t)
        else:
            bs_csr_to_words_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, words_per_row,
                                <uint32_t *>_at(out), t)
    return words.reshape(rows, width)


def words_to_csr(const unsigned char[::1] words, bint wide, rows, cols, width, threads):
    """(indptr, indices) of the set bits."""
    words = _own(words)
    cdef int64_t m, words_per_row, total
    cdef int t
    _sizes(rows, cols, wide, threads)
    _between("width", width, -(-cols // 32), 2**53)
    _holds("words", words, 4, rows * width)
    t, m, words_per_row = threads, rows, width
    index = np.int64 if wide else np.int32
    indptr = np.zeros(rows + 1, index)
    cdef unsigned char[::1] b_indptr = _bytes(indptr)
    with nogil:
        if wide:
            bs_words_counts_i64(<const uint32_t *>_at(words), m, words_per_row, <int64_t *>_at(b_indptr), t)
            total = bs_starts_i64(<int64_t *>_at(b_indptr), m)
        else:
            bs_words_counts_i32(<const uint32_t *>_at(words), m, words_per_row, <int32_t *>_at(b_indptr), t)
            total = bs_starts_i32(<int32_t *>_at(b_indptr), m)
    _between("the number of set bits", total, 0, 2**62 if wide else 2**31 - 1)
    indices = np.empty(total, index)
    cdef unsigned char[::1] b_indices = _bytes(indices)
    with nogil:
        if wide:
            bs_words_fill_i64(<const uint32_t *>_at(words), m, words_per_row, <const int64_t *>_at(b_indptr),
                              <int64_t *>_at(b_indices), t)
        else:
            bs_words_fill_i32(<const uint32_t *>_at(words), m, words_per_row, <const int32_t *>_at(b_indptr),
                              <int32_t *>_at(b_indices), t)
    _canonical("words_to_csr", b_indptr, b_indices, wide, rows, cols, threads)
    return indptr, indices
