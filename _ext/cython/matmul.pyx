# cython: language_level=3, boundscheck=False, wraparound=False
"""Products of packed operands on the host, with the fused epilogue. Arrays come as flat buffers of bytes in C order."""
from drive cimport *

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


def matmul(tuple on, bint digits, const unsigned char[::1] a, const unsigned char[::1] b, const unsigned char[::1] bitmap,
           const int64_t[::1] a_index, const int64_t[::1] b_index, tuple batches, tuple dims, tuple bits, tuple encodings, bint narrow,
           int result, object chain, unsigned char[::1] out):
    """Product into `out`; returns whether NaN reached requantisation.

    `batches` is (of a, of b, of the result), `dims` is (m, n, k), `bits` and `encodings` are (of a, of b); `bitmap` may be None.
    """
    cdef bs_run_on run = _on(on)
    cdef bs_product p
    cdef bs_epilogue e
    cdef int status
    for size in batches + dims:
        _between("a dimension", size, 0, 2**62)
    if result not in (BS_RESULT_INT32, BS_RESULT_INT64, BS_RESULT_FLOAT, BS_RESULT_BITS):
        raise ValueError("a product gives integers, floats or packed words")
    m, n, k = dims
    width = _ceil_div(k, 128) * 4
    for i in range(2):
        _between("bits", bits[i], 1, 32)
        _between("encoding", encodings[i], 0, 2)
        if encodings[i] == 2 and bits[i] != 1:
            raise ValueError(f"bits is {bits[i]} but a bipolar operand has 1")
    _size_is("a", a.shape[0], batches[0] * m * bits[0] * width * 4)
    _size_is("b", b.shape[0], batches[1] * n * bits[1] * width * 4)
    if bitmap is not None:
        _size_is("bitmap", bitmap.shape[0], batches[0] * _ceil_div(m, 8) * _ceil_div(width, 128) * 4)
    _index_fits("a_index", a_index, batches[2], batches[0])
    _index_fits("b_index", b_index, batches[2], batches[1])
    _set_epilogue(&e, result, (batches[2], m, n), chain, out)
    p.a, p.b = <const uint32_t *>_at(a), <const uint32_t *>_at(b)
    p.bitmap = NULL
    if bitmap is not None:
        p.bitmap = <const uint32_t *>_at(bitmap)
    p.a_index, p.b_index = _index(a_index), _index(b_index)
    p.a_batch, p.b_batch, p.batch = batches
    p.m, p.n, p.k = dims
    p.width = width
    p.a_bits, p.b_bits = bits
    p.a_encoding, p.b_encoding = encodings
    p.narrow = narrow
    if batches[2] * m * n == 0:
        return False
    with nogil:
        if digits:
            status = bs_matmul_digits(run, &p, &e)
        else:
            status = bs_matmul_planes(run, &p, &e)
    if status:
        raise MemoryError("matmul: no memory for the packed panels of the right operand; use fewer threads or split its columns")
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
