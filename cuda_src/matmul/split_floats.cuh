// Products of float32 on the matrix units of warpgroups, in three products of TF32. A float is the sum of two numbers of TF32, its high and
// its low part, but for a 2^21st of it; of the four products of parts, that of the low ones is left out.
//
// The second factor lies in shared memory as two tiles of WIDTH rows of 32 words along the contraction axis: high parts, then low parts.
#ifndef BITSPARSE_MATMUL_SPLIT_FLOATS_CUH
#define BITSPARSE_MATMUL_SPLIT_FLOATS_CUH

#include "common/wgmma_tf32.cuh"

typedef long long i64;

#define DEPTH 32 // of a stage along the contraction axis
#define STEPS (DEPTH / 8)
#ifndef BS_SIXTEENS // does not matter to matmul/floats_ends.cu
#define BS_SIXTEENS 1
#endif
#define WIDTH (16 * BS_SIXTEENS) // columns of a tile of the result
#define TILE_BYTES (WIDTH * DEPTH * 4)
#define SUMS (WIDTH / 2) // of a thread: 4 i + 2 half + e is column 8 i + 2 t + e of row g + 8 half of the warp's 16

// The high part is rounded to nearest, and the matrix units ignore what the low part has beyond TF32. Where rounding overflows, or a float is
// infinite or no number, the low part makes the sum one that is not finite (see `is_odd`).
BS_INLINE void split_float(u32 word, u32 &high, u32 &low)
{
    high = (word + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(__uint_as_float(word) - __uint_as_float(high));
}

// A small matrix W: element (n, k) lies at n * across + k * along.
struct SmallMatrix {
    const float *w;
    i64 across, along;
    int depth; // columns of W
};

// What a lane holds of 16 rows of the first factor in a stage.
struct Fragments {
    u32 high[STEPS][4], low[STEPS][4];
};

// Starts the products of `count` steps from step `first` on, the small ones first. They overwrite `sum`.
BS_INLINE void start_products(float (&sum)[SUMS], const Fragments &a, u32 tiles, int first, int count)
{
    const u64 high = wgmma_descriptor(tiles), low = wgmma_descriptor(tiles + TILE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (step < first || step >= first + count)
            continue;
        WgmmaTf32<WIDTH>::run(sum, a.high[step], low + 2 * step, step != first);
        WgmmaTf32<WIDTH>::run(sum, a.low[step], high + 2 * step, 1);
        WgmmaTf32<WIDTH>::run(sum, a.high[step], high + 2 * step, 1);
    }
    wgmma_commit();
}

BS_INLINE void clear(float (&total)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        total[i] = 0.0f;
}

// Waits for the products of a stage and adds their sums to those of the stages before: the matrix units cut off what a sum has no room for,
// so their own sums must stay short.
BS_INLINE void finish_products(float (&total)[SUMS], float (&sum)[SUMS])
{
    wgmma_wait<0>();
    wgmma_pin(sum);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        total[i] += sum[i];
}

// `value` where x is positive or not a number, else 0: relu, with x itself as `value`, and its gradient, with relu's result as x.
BS_INLINE float where_positive(float value, float x) { return x <= 0.0f ? 0.0f : value; }

// The next slot of a ring.
template <int stages> BS_INLINE int following(int slot) { return slot + 1 == stages ? 0 : slot + 1; }

// Infinite or not a number. Such a sum must be computed again: the low part of an infinite factor is not a number.
BS_INLINE bool is_odd(float sum) { return sum * 0.0f != 0.0f; }

// Starts copying `count` words of a run, up to four, and writes zeros for the others.
BS_INLINE void copy_words(u32 to, const float *from, int count, bool whole)
{
    if (whole) {
        copy_bytes_async(to, from, 4 * min(max(count, 0), 4));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        copy_word_async(to + 4 * i, count > i ? from + i : from, count > i);
}

#endif
