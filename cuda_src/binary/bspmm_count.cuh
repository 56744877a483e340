// Vertical counters: bit p of 32 counts in the bits of one word, so that one instruction adds to 32 features at once.
#ifndef BITSPARSE_BSPMM_COUNT_CUH
#define BITSPARSE_BSPMM_COUNT_CUH

#include "csr/streams.cuh"
#include "finish/chain.cuh"

// BS_OUT, what the counts of a row become: int32 sums, bits by integer thresholds, or the float chain of an epilogue.
#define BS_SUMS 0
#define BS_SIGNS 1
#define BS_CHAIN 2

// BS_MOST: planes of a sum over the pieces of a row; no row has 1 << BS_MOST edges or more.
#ifndef BS_MOST
#define BS_MOST 24
#endif

// Where a lane stands in its team. A team is `team` groups of 1 << across lanes and adds up a row, or a piece of one. The lanes of a group
// hold neighbouring words of a gathered row, BS_WORDS each; the groups take different edges at the same time.
struct CountLane {
    int lane;     // number within the team
    int vector;   // which BS_WORDS words of the slice this lane holds
    int part;     // which of the edges this lane takes
    int first;    // first word of the slice in the row
    int at;       // first word of the slice that this lane has once the team has added up (further parts have copies)
};

struct CountParams {
    Streams streams;
    const u32 *words;     // features, packed: (columns of the pattern, width)
    void *out;            // (rows, features) int32 or float, (rows, width) words
    const u32 *limits;    // bit-sliced thresholds (classes, limit_planes, width); null: one threshold for all
    const u32 *flips;     // (classes, width)
    const int *class_of;  // of the rows, or null
    u32 *partial;         // (pieces, slices, words of a slice, planes of a slot)
    int *arrived;         // (pieces, slices): how many pieces of a row have arrived, at its first piece; zeros before and after
    const Index *order;   // the rows of the streams one by one, with rows of equally many batches next to each other; or null
    const Index *bounds;  // first edge and end of each of these rows, as pairs; or null
    const Index *piece_edges; // (pieces, 4): end, edges of the row, number of its first piece, its pieces; or null
    bs_i64 rows;
    int width, features;
    int across, slices;
    int bipolar, mean;
    int limit_planes, base; // `base` has been added to the thresholds; no row is longer (0 where no bit means -1)
    int limit, flip;        // the one threshold and direction
    int aligned;            // four sums can be stored at once
    int piece_blocks;       // blocks of the grid that take pieces; they come first
#if BS_OUT == BS_CHAIN
    EpilogueParams epilogue;
#endif
};

BS_INLINE u32 xor3(u32 a, u32 b, u32 c)
{
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

BS_INLINE u32 majority(u32 a, u32 b, u32 c)
{
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// plane += n bits of weight 2^p each, with carries into higher planes. n is a power of two.
template <int p, int n, int planes> BS_INLINE void add_bits(u32 (&plane)[planes], const u32 (&x)[n])
{
    if constexpr (p >= planes) {
        return;
    } else if constexpr (n == 1) {
        const u32 carry[1] = {plane[p] & x[0]};
        plane[p] ^= x[0];
        add_bits<p + 1, 1, planes>(plane, carry);
    } else {
        u32 carry[n / 2];
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            carry[i] = majority(plane[p], x[2 * i], x[2 * i + 1]);
            plane[p] = xor3(plane[p], x[2 * i], x[2 * i + 1]);
        }
        add_bits<p + 1, n / 2, planes>(plane, carry);
    }
}

// sum = a + b, with one more plane.
template <int n> BS_INLINE void add_counts(u32 *sum, const u32 (&a)[n], const u32 (&b)[n])
{
    u32 carry = a[0] & b[0];
    sum[0] = a[0] ^ b[0];
#pragma unroll
    for (int p = 1; p < n; p++) {
        const u32 s = xor3(a[p], b[p], carry);
        carry = majority(a[p], b[p], carry);
        sum[p] = s;
    }
    sum[n] = carry;
}

// sum += x, which has n planes.
template <int n, int planes> BS_INLINE void add_to_counts(u32 (&sum)[planes], const u32 (&x)[n])
{
    u32 carry = 0;
#pragma unroll
    for (int p = 0; p < planes; p++) {
        const u32 with = p < n ? x[p < n ? p : 0] : 0;
        const u32 s = xor3(sum[p], with, carry);
        carry = majority(sum[p], with, carry);
        sum[p] = s;
    }
}

// Adds up the counts of a team, over lanes whose `part` differs in one bit and which are `step` times that apart. First the two lanes
// exchange halves of their words, as long as they have two (lane `part` keeps the words from part * left on, modulo all of them); then both
// get the whole sum. Each step adds a plane to the counts. Called by whole warps.
template <int team, int words, int bit, int planes, int left, int total>
BS_INLINE void add_across(const u32 (&count)[words][planes], int part, int step, u32 (&sum)[left][total])
{
    if constexpr (team == 1) {
        static_assert(words == left && planes == total, "a plane more for every two lanes");
#pragma unroll
        for (int w = 0; w < words; w++)
#pragma unroll
            for (int p = 0; p < total; p++)
                sum[w][p] = count[w][p];
    } else {
        constexpr int kept = words > 1 ? words / 2 : 1, next = words == 1 ? 2 * bit : words == 2 ? BS_WORDS : bit / 2;
        const bool upper = words > 1 && (part & bit);
        u32 joined[kept][planes + 1];
#pragma unroll
        for (int w = 0; w < kept; w++) {
            u32 mine[planes], theirs[planes];
#pragma unroll
            for (int p = 0; p < planes; p++) {
                const u32 low = count[w][p], high = count[words > 1 ? w + kept : w][p];
                mine[p] = upper ? high : low;
                theirs[p] = __shfl_xor_sync(~0u, upper ? low : high, bit * step);
            }
            add_counts(joined[w], mine, theirs);
        }
        add_across<team / 2, kept, next, planes + 1, left, total>(joined, part, step, sum);
    }
}

#endif
