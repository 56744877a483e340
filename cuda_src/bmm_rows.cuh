// Activations on their way to bits: parameters of the product of signs, the elements of every dtype, and how a block turns its rows into
// words in shared memory.
#ifndef BITSPARSE_BMM_ROWS_CUH
#define BITSPARSE_BMM_ROWS_CUH

#if BS_FINISH & 1
#define BS_OWN_VECTORS // the scales of rows may be found by this kernel
#include "epilogue.cuh"
#else
#include "ptx.cuh"
#include "scalar.h"
#endif

#define BS_WORDS 7 // BS_KIND of activations that are packed already
#if BS_KIND == BS_WORDS
typedef u32 Element;
#else
#include "bits.cuh"
#endif

constexpr int kThreads = 32 * BS_WARPS;
constexpr int kRows = BS_ROWS;   // of a block
constexpr int kStrips = kRows / 16;
#ifdef BS_STAGED
constexpr bool kStaged = true;
#else
constexpr bool kStaged = false;
#endif
#ifdef BS_NORM
constexpr bool kNormed = true;
#else
constexpr bool kNormed = false;
#endif
#if BS_KIND == BS_WORDS && !defined(BS_PARTS)
constexpr bool kRounds = true; // blocks stay for as long as there are rows
#else
constexpr bool kRounds = false;
#endif
constexpr int kBuffers = kRounds ? 2 : 1; // of words of the rows
constexpr int kSlots = BS_FINISH == 1 ? BS_WARPS * 4096 : 0; // bytes in front of the words, through which sums reach the epilogue

struct BmmParams {
    const unsigned char *x;
    const u32 *w;             // (n, words), packed along the contraction axis
    void *out;                // int32 sums, or packed bits
    const int *columns;       // of n columns and zeros up to whole items: what is added to the sum; with BS_FINISH 2: the least count of a one
    const u32 *flips;         // BS_FINISH 2: columns whose bits turn over
    const float *norm[2];     // of a feature: the factor and the addend in front of the sign; zero behind the last one
    float *absmean;           // mean magnitudes of the rows; may be null
    int *nan;                 // becomes 1 when an activation is NaN
    long long x_row;          // bytes from row to row
    int m, n, k, words;       // words of a row of w
    int part_words;           // of the contraction axis that are in shared memory at a time, a multiple of 16 unless they are all
    int pitch;                // words from row to row there, 16 times an odd number, so that neither side meets in few banks
    int out_words, pairs;     // of a row of bits; whether two neighbouring sums may be stored at once
    int is_signed, pad;
#if BS_FINISH & 1
    EpilogueParams epilogue;
#endif
};

// The thread, found out where it is asked for: what is made of it should not stay in registers.
BS_INLINE int own_thread()
{
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

#if BS_KIND != BS_WORDS
// ---- elements
BS_INLINE float value_of(Element e, const BmmParams &g)
{
#if BS_KIND == BS_HALF && defined(BS_BFLOAT)
    return bs_float_of((u32)e << 16);
#elif BS_KIND == BS_HALF
    return float_of_f16(e);
#elif BS_KIND == BS_FLOAT
    return bs_float_of(e);
#elif BS_KIND == BS_DOUBLE
    return (float)double_of(e);
#elif BS_KIND == 3
    return g.is_signed ? (float)(i64)e : (float)e;
#else
    const int away = 32 - 8 * (int)sizeof(Element);
    return g.is_signed ? (float)((int)((u32)e << away) >> away) : (float)(u32)e;
#endif
}

// A word whose highest bit says whether the element, of which v is what became of its value, is negative; -0 is not.
BS_INLINE u32 sign_of(Element e, float v, const BmmParams &g)
{
#if defined(BS_NORM) || BS_KIND == BS_HALF || BS_KIND == BS_FLOAT
    return bs_bits_of(bs_addf(v, 0.0f));
#elif BS_KIND == BS_DOUBLE
    return e << 1 ? (u32)(e >> 32) : 0u;
#else
    return g.is_signed ? (u32)((u64)e << (64 - 8 * (int)sizeof(Element)) >> 32) : 0u;
#endif
}

// Four neighbours by loads of BS_VECTOR bytes, which are the first to leave the caches again.
BS_INLINE Quad load_neighbours(const unsigned char *at)
{
    Quad q = zero_quad();
    constexpr int size = 4 * (int)sizeof(Element);
#if BS_VECTOR == 16
#pragma unroll
    for (int i = 0; i < size / 16; i++) {
        const uint4 v = __ldcs((const uint4 *)at + i);
        u32 *w = q.w + 4 * i;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
#elif BS_VECTOR == 8
#pragma unroll
    for (int i = 0; i < size / 8; i++) {
        const uint2 v = __ldcs((const uint2 *)at + i);
        u32 *w = q.w + 2 * i;
        w[0] = v.x, w[1] = v.y;
    }
#elif BS_VECTOR == 4
#pragma unroll
    for (int i = 0; i < size / 4; i++)
        q.w[i] = __ldcs((const u32 *)at + i);
#else
#pragma unroll
    for (int j = 0; j < 4; j++)
        set_element(q, j, ((const Element *)at)[j]);
#endif
    return q;
}

// The elements behind the first one, and zero.
BS_INLINE void drop_first(Quad &q)
{
    constexpr int words = sizeof(Quad) / 4, step = (int)sizeof(Element) / 4;
#pragma unroll
    for (int i = 0; i < words; i++) {
        if (step > 0)
            q.w[i] = i + step < words ? q.w[i + step < words ? i + step : i] : 0u;
        else
            q.w[i] = __funnelshift_r(q.w[i], i + 1 < words ? q.w[i + 1 < words ? i + 1 : i] : 0u, 8 * (int)sizeof(Element));
    }
}

// Eight rows of 128 columns: a lane takes four neighbours of each row, lane 4 j + t the j-th four of word t.
struct Unit {
    Quad quads[8];
    int column; // of this lane's elements, in the row
    int left;   // elements from there to the end of the row

    // At the end of a row the last four elements are loaded, of which the first ones are others'.
    __device__ __forceinline__ void load(const BmmParams &g, int lane, int row, int first)
    {
        column = first + 32 * (lane & 3) + 4 * (lane >> 2);
        left = g.k - column;
        const int last = g.m - 1;
#pragma unroll
        for (int i = 0; i < 8; i++)
            quads[i] = zero_quad();
        if (left <= 0)
            return;
#ifdef BS_TINY
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (j < left)
                    set_element(quads[i], j, ((const Element *)(g.x + min(row + i, last) * g.x_row))[j]);
#else
        const unsigned char *from = g.x + (long long)min(column, g.k - 4) * (int)sizeof(Element);
#pragma unroll
        for (int i = 0; i < 8; i++)
            quads[i] = load_neighbours(from + min(row + i, last) * g.x_row);
#pragma unroll 1
        for (int n = left; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                drop_first(quads[i]);
#endif
    }

    // The signs as a word of one of the rows, row lane / 4, and the magnitudes of four neighbours of every row.
    __device__ __forceinline__ u32 signs(const BmmParams &g, int lane, float (&magnitudes)[8]) const
    {
#ifdef BS_NORM
        float factor[4] = {0.0f, 0.0f, 0.0f, 0.0f}, addend[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (left > 0) {
            const float4 a = __ldg((const float4 *)(g.norm[0] + column)), b = __ldg((const float4 *)(g.norm[1] + column));
            factor[0] = a.x, factor[1] = a.y, factor[2] = a.z, factor[3] = a.w;
            addend[0] = b.x, addend[1] = b.y, addend[2] = b.z, addend[3] = b.w;
        }
#endif
        u32 negative = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            float v[4];
#pragma unroll
            for (int j = 3; j >= 0; j--) {
                const Element e = element_of(quads[i], j);
                v[j] = value_of(e, g);
#ifdef BS_NORM
                v[j] = bs_addf(bs_mulf(v[j], factor[j]), addend[j]);
#endif
                negative = __funnelshift_l(sign_of(e, v[j], g), negative, 1);
            }
            if (BS_KIND >= BS_HALF || kNormed || g.absmean)
                magnitudes[i] = bs_addf(bs_addf(fabsf(v[0]), fabsf(v[1])), bs_addf(fabsf(v[2]), fabsf(v[3])));
            else
                magnitudes[i] = 0.0f;
        }
        const u32 valid = left >= 4 ? ~0u : left <= 0 ? 0u : ((1u << left) - 1u) * 0x11111111u;
        u32 word = ~negative & valid; // nibble i is row i's
        u32 other = __shfl_xor_sync(~0u, word, 16);
        word = __byte_perm(word, other, lane & 16 ? 0x3276 : 0x5410);
        other = __shfl_xor_sync(~0u, word, 8);
        word = __byte_perm(word, other, lane & 8 ? 0x3715 : 0x6240);
        other = __shfl_xor_sync(~0u, word, 4);
        const u32 keep = lane & 4 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        return (word & keep) | ((lane & 4 ? other >> 4 : other << 4) & ~keep);
    }
};

// The sum over the lanes of each of eight numbers, always added as a tree over neighbours; which of them a lane gets is row_of_sum.
BS_INLINE float sum_of_lanes(int lane, const float (&v)[8])
{
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        four[i] = bs_addf(lane & 4 ? v[i + 4] : v[i], __shfl_xor_sync(~0u, lane & 4 ? v[i] : v[i + 4], 4));
#pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] = bs_addf(lane & 8 ? four[i + 2] : four[i], __shfl_xor_sync(~0u, lane & 8 ? four[i] : four[i + 2], 8));
    float one = bs_addf(lane & 16 ? two[1] : two[0], __shfl_xor_sync(~0u, lane & 16 ? two[0] : two[1], 16));
    one = bs_addf(one, __shfl_xor_sync(~0u, one, 1));
    return bs_addf(one, __shfl_xor_sync(~0u, one, 2));
}

BS_INLINE int row_of_sum(int lane) { return (lane & 4) | (lane & 8) >> 2 | (lane & 16) >> 4; }
#endif

// The weights, as they are in memory but for the room between their rows, with zeros up to whole steps and items.
BS_INLINE void copy_weights(const BmmParams &g, u32 weights)
{
    const int chunks = (g.words + 15) / 16 * 4, all = (g.n + 63) / 64 * 64 * chunks;
    for (int i = own_thread(); i < all; i += kThreads) {
        const int column = i / chunks, chunk = i - column * chunks;
        const bool valid = column < g.n && 4 * chunk < g.words;
        copy_async(weights + (column * g.pitch + 4 * chunk) * 4, valid ? g.w + (long long)column * g.words + 4 * chunk : g.w, valid);
    }
    copy_commit();
}

#if BS_KIND == BS_WORDS
BS_INLINE void copy_rows(const BmmParams &g, u32 bits, int row0, int first, int count)
{
    const int chunks = count / 4;
    for (int i = own_thread(); i < kRows * chunks; i += kThreads) {
        const int row = i / chunks, chunk = i - row * chunks;
        const bool valid = row0 + row < g.m;
        copy_async(bits + (row * g.pitch + 4 * chunk) * 4, g.x + (valid ? row0 + row : 0) * g.x_row + (first + 4 * chunk) * 4, valid);
    }
    copy_commit();
}
#else
// The units of a warp: neighbouring warps take neighbouring columns.
struct Walk {
    int group, chunk;
    const int chunks;

    __device__ __forceinline__ explicit Walk(int count) : group(0), chunk(own_thread() >> 5), chunks(count) { settle(); }

    __device__ __forceinline__ void settle()
    {
        while (chunk >= chunks && group < kRows / 8)
            chunk -= chunks, group++;
    }

    __device__ __forceinline__ bool done() const { return group >= kRows / 8; }

    __device__ __forceinline__ void step() { chunk += BS_WARPS, settle(); }
};

// Asks for the unit at hand, of a block of rows, to be brought into the L2.
BS_INLINE void prefetch(const BmmParams &g, const Walk &at, int row0, int first)
{
    constexpr int bytes = 128 * (int)sizeof(Element);
    const int lane = own_thread() & 31, row = row0 + 8 * at.group + (lane >> 2), column = 32 * first + 128 * at.chunk;
#pragma unroll
    for (int piece = 0; piece < bytes; piece += 512) {
        const int byte = piece + 128 * (lane & 3);
        if (row < g.m && byte < bytes && column + byte / (int)sizeof(Element) < g.k)
            prefetch_l2(g.x + row * g.x_row + (long long)column * (int)sizeof(Element) + byte);
    }
}

// The block's rows, words `first` to `first + count` - 1 of them, into shared memory; magnitudes of 128 columns each behind them.
BS_INLINE void load_rows(const BmmParams &g, u32 bits, u32 sums, int row0, int first, int count)
{
    const int lane = own_thread() & 31;
    bool odd = false;
    Walk at(count / 4);
    while (!at.done()) {
        Unit units[BS_AHEAD];
        int groups[BS_AHEAD], chunks[BS_AHEAD];
#pragma unroll
        for (int u = 0; u < BS_AHEAD; u++) {
            groups[u] = at.group, chunks[u] = at.chunk;
            if (!at.done()) {
                units[u].load(g, lane, row0 + 8 * at.group, 32 * first + 128 * at.chunk);
                at.step();
            }
        }
        if (BS_PREFETCH && !at.done())
            prefetch(g, at, row0, first);
#pragma unroll
        for (int u = 0; u < BS_AHEAD; u++) {
            if (groups[u] >= kRows / 8)
                break;
            float magnitudes[8];
            const u32 word = units[u].signs(g, lane, magnitudes);
            store_shared_word(bits + ((8 * groups[u] + (lane >> 2)) * g.pitch + 4 * chunks[u] + (lane & 3)) * 4, (int)word);
            if (g.absmean) {
                const float sum = sum_of_lanes(lane, magnitudes);
                odd = odd || sum != sum;
                if ((lane & 3) == 0)
                    store_shared_word(sums + ((8 * groups[u] + row_of_sum(lane)) * (g.part_words / 4) + chunks[u]) * 4, (int)bs_bits_of(sum));
            } else if (BS_KIND >= BS_HALF || kNormed) {
                float all = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    all = bs_addf(all, magnitudes[i]);
                odd = odd || all != all;
            }
        }
    }
    if (odd)
        *g.nan = 1;
}
#endif

#endif
