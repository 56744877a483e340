// Codes of eight neighbours at a time, for the kernels that write adjacent codes of 2, 4 or 8 bits: their random draws, their rounding
// and their place in memory.
#ifndef BITSPARSE_BITS_OCTETS_CUH
#define BITSPARSE_BITS_OCTETS_CUH

#define BS_STEPS 0
#include "bits/encode.cuh"

#ifndef BS_FACTORS
#define BS_FACTORS 0
#endif
#ifndef BS_SIDES
#define BS_SIDES 0
#endif
#define BS_WHOLE 12582912.0f // 1.5 * 2^23: adding it leaves a whole number in the lower half of the sum
#define BS_PARTS 8388608.0f // 2^23, from where floats are 1 apart
#define BS_PARTS_TOP 0x4b00u // the upper half of its bits

#if BS_DRAWN
BS_INLINE u64 product(u32 a, u32 b)
{
    u64 r; // inline PTX: for a 64-bit product the compiler adds zeros to the upper half
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(r) : "r"(a), "r"(b));
    return r;
}

// bs_stochastic_words, with the keys of the rounds given.
BS_INLINE void words_of_draw(u64 draw, u32 stream, const u32 (&keys)[20], u32 (&w)[4])
{
    w[0] = (u32)draw;
    w[1] = (u32)(draw >> 32);
    w[2] = stream;
    w[3] = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 a = product(w[0], 0xD2511F53u), b = product(w[2], 0xCD9E8D57u);
        w[0] = (u32)(b >> 32) ^ w[1] ^ keys[2 * round];
        w[1] = (u32)b;
        w[2] = (u32)(a >> 32) ^ w[3] ^ keys[2 * round + 1];
        w[3] = (u32)a;
    }
}
#endif

#if BS_DRAWN && BS_RAGGED
// Eight half words: those of a draw and the next one, from the `skip`-th on.
BS_INLINE void halves_from(u64 draw, int skip, u32 stream, const u32 (&keys)[20], u32 (&w)[4])
{
    u32 first[4], second[4] = {};
    words_of_draw(draw, stream, keys, first);
    if (skip)
        words_of_draw(draw + 1, stream, keys, second);
    u32 all[8] = {first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3]};
#pragma unroll
    for (int step = 2; step; step /= 2) { // shifts by whole words, since registers cannot be indexed
#pragma unroll
        for (int k = 0; k < 4 + step; k++)
            all[k] = skip & (2 * step) ? all[k + step] : all[k];
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        w[k] = __funnelshift_r(all[k], all[k + 1], 16 * (skip & 1));
}
#endif

// The low bits hold v, |v| < 2^22, rounded to an integer. Eight values share the draw in `w`; this is number `j`.
BS_INLINE u32 whole_of(float v, int j, const u32 (&w)[4], const EncodeParams &p)
{
    const float below = __fadd_rd(v, BS_WHOLE);
#if BS_DRAWN
    const float part = bs_subf(v, bs_subf(below, BS_WHOLE));
    // u < part * 2^16 is the same as u < ceil(part * 2^16); both are compared as floats from 2^23 on.
    const u32 parts = bs_bits_of(__fmaf_ru(part, 65536.0f, BS_PARTS));
    const u32 drawn = __byte_perm(w[j / 2], BS_PARTS_TOP, j % 2 ? 0x5432 : 0x5410);
    return bs_bits_of(below) + (drawn < parts ? 1u : 0u);
#else
    return bs_bits_of(p.rounding == BS_NEAREST ? bs_addf(v, BS_WHOLE) : below);
#endif
}

// What else happens to quotients before they are rounded; see Sides in backends/params.py.
struct Sides {
    float zero, below;
    bool marked;
};

// The quotient of x as it is rounded.
BS_INLINE float on_side(float quotient, float x, const Sides &sides, const EncodeParams &p)
{
#if BS_SIDES
    if (sides.below != 0.0f && x < 0.0f)
        quotient = bs_mulf(x, sides.below);
    quotient = bs_addf(quotient, sides.zero);
    if (sides.marked && x <= 0.0f)
        quotient = (float)p.low;
#endif
    return quotient;
}

// The low byte of each code is the code of one of eight neighbours. Returns whether some of them must be computed one by one.
BS_INLINE bool codes_of(const Quad (&quads)[2], const u32 (&w)[4], const Steps &s, const EncodeParams &p, u32 (&codes)[8],
                        const Sides &sides = Sides())
{
    u32 key = ~0u;
    float odd = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float value = real_of(element_of(quads[j / 4], j % 4), p.infinity);
        const float v = on_side(bs_mulf(quick_quotient(value, s, odd), p.gain), value, sides, p);
        key = min(key, key_of_numerator(value, s));
        codes[j] = whole_of(fminf(fmaxf(v, p.middle), p.range), j, w, p);
    }
    return odd != 0.0f || (key < BS_SMALLEST_KEY && fabsf(s.offset) < BS_FAR_OFFSET);
}

BS_INLINE Element times(Element e, float factor)
{
#if BS_FACTORS
    return bs_bits_of(bs_mulf(bs_float_of(e), factor));
#else
    return e;
#endif
}

// Stores codes of eight neighbours, `bits` bits each, from their low bytes.
BS_INLINE void store_codes(u32 *words, Index octet, int bits, u32 low, u32 high)
{
    if (bits == 8) {
        ((uint2 *)words)[octet] = make_uint2(low, high);
        return;
    }
    u32 both[2] = {low & 0x0f0f0f0fu, high & 0x0f0f0f0fu};
    if (bits == 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            both[h] &= 0x03030303u;
            both[h] = (both[h] | both[h] >> 6) & 0x000f000fu;
            both[h] = (both[h] | both[h] >> 12) & 0xffu;
        }
        ((unsigned short *)words)[octet] = (unsigned short)(both[0] | both[1] << 8);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        both[h] = (both[h] | both[h] >> 4) & 0x00ff00ffu;
        both[h] = (both[h] | both[h] >> 8) & 0xffffu;
    }
    words[octet] = both[0] | both[1] << 16;
}

// The steps of common/scalar.h one by one: for numerators and divisors that the quick quotient cannot take, and for values that are not
// finite.
BS_INLINE void exact_codes(const Element *x, int left, float factor, float offset, float divisor, u64 index, const EncodeParams &p,
                           u32 &low, u32 &high, const Sides &sides = Sides())
{
    u64 all = 0;
#pragma unroll 1
    for (int j = 0; j < left; j++) {
        const Element e = times(x[j], factor);
        if (p.flag && is_odd(e, p))
            *p.flag = 1;
        const float value = real_of(e, p.infinity), v = on_side(bs_affinef(value, offset, divisor, (float)p.multiplier), value, sides, p);
        const u32 half = BS_DRAWN ? bs_stochastic_bits(index + (u64)j, p.seed, stream_of(p)) : 0;
        all |= (u64)((u32)bs_round_clippedf(bs_clipf(v, (float)p.low, (float)p.high), p.rounding, half) & 0xffu) << 8 * j;
    }
    low = (u32)all;
    high = (u32)(all >> 32);
}

// Where eight codes come from.
struct Place {
    Index line, at, row, batch; // `at` counts octets of the line's words
    const Element *x; // null beyond the line's values, where words are filled up with zeros
    int left; // values from there on, at most eight
    float factor;
};

// Loads eight values; there are none beyond the line's.
BS_INLINE void load_values(const Place &at, Quad (&quads)[2])
{
    if (!at.x)
        return;
#if BS_RAGGED
    quads[0] = quads[1] = zero_quad();
#pragma unroll
    for (int j = 0; j < 8; j++)
        set_element(quads[j / 4], j % 4, j < at.left ? at.x[j] : (Element)0);
#else
    quads[0] = load_quad(at.x);
    quads[1] = load_quad(at.x + 4);
#endif
}

// The low bytes of eight codes, side by side.
BS_INLINE void join_codes(const u32 (&c)[8], u32 &low, u32 &high)
{
    low = __byte_perm(__byte_perm(c[0], c[1], 0x0040), __byte_perm(c[2], c[3], 0x0040), 0x5410);
    high = __byte_perm(__byte_perm(c[4], c[5], 0x0040), __byte_perm(c[6], c[7], 0x0040), 0x5410);
}

// Keeps the codes of the first `left` values, one byte each, and clears the others.
BS_INLINE void keep_codes(int left, u32 &low, u32 &high)
{
    if (left < 8) {
        const u64 kept = (low | (u64)high << 32) & ((u64(1) << 8 * left) - 1);
        low = (u32)kept;
        high = (u32)(kept >> 32);
    }
}

#endif
