// Real numbers to codes of a few bits with two multiply-adds, and a proof that the code is the exact one unless it is marked as in doubt.
//
// The exact chain is v = fl(fl(fl(x - offset) / divisor) * multiplier). Here y = rate * x + shift is (v + c - low) / range, clipped to
// [0, 1], and y * range + base is a number in [128, 256) with steps of 2^-16: a point. Its third byte is the code; its lower half is the
// distance from the boundary below, in units of 2^-16. c is half a step more for rounding to nearest, and half a step less where clipping
// begins in the middle of the outermost codes, so that clipped values are far from boundaries.
//
// Errors, in units of 2^-16 and with range r, middle k, shift s: the rate has three roundings and so does the chain, both relative to |v|
// <= r (1 + |k|); k, s and y are rounded once each; the point is rounded to half a unit. Altogether that is less than r (8 + 8 |k| + |s|) /
// 256 + 1/2, which `quick_limit` keeps below BS_ERROR. BS_ERROR is added to points, so a point that is more than twice BS_ERROR above a
// boundary has the code of the chain. The others are computed by the chain itself.
#ifndef BITSPARSE_BITS_QUICK_CUH
#define BITSPARSE_BITS_QUICK_CUH

#include "bits/encode.cuh"

#define BS_ERROR 2u
#define BS_DOUBT (2u * BS_ERROR) // the largest lower half of a point that may belong to another code
#define BS_POINT_BASE 128.0f // for codes that are not negative; others add 64, a multiple of 16

// How the values of one line become points.
struct Quick {
    float rate, shift;
    bool usable;
};

BS_INLINE Quick quick_of(float offset, float divisor, const EncodeParams &p)
{
    const float size = fabsf(divisor);
    Quick q;
    q.rate = bs_mulf(bs_divf(1.0f, divisor), p.gain);
    q.shift = bs_fmaf(-offset, q.rate, p.middle);
    q.usable = size >= 8.6736174e-19f && size <= 1.0995116e12f && fabsf(q.shift) <= p.quick_limit; // 2^-60, 2^40
    return q;
}

BS_INLINE u32 point_of(float x, float rate, float shift, float range, float base)
{
    return bs_bits_of(bs_fmaf(__saturatef(bs_fmaf(x, rate, shift)), range, base));
}

// Keeps the smallest lower half of all points so far, in the lower half of the result (sm_90 and later) or in the upper half.
#if __CUDA_ARCH__ >= 900
BS_INLINE u32 least_half(u32 least, u32 point) { return least_of_halves(least, point); }
BS_INLINE bool in_doubt(u32 least) { return (least & 0xffffu) <= BS_DOUBT; }
#else
BS_INLINE u32 least_half(u32 least, u32 point) { return min(least, point << 16); }
BS_INLINE bool in_doubt(u32 least) { return least <= BS_DOUBT << 16; }
#endif

// Nibble u of w[j] becomes the code of point 4 u + j.
BS_INLINE void nibbles_of(const u32 (&points)[32], u32 (&w)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 half[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            half[h] = __byte_perm(__byte_perm(points[4 * h + j], points[4 * h + 8 + j], 0x0062),
                                  __byte_perm(points[4 * h + 16 + j], points[4 * h + 24 + j], 0x0062), 0x5410);
        w[j] = (half[0] & 0x0f0f0f0fu) | (half[1] << 4 & 0xf0f0f0f0u);
    }
}

// The exact chain.
BS_INLINE u32 exact_code(float x, float offset, float divisor, const EncodeParams &p, u32 half)
{
    const float v = bs_affinef(x, offset, divisor, (float)p.multiplier);
    return (u32)bs_round_clippedf(bs_clipf(v, (float)p.low, (float)p.high), p.rounding, half);
}

BS_INLINE void replace_nibbles(u32 (&w)[4], int u, const u32 (&codes)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        w[j] = (w[j] & ~(15u << 4 * u)) | (codes[j] & 15u) << 4 * u;
}

#endif
