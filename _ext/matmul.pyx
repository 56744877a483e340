# cython: language_level=3, boundscheck=False, wraparound=False
"""Products of packed operands on the host, with the fused epilogue. Arrays come as flat buffers of bytes in C order."""
from libc.stdint cimport int8_t, int32_t, uint8_t

from drive cimport *

include "checks.pxi"


cdef extern from "matmul.h" nogil:
    enum:
        BS_RESULT_INT32
        BS_RESULT_INT64
        BS_RESULT_FLOAT
        BS_RESULT_BITS
        BS_RESULT_BYTES
        BS_I32
        BS_I64
        BS_F32

    ctypedef struct bs_epilogue:
        int result
        bs_operand row_scale
        bs_operand col_scale
        bs_operand row_term[2]
        bs_operand col_term[2]
        bs_operand bias
        bs_operand bn_scale
        bs_operand bn_shift
        int activation
        int binarize
        float slope
        bs_operand offset
        bs_operand divisor
        bs_quantizer quantizer
        uint64_t seed
        uint32_t stream
        size_t batch
        size_t rows
        size_t cols
        void *out
        bs_packed packed
        int found_nan

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


cdef extern from "bytes.h" nogil:
    ctypedef struct bs_bytes_step:
        const uint8_t *x
        size_t stride
        size_t k
        const int8_t *panels
        const int32_t *indptr
        const int32_t *indices

    size_t bs_bytes_longest()
    void bs_bytes_run(bs_run_on on, const bs_bytes_step *s, bs_epilogue *e)


cdef int _set_operand(bs_operand *to, str what, object given, tuple shape) except -1:
    """`given` is None or (bytes, strides); a missing operand keeps its data NULL."""
    to.data = NULL
    to.batch_stride = to.row_stride = to.col_stride = 0
    if given is not None:
        to[0] = _operand(what, given[0], given[1], shape, 4)
    return 0


cdef int _check_pair(str what, bs_operand *pair) except -1:
    if (pair[0].data == NULL) != (pair[1].data == NULL):
        raise ValueError(f"{what} is a row vector times a column vector but one of them is missing; give both")
    return 0


cdef int _set_epilogue(bs_epilogue *e, int result, tuple shape, object chain, unsigned char[::1] out) except -1:
    """Fill the C chain. `chain` is None for integers; it owns the buffers that the operands point into."""
    _between("result", result, BS_RESULT_INT32, BS_RESULT_BYTES)
    e.result = result
    e.batch, e.rows, e.cols = shape
    e.found_nan = 0
    e.out = _into(out)
    size = shape[0] * shape[1] * shape[2]
    if result == BS_RESULT_BYTES:
        _size_is("out", out.shape[0], shape[0] * shape[1] * _ceil_div(shape[2], 16) * 16)
    elif result != BS_RESULT_BITS:
        _size_is("out", out.shape[0], size * (8 if result == BS_RESULT_INT64 else 4))
    if chain is None:
        if result not in (BS_RESULT_INT32, BS_RESULT_INT64):
            raise ValueError("a float or packed result needs an epilogue; pass one or ask for integers")
        return 0
    operands, activation, slope, binarize, quantiser, seed, stream, bits, axis, layout = chain
    names = ("row_scale", "col_scale", "row_term", "row_term", "col_term", "col_term", "bias", "bn_scale", "bn_shift", "offset", "divisor")
    cdef bs_operand *places[11]
    places[:] = [&e.row_scale, &e.col_scale, &e.row_term[0], &e.row_term[1], &e.col_term[0], &e.col_term[1], &e.bias, &e.bn_scale,
                 &e.bn_shift, &e.offset, &e.divisor]
    for i in range(11):
        _set_operand(places[i], names[i], operands[i], shape)
    _between("activation", activation, 0, 3)
    e.activation, e.slope, e.binarize, e.seed, e.stream = activation, slope, binarize, seed, stream
    if size:
        _check_pair("row_term", e.row_term)
        _check_pair("col_term", e.col_term)
    if result == BS_RESULT_BITS:
        e.packed = _packed(out, shape, bits, axis, layout)
    if result in (BS_RESULT_BITS, BS_RESULT_BYTES):
        multiplier, qmin, qmax, rounding = quantiser
        e.quantizer = _quantizer(bits, multiplier, qmin, qmax, rounding)
        if binarize and bits != 1:
            raise ValueError(f"bits is {bits} but a binarised result has 1; pass bits=1")
        if size and not binarize and (e.offset.data == NULL or e.divisor.data == NULL):
            raise ValueError("a requantised result needs offset and divisor; pass both or binarise")
    return 0


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


def bytes_step(tuple on, const unsigned char[::1] x, size_t stride, tuple dims, const unsigned char[::1] panels,
               const int32_t[::1] indptr, const int32_t[::1] indices, int result, tuple chain, unsigned char[::1] out):
    """A step on codes in bytes (see bytes.h); returns whether NaN reached requantisation.

    `dims` is (rows of the result, its columns, columns of x); without `panels` it sums rows of x, which has as many as the result.
    """
    cdef bs_run_on run = _on(on)
    cdef bs_epilogue e
    cdef bs_bytes_step s
    cdef Py_ssize_t i
    cdef int32_t low = 0, high = -1
    for size in dims:
        _between("a dimension", size, 0, 2**62)
    m, n, k = dims
    _between("the columns of the result", n, 0, bs_bytes_longest())
    if result not in (BS_RESULT_FLOAT, BS_RESULT_BYTES):
        raise ValueError("a step on bytes gives floats or bytes")
    if stride % 16 or stride < k:
        raise ValueError(f"stride is {stride} but must be a multiple of 16 and at least {k}")
    _size_is("x", x.shape[0], m * stride)
    _set_epilogue(&e, result, (1, m, n), chain, out)
    if result == BS_RESULT_BYTES and (e.binarize or e.quantizer.bits > 8 or e.quantizer.rounding == 2):
        raise ValueError("a byte takes up to 8 bits, rounded down or to nearest")
    s.x, s.stride, s.k = <const uint8_t *>_at(x), stride, k
    s.panels, s.indptr, s.indices = NULL, NULL, NULL
    if panels is not None:
        _size_is("panels", panels.shape[0], _ceil_div(n, 16) * _ceil_div(k, 4) * 64)
        s.panels = <const int8_t *>_at(panels)
    else:
        if k != n:
            raise ValueError(f"sums of {k} columns have {k} columns, not {n}")
        _size_is("indptr", indptr.shape[0], m + 1)
        with nogil:
            for i in range(indices.shape[0]):
                low = min(low, indices[i])
                high = max(high, indices[i])
        if indptr[0] != 0 or indptr[m] != indices.shape[0] or low < 0 or high >= m:
            raise ValueError("indptr does not fit the indices, or an index names no row")
        with nogil:
            for i in range(indptr.shape[0] - 1):
                if indptr[i] > indptr[i + 1]:
                    low = -1
        if low < 0:
            raise ValueError("indptr must not descend")
        s.indptr = &indptr[0]
        if indices.shape[0]:
            s.indices = &indices[0]
    if m * n == 0:
        return False
    if panels is not None and k == 0:
        raise ValueError("a product of no columns is all zeros; make it without this function")
    with nogil:
        bs_bytes_run(run, &s, &e)
    return bool(e.found_nan)
