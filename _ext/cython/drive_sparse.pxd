"""C drivers of the sparse functions."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from drive cimport bs_run_on


cdef extern from "drivers/sparse.h" nogil:
    enum:
        BS_SPMM_LOADS
        BS_REDUCTIONS
        BS_X_FIELD_F32
        BS_X_FIELD_I32
        BS_SD_F32
        BS_SD_F64
        BS_SDDMM_TYPES
        BS_DIV
        BS_LEAKY
        BS_STEEP
        BS_SPARSE_OK
        BS_BAD_INDPTR
        BS_BAD_INDEX
        BS_SEGMENT

    ctypedef struct bs_csr:
        const void *indptr
        const void *indices
        int wide
        size_t rows
        size_t cols
        size_t nnz

    ctypedef struct bs_split:
        bs_csr a

    ctypedef struct bs_scores:
        int wide
        size_t heads
        const void *scores
        const void *source
        const void *target
        double slope

    ctypedef struct bs_attention:
        bs_scores scores
        const void *ends
        int dropout
        double kept_scale
        uint64_t seed
        uint32_t threshold
        void *lse
        void *share
        void *above

    ctypedef struct bs_spmm_job:
        int load
        int reduce
        int mean
        const unsigned char *x
        size_t stride
        size_t head_stride
        size_t row_bytes
        size_t heads
        size_t width
        int bits
        int encoding
        const void *values
        size_t value_heads
        const float *row_scale
        const float *col_scale
        int affine
        const float *scale
        const float *offset
        const bs_attention *attention
        void *out
        size_t slice_blocks

    ctypedef struct bs_sddmm_job:
        int type
        int op
        const void *x
        const void *y
        size_t heads
        size_t width
        const void *weights
        double slope
        void *out

    int64_t bs_longest_row(const bs_csr *a)
    size_t bs_spmm_x_bits(int load, int field_bits)
    size_t bs_spmm_acc_bytes(int load)
    size_t bs_spmm_out_bytes(int load)
    int bs_split_make(bs_split *s, const bs_csr *a)
    int bs_split_order(bs_split *s)
    void bs_split_free(bs_split *s)
    int bs_spmm(bs_run_on on, const bs_csr *a, const bs_spmm_job *job)
    int bs_spmm_split(bs_run_on on, const bs_split *split, const bs_spmm_job *job)
    int bs_edge_softmax(bs_run_on on, const bs_csr *a, const bs_scores *scores, void *out)
    int bs_sddmm(bs_run_on on, const bs_csr *a, const bs_sddmm_job *job)
    int bs_steep_sums(bs_run_on on, const bs_csr *a, const bs_sddmm_job *job)
