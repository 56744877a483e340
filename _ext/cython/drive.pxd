"""Declarations of C drivers that several extension modules call."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t


cdef extern from "drivers/parallel.h" nogil:
    enum:
        BS_LEVELS
    int bs_runs_level(int level)
    int bs_has_openmp()
    int bs_default_threads()
    void *bs_own_pool()
    void bs_use_pool(void *of_another)


cdef extern from "drivers/drive.h" nogil:
    enum:
        BS_PLANES
        BS_ROWS
        BS_F64
        BS_DTYPES
        BS_PER_TENSOR
        BS_RANGE_LINE

    ctypedef struct bs_run_on:
        int level
        int threads

    ctypedef struct bs_packed:
        uint32_t *words
        size_t batch
        size_t rows
        size_t cols
        int bits
        int axis
        int layout

    ctypedef struct bs_operand:
        const void *data
        size_t batch_stride
        size_t row_stride
        size_t col_stride

    ctypedef struct bs_quantizer:
        double multiplier
        int64_t qmin
        int64_t qmax
        int rounding
        int bits

    int bs_pack(bs_run_on on, const void *values, int dtype, int how, const bs_packed *to)
    void bs_quantize(bs_run_on on, const void *x, int dtype, int wide, bs_operand offset, bs_operand divisor, const bs_quantizer *q,
                     uint64_t seed, uint32_t stream, uint64_t first_index, const bs_packed *to)
    void bs_unpack(bs_run_on on, const bs_packed *packed, int encoding, int dtype, void *values)
    void bs_dequantize(bs_run_on on, const bs_packed *packed, int encoding, bs_operand scale, bs_operand offset, int dtype, void *values)
    void bs_repack(bs_run_on on, const bs_packed *packed, const bs_packed *to)
    void bs_stochastic_round(bs_run_on on, const void *x, int dtype, size_t n, uint64_t seed, uint32_t stream, void *out)
    int bs_calibrate(bs_run_on on, const void *x, int dtype, size_t batch, size_t rows, size_t cols, int granularity, void *lo, void *hi)
    void bs_tile_bitmap(bs_run_on on, const uint32_t *words, size_t batch, size_t outer, int bits, size_t width, uint32_t *bitmap)
    uint64_t bs_count_nonzero(bs_run_on on, const uint32_t *words, size_t lines, int bits, int layout, size_t width)
    void bs_code_sums(bs_run_on on, const uint32_t *words, size_t lines, int bits, int encoding, size_t k, size_t width, int64_t *sums)
    int bs_pad_is_zero(const uint32_t *words, size_t planes, size_t used_bits, size_t width)
    uint64_t bs_content_sum(const unsigned char *x, size_t bytes, int threads)
