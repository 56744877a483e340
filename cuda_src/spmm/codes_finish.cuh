// From the sums of a complete row to what is stored: integers, means, or the chain of an epilogue and its floats or packed codes.
#ifndef BITSPARSE_SPMM_CODES_FINISH_CUH
#define BITSPARSE_SPMM_CODES_FINISH_CUH

#include "spmm/codes.cuh"
#if BS_OUT == BS_CHAIN
#include "finish/octet.cuh"
#endif

// A quotient of integers below 2^31, rounded as a division is; `inverse` is 1 / edges, rounded.
BS_INLINE float mean_of_codes(int sum, float edges, float inverse) { return bs_div_knownf((float)sum, edges, inverse); }
BS_INLINE float mean_of_codes(float sum, float edges, float inverse)
{
    return fabsf(sum) <= 1.0e38f ? bs_div_knownf(sum, edges, inverse) : bs_mulf(sum, inverse);
}

// The integers of a lane's vector.
BS_INLINE void finish_row(const CodeParams &p, Index row, Index edges, int vector, Total (&v)[kCodes])
{
#if BS_DIVIDES
    const float many = (float)max(edges, (Index)1), inverse = bs_divf(1.0f, many);
#endif
#if BS_OUT == BS_CHAIN
#pragma unroll 1
    for (int c = 0; c < kCodes; c += 8) { // going round: the chain stands in the code once
        float f[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
#if BS_DIVIDES
            f[j] = mean_of_codes(v[j], many, inverse);
#else
            f[j] = (float)v[j];
#endif
#pragma unroll
        for (int j = 0; j < kCodes - 8; j++)
            v[j] = v[j + 8];
        finish_octet(p.epilogue, 0, (int)row, vector * kCodes + c, f);
    }
#else
    const int first = vector * kCodes, head = p.heads > 1 ? first / p.padded : 0, column = first - head * p.padded;
    const int left = p.width - column;
    unsigned *const to = (unsigned *)p.out + (bs_u64)row * (unsigned)p.columns + (unsigned)(head * p.width + column);
#pragma unroll
    for (int c = 0; c < kCodes; c += 4) {
        unsigned of[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#if BS_DIVIDES
            of[j] = bs_bits_of(mean_of_codes(v[c + j], many, inverse));
#else
            of[j] = bits_of(v[c + j]);
#endif
        if (p.aligned && left >= c + 4) {
            *(uint4 *)(to + c) = make_uint4(of[0], of[1], of[2], of[3]);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (c + j < left)
                    to[c + j] = of[j];
        }
    }
#endif
}

#endif
