// Elements of every dtype as the packing kernels move them: one by one and four at a time.
#ifndef BITSPARSE_BITS_ELEMENTS_CUH
#define BITSPARSE_BITS_ELEMENTS_CUH

#include "common/scalar.h"

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

// BS_LARGE: some index or count does not fit into 30 bits.
#ifdef BS_LARGE
typedef i64 Index;
#else
typedef int Index;
#endif

#define BS_GROUP 128 // elements that the format pads a line to; such a chunk has one quad per lane
#define BS_CHUNKS 8  // chunks that a warp takes together, so that every lane has 32 elements
#define BS_LINE_DRAWS 17 // draws of eight elements that a chunk may touch
#define BS_TILE_DRAWS 5  // the same for 32 elements

// Quotient of two non-negative numbers. Numbers beyond 32 bits, which take more than 2^38 elements, are divided bit by bit: a call of the
// library's division would cost registers everywhere.
BS_INLINE Index quotient(Index n, Index d)
{
#ifdef BS_LARGE
    if ((n | d) >> 32) {
        u64 rest = 0, found = 0;
#pragma unroll 1
        for (int bit = 62; bit >= 0; bit--) {
            rest = rest << 1 | ((u64)n >> bit & 1u);
            const bool fits = rest >= (u64)d;
            rest -= fits ? (u64)d : 0;
            found = found << 1 | (fits ? 1u : 0u);
        }
        return (Index)found;
    }
#endif
    return (Index)((u32)n / (u32)d);
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

#endif
