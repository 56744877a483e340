// Sums of packed integers as they lie in the words of a gathered row, and what becomes of those of a complete row.
//
// Eight edges at a time are added bit by bit: three words with the same weight become two (a carry-save adder is two LOP3), whatever integers
// their bits belong to, until four words are left, of weights 1, 1, 2 and 4. Only these are spread, into lanes of 16 bits (of 32, for
// integers of 16 bits); those of 4 and 2 bits by way of bytes, which hold a batch. A row or piece has no more edges than such a lane can
// hold, so nothing is asked on the way. With values a lane has an integer or a float a register instead.
#ifndef BITSPARSE_SPMM_CODES_CUH
#define BITSPARSE_SPMM_CODES_CUH

#include "csr_elements.cuh"

#ifndef BS_OUT
#define BS_OUT 0
#endif
#ifndef BS_MEAN
#define BS_MEAN 0
#endif
#ifndef BS_WEIGHTS
#define BS_WEIGHTS 0
#endif
#ifndef BS_SIGNED // of integers of 8 bits; others are told by `flip`
#define BS_SIGNED 0
#endif
#define BS_CHAIN 2
#define BS_FLOATS (BS_WEIGHTS == 2)
#define BS_DIVIDES (BS_MEAN || (BS_OUT == 1 && !BS_FLOATS))
#if BS_OUT == BS_CHAIN
#include "epilogue_store.cuh"
#endif

constexpr int kEach = 32 / BS_BITS;         // integers of a word
constexpr int kCodes = BS_WORDS * kEach;    // of a lane
constexpr int kLaneBits = BS_BITS == 16 ? 32 : 16;
constexpr int kSpread = BS_BITS > 8 ? 32 : BS_BITS == 8 ? 16 : 8; // bits of a lane that integers are spread into first
constexpr int kParts = kSpread / BS_BITS;                         // words that a word becomes
constexpr int kWide = kEach * kLaneBits / 32;                     // words that it becomes in the end
constexpr unsigned kMask = (kSpread == 32 ? 1u : kSpread == 16 ? 0x00010001u : 0x01010101u) * ((1u << BS_BITS) - 1u);
static_assert(BS_BITS == 2 || BS_BITS == 4 || BS_BITS == 8 || BS_BITS == 16, "integers of 2, 4, 8 or 16 bits");
static_assert(BS_U % 8 == 0, "eight edges are added at once");

// A lane's part of a piece.
#if BS_WEIGHTS
typedef Vector<kCodes, Element> PackedSum; // the bits of a Total
#else
typedef Vector<BS_WORDS * kWide, unsigned> PackedSum;
#endif

struct CodeParams {
    Streams streams;
    Units units;
    const char *x;      // rows of `row_bytes`, 16-byte aligned
    void *out;          // int32 or float32 (rows, columns)
    const void *values; // of the edges: int32 or float32
    PackedSum *partial; // (pieces, slices, lanes)
    int *arrived;       // (pieces, slices): how many pieces of a row are there, at the first one's place; zeros before and after
    unsigned row_bytes;
    int vectors, gathered; // of BS_WORDS words, of the result and its pads, and of a gathered row
    int slices;            // of as many vectors as a group has lanes
    int heads, columns, width, padded; // integers of all heads, of a head, of a head with its pads
    unsigned flip;         // exclusive-or-ed to words: signed integers become unsigned ones, larger by `base`
    int base;
    int aligned; // whether four numbers of the result can be stored at once
#if BS_OUT == BS_CHAIN
    EpilogueParams epilogue;
#endif
};

BS_INLINE unsigned sum_of_bits(unsigned a, unsigned b, unsigned c) { return a ^ b ^ c; }
BS_INLINE unsigned carry_of_bits(unsigned a, unsigned b, unsigned c) { return (a & b) | (c & (a | b)); }
// Every kParts-th integer of a word from number k on.
BS_INLINE unsigned spread(unsigned word, int k, unsigned flip)
{
#if BS_BITS == 8 && !BS_SIGNED
    return k ? __byte_perm(word, 0, 0x4341) : word & kMask;
#else
    return ((word >> (k * BS_BITS)) ^ flip) & kMask;
#endif
}

#if BS_FLOATS
typedef float Total; // what a sum of a row is
#else
typedef int Total;
#endif

BS_INLINE unsigned bits_of(int v) { return (unsigned)v; }
BS_INLINE unsigned bits_of(float v) { return bs_bits_of(v); }

#if BS_WEIGHTS
struct CodeSums {
    Total of[kCodes], weights;

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            of[j] = 0;
        weights = 0;
    }

    // Weights of edges that are not there do not matter. Floats: an integer becomes the fraction of 2^23, which is then taken off.
    // The words are something new to the compiler here, which would otherwise do what whole and other batches have in common before it knows
    // which it is, for eight edges at once.
    __device__ __forceinline__ void add_products(const Gathered (&codes)[BS_U], const Total (&w)[BS_U], unsigned flip, int base, int from, int to)
    {
        constexpr int shifts = BS_BITS < 8 ? 8 / BS_BITS : 1, places = kEach / shifts;
#if BS_FLOATS
        const float zero = 8388608.0f + (float)base;
#endif
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            if (u >= from && u < to) {
#pragma unroll
                for (int i = 0; i < BS_WORDS * shifts; i++) {
                    unsigned all = codes[u].of[i / shifts];
                    asm volatile("" : "+r"(all));
                    const unsigned word = shifts > 1 ? spread(all, i % shifts, flip) : all ^ flip;
#pragma unroll
                    for (int k = 0; k < places; k++) {
                        Total &sum = of[i / shifts * kEach + k * shifts + i % shifts];
#if BS_FLOATS
                        const unsigned from_word = places == 2 ? (k ? 0x7432u : 0x7410u) : 0x7440u + (unsigned)k;
                        sum = bs_fmaf(bs_float_of(__byte_perm(word, 0x4b000000u, from_word)) - zero, w[u], sum);
#else
                        sum += w[u] * (int)((word >> (k * 32 / places)) & (places == 2 ? 0xffffu : 0xffu));
#endif
                    }
                }
#if !BS_FLOATS
                weights += w[u];
#endif
            }
    }

    // What the sums are too large by, and those of a row's pieces.
    __device__ __forceinline__ Total excess(int base, int) const { return BS_FLOATS ? 0 : base * weights; }
    __device__ __forceinline__ Total excess_of_pieces(int, int) const { return 0; }

    __device__ __forceinline__ void widen(Total (&v)[kCodes]) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            v[j] = of[j];
    }

    __device__ __forceinline__ void join(int over)
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            of[j] += __shfl_xor_sync(~0u, of[j], over);
        weights += __shfl_xor_sync(~0u, weights, over);
    }

    __device__ __forceinline__ void leave(PackedSum &slot, int base) const
    {
        PackedSum mine;
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            mine.of[j] = bits_of(of[j] - excess(base, 0));
        store_vector(&slot, mine);
    }

    __device__ __forceinline__ void add_to(Total (&v)[kCodes], const PackedSum &one) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
#if BS_FLOATS
            v[j] += bs_float_of(one.of[j]);
#else
            v[j] += (int)one.of[j];
#endif
    }
};
#else
struct CodeSums {
    PackedSum wide;

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < BS_WORDS * kWide; j++)
            wide.of[j] = 0;
    }

    // Sums of word i of up to 17 edges, spread.
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
#pragma unroll
        for (int i = 0; i < BS_WORDS; i++) {
            unsigned bytes[kParts];
#pragma unroll
            for (int k = 0; k < kParts; k++)
                bytes[k] = 0;
#pragma unroll
            for (int u = 0; u < BS_U; u += 8) {
                unsigned w[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    w[j] = codes[u + j].of[i];
                const unsigned s0 = sum_of_bits(w[0], w[1], w[2]), c0 = carry_of_bits(w[0], w[1], w[2]);
                const unsigned s1 = sum_of_bits(w[3], w[4], w[5]), c1 = carry_of_bits(w[3], w[4], w[5]);
                const unsigned one = sum_of_bits(s0, s1, w[6]), c2 = carry_of_bits(s0, s1, w[6]);
                const unsigned two = sum_of_bits(c0, c1, c2), four = carry_of_bits(c0, c1, c2);
#pragma unroll
                for (int k = 0; k < kParts; k++) {
                    unsigned &sum = kSpread == kLaneBits ? wide.of[i * kWide + k] : bytes[k];
                    sum += spread(one, k, flip) + spread(w[7], k, flip);
                    sum += 2u * spread(two, k, flip);
                    sum += 4u * spread(four, k, flip);
                }
                static_assert(BS_U * ((1 << BS_BITS) - 1) < 256 || kSpread > 8, "bytes hold a batch");
            }
            if constexpr (kSpread != kLaneBits)
                add_spread(i, bytes);
        }
    }

    __device__ __forceinline__ void add_some(const Gathered (&codes)[BS_U], unsigned flip, int from, int to)
    {
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

    __device__ __forceinline__ void add_to(int (&v)[kCodes], const PackedSum &from) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++) {
            // Integer j of a word is in part j % kParts, byte j / kParts, which is in half byte / 2 of the word that has all such bytes.
            const int i = j / kEach, in = j % kEach, part = in % kParts, place = in / kParts;
            const int word = kSpread == kLaneBits ? part : 2 * part + place % 2, half = kSpread == kLaneBits ? place : place / 2;
            const unsigned both = from.of[i * kWide + word];
            v[j] += (int)(kLaneBits == 32 ? both : half ? both >> 16 : both & 0xffffu);
        }
    }

    __device__ __forceinline__ void widen(int (&v)[kCodes]) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            v[j] = 0;
        add_to(v, wide);
    }

    __device__ __forceinline__ void join(int over)
    {
#pragma unroll
        for (int j = 0; j < BS_WORDS * kWide; j++)
            wide.of[j] += __shfl_xor_sync(~0u, wide.of[j], over);
    }

    __device__ __forceinline__ void leave(PackedSum &slot, int) const { store_vector(&slot, wide); }
};
#endif

// ---- a complete row
// A quotient of integers below 2^31, rounded as a division is; `inverse` is 1 / edges, rounded.
BS_INLINE float mean_of_codes(int sum, float edges, float inverse) { return bs_div_knownf((float)sum, edges, inverse); }
BS_INLINE float mean_of_codes(float sum, float edges, float inverse) { return fabsf(sum) <= 1.0e38f ? bs_div_knownf(sum, edges, inverse) : bs_mulf(sum, inverse); }

#if BS_OUT == BS_CHAIN
// Planes of an octet's codes, a byte of each; all that belong to a plane of the row lie `words` words apart.
BS_INLINE void store_plane_bytes(const EpilogueParams &e, Index row, int column, u32 (&code)[8])
{
    unsigned char *to = (unsigned char *)e.out + 4 * ((bs_u64)row * (unsigned)(e.bits * e.words)) + (column >> 3);
#pragma unroll 1
    for (int plane = 0; plane < e.bits; plane += 4) {
        const u32 bytes = plane_bytes(four_bits(code));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (plane + k < e.bits)
                *to = (unsigned char)(bytes >> 8 * k);
            to += 4 * e.words;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] >>= 4;
    }
}

// Eight sums of a row from `column` on, which may lie in the pads of the result.
BS_INLINE void finish_octet(const CodeParams &p, Index row, int column, float (&v)[8])
{
    const EpilogueParams &e = p.epilogue;
    const EpilogueSpot spot = {0, (int)row, column, 4};
    const int left = e.n - column;
    u32 code[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        code[i] = 0;
    if (left > 0) {
        RowValues<false> rows;
        ColumnValues<false> columns;
        rows.load(e, spot);
        columns.load(e, spot);
        apply_chain<false, false>(e, rows, columns, spot, v);
        if (!(e.steps & kBits)) {
            store_floats(e, spot, (unsigned char *)e.out + 4 * ((bs_u64)row * (unsigned)e.n + (unsigned)column), v);
            return;
        }
        if (!(e.steps & kQuick) || !codes_quickly(e, grid_at(e, 0, (int)row, column), v, code))
            if (codes_exactly<false>(e, spot, v, code, 0u))
                *e.nan = 1;
        if (left < 8)
#pragma unroll
            for (int i = 0; i < 8; i++)
                code[i] = i < left ? code[i] : 0;
    } else if (!(e.steps & kBits)) {
        return;
    }
    if (e.steps & kWhole)
        store_whole<false>(e, spot, (unsigned char *)e.out + 4 * ((bs_u64)row * (unsigned)e.words) + (bs_i64)(column >> 3) * e.bits, code);
    else if (column >> 3 < 4 * e.words)
        store_plane_bytes(e, row, column, code);
}
#endif

// The integers of a lane's vector.
BS_INLINE void finish_row(const CodeParams &p, Index row, Index edges, int vector, Total (&v)[kCodes])
{
#if BS_DIVIDES
    const float many = (float)max(edges, (Index)1), inverse = bs_divf(1.0f, many);
#endif
#if BS_OUT == BS_CHAIN
#pragma unroll 1
    for (int c = 0; c < kCodes; c += 8) { // going round: the chain stands in the code once
        float f[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
#if BS_DIVIDES
            f[j] = mean_of_codes(v[j], many, inverse);
#else
            f[j] = (float)v[j];
#endif
#pragma unroll
        for (int j = 0; j < kCodes - 8; j++)
            v[j] = v[j + 8];
        finish_octet(p, row, vector * kCodes + c, f);
    }
#else
    const int first = vector * kCodes, head = p.heads > 1 ? first / p.padded : 0, column = first - head * p.padded;
    const int left = p.width - column;
    unsigned *const to = (unsigned *)p.out + (bs_u64)row * (unsigned)p.columns + (unsigned)(head * p.width + column);
#pragma unroll
    for (int c = 0; c < kCodes; c += 4) {
        unsigned of[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#if BS_DIVIDES
            of[j] = bs_bits_of(mean_of_codes(v[c + j], many, inverse));
#else
            of[j] = bits_of(v[c + j]);
#endif
        if (p.aligned && left >= c + 4) {
            *(uint4 *)(to + c) = make_uint4(of[0], of[1], of[2], of[3]);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (c + j < left)
                    to[c + j] = of[j];
        }
    }
#endif
}

#endif
