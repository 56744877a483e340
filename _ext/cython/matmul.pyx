# cython: language_level=3, boundscheck=False, wraparound=False
"""Products of packed operands on the host, with the fused epilogue. Arrays come as flat buffers of bytes in C order."""
from drive cimport *

include "pool.pxi"
include "checks.pxi"
include "epilogue.pxi"


cdef extern from "drivers/matmul.h" nogil:
    ctypedef struct bs_product:
        const uint32_t *a
        const uint32_t *b
        const uint32_t *bitmap
        const int64_t *a_index
        const int64_t *b_index
        size_t a_batch
        size_t b_batch
        size_t batch
        size_t m
        size_t n
        size_t k
        size_t width
        int a_bits
        int b_bits
        int a_encoding
        int b_encoding
        int narrow

    int bs_matmul_planes(bs_run_on on, const bs_product *p, bs_epilogue *e)
    int bs_matmul_digits(bs_run_on on, const bs_product *p, bs_epilogue *e)
    int bs_matmul_bytes(bs_run_on on, const bs_product *p, bs_epilogue *e)
    void bs_epilogue_only(bs_run_on on, const void *acc, int dtype, bs_epilogue *e)


cdef int _index_fits(str what, const int64_t[::1] index, object batch, object operands) except -1:
    cdef Py_ssize_t i
    cdef int64_t limit = operands
    if index.shape[0] != batch:
        raise ValueError(f"{what} has {index.shape[0]} entries but the result has {batch} matrices")
    for i in range(index.shape[0]):
        if index[i] < 0 or index[i] >= limit:
            raise ValueError(f"{what} names operand {index[i]} but there are {limit}")
    return 0


cdef const int64_t *_index(const int64_t[::1] index) noexcept nogil:
    return &index[0] if index.shape[0] > 0 else NULL


PLANES, DIGITS, BYTES = range(3)


cdef int _set_product(bs_product *p, int kernel, const unsigned char[::1] a, const unsigned char[::1] bitmap, const int64_t[::1] a_index,
                      const int64_t[::1] b_index, tuple batches, tuple dims, tuple bits, tuple encodings, bint narrow) except -1:
    """Everything but the right operand, of which the sizes are known."""
    _between("kernel", kernel, 0, 2)
    for size in batches + dims:
        _between("a dimension", size, 0, 2**62)
    m, _n, k = dims
    width = _ceil_div(k, 128) * 4
    for i in range(2):
        _between("bits", bits[i], 1, 8 if kernel == 2 else 32)
        _between("encoding", encodings[i], 0, 2)
        if encodings[i] == 2 and bits[i] != 1:
            raise ValueError(f"bits is {bits[i]} but a bipolar operand has 1")
    _size_is("a", a.shape[0], batches[0] * m * bits[0] * width * 4)
    if bitmap is not None:
        _size_is("bitmap", bitmap.shape[0], batches[0] * _ceil_div(m, 8) * _ceil_div(width, 128) * 4)
    _index_fits("a_index", a_index, batches[2], batches[0])
    _index_fits("b_index", b_index, batches[2], batches[1])
    p.a, p.b, p.bitmap = <const uint32_t *>_at(a), NULL, NULL
    if bitmap is not None:
        p.bitmap = <const uint32_t *>_at(bitmap)
    p.a_index, p.b_index = _index(a_index), _index(b_index)
    p.a_batch, p.b_batch, p.batch = batches
    p.m, p.n, p.k = dims
    p.width = width
    p.a_bits, p.b_bits = bits
    p.a_encoding, p.b_encoding = encodings
    p.narrow = narrow
    return 0


cdef int _multiply(bs_run_on on, int kernel, const bs_product *p, bs_epilogue *e) except -1:
    cdef int status
    with nogil:
        if kernel == 2:
            status = bs_matmul_bytes(on, p, e)
        elif kernel == 1:
            status = bs_matmul_digits(on, p, e)
        else:
            status = bs_matmul_planes(on, p, e)
    if status:
        raise MemoryError("matmul: no memory for the packed panels of the right operand; use fewer threads or split its columns")
    return 0


cdef object _right_bytes(const bs_product *p):
    return <object>p.b_batch * p.n * p.b_bits * p.width * 4


cdef class Product:
    """Products of one left operand: ``product(on, b, out)`` gives integers, :meth:`through` what an epilogue makes of them.

    `kernel` is PLANES, DIGITS or BYTES, which takes at most 8 bits. `batches` is (of a, of b, of the result), `dims` is (m, n, k), `bits`
    and `encodings` are (of a, of b); `bitmap` may be None. All that is checked here, once.
    """

    cdef bs_product p
    cdef int kernel
    cdef Py_ssize_t right, result
    cdef tuple shape
    cdef object held

    def __init__(self, int kernel, const unsigned char[::1] a, const unsigned char[::1] bitmap, const int64_t[::1] a_index,
                 const int64_t[::1] b_index, tuple batches, tuple dims, tuple bits, tuple encodings, bint narrow):
        _set_product(&self.p, kernel, a, bitmap, a_index, b_index, batches, dims, bits, encodings, narrow)
        self.held = a, bitmap, a_index, b_index
        self.kernel = kernel
        self.shape = batches[2], dims[0], dims[1]
        self.right = _right_bytes(&self.p)
        self.result = batches[2] * dims[0] * dims[1] * (4 if narrow else 8)

    cdef int _run(self, tuple on, object b, object out, bs_epilogue *e) except -1:
        # A copy: several threads may be in one product.
        cdef bs_product p = self.p
        cdef Py_buffer held[2]
        cdef int count = 0
        try:
            p.b = <const uint32_t *>_place("b", b, self.right, 4, False, held, &count)
            if out is not None:
                e.out = _place("out", out, self.result, 4, True, held, &count)
            if self.result:
                _multiply(_on(on), self.kernel, &p, e)
        finally:
            while count:
                count -= 1
                PyBuffer_Release(&held[count])
        return 0

    def __call__(self, tuple on, object b, object out):
        """Each is a contiguous buffer of any items."""
        cdef bs_epilogue e
        e.result = BS_RESULT_INT32 if self.p.narrow else BS_RESULT_INT64
        e.batch, e.rows, e.cols, e.found_nan = self.p.batch, self.p.m, self.p.n, 0
        self._run(on, b, out, &e)

    def through(self, tuple on, object b, int result, tuple chain, unsigned char[::1] out):
        """Into `out` through an epilogue; returns whether NaN reached requantisation."""
        cdef bs_epilogue e
        if result not in (BS_RESULT_FLOAT, BS_RESULT_BITS):
            raise ValueError("an epilogue gives floats or packed words")
        _set_epilogue(&e, result, self.shape, chain, out)
        self._run(on, b, None, &e)
        return bool(e.found_nan)


def epilogue(tuple on, const unsigned char[::1] acc, int dtype, tuple shape, int result, tuple chain, unsigned char[::1] out):
    """The chain on int32, int64 or float32 accumulators; returns whether NaN reached requantisation."""
    cdef bs_run_on run = _on(on)
    cdef bs_epilogue e
    for size in shape:
        _between("a dimension", size, 0, 2**62)
    if dtype not in (BS_I32, BS_I64, BS_F32):
        raise ValueError(f"dtype code {dtype} is not int32, int64 or float32")
    if result not in (BS_RESULT_FLOAT, BS_RESULT_BITS):
        raise ValueError("an epilogue gives floats or packed words")
    _size_is("acc", acc.shape[0], shape[0] * shape[1] * shape[2] * (8 if dtype == BS_I64 else 4))
    _set_epilogue(&e, result, shape, chain, out)
    if acc.shape[0] == 0:
        return False
    with nogil:
        bs_epilogue_only(run, _at(acc), dtype, &e)
    return bool(e.found_nan)
