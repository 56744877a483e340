// Elements of every dtype, 32 codes to a lane, and the moves between codes and words that packing and unpacking share.
#ifndef BITSPARSE_BITS_CUH
#define BITSPARSE_BITS_CUH

#include "scalar.h"

typedef bs_u32 u32;
typedef bs_u64 u64;
typedef bs_i64 i64;

#define BS_INLINE static __device__ __forceinline__

// BS_KIND: integers of 1, 2, 4 or 8 bytes (signed or not), float16 and bfloat16, float32, float64.
#define BS_HALF 4
#define BS_FLOAT 5
#define BS_DOUBLE 6
#if BS_KIND == 0
typedef unsigned char Element;
#elif BS_KIND == 1 || BS_KIND == BS_HALF
typedef unsigned short Element;
#elif BS_KIND == 3 || BS_KIND == BS_DOUBLE
typedef u64 Element;
#else
typedef u32 Element;
#endif

#define BS_GROUP 128 // elements that the format pads a line to: a chunk, one quad to a lane
#define BS_CHUNKS 8  // chunks that a warp takes together, so that every lane has 32 elements
#define BS_LINE_DRAWS 17 // draws of eight elements that a chunk may touch
#define BS_TILE_DRAWS 5  // the same for 32 elements

// Quotient of two non-negative numbers; 64-bit division takes four times as long.
BS_INLINE i64 quotient(i64 n, i64 d)
{
    if (((n | d) >> 32) == 0)
        return (u32)n / (u32)d;
    return n / d;
}

// ---- elements: four neighbours (a quad) as they lie in memory
struct Quad {
    u32 w[sizeof(Element)];
};

BS_INLINE Quad load_quad(const Element *at)
{
    Quad q;
    if (sizeof(Element) == 1) {
        q.w[0] = *(const u32 *)at;
    } else if (sizeof(Element) == 2) {
        const uint2 v = *(const uint2 *)at;
        q.w[0] = v.x, q.w[sizeof(Element) > 1 ? 1 : 0] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < (int)sizeof(Element) / 4; i++) {
            const uint4 v = ((const uint4 *)at)[i];
            u32 *w = q.w + 4 * i;
            w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        }
    }
    return q;
}

BS_INLINE void store_quad(Element *at, const Quad &q)
{
    if (sizeof(Element) == 1) {
        *(u32 *)at = q.w[0];
    } else if (sizeof(Element) == 2) {
        *(uint2 *)at = make_uint2(q.w[0], q.w[sizeof(Element) > 1 ? 1 : 0]);
    } else {
#pragma unroll
        for (int i = 0; i < (int)sizeof(Element) / 4; i++) {
            const u32 *w = q.w + 4 * i;
            ((uint4 *)at)[i] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// Element j of a quad; j is a constant after unrolling.
BS_INLINE Element element_of(const Quad &q, int j)
{
#if BS_KIND == 3 || BS_KIND == BS_DOUBLE
    return (u64)q.w[2 * j + 1] << 32 | q.w[2 * j];
#else
    const int bit = 8 * (int)sizeof(Element) * j;
    return (Element)(q.w[bit / 32] >> bit % 32);
#endif
}

BS_INLINE void set_element(Quad &q, int j, Element e) // into a quad of zeros
{
#if BS_KIND == 3 || BS_KIND == BS_DOUBLE
    q.w[2 * j + 1] = (u32)(e >> 32), q.w[2 * j] = (u32)e;
#else
    const int bit = 8 * (int)sizeof(Element) * j;
    q.w[bit / 32] |= (u32)e << bit % 32;
#endif
}

BS_INLINE Quad zero_quad()
{
    Quad q;
#pragma unroll
    for (int i = 0; i < (int)sizeof(Element); i++)
        q.w[i] = 0;
    return q;
}

BS_INLINE double double_of(Element e)
{
    union {
        u64 u;
        double d;
    } both;
    both.u = e;
    return both.d;
}

BS_INLINE Element element_of_double(double d)
{
    union {
        double d;
        u64 u;
    } both;
    both.d = d;
    return (Element)both.u;
}

// A float element, widened exactly; `infinity` tells float16 (0x7c00) from bfloat16 (0x7f80).
BS_INLINE float float_of(Element e, int infinity)
{
#if BS_KIND == BS_HALF
    return infinity == 0x7c00 ? bs_f16_to_float(e) : bs_bf16_to_float(e);
#else
    return bs_float_of((u32)e);
#endif
}

// ---- 32 codes and their planes

// Turns over the 4 x 4 bits that four words hold in each nibble: nibbles of codes become planes, and planes nibbles of codes.
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

// Bit b of w[p] is bit shift + p of codes[b].
BS_INLINE void planes_of(const u32 (&codes)[32], int shift, u32 (&w)[4])
{
    w[0] = w[1] = w[2] = w[3] = 0;
#pragma unroll
    for (int b = 0; b < 32; b++)
        w[b % 4] |= ((codes[b] >> shift) & 15u) << (b / 4 * 4);
    turn_nibbles(w);
}

// The inverse, or-ed into the codes; w is lost.
BS_INLINE void codes_of(u32 (&w)[4], int shift, u32 (&codes)[32])
{
    turn_nibbles(w);
#pragma unroll
    for (int b = 0; b < 32; b++)
        codes[b] |= ((w[b % 4] >> (b / 4 * 4)) & 15u) << shift;
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

// Eight lanes turn over their 8 x 8 nibbles: lane i of eight gets nibble i of every lane k as its nibble k. Its own inverse.
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

// Four codes at quad `at` of a line of fields of 2, 4, 8 or 16 bits, and back.
BS_INLINE void store_quad_fields(void *line, i64 at, int bits, u32 a, u32 b, u32 c, u32 d)
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

BS_INLINE uint4 load_quad_fields(const void *line, i64 at, int bits)
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

// What one lane knows about one chunk of its warp's eight; the others ask by shuffle.
struct Chunk {
    i64 line, batch, row, first; // row of all batches, batch, row of the batch, first column
    int left;                    // elements of the chunk, 0 behind the last one
};

BS_INLINE Chunk chunk_at(i64 chunk, i64 chunks, i64 batches, i64 rows, i64 cols)
{
    const i64 groups = (cols + BS_GROUP - 1) / BS_GROUP;
    Chunk c;
    c.line = quotient(chunk, groups);
    c.first = (chunk - c.line * groups) * BS_GROUP;
    c.batch = batches == 1 ? 0 : quotient(c.line, rows);
    c.row = c.line - c.batch * rows;
    const i64 left = cols - c.first;
    c.left = chunk >= chunks ? 0 : left < BS_GROUP ? (int)left : BS_GROUP;
    return c;
}

#endif
