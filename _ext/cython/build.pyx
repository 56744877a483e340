# cython: language_level=3, boundscheck=False, wraparound=False
"""Sparse formats from CSR and back. Arrays come as flat buffers of bytes with `wide` for int64 indices; results are new NumPy arrays.

Every function checks all that it is given: a damaged array raises ValueError before anything is read or written out of bounds.
"""
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t
from libc.string cimport memset

import numpy as np

include "pool.pxi"

cdef extern from "drivers/parallel.h":
    enum:
        BS_LEVELS

cdef extern from "simd/kernels.h":
    enum:
        BS_WINDOW_MAX

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
    ctypedef struct bs_cells:
        const void *starts
        void *cells
        uint16_t *tiles
        void *edge_col
        int bytes
    int bs_transposes_directly(int64_t, int64_t) nogil
    int bs_transpose_i32(const int32_t *, const int32_t *, int64_t, int64_t, int32_t *, int32_t *, int32_t *, const void *, size_t, void *,
                         int *, int) nogil
    int bs_transpose_i64(const int64_t *, const int64_t *, int64_t, int64_t, int64_t *, int64_t *, int64_t *, const void *, size_t, void *,
                         int *, int) nogil
    int bs_csr_check_i32(const int32_t *, const int32_t *, int64_t, int64_t, int64_t, int, int, int64_t *) nogil
    int bs_csr_check_i64(const int64_t *, const int64_t *, int64_t, int64_t, int64_t, int, int, int64_t *) nogil
    int bs_window_cells_i32(const int32_t *, const int32_t *, int64_t, int64_t, int, int, int, int32_t *, const bs_cells *, int, int,
                            int64_t *) nogil
    int bs_window_cells_i64(const int64_t *, const int64_t *, int64_t, int64_t, int, int, int, int64_t *, const bs_cells *, int, int,
                            int64_t *) nogil
    int64_t bs_longest_window_i32(const int32_t *, int64_t, int) nogil
    int64_t bs_longest_window_i64(const int64_t *, int64_t, int) nogil
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

#: Entries beyond which memory matters more than a pass.
_LARGE = 1 << 20
OK, UNSORTED, DUPLICATE = BS_BUILD_OK, BS_BUILD_UNSORTED, BS_BUILD_DUPLICATE
SPREAD, WINDOW_MAX = BS_SPREAD, BS_WINDOW_MAX


include "index_arrays.pxi"


# -- checks -------------------------------------------------------------------------------------------------------------
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


cdef int64_t _lengths(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols,
                      object threads) except -1:
    """The number of entries, once the sizes of the arrays fit."""
    _sizes(rows, cols, wide, threads)
    nnz = _length("indices", indices, 8 if wide else 4)
    _holds("indptr", indptr, 8 if wide else 4, rows + 1)
    if not wide:
        _between("the number of indices", nnz, 0, 2**31 - 1)
    return nnz


cdef tuple _status(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols, tuple on):
    """(code, row) of bs_csr_check, with lengths checked first."""
    cdef int64_t m, n, nnz = _lengths(indptr, indices, wide, rows, cols, on[1]), where = 0
    cdef int code, level, t
    m, n = rows, cols
    level, t = on
    _between("the level", level, 0, BS_LEVELS - 1)
    with nogil:
        if wide:
            code = bs_csr_check_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, nnz, level, t, &where)
        else:
            code = bs_csr_check_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, nnz, level, t, &where)
    return code, where


cdef int _canonical(str what, const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows,
                    object cols, object threads) except -1:
    code, where = _status(indptr, indices, wide, rows, cols, (0, threads))
    if code != BS_BUILD_OK:
        raise _complain(code, where, what)
    return 0


# -- entries ------------------------------------------------------------------------------------------------------------
def check_csr(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, tuple on):
    """OK, UNSORTED or DUPLICATE, and the first such row; ValueError for anything that is no CSR array at all."""
    indptr = _own(indptr)
    code, where = _status(indptr, indices, wide, rows, cols, on)
    if code not in (BS_BUILD_OK, BS_BUILD_UNSORTED, BS_BUILD_DUPLICATE):
        raise _complain(code, where, "CSR")
    return code, where


def transpose(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, threads,
              const unsigned char[::1] values=None, item=None):
    """(indptr, indices, order, values) of the transpose of a canonical pattern, and whether it is the same pattern.

    With `item` bytes of values for each entry, or none (0), either these come along and `order` is None, or the other way round.
    """
    cdef int64_t m, n, nnz = _lengths(indptr, indices, wide, rows, cols, threads)
    cdef int code, same = 0, t = threads
    cdef size_t each = 0
    indptr = _own(indptr)
    _check_indptr("indptr", indptr, wide, rows, nnz)
    m, n, index = rows, cols, np.int64 if wide else np.int32
    starts, row_of = np.empty(cols + 1, index), np.empty(nnz, index)
    order = moved = None
    if item is None or not bs_transposes_directly(n, nnz):
        order = np.empty(nnz, index)
    else:
        _between("the bytes of an item", item, 0, 2**40)
        if item and (values is None or values.shape[0] != item * nnz):
            raise ValueError(f"transpose: the values are not {nnz} items of {item} bytes; the array belongs to another one")
        each, moved = item, np.empty(nnz * item, np.uint8)
    cdef unsigned char[::1] b_starts = _bytes(starts), b_rows = _bytes(row_of), b_order = None, b_moved = None
    cdef void *to_order = NULL
    cdef void *to_moved = NULL
    cdef const void *from_values = NULL
    if order is not None:
        b_order = _bytes(order)
        to_order = _at(b_order)
    elif each:
        b_moved = moved
        to_moved, from_values = _at(b_moved), _at(values)
    with nogil:
        if wide:
            code = bs_transpose_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, <int64_t *>_at(b_starts),
                                    <int64_t *>_at(b_rows), <int64_t *>to_order, from_values, each, to_moved, &same, t)
        else:
            code = bs_transpose_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, <int32_t *>_at(b_starts),
                                    <int32_t *>_at(b_rows), <int32_t *>to_order, from_values, each, to_moved, &same, t)
    if code != BS_BUILD_OK:
        _canonical("transpose", indptr, indices, wide, rows, cols, threads)
        raise _changed(code, "transpose")
    return starts, row_of, order, moved, same != 0


cdef object _changed(int code, str what):
    """The error of a pattern that is right when it is looked at again."""
    if code == BS_BUILD_INDEX:
        return ValueError(f"{what}: the column indices changed meanwhile; let no other thread write into them")
    return _complain(code, 0, what)


cdef tuple _cells(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols, object window,
                  object shift, object spread, tuple on, str what):
    """Starts of each window's cells; with them, of shift 0, the columns and positions, or, of 4 x 4 blocks, these and their tiles."""
    indptr = _own(indptr)
    _between("window", window, 1, BS_WINDOW_MAX)
    _between("shift", shift, 0, 30)
    _between("spread", spread, -1, 62)
    cdef int64_t m, n, windows, most = 0, room, where = 0, nnz = _lengths(indptr, indices, wide, rows, cols, on[1])
    cdef int code, level, t, height = window, s = shift, far = spread
    cdef bint good, blocks = what == "frdc", counted = what == "tile_starts", columns = not blocks and not counted
    # What is large is counted first, so that there is no more of it at any time than the result.
    cdef bint large = nnz > _LARGE and not counted
    cdef int turn
    cdef bs_cells to
    level, t = on
    _between("the level", level, 0, BS_LEVELS - 1)
    m, n = rows, cols
    with nogil:
        good = _is_indptr(indptr, wide, m, nnz)
    if not good:
        _canonical(what, indptr, indices, wide, rows, cols, t)
    windows = -(-rows // window)
    starts = np.empty(windows + 1, np.int64 if wide else np.int32)
    cells = tiles = edge_col = None
    cdef unsigned char[::1] b_starts = _bytes(starts), b_edges = None, b_cells = None, b_tiles = None
    memset(&to, 0, sizeof(to))
    if columns and wide:
        most = bs_longest_window_i64(<const int64_t *>_at(indptr), m, height)
    elif columns:
        most = bs_longest_window_i32(<const int32_t *>_at(indptr), m, height)
    for turn in range(0 if large else 1, 2):
        if turn and not counted:
            if large:
                to.starts = _at(b_starts)
            room = starts[windows] if large else nnz
            cells, tiles = np.empty(room, starts.dtype), np.empty(room if blocks else 0, np.uint16)
            edge_col = np.empty(0 if blocks else nnz, _position_dtype(most))
            b_cells, b_tiles, b_edges = _bytes(cells), _bytes(tiles), _bytes(edge_col)
            to.cells, to.bytes = _at(b_cells), edge_col.itemsize
            to.tiles, to.edge_col = <uint16_t *>_at(b_tiles) if blocks else NULL, NULL if blocks else _at(b_edges)
        with nogil:
            if wide:
                code = bs_window_cells_i64(<const int64_t *>_at(indptr), <const int64_t *>_at(indices), m, n, height, s, far,
                                           <int64_t *>_at(b_starts), NULL if to.cells == NULL else &to, level, t, &where)
            else:
                code = bs_window_cells_i32(<const int32_t *>_at(indptr), <const int32_t *>_at(indices), m, n, height, s, far,
                                           <int32_t *>_at(b_starts), NULL if to.cells == NULL else &to, level, t, &where)
        if code == BS_BUILD_INDEX:
            _canonical(what, indptr, indices, wide, rows, cols, t)
            raise _changed(code, what)
        if code != BS_BUILD_OK:
            raise _complain(code, where, what)
        if to.starts == NULL:
            if columns:
                most = int(starts[:windows].max(initial=0))
            if wide:
                bs_starts_i64(<int64_t *>_at(b_starts), windows)
            else:
                bs_starts_i32(<int32_t *>_at(b_starts), windows)
    if counted:
        return starts, None, None
    # Views of a byte buffer would go on looking at what is given back here.
    b_cells = b_tiles = None
    room = starts[windows]
    cells.resize(room, refcheck=False)
    if blocks:
        tiles.resize(room, refcheck=False)
        return starts, cells, tiles
    return starts, cells, edge_col.astype(_position_dtype(most), copy=False)


cdef object _position_dtype(object most):
    return np.uint8 if most <= 1 << 8 else np.uint16 if most <= 1 << 16 else np.int32


def tile_starts(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, window, shift, spread,
                tuple on):
    """Starts of each window's non-empty tiles of `window` rows by 2**shift columns."""
    return _cells(indptr, indices, wide, rows, cols, window, shift, spread, on, "tile_starts")[0]


def translate(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, window, spread, tuple on):
    """(cols_indptr, cols, edge_col) of windows of `window` rows; edge_col is uint8, uint16 or int32, the smallest that holds it."""
    return _cells(indptr, indices, wide, rows, cols, window, 0, spread, on, "translate")


def frdc(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, rows, cols, spread, tuple on):
    """(indptr, indices, tiles) of 4 x 4 blocks."""
    return _cells(indptr, indices, wide, rows, cols, 4, 2, spread, on, "frdc")


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
