# Checks of a CSR pattern's buffers, included by the extension modules of the sparse families. Sizes are compared as Python integers.

cdef const void *_at(const unsigned char[::1] buffer) noexcept:
    return <const void *>&buffer[0] if buffer.shape[0] > 0 else NULL


cdef void *_into(unsigned char[::1] buffer) noexcept:
    return <void *>&buffer[0] if buffer.shape[0] > 0 else NULL


cdef int _size_is(str what, object have, object want) except -1:
    if have != want:
        raise ValueError(f"{what} holds {have} bytes but its dimensions need {want}; pass a buffer of exactly that size")
    return 0


cdef int _between(str what, object value, object low, object high) except -1:
    if not low <= value <= high:
        raise ValueError(f"{what} is {value} but must lie between {low} and {high}")
    return 0


cdef int _aligned(str what, const void *data, size_t to) except -1:
    if <size_t>data % to:
        raise ValueError(f"{what} is not aligned to {to} bytes; pass a copy")
    return 0


cdef bs_csr _pattern(const unsigned char[::1] indptr, const unsigned char[::1] indices, bint wide, object rows, object cols) except *:
    """The pattern; whether indptr and indices hold what they should is checked in C, run by run."""
    cdef bs_csr a
    cdef size_t item = 8 if wide else 4
    _between("the number of rows", rows, 0, 2**48)
    _between("the number of columns", cols, 0, 2**48)
    _size_is("indptr", indptr.shape[0], (rows + 1) * item)
    if <size_t>indices.shape[0] % item:
        raise ValueError(f"indices hold {indices.shape[0]} bytes, which is no whole number of {item}-byte indices")
    a.indptr, a.indices, a.wide = _at(indptr), _at(indices), wide
    a.rows, a.cols, a.nnz = rows, cols, <size_t>indices.shape[0] // item
    _aligned("indptr", a.indptr, item)
    _aligned("indices", a.indices, item)
    return a


cdef int _valid(bint ok) except -1:
    if not ok:
        raise ValueError(
            "the CSR pattern is not valid: indptr must start at 0, not decrease and end at the number of indices, and every index must "
            "lie in 0..columns-1; check it, or build it with scipy.sparse"
        )
    return 0


cdef int _whole(const bs_csr *a) except -1:
    """The ends of indptr."""
    return _valid(bs_row_start(a, 0) == 0 and <size_t>bs_row_start(a, a.rows) == a.nnz)
