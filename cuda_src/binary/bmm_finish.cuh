// The product of 16 rows by 64 columns of words in shared memory, and the ways to store it.
#ifndef BITSPARSE_BMM_FINISH_CUH
#define BITSPARSE_BMM_FINISH_CUH

#include "binary/bmm_rows.cuh"

struct Sums {
    int acc[8][4], ones[4]; // acc[j] is the block of eight columns j, laid out as the matrix instructions leave it

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ones[e] = 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
                acc[j][e] = 0;
        }
    }

    // Multiplies the rows of strip `strip` (16 rows each) by the columns from column0 on, over words `first` to `first + count` - 1.
    __device__ __forceinline__ void multiply(const BmmParams &g, u32 bits, u32 weights, int strip, int column0, int first, int count)
    {
        const int lane = own_thread() & 31, column = column0 + (lane >> 2);
        const u32 a = bits + ((16 * strip + (lane >> 2)) * g.pitch + 4 * (lane & 3)) * 4;
        const u32 *w = g.w + (long long)column * g.words + first + 4 * (lane & 3);
        const u32 staged = weights + (column * g.pitch + 4 * (lane & 3)) * 4;
#pragma unroll 1
        for (int at = 0; at < count; at += 16, w += 16) {
            const bool inside = at + 4 * (lane & 3) < count;
            const int4 upper = load_shared(a + at * 4), lower = load_shared(a + (at + 8 * g.pitch) * 4);
            const u32 one = inside ? ~0u : 0u;
            const u32 left[4] = {(u32)upper.x, (u32)lower.x, (u32)upper.y, (u32)lower.y};
            const u32 right[4] = {(u32)upper.z, (u32)lower.z, (u32)upper.w, (u32)lower.w};
            mma_m16n8k256_b1(ones, left, one, one);
            mma_m16n8k256_b1(ones, right, one, one);
            if (kStaged) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const int4 b = load_shared(staged + (at + 8 * j * g.pitch) * 4);
                    mma_m16n8k256_b1(acc[j], left, (u32)b.x, (u32)b.y);
                    mma_m16n8k256_b1(acc[j], right, (u32)b.z, (u32)b.w);
                }
                continue;
            }
#pragma unroll
            for (int half = 0; half < 8; half += 4) {
                uint4 b[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    b[j] = make_uint4(0, 0, 0, 0);
                    if (inside && column + 8 * (half + j) < g.n)
                        b[j] = __ldg((const uint4 *)(w + 8ll * (half + j) * g.words));
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma_m16n8k256_b1(acc[half + j], left, b[j].x, b[j].y);
                    mma_m16n8k256_b1(acc[half + j], right, b[j].z, b[j].w);
                }
            }
        }
    }
};

// For lane 4 g + t, element e of block j is at row g + 8 (e / 2) and column 8 j + 2 t + e % 2, counted from (row0, column0). Rows from
// `end` on belong to other blocks.
#if BS_FINISH < 2
BS_INLINE int sum_at(const BmmParams &g, const Sums &s, int j, int e, int2 more)
{
    return 4 * s.acc[j][e] - 2 * s.ones[e & 2] + (e & 1 ? more.y : more.x);
}
#endif

// Two neighbours of a vector over the columns.
BS_INLINE int2 pair_at(const BmmParams &g, u32 vectors, int which, int column, float neutral)
{
    const int *from = (const int *)vector_of(g, which);
    if (from == nullptr)
        return make_int2((int)bs_bits_of(neutral), (int)bs_bits_of(neutral));
    return kNear ? load_shared_pair(vectors + (which * padded_columns(g) + column) * 4) : __ldg((const int2 *)(from + column));
}

BS_INLINE int2 columns_at(const BmmParams &g, u32 vectors, int column) { return pair_at(g, vectors, kAddend, column, 0.0f); }

#if BS_FINISH > 1
// Stores bits as words of the result, for two words per row. A lane holds bits of 32 columns of rows g and g + 8: bit 8 j + e is column 8 j
// + 2 t + e.
BS_INLINE void store_bits(const BmmParams &g, u32 *out, int words, u32 (&upper)[2], u32 (&lower)[2], int row0, int column0, int end)
{
    const int lane = own_thread() & 31, t = lane & 3, row = row0 + (lane >> 2) + 8 * (t & 1);
    u32 word[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 x = upper[half] << (2 * t), y = lower[half] << (2 * t);
        // Lanes with an even t continue with the upper row, the others with the lower one.
        u32 mine = (t & 1 ? y : x) | __shfl_xor_sync(~0u, t & 1 ? x : y, 1);
        mine |= __shfl_xor_sync(~0u, mine, 2);
#if BS_FINISH == 2
        word[half] = mine ^ g.flips[(column0 >> 5) + half];
#else
        const int left = g.n - column0 - 32 * half;
        word[half] = left >= 32 ? mine : left <= 0 ? 0u : mine & ((1u << left) - 1u);
#endif
    }
    if (t >= 2 || row >= end)
        return;
    u32 *to = out + (long long)row * words + (column0 >> 5);
    if (column0 + 64 >= g.n && !(column0 & 64)) // padding words follow
        store_global(to, word[0], word[1], 0, 0);
    else
        store_global(to, word[0], word[1]);
}
#endif

#if BS_FINISH == 0
BS_INLINE void finish(const BmmParams &g, u32, u32 vectors, const Sums &s, int row0, int column0, int end)
{
    const int lane = own_thread() & 31, row = row0 + (lane >> 2), first = column0 + 2 * (lane & 3);
    int *out = (int *)g.out + (long long)row * g.n + first;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int column = first + 8 * j;
        if (column >= g.n)
            break;
        const int2 more = columns_at(g, vectors, column);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half >= end)
                continue;
            int *to = out + 8 * j + 8ll * half * g.n;
            const int p = sum_at(g, s, j, 2 * half, more), q = sum_at(g, s, j, 2 * half + 1, more);
            if (g.pairs) {
                *(int2 *)to = make_int2(p, q);
            } else {
                to[0] = p;
                if (column + 1 < g.n)
                    to[1] = q;
            }
        }
    }
}
#elif BS_FINISH == 1
BS_INLINE void finish(const BmmParams &g, u32 slot, u32 vectors, const Sums &s, int row0, int column0, int)
{
    const int first = column0 + 2 * (own_thread() & 3);
    int sums[32];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int2 more = columns_at(g, vectors, first + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[4 * j + e] = sum_at(g, s, j, e, more);
    }
    finish_strip(g.epilogue, RegisterSums<32>{{slot}, sums}, 0, row0, column0, 1);
}
#elif BS_FINISH == 2
// Compares twice the count of common ones, less the count of the row's ones, with the threshold of the column.
BS_INLINE void finish(const BmmParams &g, u32, u32 vectors, const Sums &s, int row0, int column0, int end)
{
    u32 upper[2] = {0, 0}, lower[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int2 least = columns_at(g, vectors, column0 + 8 * j + 2 * (own_thread() & 3));
        const int *acc = s.acc[j], shift = 8 * (j & 3);
        upper[j >> 2] |= (2 * acc[0] - s.ones[0] >= least.x ? 1u << shift : 0u) | (2 * acc[1] - s.ones[0] >= least.y ? 2u << shift : 0u);
        lower[j >> 2] |= (2 * acc[2] - s.ones[2] >= least.x ? 1u << shift : 0u) | (2 * acc[3] - s.ones[2] >= least.y ? 2u << shift : 0u);
    }
    store_bits(g, (u32 *)g.out, g.out_words, upper, lower, row0, column0, end);
}
#else
BS_INLINE float2 floats_at(const BmmParams &g, u32 vectors, int which, int column, float neutral)
{
    const int2 v = pair_at(g, vectors, which, column, neutral);
    return make_float2(bs_float_of((u32)v.x), bs_float_of((u32)v.y));
}

// The most common chains, computed from the sums in registers: scales, a bias, batch norm, at most a relu; the result is floats, or bits
// along the row.
BS_INLINE void finish(const BmmParams &g, u32, u32 vectors, const Sums &s, int row0, int column0, int end)
{
    const EpilogueParams &e = g.epilogue;
    const int lane = own_thread() & 31, row = row0 + (lane >> 2), first = column0 + 2 * (lane & 3);
    RowValues<false> rows[2];
    rows[0].load(e, {0, row, 0, 0});
    rows[1].load(e, {0, row + 8, 0, 0});
    float *out = (float *)e.out + (long long)row * g.n + first;
    u32 ones[2][2] = {{0, 0}, {0, 0}};
    float probe = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int column = first + 8 * j, shift = 8 * (j & 3);
        if (column >= g.n)
            break;
        const int2 more = columns_at(g, vectors, column);
        const float2 scale = floats_at(g, vectors, kScale, column, 1.0f), bias = floats_at(g, vectors, kBias, column, -0.0f);
        const float2 factor = floats_at(g, vectors, kFactor, column, 1.0f), shift_by = floats_at(g, vectors, kShift, column, -0.0f);
        const bool second = column + 1 < g.n;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int ones_of_row = 2 * s.ones[2 * half];
            float x = (float)(4 * s.acc[j][2 * half] - ones_of_row + more.x),
                  y = (float)(4 * s.acc[j][2 * half + 1] - ones_of_row + more.y);
            x = bs_addf(bs_mulf(bs_mulf(x, rows[half].scale[0]), scale.x), bias.x);
            y = bs_addf(bs_mulf(bs_mulf(y, rows[half].scale[0]), scale.y), bias.y);
            if (e.steps & kNorm)
                x = bs_addf(bs_mulf(x, factor.x), shift_by.x), y = bs_addf(bs_mulf(y, factor.y), shift_by.y);
            if (e.activation == BS_RELU)
                x = bs_reluf(x), y = bs_reluf(y);
            if (e.steps & kBits) {
                if (row + 8 * half < end)
                    probe = bs_addf(probe, bs_addf(fabsf(x), second ? fabsf(y) : 0.0f));
                ones[half][j >> 2] |= (x >= 0.0f ? 1u << shift : 0u) | (y >= 0.0f ? 2u << shift : 0u);
            } else if (row + 8 * half < end) {
                float *to = out + 8 * j + 8ll * half * g.n;
                if (g.pairs) {
                    *(float2 *)to = make_float2(x, y);
                } else {
                    to[0] = x;
                    if (second)
                        to[1] = y;
                }
            }
        }
    }
    if (!(e.steps & kBits))
        return;
    if (probe != probe)
        *e.nan = 1;
    store_bits(g, (u32 *)e.out, e.words, ones[0], ones[1], row0, column0, end);
}
#endif

#endif
