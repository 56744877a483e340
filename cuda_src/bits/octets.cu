// float32 and 16-bit floats to adjacent codes of 2, 4 or 8 bits, where offset and divisor are the same all along a line. The codes are
// those of bits/encode.cu, eight to a thread. A thread loads its next eight values before it computes. Floor: the bytes of values and
// words.
//
// Compile-time: BS_KIND, BS_LARGE; BS_DRAWN (1: rounded at random, eight codes by one draw; 0: to nearest even or down); BS_RAGGED (1:
// lines have any length and begin anywhere, so values are loaded one by one and eight codes may need halves of two draws); BS_FACTORS
// (float32 values of a line are multiplied by a factor first); BS_SIDES (quotients are mapped further before they are rounded: see Sides in
// backends/params.py).
#include "bits/octets.cuh"

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
    float zero, below; // of BS_SIDES, as is
    int marked;
};

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
#if BS_FACTORS
    if (at.x)
        at.factor = __ldg(p.factors + at.line);
#endif
    load_values(at, quads);
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

// A thread takes octets in a grid-stride loop, and loads the next one before it computes.
extern "C" __global__ void __launch_bounds__(256, BLOCKS) octet_rows(const OctetParams all)
{
    const EncodeParams &p = all.encode;
    const Index octets = (Index)((p.cols + 7) / 8), lines = (Index)(p.batches * p.rows), each = (Index)(p.width * 4) / p.bits;
    const Index total = lines * each, step = (Index)gridDim.x * blockDim.x;
    const bool varied = p.offset_row || p.offset_batch || p.divisor_row || p.divisor_batch;
    Steps s = steps_of(offset_at(p, 0), divisor_at(p, 0));
    const Sides sides = {all.zero, all.below, all.marked != 0};
#if BS_SIDES
    const Limits limits = {0.0f, 0.0f, 1.0f, false};
#else
    const Limits limits = limits_of(s, p, varied);
#endif
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
            halves_from(index / 8, (int)(index & 7), stream, all.keys, w);
#elif BS_DRAWN
            words_of_draw(index / 8, stream, all.keys, w); // the index is a multiple of 8
#endif
            bool slow = false;
            if (limits.known)
                codes_within(quads, w, s, limits, p, c);
            else
                slow = codes_of(quads, w, s, p, c, sides);
            join_codes(c, low, high);
            if (slow)
                exact_codes(mine.x, mine.left, mine.factor, s.offset, s.divisor, index, p, low, high, sides);
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
