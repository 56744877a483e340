# Buffers of index arrays and their checks, included by the modules that read CSR arrays with copied row pointers.

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


cdef bint _is_indptr(const unsigned char[::1] indptr, bint wide, int64_t m, int64_t count) noexcept nogil:
    """Whether it starts at 0, never falls and ends at `count`."""
    cdef int64_t r
    # Sums of the type of what is compared: that is done several at a time.
    cdef int32_t falls32 = 0
    cdef int64_t falls64 = 0
    cdef const int32_t *p32 = <const int32_t *>_at(indptr)
    cdef const int64_t *p64 = <const int64_t *>_at(indptr)
    if (p64[0] != 0 or p64[m] != count) if wide else (p32[0] != 0 or p32[m] != count):
        return False
    if wide:
        for r in range(m):
            falls64 |= p64[r + 1] < p64[r]
    else:
        for r in range(m):
            falls32 |= p32[r + 1] < p32[r]
    return not falls32 and not falls64


cdef int _check_indptr(str what, const unsigned char[::1] indptr, bint wide, object rows, object nnz) except -1:
    """An indptr of `rows` rows over `nnz` entries."""
    cdef int64_t m, count
    cdef bint good
    _holds(what, indptr, 8 if wide else 4, rows + 1)
    m, count = rows, nnz
    with nogil:
        good = _is_indptr(indptr, wide, m, count)
    if not good:
        raise ValueError(f"{what} must start at 0, never fall and end at {nnz}; the arrays are damaged or belong to another shape")
    return 0


cdef const unsigned char[::1] _own(const unsigned char[::1] buffer):
    """A copy, for what later passes rely on: another thread may write into the caller's array, as the GIL is not held meanwhile.

    The indices of a CSR array, its largest part, are not copied as a whole: C takes them window by window, or bounds each of them.
    """
    return np.array(buffer)


cdef object _bytes(object array):
    return array.view(np.uint8)
