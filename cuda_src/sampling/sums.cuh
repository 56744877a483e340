// The sums that a lane holds of a row while its samples are added up: floats, or sums of adjacent codes of BS_CODES bits, which are widened
// on the way.
//
// A real value is code * scale + offset, and a term is weight * value. Sums of codes and of weights are kept apart, and only a complete row
// becomes real: scale * (sum of weight * code) + offset * (sum of weight). Without weights the sums of codes are exact integers. If scales
// and offsets belong to the gathered rows, they are part of the weights instead.
//
// BS_WEIGHTS: 0 none; 1 values of edges and scales of columns, where given; 2 (codes) also scales and offsets of the gathered rows.
#ifndef BITSPARSE_SAMPLE_SUMS_CUH
#define BITSPARSE_SAMPLE_SUMS_CUH

#include "csr/elements.cuh"

#ifdef BS_CODES
#define BS_OUTS (BS_BYTES * 8 / BS_CODES) // features of a lane
typedef float Real;
#else
#define BS_OUTS BS_EACH
typedef Acc Real;
#endif

// Sums of 16-bit floats are rounded back to 16 bits.
#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
typedef unsigned short Out;
#else
typedef Real Out;
#endif

// How codes become numbers: two's complement codes have their sign bit flipped, which makes them too large by 2^(bits - 1).
struct CodeMap {
    const float *scale, *offset; // null: 1 and 0
    int scale_step, offset_step; // 0: one for all; 1: one for each feature; -1: one for each gathered row
    unsigned flip; // the sign bits of a word, or 0
    int times, plus; // code = times * bits + plus
    float factor, bias; // code = factor * (2^15 + bits) + bias
};

#if BS_ACC == 1
#define BS_TIMES bs_muld
#else
#define BS_TIMES bs_mulf
#endif

typedef Vector<BS_OUTS, Acc> Sums;

// The assembler moves ordinary loads down to their uses, past the drawing in between; this load stays in place.
BS_INLINE void load_now(Gathered &to, const void *at)
{
#if BS_BYTES == 16
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.moved[0].x), "=r"(to.moved[0].y), "=r"(to.moved[0].z), "=r"(to.moved[0].w)
                 : "l"(at)
                 : "memory");
#elif BS_BYTES == 8
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to.moved[0].x), "=r"(to.moved[0].y) : "l"(at) : "memory");
#elif BS_BYTES == 4
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(to.moved[0]) : "l"(at) : "memory");
#else
    load_vector(to, at);
#endif
}

struct RowSum {
    Sums of;
#if defined(BS_CODES) && BS_WEIGHTS
    float weights; // the sum of the weights that go with the offset
#endif

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            of.of[j] = 0;
#if defined(BS_CODES) && BS_WEIGHTS
        weights = 0;
#endif
    }

#ifndef BS_CODES
    __device__ __forceinline__ void add(const Gathered &v, const CodeMap &, bool mine, Acc weight, float)
    {
        if (!mine)
            return;
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++) {
            const Acc term = widened(v, j, false);
#if BS_WEIGHTS
            of.of[j] += weight * term;
#else
            of.of[j] += term;
#endif
        }
    }
#else
    // Codes lie in bytes i of (word >> bits * k), which a mask extracts. Without weights, codes that are not `mine` become zero, which
    // takes fewer instructions than a branch around them; with weights that would take too many registers.
    __device__ __forceinline__ void add(const Gathered &v, const CodeMap &map, bool mine, float weight, float offset)
    {
#if BS_WEIGHTS
        if (!mine)
            return;
        weights += offset;
#else
        const unsigned chosen = mine ? ~0u : 0u;
#endif
        const unsigned mask = 0x01010101u * ((1u << BS_CODES) - 1u);
#pragma unroll
        for (int word = 0; word < (BS_BYTES + 3) / 4; word++) {
            unsigned w = 0;
#pragma unroll
            for (int i = 0; i < (BS_BYTES < 4 ? BS_BYTES : 4); i++)
                w |= (unsigned)v.of[word * 4 + i] << 8 * i;
            w ^= map.flip;
#if !BS_WEIGHTS
            w &= chosen;
#endif
#pragma unroll
            for (int k = 0; k < 8 / BS_CODES; k++) {
                const unsigned bytes = (w >> BS_CODES * k) & mask;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int j = word * 32 / BS_CODES + i * (8 / BS_CODES) + k;
                    if (j < BS_OUTS) {
#if BS_WEIGHTS
                        const float shifted = bs_float_of(__byte_perm(bytes, 0x47000000u, 0x7604u + (unsigned)i * 16)); // 2^15 + bits
                        of.of[j] += weight * bs_fmaf(map.factor, shifted, map.bias);
#else
                        of.of[j] = (int)__dp4a(bytes, 1u << 8 * i, (unsigned)of.of[j]);
#endif
                    }
                }
            }
        }
    }
#endif

    // Bypasses the L1, which does not see what other multiprocessors wrote.
    __device__ __forceinline__ void fetch(const RowSum *from)
    {
        load_fresh(of, &from->of);
#if defined(BS_CODES) && BS_WEIGHTS
        weights = __ldcg(&from->weights);
#endif
    }

    // Adds the sums of the lane that is `over` lanes away, in the whole warp.
    __device__ __forceinline__ void join(int over)
    {
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            of.of[j] += __shfl_xor_sync(~0u, of.of[j], over);
#if defined(BS_CODES) && BS_WEIGHTS
        weights += __shfl_xor_sync(~0u, weights, over);
#endif
    }

    __device__ __forceinline__ void join(const RowSum &other)
    {
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            of.of[j] += other.of.of[j];
#if defined(BS_CODES) && BS_WEIGHTS
        weights += other.weights;
#endif
    }
};

// A row's sums as real numbers; `first` is the lane's first feature of `features`, `samples` the number of the row's samples.
BS_INLINE void real_sums(Real (&r)[BS_OUTS], const RowSum &sum, const CodeMap &map, int first, int features, int samples)
{
#ifndef BS_CODES
#pragma unroll
    for (int j = 0; j < BS_OUTS; j++)
        r[j] = sum.of.of[j];
#else
#if BS_WEIGHTS
    const float weights = sum.weights;
#else
    const float weights = (float)samples;
    const int plus = map.plus * samples;
#endif
#pragma unroll
    for (int j = 0; j < BS_OUTS; j++)
#if BS_WEIGHTS
        r[j] = sum.of.of[j];
#else
        r[j] = (float)(sum.of.of[j] * map.times + plus);
#endif
    if (map.scale && map.scale_step >= 0)
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            r[j] = bs_mulf(r[j], __ldg(map.scale + min(first + j, features - 1) * map.scale_step));
    if (map.offset && map.offset_step >= 0)
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            r[j] = bs_addf(r[j], bs_mulf(weights, __ldg(map.offset + min(first + j, features - 1) * map.offset_step)));
    else if (map.offset)
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            r[j] = bs_addf(r[j], weights);
#endif
}

#endif
