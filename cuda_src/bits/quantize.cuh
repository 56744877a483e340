// Real numbers to codes, 32 to a lane: the steps of common/scalar.h, and cheaper steps with equal results where they apply.
#ifndef BITSPARSE_BITS_QUANTIZE_CUH
#define BITSPARSE_BITS_QUANTIZE_CUH

#include "bits/lanes.cuh"

// BS_STEPS: 0 float32 with codes of at most 22 bits, 1 float32 with codes of any width, 2 float64.
#if BS_STEPS == 2
typedef double Real;
#else
typedef float Real;
#endif

BS_INLINE Real real_of(Element e, int infinity)
{
#if BS_KIND == BS_DOUBLE
    return double_of(e);
#else
    return float_of(e, infinity);
#endif
}

#if BS_STEPS == 0
// Offset, divisor, and the divisor's reciprocal as a sum of two numbers; the first of these is NaN where it must not be used.
struct Steps {
    float offset, divisor, reciprocal, rest;
};

// The reciprocal is used only for divisors of a moderate size.
BS_INLINE Steps steps_of(float offset, float divisor)
{
    Steps s = {offset, divisor, bs_float_of(0x7fffffffu), 0.0f};
    const float size = fabsf(divisor);
    if (size >= 8.6736174e-19f && size <= 1.0995116e12f) { // 2^-60, 2^40
        s.reciprocal = bs_divf(1.0f, divisor);
        s.rest = bs_mulf(fmaf(-divisor, s.reciprocal, 1.0f), s.reciprocal);
    }
    return s;
}

// (x - offset) / divisor, correctly rounded unless `odd` becomes NaN or the numerator is too small. The first quotient is off by less than
// one unit in the last place and the reciprocal is correctly rounded, so one correction by the exact remainder gives the IEEE quotient
// (Markstein's theorem). A zero may have the wrong sign, which does not affect the code.
BS_INLINE float quick_quotient(float x, const Steps &s, float &odd)
{
    const float t = bs_subf(x, s.offset);
    const float q = fmaf(t, s.reciprocal, bs_mulf(t, s.rest));
    odd = fmaf(q, 0.0f, odd);
    return fmaf(fmaf(-s.divisor, q, t), s.reciprocal, q);
}

// A numerator is too small if it is below 2^-40 and not zero. If the offset is 2^-16 or more, differences are multiples of 2^-40.
#define BS_FAR_OFFSET 1.52587890625e-5f
#define BS_SMALLEST_KEY (2u * 0x2b800000u - 1u)
BS_INLINE u32 key_of_numerator(float x, const Steps &s) { return 2u * bs_bits_of(bs_subf(x, s.offset)) - 1u; }

BS_INLINE Steps shuffled(const Steps &s, int lane)
{
    Steps r = {__shfl_sync(~0u, s.offset, lane), __shfl_sync(~0u, s.divisor, lane), __shfl_sync(~0u, s.reciprocal, lane),
               __shfl_sync(~0u, s.rest, lane)};
    return r;
}
#endif

BS_INLINE Real quotient_of(Real x, Real offset, Real divisor)
{
#if BS_STEPS == 2
    return bs_divd(bs_subd(x, offset), divisor);
#else
    return bs_divf(bs_subf(x, offset), divisor);
#endif
}

BS_INLINE Real scaled(Real v, Real multiplier)
{
#if BS_STEPS == 2
    return bs_muld(v, multiplier);
#else
    return bs_mulf(v, multiplier);
#endif
}

// Rounds scaled quotients to codes; NaN becomes the lower limit.
#if BS_STEPS == 0
// Adding 1.5 * 2^23, rounded down or to nearest even, leaves the rounded v, |v| <= 2^22, in the low 22 bits.
template <class Half> BS_INLINE void round_all(float (&v)[32], float low, float high, int rounding, Half half, u32 (&codes)[32])
{
    const float shift = 12582912.0f;
#pragma unroll
    for (int b = 0; b < 32; b++)
        v[b] = fminf(fmaxf(v[b], low), high);
    if (rounding == BS_NEAREST) {
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = bs_bits_of(bs_addf(v[b], shift));
    } else if (rounding == BS_FLOOR) {
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = bs_bits_of(__fadd_rd(v[b], shift));
    } else {
#pragma unroll
        for (int b = 0; b < 32; b++) {
            const float below = __fadd_rd(v[b], shift), part = bs_subf(v[b], bs_subf(below, shift));
            const float draw = bs_subf(bs_float_of(0x4b000000u | half(b)), 8388608.0f); // the half word as a float
            codes[b] = bs_bits_of(below) + (draw < bs_mulf(part, 65536.0f) ? 1u : 0u);
        }
    }
}
#else
BS_INLINE u32 rounded(Real v, double low, double high, int rounding, u32 half)
{
#if BS_STEPS == 1
    if (low >= -16777216.0 && high <= 16777216.0)
        return (u32)bs_round_clippedf(bs_clipf(v, (float)low, (float)high), rounding, half);
#endif
    return (u32)bs_round_clippedd(bs_clipd(v, low, high), rounding, half); // limits beyond 2^24 are not float32 numbers
}
#endif

// ---- draws into shared memory

// Fills `segments` runs of `draws` draws each, eight half words a draw; first(segment) is the number of the run's first draw. All lanes
// call `first` together, so it may shuffle.
template <class First>
BS_INLINE void fill_draws(unsigned short *halves, int segments, int draws, u64 seed, u32 stream, int lane, First first)
{
#pragma unroll 1
    for (int done = 0; done < segments * draws; done += 32) {
        const int i = done + lane, segment = i / draws;
        const u64 draw = (u64)first(min(segment, segments - 1)) + (i - segment * draws);
        uint4 w;
        bs_stochastic_words(draw, seed, stream, &w.x, &w.y, &w.z, &w.w);
        if (segment < segments)
            ((uint4 *)halves)[i] = w;
    }
}

// The same where neighbours are not consecutive in the logical order, so every element has its own draw; `length` is a multiple of 32.
template <class Index>
BS_INLINE void fill_singly(unsigned short *halves, int segments, int length, int pitch, u64 seed, u32 stream, int lane, Index index)
{
#pragma unroll 1
    for (int i = lane; i < segments * length; i += 32)
        halves[i / length * pitch + i % length] = (unsigned short)bs_stochastic_bits((u64)index(i / length, i % length), seed, stream);
}

#endif
