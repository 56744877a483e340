# Checks of sizes, included by every extension module. Arguments come validated from Python; these checks make a wrong one raise instead
# of reading or writing outside a buffer. Sizes are compared as Python integers, which cannot overflow.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

_ITEM_SIZE = (1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8)


cdef const void *_at(const unsigned char[::1] buffer) noexcept nogil:
    return <const void *>&buffer[0] if buffer.shape[0] > 0 else NULL


cdef void *_into(unsigned char[::1] buffer) noexcept nogil:
    return <void *>&buffer[0] if buffer.shape[0] > 0 else NULL


cdef int _size_is(str what, object have, object want) except -1:
    if have != want:
        raise ValueError(f"{what} holds {have} bytes but its dimensions need {want}; pass a buffer of exactly that size")
    return 0


cdef void *_place(str what, object array, object size, int item, bint writable, Py_buffer *held, int *count) except? NULL:
    """Where an array of `size` bytes lies: a contiguous buffer, held until it is released, or the address of one."""
    if isinstance(array, int):
        return <void *><size_t>array
    cdef Py_buffer *buffer = &held[count[0]]
    PyObject_GetBuffer(array, buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    count[0] += 1
    _size_is(what, buffer.len, size)
    if <size_t>buffer.buf % <size_t>item:
        raise ValueError(f"{what} is not aligned to its items of {item} bytes; pass a copy")
    return buffer.buf


cdef int _between(str what, object value, object low, object high) except -1:
    if not low <= value <= high:
        raise ValueError(f"{what} is {value} but must lie between {low} and {high}")
    return 0


cdef object _ceil_div(object a, object b):
    return -(-a // b)


cdef object _packed_bytes(tuple shape, int bits, int axis, int layout):
    """Bytes of the words of a logical (batch, rows, cols) array, with every argument checked."""
    for n in shape:
        _between("a dimension", n, 0, 2**62)
    _between("bits", bits, 1, 32)
    _between("axis", axis, -2, -1)
    _between("layout", layout, 0, 1)
    if layout == BS_ROWS and bits not in (1, 2, 4, 8, 16):
        raise ValueError(f"bits is {bits} but layout \"rows\" takes 1, 2, 4, 8 or 16; use layout \"planes\"")
    batch, rows, cols = shape
    length, outer = (cols, rows) if axis == -1 else (rows, cols)
    if layout == BS_ROWS:
        return batch * outer * _ceil_div(length * bits, 128) * 16
    return batch * outer * bits * _ceil_div(length, 128) * 16


cdef bs_packed _packed(const unsigned char[::1] words, tuple shape, int bits, int axis, int layout) except *:
    cdef bs_packed p
    _size_is("words", words.shape[0], _packed_bytes(shape, bits, axis, layout))
    p.words = <uint32_t *>_at(words)
    p.batch, p.rows, p.cols = shape
    p.bits, p.axis, p.layout = bits, axis, layout
    return p


cdef bs_operand _operand(str what, const unsigned char[::1] data, tuple strides, tuple shape, object item_size) except *:
    """A broadcast vector: strides in elements along (batch, rows, cols)."""
    cdef bs_operand o
    last = 0
    for stride, n in zip(strides, shape, strict=True):
        if stride:
            _between("a stride of " + what, stride, 0, 2**62)
            last += stride * max(n - 1, 0)
    if 0 not in shape and data.shape[0] < (last + 1) * item_size:
        raise ValueError(f"{what} holds {data.shape[0]} bytes but its strides reach byte {(last + 1) * item_size}")
    o.data = _at(data)
    o.batch_stride, o.row_stride, o.col_stride = strides
    return o


cdef bs_quantizer _quantizer(int bits, object multiplier, object qmin, object qmax, int rounding) except *:
    cdef bs_quantizer q
    _between("bits", bits, 1, 32)
    _between("qmin", qmin, -2**32, 2**32)
    _between("qmax", qmax, qmin, 2**32)
    _between("rounding", rounding, 0, 2)
    q.multiplier, q.qmin, q.qmax, q.rounding, q.bits = multiplier, qmin, qmax, rounding, bits
    return q


cdef bs_run_on _on(tuple on) except *:
    cdef bs_run_on run
    run.level, run.threads = on
    if not 1 <= run.threads <= 4096:
        _between("the number of threads", run.threads, 1, 4096)
    return run
