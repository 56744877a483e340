/* Scalar steps shared, bit for bit, by the compiled host part (_ext) and by every CUDA kernel.
 *
 * Each arithmetic step is one IEEE operation, rounded to nearest even and never contracted into a fused multiply-add: host files are
 * compiled with -ffp-contract=off, device code calls the _rn intrinsics. bitsparse/backends/reference/scalar.py repeats the same steps
 * in NumPy and is the oracle of the tests. No header is included under NVRTC. */
#ifndef BITSPARSE_SCALAR_H
#define BITSPARSE_SCALAR_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BS_DEVICE 1
#define BS_FN static __device__ __forceinline__
typedef unsigned char bs_u8;
typedef unsigned short bs_u16;
typedef unsigned int bs_u32;
typedef unsigned long long bs_u64;
typedef int bs_i32;
typedef long long bs_i64;
#else
#include <stdint.h>
#include <string.h>
#define BS_FN static inline __attribute__((always_inline, unused))
typedef uint8_t bs_u8;
typedef uint16_t bs_u16;
typedef uint32_t bs_u32;
typedef uint64_t bs_u64;
typedef int32_t bs_i32;
typedef int64_t bs_i64;
#endif

enum bs_rounding { BS_FLOOR = 0, BS_NEAREST = 1, BS_STOCHASTIC = 2 };
enum bs_activation { BS_IDENTITY = 0, BS_RELU = 1, BS_LEAKY_RELU = 2, BS_TANH = 3 };

/* ---- one IEEE operation each ---- */
#ifdef BS_DEVICE
BS_FN float bs_addf(float a, float b) { return __fadd_rn(a, b); }
BS_FN float bs_subf(float a, float b) { return __fsub_rn(a, b); }
BS_FN float bs_mulf(float a, float b) { return __fmul_rn(a, b); }
BS_FN float bs_divf(float a, float b) { return __fdiv_rn(a, b); }
BS_FN double bs_addd(double a, double b) { return __dadd_rn(a, b); }
BS_FN double bs_subd(double a, double b) { return __dsub_rn(a, b); }
BS_FN double bs_muld(double a, double b) { return __dmul_rn(a, b); }
BS_FN double bs_divd(double a, double b) { return __ddiv_rn(a, b); }
BS_FN float bs_fmaf(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BS_FN float bs_floorf(float a) { return floorf(a); }
BS_FN double bs_floord(double a) { return floor(a); }
BS_FN bs_u32 bs_bits_of(float a) { return __float_as_uint(a); }
BS_FN float bs_float_of(bs_u32 a) { return __uint_as_float(a); }
#else
BS_FN float bs_addf(float a, float b) { return a + b; }
BS_FN float bs_subf(float a, float b) { return a - b; }
BS_FN float bs_mulf(float a, float b) { return a * b; }
BS_FN float bs_divf(float a, float b) { return a / b; }
BS_FN double bs_addd(double a, double b) { return a + b; }
BS_FN double bs_subd(double a, double b) { return a - b; }
BS_FN double bs_muld(double a, double b) { return a * b; }
BS_FN double bs_divd(double a, double b) { return a / b; }
BS_FN float bs_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
BS_FN float bs_floorf(float a) { return __builtin_floorf(a); }
BS_FN double bs_floord(double a) { return __builtin_floor(a); }
BS_FN bs_u32 bs_bits_of(float a)
{
    bs_u32 r;
    memcpy(&r, &a, 4);
    return r;
}
BS_FN float bs_float_of(bs_u32 a)
{
    float r;
    memcpy(&r, &a, 4);
    return r;
}
#endif

/* ---- 16-bit floats: exact widening, rounding to nearest even ---- */
BS_FN float bs_bf16_to_float(bs_u16 h) { return bs_float_of((bs_u32)h << 16); }

BS_FN bs_u16 bs_float_to_bf16(float x)
{
    bs_u32 u = bs_bits_of(x);
    bs_u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (bs_u16)((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded);
}

BS_FN float bs_f16_to_float(bs_u16 h)
{
    bs_u32 magnitude = (bs_u32)(h & 0x7fffu) << 13;
    /* The exponent is moved by a multiplication by 2^112: exact, and right for subnormals as well. */
    bs_u32 finite = bs_bits_of(bs_mulf(bs_float_of(magnitude), 5.192296858534828e33f));
    bs_u32 u = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : finite;
    return bs_float_of(u | ((bs_u32)(h & 0x8000u) << 16));
}

BS_FN bs_u16 bs_float_to_f16(float x)
{
    bs_u32 u = bs_bits_of(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    /* Below 2^-14 the sum with 0.5 puts the rounded subnormal into the low mantissa bits. */
    bs_u32 small = bs_bits_of(bs_addf(bs_float_of(a), 0.5f)) - 0x3f000000u;
    bs_u32 normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    bs_u32 large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
    bs_u32 r = a < 0x38800000u ? small : normal;
    return (bs_u16)(sign | (a >= 0x47800000u ? large : r));
}

/* ---- Philox4x32-10 (Salmon et al., SC 2011) ---- */
BS_FN void bs_philox4x32_10(bs_u32 c0, bs_u32 c1, bs_u32 c2, bs_u32 c3, bs_u32 k0, bs_u32 k1, bs_u32 *out0, bs_u32 *out1, bs_u32 *out2,
                            bs_u32 *out3)
{
#ifdef BS_DEVICE
#pragma unroll
#else
#pragma GCC unroll 10
#endif
    for (int round = 0; round < 10; round++) {
        bs_u64 p0 = (bs_u64)0xD2511F53u * c0, p1 = (bs_u64)0xCD9E8D57u * c2;
        c0 = (bs_u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (bs_u32)p1;
        c2 = (bs_u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (bs_u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    *out0 = c0;
    *out1 = c1;
    *out2 = c2;
    *out3 = c3;
}

/* The four words that serve elements 8 draw .. 8 draw + 7. */
BS_FN void bs_stochastic_words(bs_u64 draw, bs_u64 seed, bs_u32 stream, bs_u32 *w0, bs_u32 *w1, bs_u32 *w2, bs_u32 *w3)
{
    bs_philox4x32_10((bs_u32)draw, (bs_u32)(draw >> 32), stream, 0u, (bs_u32)seed, (bs_u32)(seed >> 32), w0, w1, w2, w3);
}

/* The 16 random bits of element `index` (C order); bulk code calls bs_stochastic_words once per eight elements instead. */
BS_FN bs_u32 bs_stochastic_bits(bs_u64 index, bs_u64 seed, bs_u32 stream)
{
    bs_u32 w0, w1, w2, w3, j = (bs_u32)(index & 7u);
    bs_stochastic_words(index >> 3, seed, stream, &w0, &w1, &w2, &w3);
    bs_u32 word = j < 4 ? (j < 2 ? w0 : w1) : (j < 6 ? w2 : w3);
    return (j & 1u ? word >> 16 : word) & 0xffffu;
}

/* Which of heads 4 group .. 4 group + 3 keep the weight of an edge under dropout, as one bit for each head. A head keeps it if its 32
 * random bits are at least `threshold`. An edge is identified by its row and column, so that it gets the same draws in a matrix and in
 * its transpose. The last word of the counter separates these draws from those of elements. */
BS_FN bs_u32 bs_edge_kept(bs_u64 row, bs_u64 column, bs_u32 group, bs_u64 seed, bs_u32 threshold)
{
    bs_u32 w0, w1, w2, w3;
    bs_philox4x32_10((bs_u32)row, (bs_u32)column, group, 1u, (bs_u32)seed, (bs_u32)(seed >> 32), &w0, &w1, &w2, &w3);
    return (bs_u32)(w0 >= threshold) | (bs_u32)(w1 >= threshold) << 1 | (bs_u32)(w2 >= threshold) << 2 | (bs_u32)(w3 >= threshold) << 3;
}

/* ---- quantisation ---- */
BS_FN float bs_affinef(float x, float offset, float divisor, float multiplier)
{
    return bs_mulf(bs_divf(bs_subf(x, offset), divisor), multiplier);
}

BS_FN double bs_affined(double x, double offset, double divisor, double multiplier)
{
    return bs_muld(bs_divd(bs_subd(x, offset), divisor), multiplier);
}

/* Integer limits are fixed points of every rounding, so clipping before rounding gives the same integer. NaN becomes lo. */
BS_FN float bs_clipf(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

BS_FN double bs_clipd(double v, double lo, double hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

/* fl(x / d) from the correctly rounded 1 / d, whenever nothing overflows or becomes subnormal on the way: Brisebarre, Muller and Raina,
 * "Accelerating correctly rounded floating-point division when the divisor is known in advance", IEEE TC 53 (2004). */
BS_FN float bs_div_knownf(float x, float d, float inverse)
{
    float q = bs_mulf(x, inverse);
    return bs_fmaf(bs_fmaf(-q, d, x), inverse, q);
}

/* fl(a b), clipped to [0, 1]; NaN becomes 0. */
BS_FN float bs_mul_saturatef(float a, float b)
{
#ifdef BS_DEVICE
    return __saturatef(__fmul_rn(a, b));
#else
    float v = a * b;
    return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f;
#endif
}

/* a b + BS_BIG rounded down or to nearest even, where a b is exact and below 2^21: the low 22 bits are those of the integer, and the
 * bits above them are those of BS_BIG_BITS. */
#define BS_BIG 12582912.0f
#define BS_BIG_BITS 0x4b400000u

BS_FN bs_u32 bs_bits_floorf(float a, float b)
{
#ifdef BS_DEVICE
    return bs_bits_of(__fmaf_rd(a, b, BS_BIG));
#else
    return bs_bits_of(__builtin_floorf(a * b) + BS_BIG);
#endif
}

BS_FN bs_u32 bs_bits_nearestf(float a, float b) { return bs_bits_of(bs_fmaf(a, b, BS_BIG)); }

/* Rounds |v| <= 2^24 to an integer; only BS_STOCHASTIC reads `half_word`. Uses integer steps only, so that any compiler vectorises it. */
BS_FN bs_i32 bs_round_clippedf(float v, int rounding, bs_u32 half_word)
{
    bs_i32 t = (bs_i32)v;
    bs_i32 below = t - (bs_i32)((float)t > v);
    float part = bs_subf(v, (float)below);
    if (rounding == BS_NEAREST) {
        bs_i32 above = part > 0.5f ? 1 : 0, tie = part == 0.5f ? 1 : 0;
        return below + (above | (tie & below));
    }
    if (rounding == BS_STOCHASTIC)
        return below + (bs_i32)((float)(bs_i32)half_word < bs_mulf(part, 65536.0f));
    return below;
}

/* The same for |v| <= 2^53. */
BS_FN bs_i64 bs_round_clippedd(double v, int rounding, bs_u32 half_word)
{
    bs_i64 t = (bs_i64)v;
    bs_i64 below = t - (bs_i64)((double)t > v);
    double part = bs_subd(v, (double)below);
    if (rounding == BS_NEAREST) {
        bs_i64 above = part > 0.5 ? 1 : 0, tie = part == 0.5 ? 1 : 0;
        return below + (above | (tie & below));
    }
    if (rounding == BS_STOCHASTIC)
        return below + (bs_i64)((double)(bs_i32)half_word < bs_muld(part, 65536.0));
    return below;
}

BS_FN float bs_dequantf(float q, float scale, float offset) { return bs_addf(bs_mulf(q, scale), offset); }
BS_FN double bs_dequantd(double q, double scale, double offset) { return bs_addd(bs_muld(q, scale), offset); }

/* Stochastic rounding of any float to an integral float. */
BS_FN float bs_stochastic_roundf(float x, bs_u32 half_word)
{
    float below = bs_floorf(x);
    return bs_addf(below, (float)(bs_i32)half_word < bs_mulf(bs_subf(x, below), 65536.0f) ? 1.0f : 0.0f);
}

BS_FN double bs_stochastic_roundd(double x, bs_u32 half_word)
{
    double below = bs_floord(x);
    return bs_addd(below, (double)(bs_i32)half_word < bs_muld(bs_subd(x, below), 65536.0) ? 1.0 : 0.0);
}

/* ---- activations ---- */

/* tanh in float32 steps, |error| <= 2e-7: an odd polynomial below 0.55, and above it 1 - 2 / (exp(2a) + 1) with exp split at multiples
 * of ln 2 (high part of 9 bits, so that its product is exact). The coefficients are a weighted least squares fit, reweighted until it is
 * minimax. */
BS_FN float bs_tanhf(float x)
{
    float a = bs_float_of(bs_bits_of(x) & 0x7fffffffu);
    float c = a < 9.01f ? a : 9.01f; /* NaN becomes a number here and is put back at the end */

    float s = bs_mulf(c, c);
    float p = bs_addf(bs_mulf(s, -6.282447372e-03f), 2.107773907e-02f);
    p = bs_addf(bs_mulf(s, p), -5.385385454e-02f);
    p = bs_addf(bs_mulf(s, p), 1.333260089e-01f);
    p = bs_addf(bs_mulf(s, p), -3.333331943e-01f);
    float small = bs_addf(c, bs_mulf(c, bs_mulf(s, p)));

    float y = bs_addf(c, c);
    float n = bs_subf(bs_addf(bs_mulf(y, 1.442695041f), 12582912.0f), 12582912.0f);
    float r = bs_subf(bs_subf(y, bs_mulf(n, 0.693359375f)), bs_mulf(n, -2.121944400e-04f));
    float e = bs_addf(bs_mulf(r, 1.395059400e-03f), 8.368954062e-03f);
    e = bs_addf(bs_mulf(r, e), 4.166620597e-02f);
    e = bs_addf(bs_mulf(r, e), 1.666651815e-01f);
    e = bs_addf(bs_mulf(r, e), 0.5f);
    e = bs_addf(bs_addf(bs_mulf(bs_mulf(r, r), e), r), 1.0f);
    e = bs_mulf(e, bs_float_of((bs_u32)((bs_i32)n + 127) << 23));
    float large = bs_subf(1.0f, bs_divf(2.0f, bs_addf(e, 1.0f)));

    float t = c < 0.55f ? small : large;
    t = a >= 9.01f ? 1.0f : t;
    t = bs_float_of(bs_bits_of(t) | (bs_bits_of(x) & 0x80000000u));
    return x == x ? t : x;
}

BS_FN float bs_reluf(float v) { return v <= 0.0f ? 0.0f : v; } /* NaN stays NaN, -0 becomes +0 */
BS_FN float bs_leaky_reluf(float v, float slope) { return v >= 0.0f ? v : bs_mulf(v, slope); }

BS_FN float bs_activatef(float v, int activation, float slope)
{
    if (activation == BS_RELU)
        return bs_reluf(v);
    if (activation == BS_LEAKY_RELU)
        return bs_leaky_reluf(v, slope);
    if (activation == BS_TANH)
        return bs_tanhf(v);
    return v;
}

#endif /* BITSPARSE_SCALAR_H */
