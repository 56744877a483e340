// Parameters of the product of signs, and how a block loads its rows, as words, and the weights into shared memory.
#ifndef BITSPARSE_BMM_ROWS_CUH
#define BITSPARSE_BMM_ROWS_CUH

#if BS_FINISH & 1
#define BS_OWN_VECTORS // this kernel may compute the scales of rows itself
#include "finish/strips.cuh"
#else
#include "common/ptx.cuh"
#include "common/scalar.h"
#endif

#define BS_WORDS 7 // BS_KIND of activations that are packed already
#if BS_KIND >= 4 || defined(BS_NORM) || defined(BS_MEANS)
#define BS_VALUES // the values of the elements matter, not only their signs
#endif
#if BS_KIND == BS_WORDS
typedef u32 Element;
#else
#include "bits/lanes.cuh"
#endif

constexpr int kThreads = 32 * BS_WARPS;
constexpr int kRows = BS_ROWS;   // of a block
constexpr int kStrips = (kRows + 15) / 16; // strips of a matrix instruction; with eight rows half the work is wasted
constexpr int kRoom = 16 * kStrips;        // rows in shared memory
static_assert(kRows % 8 == 0 && (kRows % 16 == 0 || (kRows == 8 && BS_FINISH != 1)), "whole strips, or half of one");
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
#ifdef BS_VALUES
constexpr bool kValues = true;
#else
constexpr bool kValues = false;
#endif
#ifdef BS_MEANS
constexpr bool kMeans = true;
#else
constexpr bool kMeans = false;
#endif
#if BS_KIND == BS_WORDS && !defined(BS_PARTS)
constexpr bool kRounds = true; // blocks stay and take further rows until none are left
#else
constexpr bool kRounds = false;
#endif
constexpr int kBuffers = kRounds ? 2 : 1; // buffers for the words of the rows
constexpr int kSlots = BS_FINISH == 1 ? BS_WARPS * 4096 : 0; // bytes in front of the words, through which sums reach the epilogue

struct BmmParams {
    const unsigned char *x;
    const u32 *w;             // (n, words), packed along the contraction axis
    void *out;                // int32 sums, or packed bits
    const int *columns; // of n columns, then zeros up to whole items: added to the sum; with BS_FINISH 2: the least count of a one
    const u32 *flips; // BS_FINISH 2: columns whose bits are inverted
    const float *norm[2]; // the factor and the addend of each feature, applied before the sign; zero beyond the last feature
    float *absmean; // mean magnitudes of the rows; may be null
    int *nan; // becomes 1 when an activation is NaN
    long long x_row; // bytes from row to row
    int m, n, k, words; // words of a row of w
    int part_words; // words of the contraction axis in shared memory at a time, a multiple of 16 unless they are all
    int pitch; // words from row to row in shared memory, 16 times an odd number, so that neither reads nor writes conflict in banks
    int out_words, pairs; // words of a row of bits; whether two neighbouring sums may be stored at once
    int is_signed, pad;
#if BS_FINISH & 1
    EpilogueParams epilogue;
#endif
};

// The vectors over the columns, in this order in shared memory if BS_NEAR is defined: they are used late, and the warp would wait for them.
enum Column { kAddend, kScale, kBias, kFactor, kShift, kColumnVectors };
#ifdef BS_NEAR
constexpr bool kNear = true;
#else
constexpr bool kNear = false;
#endif

// The vector with number `which`. A null pointer stands for the neutral element of its operation.
BS_INLINE const void *vector_of(const BmmParams &g, int which)
{
#if BS_FINISH == 3
    const EpilogueParams &e = g.epilogue;
    return which == kScale    ? (const void *)e.col_scale[0].at
           : which == kBias   ? (const void *)e.bias.at
           : which == kFactor ? (const void *)e.bn_scale.at
           : which == kShift  ? (const void *)e.bn_shift.at
                              : (const void *)g.columns;
#else
    return which == kAddend ? (const void *)g.columns : nullptr;
#endif
}

BS_INLINE int padded_columns(const BmmParams &g) { return (g.n + 63) / 64 * 64; }

// The thread's number, read anew at each use, so that values derived from it do not stay in registers.
BS_INLINE int own_thread()
{
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

#if BS_KIND != BS_WORDS
#include "binary/bmm_signs.cuh"
#endif

// Copies the vectors over the columns to shared memory.
BS_INLINE void copy_vectors(const BmmParams &g, u32 vectors)
{
    const int columns = padded_columns(g);
#pragma unroll
    for (int which = 0; which < (BS_FINISH == 3 ? (int)kColumnVectors : 1); which++) {
        const char *from = (const char *)vector_of(g, which);
        if (from)
            for (int i = 16 * own_thread(); i < 4 * columns; i += 16 * kThreads)
                copy_async(vectors + which * columns * 4 + i, from + i, true);
    }
}

// Copies the weights as they are in memory, except for the gap between rows, with zeros up to whole steps and items.
BS_INLINE void copy_weights(const BmmParams &g, u32 weights)
{
    const int chunks = (g.words + 15) / 16 * 4, log = 32 - __clz(chunks - 1), all = padded_columns(g) << log;
    for (int i = own_thread(); i < all; i += kThreads) {
        const int column = i >> log, chunk = i & ((1 << log) - 1);
        if (chunk >= chunks)
            continue;
        const bool valid = column < g.n && 4 * chunk < g.words;
        copy_async(weights + (column * g.pitch + 4 * chunk) * 4, valid ? g.w + (long long)column * g.words + 4 * chunk : g.w, valid);
    }
}

#if BS_KIND == BS_WORDS
// Starts copying packed rows, words `first` to `first + count` - 1, to shared memory.
BS_INLINE void copy_rows(const BmmParams &g, u32 bits, int row0, int first, int count)
{
    const int chunks = count / 4, log = 32 - __clz(chunks - 1);
    for (int i = own_thread(); i < kRows << log; i += kThreads) {
        const int row = i >> log, chunk = i & ((1 << log) - 1);
        const bool valid = row0 + row < g.m;
        if (chunk >= chunks)
            continue;
        copy_async(bits + (row * g.pitch + 4 * chunk) * 4, g.x + (valid ? row0 + row : 0) * g.x_row + (first + 4 * chunk) * 4, valid);
    }
    copy_commit();
}
#else
// The units that a warp takes: neighbouring warps take neighbouring columns.
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

// Loads words `first` to `first + count` - 1 of the block's rows into shared memory; the sums of magnitudes of 128 columns each follow
// them.
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
#pragma unroll
        for (int u = 0; u < BS_AHEAD; u++) {
            if (groups[u] >= kRows / 8)
                break;
            float magnitudes[8];
            const u32 word = units[u].signs(g, lane, magnitudes);
            store_shared_word(bits + ((8 * groups[u] + (lane >> 2)) * g.pitch + 4 * chunks[u] + (lane & 3)) * 4, (int)word);
            if (kMeans) {
                const float sum = sum_of_lanes(lane, magnitudes);
                odd = odd || sum != sum;
                if ((lane & 3) == 0)
                    store_shared_word(sums + ((8 * groups[u] + row_of_sum(lane)) * (g.part_words / 4) + chunks[u]) * 4,
                                      (int)bs_bits_of(sum));
            } else if (kValues) {
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
