// float32 and 16-bit floats to adjacent codes of 2, 4 or 8 bits, where offset and divisor are the same all along a line. The codes are
// those of bits/encode.cu, eight to a thread. A thread loads its next eight values before it computes. Floor: the bytes of values and
// words.
//
// Compile-time: BS_KIND, BS_LARGE; BS_DRAWN (1: rounded at random, eight codes by one draw; 0: to nearest even or down); BS_RAGGED (1:
// lines have any length and begin anywhere, so values are loaded one by one and eight codes may need halves of two draws); BS_FACTORS
// (float32 values of a line are multiplied by a factor first).
#define BS_STEPS 0
#include "bits/encode.cuh"

#define BS_WHOLE 12582912.0f // 1.5 * 2^23: adding it leaves a whole number in the lower half of the sum
#define BS_PARTS 8388608.0f // 2^23, from where floats are 1 apart
#define BS_PARTS_TOP 0x4b00u // the upper half of its bits

#if BS_DRAWN && BS_RAGGED && (defined(BS_LARGE) || BS_FACTORS || __CUDA_ARCH__ >= 1000)
#define BLOCKS 2 // with three, registers would be spilled
#elif BS_DRAWN && (BS_RAGGED || defined(BS_LARGE))
#define BLOCKS 3
#elif BS_DRAWN || BS_RAGGED || BS_FACTORS || defined(BS_LARGE)
#define BLOCKS 4
#else
#define BLOCKS 5
#endif

// Here gain, middle and range of the parameters are the multiplier, the lowest and the highest code.
struct OctetParams {
    EncodeParams encode;
    u32 keys[20]; // of the rounds of Philox
    const float *factors; // one per line
};

#if BS_DRAWN
BS_INLINE u64 product(u32 a, u32 b)
{
    u64 r; // inline PTX: for a 64-bit product the compiler adds zeros to the upper half
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(r) : "r"(a), "r"(b));
    return r;
}

// bs_stochastic_words, with the keys of the rounds given.
BS_INLINE void words_of_draw(u64 draw, u32 stream, const OctetParams &p, u32 (&w)[4])
{
    w[0] = (u32)draw;
    w[1] = (u32)(draw >> 32);
    w[2] = stream;
    w[3] = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 a = product(w[0], 0xD2511F53u), b = product(w[2], 0xCD9E8D57u);
        w[0] = (u32)(b >> 32) ^ w[1] ^ p.keys[2 * round];
        w[1] = (u32)b;
        w[2] = (u32)(a >> 32) ^ w[3] ^ p.keys[2 * round + 1];
        w[3] = (u32)a;
    }
}
#endif

#if BS_DRAWN && BS_RAGGED
// Eight half words: those of a draw and the next one, from the `skip`-th on.
BS_INLINE void halves_from(u64 draw, int skip, u32 stream, const OctetParams &p, u32 (&w)[4])
{
    u32 first[4], second[4] = {};
    words_of_draw(draw, stream, p, first);
    if (skip)
        words_of_draw(draw + 1, stream, p, second);
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

// Values whose quotients are exactly the limits, so that values can be clipped instead of quotients. If they are known, they and the
// divisor are scaled by `power`, a power of two, which changes no quotient.
struct Limits {
    float low, high, power;
    bool known;
};

// Finds a value whose quotient by the divisor is exactly the limit, next to limit * divisor; returns whether there is one.
BS_INLINE bool reaches(float limit, float divisor, float &value)
{
    const float near = bs_mulf(limit, divisor);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        value = bs_float_of(bs_bits_of(near) + (u32)(i == 2 ? -1 : i));
        if (bs_divf(value, divisor) == limit)
            return true;
    }
    return false;
}

// Only for one scale and no offset. The quick quotient is wrong for a numerator that is too small, but it is then nonzero, of the right
// sign and below 2^-16, and no rounding tells it from the exact one. When rounding at random, a divisor below 2^-24, as gradients have, is
// first scaled to at least 1/2, and the values with it. Not used when values that are not finite must be reported.
BS_INLINE Limits limits_of(Steps &s, const EncodeParams &p, bool varied)
{
    Limits l = {0.0f, 0.0f, 1.0f, false};
    const float least = BS_DRAWN ? 1.17549435e-38f : 5.9604645e-8f; // the smallest normal number, or 2^-24
    if (!varied && !p.flag && s.offset == 0.0f && p.gain == 1.0f && s.divisor <= 1.0f && s.divisor >= least) {
        if (s.divisor < 5.9604645e-8f)
            l.power = bs_float_of((253u << 23) - (bs_bits_of(s.divisor) & 0x7f800000u));
        const float divisor = bs_mulf(s.divisor, l.power);
        l.known = reaches(p.middle, divisor, l.low) && reaches(p.range, divisor, l.high);
        if (BS_DRAWN && l.known)
            s = steps_of(0.0f, divisor);
    }
    return l;
}

// Codes of eight values that are clipped by the known limits.
BS_INLINE void codes_within(const Quad (&quads)[2], const u32 (&w)[4], const Steps &s, const Limits &l, const EncodeParams &p,
                            u32 (&codes)[8])
{
    float unused = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float mine = real_of(element_of(quads[j / 4], j % 4), p.infinity), value = BS_DRAWN ? bs_mulf(mine, l.power) : mine;
        codes[j] = whole_of(quick_quotient(fminf(fmaxf(value, l.low), l.high), s, unused), j, w, p);
    }
}

// The low byte of each code is the code of one of eight neighbours. Returns whether some of them must be computed one by one.
BS_INLINE bool codes_of(const Quad (&quads)[2], const u32 (&w)[4], const Steps &s, const EncodeParams &p, u32 (&codes)[8])
{
    u32 key = ~0u;
    float odd = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float value = real_of(element_of(quads[j / 4], j % 4), p.infinity);
        const float v = bs_mulf(quick_quotient(value, s, odd), p.gain);
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
                           u32 &low, u32 &high)
{
    u64 all = 0;
#pragma unroll 1
    for (int j = 0; j < left; j++) {
        const Element e = times(x[j], factor);
        if (p.flag && is_odd(e, p))
            *p.flag = 1;
        const float v = bs_affinef(real_of(e, p.infinity), offset, divisor, (float)p.multiplier);
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

// The place of octet number i of all lines.
BS_INLINE Place place_of(Index i, const EncodeParams &p, Index lines, Index each, Index octets)
{
    Place at = {0, i, 0, 0, nullptr, 8, 1.0f};
    Index from = 8 * i;
    if (lines > 1) {
        at.line = at.row = quotient(i, each);
        at.at = i - at.line * each;
        if (p.batches > 1) {
            at.batch = quotient(at.line, (Index)p.rows);
            at.row = at.line - at.batch * (Index)p.rows;
        }
        from = BS_AT(x, at.batch, at.row, 0) + 8 * at.at;
    }
    if (at.at < octets)
        at.x = (const Element *)p.x + from;
#if BS_RAGGED
    at.left = (int)min((Index)8, (Index)p.cols - 8 * at.at);
#endif
    return at;
}

BS_INLINE void load_octet(Place &at, Quad (&quads)[2], const OctetParams &p)
{
    if (!at.x)
        return;
#if BS_FACTORS
    at.factor = __ldg(p.factors + at.line);
#endif
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

// Multiplies the values by the factor of the line.
BS_INLINE void multiply_octet(const Place &at, Quad (&quads)[2])
{
#if BS_FACTORS
#pragma unroll
    for (int j = 0; j < 8; j++)
        quads[j / 4].w[j % 4] = times(quads[j / 4].w[j % 4], at.factor);
#endif
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

// A thread takes octets in a grid-stride loop, and loads the next one before it computes.
extern "C" __global__ void __launch_bounds__(256, BLOCKS) octet_rows(const OctetParams all)
{
    const EncodeParams &p = all.encode;
    const Index octets = (Index)((p.cols + 7) / 8), lines = (Index)(p.batches * p.rows), each = (Index)(p.width * 4) / p.bits;
    const Index total = lines * each, step = (Index)gridDim.x * blockDim.x;
    const bool varied = p.offset_row || p.offset_batch || p.divisor_row || p.divisor_batch;
    Steps s = steps_of(offset_at(p, 0), divisor_at(p, 0));
    const Limits limits = limits_of(s, p, varied);
#if BS_DRAWN
    const u32 stream = stream_of(p);
#endif
    Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total)
        return;
    Place here = place_of(i, p, lines, each, octets);
    Quad next[2] = {};
    load_octet(here, next, all);
    while (true) {
        const Place mine = here;
        Quad quads[2] = {next[0], next[1]};
        const Index after = i + step;
        if (after < total) {
            here = place_of(after, p, lines, each, octets);
            load_octet(here, next, all);
        }
        multiply_octet(mine, quads);
        u32 low = 0, high = 0;
        if (mine.x) {
            if (varied)
                s = steps_of(offset_at(p, BS_AT(offset, mine.batch, mine.row, 0)), divisor_at(p, BS_AT(divisor, mine.batch, mine.row, 0)));
            const u64 index = p.first_index + (u64)mine.line * (u64)p.cols + 8 * (u64)mine.at;
            u32 w[4] = {}, c[8];
#if BS_DRAWN && BS_RAGGED
            halves_from(index / 8, (int)(index & 7), stream, all, w);
#elif BS_DRAWN
            words_of_draw(index / 8, stream, all, w); // the index is a multiple of 8
#endif
            bool slow = false;
            if (limits.known)
                codes_within(quads, w, s, limits, p, c);
            else
                slow = codes_of(quads, w, s, p, c);
            low = __byte_perm(__byte_perm(c[0], c[1], 0x0040), __byte_perm(c[2], c[3], 0x0040), 0x5410);
            high = __byte_perm(__byte_perm(c[4], c[5], 0x0040), __byte_perm(c[6], c[7], 0x0040), 0x5410);
            if (slow)
                exact_codes(mine.x, mine.left, mine.factor, s.offset, s.divisor, index, p, low, high);
#if BS_RAGGED
            keep_codes(mine.left, low, high);
#endif
        }
        store_codes(p.words, i, p.bits, low, high);
        if (after >= total)
            break;
        i = after;
    }
}
