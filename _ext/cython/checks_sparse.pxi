# Checks shared by the sparse extension modules: every buffer holds exactly, and aligned, what its dimensions say.

cdef const void *_items(str what, const unsigned char[::1] buffer, object count, int item_size) except? NULL:
    """The buffer's memory after a check that it holds `count` items; NULL if that is none."""
    _size_is(what, buffer.shape[0], count * item_size)
    cdef const void *at = _at(buffer)
    if <size_t>at % <size_t>item_size:
        raise ValueError(f"{what} is not aligned to its items of {item_size} bytes; pass a copy")
    return at


cdef void *_writable_items(str what, unsigned char[::1] buffer, object count, int item_size) except? NULL:
    return <void *>_items(what, buffer, count, item_size)


cdef bs_csr _csr(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, tuple shape, object nnz) except *:
    """CSR arrays of a (rows, cols) pattern; `indices` None means that edge e belongs to column e."""
    cdef bs_csr a
    cdef int size = 8 if wide else 4
    rows, cols = shape
    _between("rows", rows, 0, 2**60)
    _between("cols", cols, 0, 2**60)
    _between("nnz", nnz, 0, 2**60 if wide else 2**32 - 1)
    a.indptr = _items("indptr", indptr, rows + 1, size)
    a.indices = NULL
    if indices is not None:
        # An empty list still is a list: without one, edges would be taken for columns.
        a.indices = _items("indices", indices, nnz, size) if nnz else a.indptr
    a.wide, a.rows, a.cols, a.nnz = wide, rows, cols, nnz
    return a


cdef int _sparse_status(int status, bs_csr *a) except -1:
    if status == BS_SPARSE_OK:
        return 0
    if status == BS_BAD_INDPTR:
        raise ValueError(f"indptr must start at 0, never decrease and end at nnz = {a.nnz}; rebuild the sparse array")
    if status == BS_BAD_INDEX:
        raise ValueError(f"indices hold a column outside 0..{<object>a.cols - 1}; rebuild the sparse array")
    raise MemoryError("no memory for the pieces of long rows")
