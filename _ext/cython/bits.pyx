# cython: language_level=3, boundscheck=False, wraparound=False
"""Packing, quantising and reducing on the host. Every array comes as a flat buffer of bytes in C order with its logical shape."""
from drive cimport *

include "checks.pxi"


def levels():
    """Numbers of the SIMD levels that this processor runs: 0 scalar, 1 AVX2, 2 AVX2 with AVX-VNNI, 3 AVX-512, 4 AVX-512 with AMX."""
    return tuple([level for level in range(BS_LEVELS) if bs_runs_level(level) == level])


def has_openmp():
    """Whether the build has OpenMP."""
    return bool(bs_has_openmp())


def pool():
    """The address of the pool of threads that all modules share."""
    return <size_t>bs_own_pool()


def default_threads():
    """Threads that OpenMP would use."""
    return bs_default_threads()


cdef int _values_fit(const unsigned char[::1] values, int dtype, tuple shape) except -1:
    _between("dtype", dtype, 0, BS_DTYPES - 1)
    _size_is("values", values.shape[0], shape[0] * shape[1] * shape[2] * _ITEM_SIZE[dtype])
    return 0


def pack(tuple on, const unsigned char[::1] values, int dtype, int how, tuple shape, int bits, int axis, int layout,
         unsigned char[::1] words):
    """Codes of `values` (low bits, or by sign) into `words`; returns whether a float was NaN."""
    cdef bs_run_on run = _on(on)
    cdef int nan
    cdef bs_packed to = _packed(words, shape, bits, axis, layout)
    _values_fit(values, dtype, shape)
    with nogil:
        nan = bs_pack(run, _at(values), dtype, how, &to)
    return bool(nan)


def quantize(tuple on, const unsigned char[::1] x, int dtype, bint wide, tuple shape, const unsigned char[::1] offset,
             tuple offset_strides, const unsigned char[::1] divisor, tuple divisor_strides, object multiplier, object qmin,
             object qmax, int rounding, uint64_t seed, uint32_t stream, uint64_t first_index, int bits, int axis, int layout,
             unsigned char[::1] words):
    """clip(round(((x - offset) / divisor) * multiplier), qmin, qmax) modulo 2**bits into `words`."""
    cdef bs_run_on run = _on(on)
    cdef bs_packed to = _packed(words, shape, bits, axis, layout)
    cdef bs_operand by_offset = _operand("offset", offset, offset_strides, shape, 8 if wide else 4)
    cdef bs_operand by_divisor = _operand("divisor", divisor, divisor_strides, shape, 8 if wide else 4)
    cdef bs_quantizer q = _quantizer(bits, multiplier, qmin, qmax, rounding)
    _between("dtype", dtype, BS_DTYPES - 4, BS_DTYPES - 1)
    _values_fit(x, dtype, shape)
    with nogil:
        bs_quantize(run, _at(x), dtype, wide, by_offset, by_divisor, &q, seed, stream, first_index, &to)


def unpack(tuple on, const unsigned char[::1] words, tuple shape, int bits, int axis, int layout, int encoding, int dtype,
           unsigned char[::1] values):
    """The integers of `words` into `values`."""
    cdef bs_run_on run = _on(on)
    cdef bs_packed packed = _packed(words, shape, bits, axis, layout)
    _between("encoding", encoding, 0, 2)
    _values_fit(values, dtype, shape)
    with nogil:
        bs_unpack(run, &packed, encoding, dtype, _into(values))


def dequantize(tuple on, const unsigned char[::1] words, tuple shape, int bits, int axis, int layout, int encoding,
               const unsigned char[::1] scale, tuple scale_strides, const unsigned char[::1] offset, tuple offset_strides, int dtype,
               unsigned char[::1] values):
    """integer * scale + offset into `values`."""
    cdef bs_run_on run = _on(on)
    cdef bs_packed packed = _packed(words, shape, bits, axis, layout)
    cdef bs_operand by_scale = _operand("scale", scale, scale_strides, shape, 4)
    cdef bs_operand by_offset = _operand("offset", offset, offset_strides, shape, 4)
    _between("encoding", encoding, 0, 2)
    _between("dtype", dtype, BS_DTYPES - 4, BS_DTYPES - 1)
    _values_fit(values, dtype, shape)
    if values.shape[0] == 0:
        return
    with nogil:
        bs_dequantize(run, &packed, encoding, by_scale, by_offset, dtype, _into(values))


def repack(tuple on, const unsigned char[::1] words, tuple shape, int bits, int axis, int layout, int to_axis, int to_layout,
           unsigned char[::1] out):
    """The same codes along another axis or in another layout."""
    cdef bs_run_on run = _on(on)
    cdef bs_packed packed = _packed(words, shape, bits, axis, layout)
    cdef bs_packed to = _packed(out, shape, bits, to_axis, to_layout)
    with nogil:
        bs_repack(run, &packed, &to)


def stochastic_round(tuple on, const unsigned char[::1] x, int dtype, uint64_t seed, uint32_t stream, unsigned char[::1] out):
    """floor(x) or floor(x) + 1, drawn by C-order index."""
    cdef bs_run_on run = _on(on)
    _between("dtype", dtype, BS_DTYPES - 4, BS_DTYPES - 1)
    cdef size_t n = x.shape[0] // <size_t>_ITEM_SIZE[dtype]
    _size_is("out", out.shape[0], x.shape[0])
    with nogil:
        bs_stochastic_round(run, _at(x), dtype, n, seed, stream, _into(out))


def calibrate(tuple on, const unsigned char[::1] x, int dtype, tuple shape, int granularity, unsigned char[::1] lo,
              unsigned char[::1] hi):
    """Smallest and largest value per tensor (0), row (1) or column (2) of a non-empty array; returns whether all are finite."""
    cdef bs_run_on run = _on(on)
    cdef size_t batch = shape[0], rows = shape[1], cols = shape[2]
    cdef int finite
    _between("dtype", dtype, BS_DTYPES - 4, BS_DTYPES - 1)
    _between("granularity", granularity, 0, 2)
    _values_fit(x, dtype, shape)
    counts = (_ceil_div(shape[0] * shape[1] * shape[2], BS_RANGE_LINE), shape[0] * shape[1], shape[0] * shape[2])
    want = counts[granularity] * (8 if dtype == BS_F64 else 4)
    _size_is("lo", lo.shape[0], want)
    _size_is("hi", hi.shape[0], want)
    if x.shape[0] == 0:
        raise ValueError("calibrate: x is empty and has no range; handle empty arrays before")
    with nogil:
        finite = bs_calibrate(run, _at(x), dtype, batch, rows, cols, granularity, _into(lo), _into(hi))
    return bool(finite)


def tile_bitmap(tuple on, const unsigned char[::1] words, object batch, object outer, int bits, object width,
                unsigned char[::1] bitmap):
    """One bit per 8 x 128 tile that holds a set bit in any plane. `width`: uint32 words per plane."""
    cdef bs_run_on run = _on(on)
    cdef size_t c_batch = batch, c_outer = outer, c_width = width
    _between("bits", bits, 1, 32)
    if width % 4:
        raise ValueError(f"width is {width} words but planes are whole groups of 4 words")
    _size_is("words", words.shape[0], batch * outer * bits * width * 4)
    _size_is("bitmap", bitmap.shape[0], batch * _ceil_div(outer, 8) * _ceil_div(width, 128) * 4)
    if bitmap.shape[0] == 0:
        return
    with nogil:
        bs_tile_bitmap(run, <const uint32_t *>_at(words), c_batch, c_outer, bits, c_width, <uint32_t *>_into(bitmap))


def count_nonzero(tuple on, const unsigned char[::1] words, object lines, int bits, int layout, object width):
    """Codes that are not zero in `lines` packed lines of `width` words per plane (or per line of fields)."""
    cdef bs_run_on run = _on(on)
    cdef size_t c_lines = lines, c_width = width
    cdef uint64_t count
    _between("bits", bits, 1, 32)
    _between("layout", layout, 0, 1)
    if layout == BS_ROWS and bits not in (1, 2, 4, 8, 16):
        raise ValueError(f"bits is {bits} but layout \"rows\" takes 1, 2, 4, 8 or 16; use layout \"planes\"")
    _size_is("words", words.shape[0], lines * width * 4 * (bits if layout == BS_PLANES else 1))
    if words.shape[0] == 0:
        return 0
    with nogil:
        count = bs_count_nonzero(run, <const uint32_t *>_at(words), c_lines, bits, layout, c_width)
    return count


def code_sums(tuple on, const unsigned char[::1] words, object lines, int bits, int encoding, size_t k, object width,
              unsigned char[::1] sums):
    """Sum of the integers of each packed line (planes) into int64 `sums`."""
    cdef bs_run_on run = _on(on)
    cdef size_t c_lines = lines, c_width = width
    _between("bits", bits, 1, 32)
    _between("encoding", encoding, 0, 2)
    _size_is("words", words.shape[0], lines * bits * width * 4)
    _size_is("sums", sums.shape[0], lines * 8)
    with nogil:
        bs_code_sums(run, <const uint32_t *>_at(words), c_lines, bits, encoding, k, c_width, <int64_t *>_into(sums))


def pad_is_zero(const unsigned char[::1] words, object planes, size_t used_bits, object width):
    """Whether every bit from `used_bits` on is zero in each of `planes` runs of `width` words."""
    cdef size_t c_planes = planes, c_width = width
    cdef int answer
    _size_is("words", words.shape[0], planes * width * 4)
    if words.shape[0] == 0:
        return True
    with nogil:
        answer = bs_pad_is_zero(<const uint32_t *>_at(words), c_planes, used_bits, c_width)
    return bool(answer)


def content_sum(tuple on, const unsigned char[::1] x):
    """The fingerprint of memory: a sum of mixed 64-bit words."""
    cdef bs_run_on run = _on(on)
    cdef size_t size = x.shape[0]
    cdef uint64_t answer
    with nogil:
        answer = bs_content_sum(<const unsigned char *>_at(x), size, run.threads)
    return answer
