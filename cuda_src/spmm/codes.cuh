// Sums of packed integers, taken directly on the words of gathered rows, and how the sums of a complete row are used.
//
// Eight edges at a time are added bit by bit: three words with the same weight become two (a carry-save adder is two LOP3), whatever
// integers their bits belong to. Words of weights 1, 2 and 4 are kept from batch to batch. A word of weight 8 is left over and is spread
// into lanes of 16 bits (of 32 for integers of 16 bits); so are the others when the row is complete. No row or piece has more edges than
// such a lane can hold, but for integers of 8 bits, of which it holds 256: their groups move the upper bytes of the lanes to a second set
// every few batches. With values, a register holds one integer or float of a lane instead.
#ifndef BITSPARSE_SPMM_CODES_CUH
#define BITSPARSE_SPMM_CODES_CUH

#include "csr/elements.cuh"

#ifndef BS_OUT
#define BS_OUT 0
#endif
#ifndef BS_MEAN
#define BS_MEAN 0
#endif
#ifndef BS_WEIGHTS
#define BS_WEIGHTS 0
#endif
#ifndef BS_NODES
#define BS_NODES 0
#endif
#ifndef BS_SIGNED // for integers of 8 bits; for others `flip` tells
#define BS_SIGNED 0
#endif
#ifndef BS_SCALED
#define BS_SCALED 0
#endif
#define BS_CHAIN 2
#define BS_FLOATS (BS_WEIGHTS == 2)
#define BS_DIVIDES (BS_MEAN || (BS_OUT == 1 && !BS_FLOATS && !BS_SCALED))
#if BS_OUT == BS_CHAIN
#include "finish/store.cuh"
#endif

constexpr int kEach = 32 / BS_BITS; // integers in a word
constexpr int kCodes = BS_WORDS * kEach; // integers of a lane
constexpr int kLaneBits = BS_BITS == 16 ? 32 : 16;
constexpr int kSpread = BS_BITS > 8 ? 32 : BS_BITS == 8 ? 16 : 8; // width of the lanes that integers are spread into first
constexpr int kParts = kSpread / BS_BITS; // words that a word is spread into
constexpr int kWide = kEach * kLaneBits / 32; // words that it takes in the end
constexpr unsigned kMask = (kSpread == 32 ? 1u : kSpread == 16 ? 0x00010001u : 0x01010101u) * ((1u << BS_BITS) - 1u);
static_assert(BS_BITS == 2 || BS_BITS == 4 || BS_BITS == 8 || BS_BITS == 16, "integers of 2, 4, 8 or 16 bits");
static_assert(BS_U % 8 == 0, "eight edges are added at once");

#define BS_TALL (BS_BITS == 8 && !BS_WEIGHTS) // rows and pieces have more edges than lanes of 16 bits can hold
constexpr int kLow = BS_U > 16 ? 4 : BS_U > 8 ? 8 : 16; // batches whose sums such lanes hold, with what is left from before
static_assert(!BS_TALL || BS_U == 8 || BS_U == 16 || BS_U == 32, "batches are counted by bits of the edge's number");

// A lane's part of the sums of a piece.
#if BS_WEIGHTS || BS_TALL
typedef Vector<kCodes, Element> PackedSum; // the bits of a Total
#else
typedef Vector<BS_WORDS * kWide, unsigned> PackedSum;
#endif

struct CodeParams {
    Streams streams;
    Units units;
    const char *x; // rows of `row_bytes`, 16-byte aligned
    void *out; // int32 or float32 (rows, columns)
    const void *values; // of edges, or of edges and heads: int32 or float32; BS_NODES: of columns, a byte each
    PackedSum *partial; // (pieces, slices, lanes)
    int *arrived; // (pieces, slices): how many pieces of a row have arrived, at its first piece; zeros before and after
    unsigned row_bytes;
    int vectors, gathered; // vectors of BS_WORDS words: of the result with its padding, and of a gathered row
    int slices; // each of as many vectors as a group has lanes
    int heads, columns, width, padded; // integers of all heads, of a head, of a head with padding
    unsigned flip; // words ^ flip: signed integers become unsigned ones, larger by `base`
    int base;
    int aligned; // whether four numbers of the result can be stored at once
    // BS_SCALED: sum * row_scale[row] * *scale + *own_scale * own[row] + bias, with one rounding for each step; null: no such factor or
    // addend.
    const float *row_scale, *scale, *own, *own_scale, *bias;
#if BS_OUT == BS_CHAIN
    EpilogueParams epilogue;
#endif
};

BS_INLINE unsigned sum_of_bits(unsigned a, unsigned b, unsigned c) { return a ^ b ^ c; }
BS_INLINE unsigned carry_of_bits(unsigned a, unsigned b, unsigned c) { return (a & b) | (c & (a | b)); }
// Every kParts-th integer of a word, from number k on.
BS_INLINE unsigned spread(unsigned word, int k, unsigned flip)
{
#if BS_BITS == 8 && !BS_SIGNED
    return k ? __byte_perm(word, 0, 0x4341) : word & kMask;
#else
    return ((word >> (k * BS_BITS)) ^ flip) & kMask;
#endif
}

#if BS_FLOATS
typedef float Total; // the type of a row's sum
#else
typedef int Total;
#endif

BS_INLINE unsigned bits_of(int v) { return (unsigned)v; }
BS_INLINE unsigned bits_of(float v) { return bs_bits_of(v); }

#if BS_WEIGHTS
#include "spmm/codes_products.cuh"
#else
struct CodeSums {
    Vector<BS_WORDS * kWide, unsigned> wide;
#if BS_TALL
    unsigned high[BS_WORDS * kWide]; // multiples of 256, in lanes of 16 bits like `wide`
#endif
    unsigned plane[BS_WORDS][3]; // words of weights 1, 2 and 4, not yet in `wide`
    bool counted;                // whether the planes hold anything

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < BS_WORDS * kWide; j++) {
            wide.of[j] = 0;
#if BS_TALL
            high[j] = 0;
#endif
        }
#pragma unroll
        for (int j = 0; j < BS_WORDS * 3; j++)
            plane[j / 3][j % 3] = 0;
        counted = false;
    }

    // Adds the integers of a word, `weight` times, at word i.
    __device__ __forceinline__ void add_plane(int i, unsigned word, unsigned weight, unsigned flip)
    {
#pragma unroll
        for (int k = 0; k < kWide; k++) {
            if constexpr (kSpread == kLaneBits)
                wide.of[i * kWide + k] += weight * spread(word, k, flip);
            else
                wide.of[i * kWide + k] += weight * (((word >> (k / 2 * BS_BITS + k % 2 * 8)) ^ flip) & (kMask & 0x00ff00ffu));
        }
    }

    // Moves the contents of the planes to `wide`. The flipped sign bits add seven times `base` too much, for edges that do not exist. That is
    // subtracted at once, unless carry() was called, which may have left less; `carried` groups all have this surplus.
    __device__ __forceinline__ void settle(unsigned flip, int base, bool carried)
    {
        if (!counted && !carried)
            return;
        const unsigned more = carried ? 0u : 7u * (unsigned)base * (kLaneBits == 32 ? 1u : 0x00010001u);
#pragma unroll
        for (int i = 0; i < BS_WORDS; i++) {
#pragma unroll
            for (int q = 0; q < 3; q++) {
                add_plane(i, plane[i][q], 1u << q, flip);
                plane[i][q] = 0;
            }
#pragma unroll
            for (int k = 0; k < kWide; k++)
                wide.of[i * kWide + k] -= more;
        }
        counted = false;
    }

    // Adds sums of word i over less than a batch, already spread.
    __device__ __forceinline__ void add_spread(int i, const unsigned (&part)[kParts])
    {
#pragma unroll
        for (int k = 0; k < kParts; k++) {
            if constexpr (kSpread == kLaneBits) {
                wide.of[i * kWide + k] += part[k];
            } else {
                wide.of[i * kWide + 2 * k] += part[k] & 0x00ff00ffu;
                wide.of[i * kWide + 2 * k + 1] += (part[k] >> 8) & 0x00ff00ffu;
            }
        }
    }

    __device__ __forceinline__ void add_batch(const Gathered (&codes)[BS_U], unsigned flip)
    {
        counted = true;
#pragma unroll
        for (int i = 0; i < BS_WORDS; i++) {
            unsigned (&p)[3] = plane[i];
#pragma unroll
            for (int u = 0; u < BS_U; u += 8) {
                unsigned two[4], four[2];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const unsigned a = codes[u + 2 * j].of[i], b = codes[u + 2 * j + 1].of[i];
                    two[j] = carry_of_bits(p[0], a, b);
                    p[0] = sum_of_bits(p[0], a, b);
                }
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    four[j] = carry_of_bits(p[1], two[2 * j], two[2 * j + 1]);
                    p[1] = sum_of_bits(p[1], two[2 * j], two[2 * j + 1]);
                }
                const unsigned eight = carry_of_bits(p[2], four[0], four[1]);
                p[2] = sum_of_bits(p[2], four[0], four[1]);
                add_plane(i, eight, 8, flip);
            }
        }
    }

    __device__ __forceinline__ void add_some(const Gathered (&codes)[BS_U], unsigned flip, int from, int to)
    {
        static_assert(BS_U * ((1 << BS_BITS) - 1) < 256 || kSpread > 8, "bytes hold a batch");
        unsigned part[BS_WORDS][kParts];
#pragma unroll
        for (int i = 0; i < BS_WORDS * kParts; i++)
            part[i / kParts][i % kParts] = 0;
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            if (u >= from && u < to)
#pragma unroll
                for (int i = 0; i < BS_WORDS * kParts; i++)
                    part[i / kParts][i % kParts] += spread(codes[u].of[i / kParts], i % kParts, flip);
#pragma unroll
        for (int i = 0; i < BS_WORDS; i++)
            add_spread(i, part[i]);
    }

    __device__ __forceinline__ int excess(int base, int edges) const { return base * edges; }
    __device__ __forceinline__ int excess_of_pieces(int base, int edges) const { return base * edges; }

    // Leaves at most 255 in each lane of `wide`, which then holds 248 more edges.
    __device__ __forceinline__ void carry()
    {
#if BS_TALL
#pragma unroll
        for (int j = 0; j < BS_WORDS * kWide; j++) {
            high[j] += wide.of[j] >> 8 & 0x00ff00ffu;
            wide.of[j] &= 0x00ff00ffu;
        }
#endif
    }

    // Integer j of a word is in part j % kParts, byte j / kParts; that byte is in half byte / 2 of the word that holds all such bytes.
    __device__ __forceinline__ static int lane_of(const unsigned (&words)[BS_WORDS * kWide], int j)
    {
        const int i = j / kEach, in = j % kEach, part = in % kParts, place = in / kParts;
        const int word = kSpread == kLaneBits ? part : 2 * part + place % 2, half = kSpread == kLaneBits ? place : place / 2;
        const unsigned both = words[i * kWide + word];
        return (int)(kLaneBits == 32 ? both : half ? both >> 16 : both & 0xffffu);
    }

    __device__ __forceinline__ void widen(int (&v)[kCodes]) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
#if BS_TALL
            v[j] = lane_of(wide.of, j) + lane_of(high, j) * 256;
#else
            v[j] = lane_of(wide.of, j);
#endif
    }

    // Adds up the lanes of the groups of a warp; `carried`: whether all of them have called carry().
    __device__ __forceinline__ void join(int over, bool carried)
    {
#pragma unroll
        for (int j = 0; j < BS_WORDS * kWide; j++)
            wide.of[j] += __shfl_xor_sync(~0u, wide.of[j], over);
#if BS_TALL
        if (carried)
#pragma unroll
            for (int j = 0; j < BS_WORDS * kWide; j++)
                high[j] += __shfl_xor_sync(~0u, high[j], over);
#endif
    }

    __device__ __forceinline__ void add_to(int (&v)[kCodes], const PackedSum &from) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
#if BS_TALL
            v[j] += (int)from.of[j];
#else
            v[j] += lane_of(from.of, j);
#endif
    }

    __device__ __forceinline__ void leave(PackedSum &slot, int, int surplus) const
    {
#if BS_TALL
        int v[kCodes];
        widen(v);
        PackedSum mine;
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            mine.of[j] = bits_of(v[j] - surplus);
        store_vector(&slot, mine);
#else
        store_vector(&slot, wide);
#endif
    }
};
#endif

#endif
