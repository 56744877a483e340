// The parameters of packing and quantising, one element of each, and the 32 elements of a lane.
#ifndef BITSPARSE_BITS_ENCODE_CUH
#define BITSPARSE_BITS_ENCODE_CUH

#ifdef BS_STEPS
#include "bits/quantize.cuh"
#else
#include "bits/lanes.cuh"
#endif

struct EncodeParams {
    const Element *x;
    u32 *words;
    int *flag; // set if a value is NaN (packing), or NaN or infinite (quantising); may be null
    const void *offset, *divisor; // null: offset_value, divisor_value
    const u32 *stream_at;         // address of the number of the stream of draws; null: stream
    i64 batches, rows, cols;               // cols is the direction of the lanes
    i64 x_batch, x_row, x_col;             // steps between elements
    i64 index_batch, index_row, index_col; // the logical index, which determines the random bits
    i64 offset_batch, offset_row, offset_col;
    i64 divisor_batch, divisor_row, divisor_col;
    i64 width; // words of one plane of a line, or of a line of fields
    u64 seed, first_index; // random bits depend on first_index + the logical index
    double offset_value, divisor_value, multiplier, low, high;
    u32 stream;
    float gain, middle, range, base, quick_limit; // bits/quick.cuh
    int bits, fields, rounding, positive, is_signed, infinity, vector;
};

#ifdef BS_STEPS
BS_INLINE u32 stream_of(const EncodeParams &p) { return p.stream_at ? __ldg(p.stream_at) : p.stream; }
#endif

// ---- one element
#ifndef BS_STEPS
#if BS_KIND >= BS_HALF
#define BS_SIGNS 1
#endif

BS_INLINE u32 code_of(Element e, const EncodeParams &p)
{
#if BS_KIND == BS_HALF // not negative and not NaN; both zeros count as not negative
    return (int)e <= p.infinity || e == 0x8000 ? 1u : 0u;
#elif BS_KIND == BS_FLOAT
    return bs_float_of(e) >= 0.0f ? 1u : 0u;
#elif BS_KIND == BS_DOUBLE
    return double_of(e) >= 0.0 ? 1u : 0u;
#elif BS_KIND == 3
    return p.positive ? (e != 0 && !(p.is_signed && (i64)e < 0) ? 1u : 0u) : (u32)e;
#else
    const int away = 32 - 8 * (int)sizeof(Element);
    const u32 v = p.is_signed ? (u32)((int)((u32)e << away) >> away) : (u32)e;
    return p.positive ? (v != 0 && !(p.is_signed && (int)v < 0) ? 1u : 0u) : v;
#endif
}
#endif
#ifndef BS_SIGNS
#define BS_SIGNS 0
#endif

// Whether a value is NaN (packing), or NaN or infinite (quantising).
BS_INLINE bool is_odd(Element e, const EncodeParams &p)
{
#if defined(BS_STEPS) && BS_KIND == BS_HALF
    return (int)(e & p.infinity) == p.infinity;
#elif defined(BS_STEPS) && BS_KIND == BS_FLOAT
    return (e & 0x7f800000u) == 0x7f800000u;
#elif defined(BS_STEPS)
    return ((u32)(e >> 32) & 0x7ff00000u) == 0x7ff00000u;
#elif BS_KIND == BS_HALF
    return (int)(e & 0x7fffu) > p.infinity;
#elif BS_KIND == BS_FLOAT
    return bs_float_of(e) != bs_float_of(e);
#elif BS_KIND == BS_DOUBLE
    return double_of(e) != double_of(e);
#else
    return false;
#endif
}

// ---- the 32 elements of a lane: get(b) is element b, bit b of `valid` says whether it exists
template <class Get> BS_INLINE void look_for_odd(const EncodeParams &p, Get get)
{
    if (!p.flag)
        return;
    bool odd = false;
#pragma unroll
    for (int b = 0; b < 32; b++)
        odd = odd || is_odd(get(b), p);
    if (odd)
        *p.flag = 1;
}

#if BS_SIGNS
template <class Get> BS_INLINE u32 signs_of(const EncodeParams &p, Get get)
{
    u32 word = 0;
#pragma unroll
    for (int b = 0; b < 32; b++)
        word |= code_of(get(b), p) << b;
    return word;
}
#endif

// Offset of (batch, row, col) by one of the triples of strides in the parameters.
#define BS_AT(name, batch, row, col) ((batch) * (Index)p.name##_batch + (row) * (Index)p.name##_row + (col) * (Index)p.name##_col)

#ifdef BS_STEPS
BS_INLINE Real offset_at(const EncodeParams &p, Index at) { return p.offset ? ((const Real *)p.offset)[at] : (Real)p.offset_value; }
BS_INLINE Real divisor_at(const EncodeParams &p, Index at) { return p.divisor ? ((const Real *)p.divisor)[at] : (Real)p.divisor_value; }

// Four elements with their offsets and divisors, loaded one by one.
struct Four {
    Real x[4], offset[4], divisor[4];
};

// Quantises the lane's elements. The quick way uses the steps in `mine` or, if they vary, those of lane u for elements 4 u .. 4 u + 3.
// four(u) gives the inputs of these elements' quotients, half(b) the half word of element b.
template <class Get, class StepsOf, class FourOf, class Half>
BS_INLINE void quantized(const EncodeParams &p, bool quick, bool varied, Get get, const StepsOf &mine, FourOf four, Half half,
                         u32 (&codes)[32])
{
    const Real multiplier = (Real)p.multiplier;
#if BS_STEPS == 0
    float v[32];
    if (quick) {
        float odd = 0.0f;
        u32 smallest = ~0u;
        const bool near_zero = __any_sync(~0u, fabsf(mine.offset) < BS_FAR_OFFSET);
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const Steps s = varied ? shuffled(mine, u) : mine;
#pragma unroll
            for (int b = 4 * u; b < 4 * u + 4; b++)
                v[b] = scaled(quick_quotient(real_of(get(b), p.infinity), s, odd), multiplier);
            if (near_zero) {
#pragma unroll
                for (int b = 4 * u; b < 4 * u + 4; b++)
                    smallest = min(smallest, key_of_numerator(real_of(get(b), p.infinity), s));
            }
        }
        quick = __all_sync(~0u, odd == 0.0f && smallest >= BS_SMALLEST_KEY);
    }
    if (!quick) { // a short loop, which keeps it out of the way of the instructions above
        float slow[32];
#pragma unroll 1
        for (int u = 0; u < 8; u++) {
            const Four f = four(u);
#pragma unroll
            for (int j = 0; j < 4; j++)
                slow[4 * u + j] = scaled(quotient_of(f.x[j], f.offset[j], f.divisor[j]), multiplier);
        }
#pragma unroll
        for (int b = 0; b < 32; b++)
            v[b] = slow[b];
    }
    round_all(v, (float)p.low, (float)p.high, p.rounding, half, codes);
#else
#pragma unroll
    for (int u = 0; u < 8; u++) {
        const Four f = four(u);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const Real v = scaled(quotient_of(f.x[j], f.offset[j], f.divisor[j]), multiplier);
            codes[4 * u + j] = rounded(v, p.low, p.high, p.rounding, p.rounding == BS_STOCHASTIC ? half(4 * u + j) : 0u);
        }
    }
#endif
}
#endif

#if !BS_SIGNS
BS_INLINE void clear_missing(u32 valid, u32 (&codes)[32])
{
#pragma unroll
    for (int b = 0; b < 32; b++)
        codes[b] = valid >> b & 1u ? codes[b] : 0u;
}
#endif

#endif
