# The epilogue in C, included by the extension modules whose results go through it; they include checks.pxi themselves.

cdef extern from "drivers/matmul.h" nogil:
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
