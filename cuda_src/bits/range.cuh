// The parameters of the kernels that read an array of numbers directly: ranges and stochastic rounding.
#ifndef BITSPARSE_BITS_RANGE_CUH
#define BITSPARSE_BITS_RANGE_CUH

#define BS_LARGE
#include "bits/lanes.cuh"

struct RangeParams {
    const void *x;
    void *low, *high; // Value (parts, lines)
    int *flag;        // set if a float is NaN or infinite
    i64 lines, rows, cols;                // lines of all batches together
    i64 x_batch, x_row, x_col;
    i64 parts, span;                      // elements of a part
    u64 seed;
    u32 stream;
    int lanes, is_signed, infinity, vector;
};

#endif
