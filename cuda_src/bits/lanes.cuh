// 32 codes to a lane, the conversions between codes and words that packing and unpacking share, and where the chunks of lines are.
#ifndef BITSPARSE_BITS_CUH
#define BITSPARSE_BITS_CUH

#include "bits/elements.cuh"

// ---- 32 codes and their planes

// Transposes the 4 x 4 bits that four words hold in each nibble: nibbles of codes become planes, and planes nibbles of codes.
BS_INLINE void turn_nibbles(u32 (&w)[4])
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const u32 t = ((w[k] >> 2) ^ w[k + 2]) & 0x33333333u;
        w[k + 2] ^= t;
        w[k] ^= t << 2;
    }
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        const u32 t = ((w[k] >> 1) ^ w[k + 1]) & 0x55555555u;
        w[k + 1] ^= t;
        w[k] ^= t << 1;
    }
}

// Bit b of w[p] is bit p of codes[b].
BS_INLINE void planes_of(const u32 (&codes)[32], u32 (&w)[4])
{
    w[0] = w[1] = w[2] = w[3] = 0;
#pragma unroll
    for (int b = 0; b < 32; b++)
        w[b % 4] |= (codes[b] & 15u) << (b / 4 * 4);
    turn_nibbles(w);
}

BS_INLINE void drop_planes(u32 (&codes)[32])
{
#pragma unroll
    for (int b = 0; b < 32; b++)
        codes[b] >>= 4;
}

// The inverse. Four bits are shifted into each code from below, or start it if `fresh`; w is overwritten.
BS_INLINE void codes_of(u32 (&w)[4], bool fresh, u32 (&codes)[32])
{
    turn_nibbles(w);
    if (fresh) {
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = (w[b % 4] >> (b / 4 * 4)) & 15u;
    } else {
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = codes[b] << 4 | ((w[b % 4] >> (b / 4 * 4)) & 15u);
    }
}

// 32 codes of `bits` bits side by side, and back; `to` and `from` are strided by 1.
template <int bits> BS_INLINE void put_fields(const u32 (&codes)[32], u32 *to)
{
#pragma unroll
    for (int i = 0; i < bits; i++) {
        u32 w = 0;
#pragma unroll
        for (int k = 0; k < 32 / bits; k++)
            w |= (codes[i * (32 / bits) + k] & ((1u << bits) - 1u)) << (bits * k);
        to[i] = w;
    }
}

template <int bits> BS_INLINE void get_fields(const u32 *from, u32 (&codes)[32])
{
#pragma unroll
    for (int i = 0; i < bits; i++) {
        const u32 w = from[i];
#pragma unroll
        for (int k = 0; k < 32 / bits; k++)
            codes[i * (32 / bits) + k] = (w >> (bits * k)) & ((1u << bits) - 1u);
    }
}

BS_INLINE void put_any_fields(int bits, const u32 (&codes)[32], u32 *to)
{
    switch (bits) {
    case 1: put_fields<1>(codes, to); break;
    case 2: put_fields<2>(codes, to); break;
    case 4: put_fields<4>(codes, to); break;
    case 8: put_fields<8>(codes, to); break;
    default: put_fields<16>(codes, to); break;
    }
}

BS_INLINE void get_any_fields(int bits, const u32 *from, u32 (&codes)[32])
{
    switch (bits) {
    case 1: get_fields<1>(from, codes); break;
    case 2: get_fields<2>(from, codes); break;
    case 4: get_fields<4>(from, codes); break;
    case 8: get_fields<8>(from, codes); break;
    default: get_fields<16>(from, codes); break;
    }
}

// Eight lanes transpose their 8 x 8 nibbles: nibble k of lane i becomes what was nibble i of lane k. Its own inverse.
BS_INLINE u32 exchange_nibbles(u32 x, int lane)
{
    u32 y = __shfl_xor_sync(~0u, x, 4);
    x = __byte_perm(x, y, lane & 4 ? 0x3276 : 0x5410);
    y = __shfl_xor_sync(~0u, x, 2);
    x = __byte_perm(x, y, lane & 2 ? 0x3715 : 0x6240);
    y = __shfl_xor_sync(~0u, x, 1);
    const u32 keep = lane & 1 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
    y = lane & 1 ? y >> 4 : y << 4;
    return (x & keep) | (y & ~keep);
}

// Stores four codes at quad `at` of a line of fields of 2, 4, 8 or 16 bits, and loads them back.
BS_INLINE void store_quad_fields(void *line, Index at, int bits, u32 a, u32 b, u32 c, u32 d)
{
    if (bits == 2)
        ((unsigned char *)line)[at] = (unsigned char)((a & 3u) | (b & 3u) << 2 | (c & 3u) << 4 | (d & 3u) << 6);
    else if (bits == 4)
        ((unsigned short *)line)[at] = (unsigned short)((a & 15u) | (b & 15u) << 4 | (c & 15u) << 8 | (d & 15u) << 12);
    else if (bits == 8)
        ((u32 *)line)[at] = (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | d << 24;
    else
        ((uint2 *)line)[at] = make_uint2((a & 0xffffu) | b << 16, (c & 0xffffu) | d << 16);
}

BS_INLINE uint4 load_quad_fields(const void *line, Index at, int bits)
{
    if (bits == 2) {
        const u32 v = ((const unsigned char *)line)[at];
        return make_uint4(v & 3u, v >> 2 & 3u, v >> 4 & 3u, v >> 6);
    }
    if (bits == 4) {
        const u32 v = ((const unsigned short *)line)[at];
        return make_uint4(v & 15u, v >> 4 & 15u, v >> 8 & 15u, v >> 12);
    }
    if (bits == 8) {
        const u32 v = ((const u32 *)line)[at];
        return make_uint4(v & 255u, v >> 8 & 255u, v >> 16 & 255u, v >> 24);
    }
    const uint2 v = ((const uint2 *)line)[at];
    return make_uint4(v.x & 0xffffu, v.x >> 16, v.y & 0xffffu, v.y >> 16);
}

// ---- where the chunks of lines are

// What one lane knows about one of its warp's eight chunks; the others get it by shuffle.
struct Chunk {
    Index line, batch, row, first; // row of all batches, batch, row of the batch, first column
    int left;                      // elements of the chunk; 0 beyond the last chunk
};

// The place of chunk number `chunk` of an array.
BS_INLINE Chunk chunk_at(Index chunk, Index chunks, Index batches, Index rows, Index cols)
{
    const Index groups = (cols + BS_GROUP - 1) / BS_GROUP;
    Chunk c;
    c.line = quotient(chunk, groups);
    c.first = (chunk - c.line * groups) * BS_GROUP;
    c.batch = batches == 1 ? 0 : quotient(c.line, rows);
    c.row = c.line - c.batch * rows;
    c.left = chunk >= chunks ? 0 : (int)min((Index)BS_GROUP, cols - c.first);
    return c;
}

#endif
