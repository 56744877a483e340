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

// A node's own values that are loaded at once: all of a lane, before anything is stored, if there are registers.
constexpr int kOwn = kCodes > 8 ? 4 : kCodes;

// Loads the node's own values: kOwn numbers, or as many as are left.
BS_INLINE void load_own(const float *own, bool aligned, int left, float (&to)[kOwn])
{
#pragma unroll
    for (int c = 0; c < kOwn; c += 4) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (aligned && left >= c + 4) {
            x = __ldcs((const float4 *)(own + c));
        } else {
            x.x = left > c ? __ldcs(own + c) : 0.0f;
            x.y = left > c + 1 ? __ldcs(own + c + 1) : 0.0f;
            x.z = left > c + 2 ? __ldcs(own + c + 2) : 0.0f;
            x.w = left > c + 3 ? __ldcs(own + c + 3) : 0.0f;
        }
        to[c] = x.x, to[c + 1] = x.y, to[c + 2] = x.z, to[c + 3] = x.w;
    }
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
    float own[kOwn];
    if (kOwn == kCodes && p.own)
        load_own(p.own + at, p.aligned, left, own);
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
            float now[kOwn];
            if (kOwn < kCodes)
                load_own(p.own + at + c, p.aligned, left - c, now);
#pragma unroll
            for (int j = 0; j < 4; j++)
                of[j] = bs_bits_of(bs_addf(bs_float_of(of[j]), bs_mulf(scales.own, kOwn < kCodes ? now[j] : own[c % kOwn + j])));
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
