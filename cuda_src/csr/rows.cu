// Copies rows of features so that every row begins at a multiple of 16 bytes, with zeros after each. Kernels over edges may then fetch 16
// bytes at a time, whatever the number of columns. If each row has a factor, the row is multiplied by it.
//
// Floor: every row is read and written once. The copy pays where edges fetch a row many times: 41 columns of float32, fetched four bytes
// at a time, take twice as long as 64 fetched sixteen bytes at a time.
#include "common/scalar.h"

// BS_ITEM: bytes of an element. BS_SCALED: elements are float or double and have factors. BS_MARKED: elements are float, and parts get marks.
#if BS_ITEM == 1
typedef unsigned char Element;
#elif BS_ITEM == 2
typedef unsigned short Element;
#elif BS_ITEM == 4 && (defined(BS_SCALED) || defined(BS_MARKED))
typedef float Element;
#elif BS_ITEM == 4
typedef unsigned Element;
#elif defined(BS_SCALED)
typedef double Element;
#else
typedef bs_u64 Element;
#endif
#define EACH (16 / BS_ITEM)

struct LaidRowsParams {
    const void *x; // (parts, columns)
    void *out; // (parts, vectors * EACH)
    const float *scale; // (parts,), one factor per part, with BS_SCALED
    unsigned *marks; // (parts / 32 rounded up,), bit i % 32 of word i / 32: whether part i has a number that is not 0, with BS_MARKED
    bs_i64 items; // parts * vectors
    int columns; // of a part, which is a row, or the columns of one head in a row
    int vectors; // of a part of `out`
};

// Writes one vector of 16 bytes, and returns whether it has anything but zeros.
static __device__ __forceinline__ bool lay(const LaidRowsParams &p, bs_i64 item, bs_i64 part)
{
    const int column = (int)(item - part * p.vectors) * EACH;
    const Element *from = (const Element *)p.x + part * p.columns + column;
#ifdef BS_SCALED
    const Element scale = (Element)p.scale[part];
#endif
    union {
        uint4 whole;
        Element of[EACH];
    } v;
    bool something = false;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v.of[i] = column + i < p.columns ? from[i] : (Element)0;
#ifdef BS_SCALED
        v.of[i] = BS_ITEM == 4 ? bs_mulf(v.of[i], scale) : bs_muld(v.of[i], scale);
#endif
        something |= v.of[i] != (Element)0; // so is what is no number
    }
    ((uint4 *)p.out)[item] = v.whole;
    return something;
}

#ifdef BS_MARKED
// A block copies 32 parts and writes their marks.
extern "C" __global__ void __launch_bounds__(256) lay_rows(const LaidRowsParams p)
{
    __shared__ unsigned marks;
    const bs_i64 first = (bs_i64)blockIdx.x * 32;
    const int count = (int)min((bs_i64)32 * p.vectors, p.items - first * p.vectors);
    unsigned own = 0;
    if (threadIdx.x == 0)
        marks = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += 256) {
        const int part = i / p.vectors;
        if (lay(p, first * p.vectors + i, first + part))
            own |= 1u << part;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        own |= __shfl_xor_sync(~0u, own, o);
    if (own && (threadIdx.x & 31) == 0)
        atomicOr(&marks, own);
    __syncthreads();
    if (threadIdx.x == 0)
        p.marks[blockIdx.x] = marks;
}
#else
extern "C" __global__ void __launch_bounds__(256) lay_rows(const LaidRowsParams p)
{
    const bs_i64 item = (bs_i64)blockIdx.x * 256 + threadIdx.x;
    if (item < p.items)
        lay(p, item, p.items >> 32 ? item / p.vectors : (bs_i64)((unsigned)item / (unsigned)p.vectors));
}
#endif
