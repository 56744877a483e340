// Stores the codes or floats of an octet in the result: bit planes, adjacent whole integers, padding bits.
#ifndef BITSPARSE_EPILOGUE_STORE_CUH
#define BITSPARSE_EPILOGUE_STORE_CUH

#include "finish/codes.cuh"

constexpr int kBlockHeight = 16, kBlockWidth = 64;

// Moves bit p of element i of the octet to bit i of byte p, for four planes. Elements enter in an order that leaves only two exchanges of
// bits.
BS_INLINE u32 plane_bytes(u32 w)
{
    u32 t = ((w >> 14) ^ w) & 0x0000ccccu;
    w ^= t ^ (t << 14);
    t = ((w >> 7) ^ w) & 0x00aa00aau;
    return w ^ t ^ (t << 7);
}

BS_INLINE int place_in_word(int i) { return 8 * (i & 3) + 4 * (i >> 2); }

BS_INLINE u32 four_bits(const u32 (&code)[8])
{
    u32 w = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        w |= (code[i] & 15u) << place_in_word(i);
    return w;
}

// The same for codes below 16 that have BS_BIG_BITS above them.
BS_INLINE u32 four_bits_under_big(const u32 (&code)[8])
{
    u32 pairs[4], big = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pairs[i] = code[i] + (code[i + 4] << 4);
        big += (BS_BIG_BITS + (BS_BIG_BITS << 4)) << place_in_word(i);
    }
    return pairs[0] + (pairs[1] << 8) + ((pairs[2] + (pairs[3] << 8)) << 16) - big;
}

// Where a lane writes: for floats its column of a row; for planes a word (or, along the rows, half a word) of its first plane; for whole
// integers its octet. `next` is the step from turn to turn, `block` the step from the end of a block to the next block.
struct EpilogueTarget {
    unsigned char *to;
    bs_i64 next, block;
};

template <bool down> BS_INLINE EpilogueTarget target_of(const EpilogueParams &e, const EpilogueSpot &s, int lane, bool bits, bool whole)
{
    const int outer = down ? s.column : s.row;
    const bs_i64 line = (bs_i64)s.batch * (down ? e.n : e.m) + outer;
    unsigned char *out = (unsigned char *)e.out;
    if (!bits)
        return {out + 4 * (line * e.n + s.column), 16ll * e.n, 256 - 64ll * e.n};
    const bs_i64 next = (down ? 64ll : 16ll) * e.words * (whole ? 1 : e.bits);
    if (whole)
        return {out + 4 * line * e.words + (bs_i64)((down ? s.row : s.column) >> 3) * e.bits, next, 8 * e.bits - 4 * next};
    const bs_i64 plane = line * e.bits + (down ? lane >> 4 << 1 : lane & 3);
    return {out + 4 * plane * e.words + (down ? s.row >> 4 << 1 : s.column >> 5 << 2), next, 8 - 4 * next};
}

// Stores four planes, a byte of each, in the result. Along a row, four lanes exchange bytes so that each has a word of one plane; along a
// column, two lanes exchange so that each has sixteen bits of two planes.
template <bool down>
BS_INLINE void store_four_planes(const EpilogueParams &e, const EpilogueSpot &s, int lane, unsigned char *to, u32 mine, int plane)
{
    if constexpr (down) {
        const u32 theirs = __shfl_xor_sync(~0u, mine, 16);
        const u32 two = lane < 16 ? __byte_perm(mine, theirs, 0x5140) : __byte_perm(theirs, mine, 0x7362);
        const int first = plane + (lane >> 4 << 1);
        if (s.column < e.n && first < e.bits)
            *(bs_u16 *)to = (bs_u16)two;
        if (s.column < e.n && first + 1 < e.bits)
            *(bs_u16 *)(to + 4ll * e.words) = (bs_u16)(two >> 16);
    } else {
        const u32 pairs = __byte_perm(mine, __shfl_xor_sync(~0u, mine, 1), lane & 1 ? 0x3715 : 0x6240);
        const u32 word = __byte_perm(pairs, __shfl_xor_sync(~0u, pairs, 2), lane & 2 ? 0x3276 : 0x5410);
        if (s.row < e.m && plane + (lane & 3) < e.bits && (s.column >> 5) < e.words)
            *(u32 *)to = word;
    }
}

template <bool down>
BS_INLINE void store_planes(const EpilogueParams &e, const EpilogueSpot &s, int lane, unsigned char *to, u32 (&code)[8])
{
#pragma unroll 1
    for (int plane = 0; plane < e.bits; plane += 4) {
        store_four_planes<down>(e, s, lane, to, plane_bytes(four_bits(code)), plane);
        to += 16ll * e.words;
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] >>= 4;
    }
}

// Stores the octet's integers next to each other: `bits` bytes.
template <bool down> BS_INLINE void store_whole(const EpilogueParams &e, const EpilogueSpot &s, unsigned char *to, const u32 (&code)[8])
{
    const int outer = down ? s.column : s.row, along = down ? s.row : s.column;
    if (outer >= (down ? e.n : e.m) || (bs_i64)along * e.bits >= 32ll * e.words)
        return;
    u32 w[4] = {0, 0, 0, 0};
    if (e.bits == 16) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i >> 1] |= (code[i] & 0xffffu) << (16 * (i & 1));
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    } else if (e.bits == 8) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i >> 2] |= (code[i] & 0xffu) << (8 * (i & 3));
        *(uint2 *)to = make_uint2(w[0], w[1]);
    } else {
        const u32 mask = (1u << e.bits) - 1u;
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[0] |= (code[i] & mask) << (i * e.bits);
        if (e.bits == 4)
            *(u32 *)to = w[0];
        else if (e.bits == 2)
            *(bs_u16 *)to = (bs_u16)w[0];
        else
            *to = (unsigned char)w[0];
    }
}

// The last block along the packed axis also clears the rest up to the next multiple of 128 bits.
template <bool down> BS_INLINE void clear_pad(const EpilogueParams &e, int lane, int batch, int row0, int column0)
{
    const int length = down ? e.m : e.n, end = down ? row0 + kBlockHeight : column0 + kBlockWidth;
    if (end < length)
        return;
    const bool whole = e.steps & kWhole;
    const int first = (int)((bs_i64)end * (whole ? e.bits : 1) / 16), halves = 2 * e.words;
    const int outer = down ? column0 : row0, lines = whole ? 1 : e.bits;
    const int count = (down ? min(kBlockWidth, e.n - outer) : min(kBlockHeight, e.m - outer)) * lines;
    bs_u16 *to = (bs_u16 *)e.out + ((bs_i64)batch * (down ? e.n : e.m) + outer) * lines * halves;
    for (int line = lane; line < count; line += 32)
        for (int i = first; i < halves; i++)
            to[(bs_i64)line * halves + i] = 0;
}

// Adds the four floats of the result that are already there.
BS_INLINE void join_floats(const EpilogueParams &e, const float *four, int left, float *v)
{
    if (e.steps & kAligned) {
        if (left > 0) {
            const float4 x = *(const float4 *)four;
            v[0] = bs_addf(x.x, v[0]), v[1] = bs_addf(x.y, v[1]), v[2] = bs_addf(x.z, v[2]), v[3] = bs_addf(x.w, v[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left)
                v[i] = bs_addf(four[i], v[i]);
    }
}

BS_INLINE void store_floats(const EpilogueParams &e, const EpilogueSpot &s, unsigned char *to, float (&v)[8])
{
    if (s.row >= e.m)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int left = e.n - s.column - half * s.jump;
        float *four = (float *)to + half * s.jump;
        if (e.steps & kJoins)
            join_floats(e, four, left, v + 4 * half);
        if (e.steps & kAligned) {
            if (left > 0)
                *(float4 *)four = make_float4(v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left)
                    four[i] = v[4 * half + i];
        }
    }
}

#endif
