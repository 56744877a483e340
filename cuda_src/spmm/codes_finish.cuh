// Turns the sums of a complete row into its result: integers, means, or the chain of an epilogue and its floats or packed codes.
#ifndef BITSPARSE_SPMM_CODES_FINISH_CUH
#define BITSPARSE_SPMM_CODES_FINISH_CUH

#include "spmm/codes.cuh"
#if BS_OUT == BS_CHAIN
#include "finish/octet.cuh"
#endif

// A quotient of integers below 2^31, rounded like a division; `inverse` is 1 / edges, rounded.
BS_INLINE float mean_of_codes(int sum, float edges, float inverse) { return bs_div_knownf((float)sum, edges, inverse); }
BS_INLINE float mean_of_codes(float sum, float edges, float inverse)
{
    return fabsf(sum) <= 1.0e38f ? bs_div_knownf(sum, edges, inverse) : bs_mulf(sum, inverse);
}

#if BS_SCALED
// The scales that apply to all numbers of a row.
struct RowScales {
    float row, scale, own;
};

BS_INLINE RowScales scales_of(const CodeParams &p, Index row)
{
    return {p.row_scale ? __ldg(p.row_scale + row) : 1.0f, p.scale ? __ldg(p.scale) : 1.0f, p.own ? __ldg(p.own_scale) : 0.0f};
}

// Whether a lane loads all of its node's own values before it stores anything; with more of them there are no registers for that.
constexpr bool kOwnFirst = kCodes <= 8;

// Four of the node's own values, or as many as are left.
BS_INLINE float4 own_values(const float *own, bool together, int left)
{
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (together) {
        x = __ldcs((const float4 *)own);
    } else {
        x.x = left > 0 ? __ldcs(own) : 0.0f;
        x.y = left > 1 ? __ldcs(own + 1) : 0.0f;
        x.z = left > 2 ? __ldcs(own + 2) : 0.0f;
        x.w = left > 3 ? __ldcs(own + 3) : 0.0f;
    }
    return x;
}

// Adds `factor` times four of the node's own values.
BS_INLINE void add_own(const float4 &own, float factor, unsigned (&of)[4])
{
    const float each[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
        of[j] = bs_bits_of(bs_addf(bs_float_of(of[j]), bs_mulf(factor, each[j])));
}

// Adds the bias, which all rows share: four numbers, or as many as are left.
BS_INLINE void add_bias(const float *bias, int left, unsigned (&of)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        of[j] = bs_bits_of(bs_addf(bs_float_of(of[j]), j < left ? __ldg(bias + j) : 0.0f));
}

// Multiplying by 1 changes nothing, so rows without factors need no check.
BS_INLINE float scaled_sum(float sum, const RowScales &s) { return bs_mulf(bs_mulf(sum, s.row), s.scale); }
#endif

// Finishes the integers of a lane's vector.
BS_INLINE void finish_row(const CodeParams &p, Index row, Index edges, int vector, Total (&v)[kCodes])
{
#if BS_DIVIDES
    const float many = (float)max(edges, (Index)1), inverse = bs_divf(1.0f, many);
#endif
#if BS_OUT == BS_CHAIN
#pragma unroll 1
    for (int c = 0; c < kCodes; c += 8) { // a loop: the code of the chain appears once
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
    const bs_u64 at = (bs_u64)row * (unsigned)p.columns + (unsigned)(head * p.width + column);
    unsigned *const to = (unsigned *)p.out + at;
#if BS_SCALED
    [[maybe_unused]] float4 own[kCodes / 4];
    if constexpr (kOwnFirst)
#pragma unroll
        for (int c = 0; c < kCodes && p.own; c += 4)
            own[c / 4] = own_values(p.own + at + c, p.aligned && left >= c + 4, left - c);
    const RowScales scales = scales_of(p, row);
#endif
#pragma unroll
    for (int c = 0; c < kCodes; c += 4) {
        unsigned of[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#if BS_SCALED && BS_DIVIDES
            of[j] = bs_bits_of(scaled_sum(mean_of_codes(v[c + j], many, inverse), scales));
#elif BS_SCALED
            of[j] = bs_bits_of(scaled_sum((float)v[c + j], scales));
#elif BS_DIVIDES
            of[j] = bs_bits_of(mean_of_codes(v[c + j], many, inverse));
#else
            of[j] = bits_of(v[c + j]);
#endif
#if BS_SCALED
        if (p.own) {
            if constexpr (kOwnFirst)
                add_own(own[c / 4], scales.own, of);
            else
                add_own(own_values(p.own + at + c, p.aligned && left >= c + 4, left - c), scales.own, of);
        }
        if (p.bias)
            add_bias(p.bias + head * p.width + column + c, left - c, of);
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
