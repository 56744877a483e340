// From the vertical counts of a row to what is stored: int32 sums, bits by integer thresholds, or the float chain of an epilogue.
#ifndef BITSPARSE_BSPMM_FINISH_CUH
#define BITSPARSE_BSPMM_FINISH_CUH

// BS_LIMITS: every feature has a threshold of its own, else one threshold serves all.
#include "binary/bspmm_count.cuh"
#include "finish/store.cuh"

// A row that a team has counted; if not `there`, nothing is to be stored.
struct CountedRow {
    Index row, edges;
    bool there;
};

// Bit i is set where feature 32 word + i exists.
BS_INLINE u32 features_of_word(const CountParams &p, int word)
{
    const int left = p.features - 32 * word;
    return left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0;
}

// Whether each count reaches the one threshold for this row: 2c - edges >= limit.
template <int words, int n>
BS_INLINE void reach_one_limit(const CountParams &p, const CountedRow &r, const u32 (&plane)[words][n], u32 (&ones)[words])
{
    const bs_i64 limit = p.bipolar ? ((bs_i64)p.limit + r.edges + 1) >> 1 : p.limit;
    const u32 k = ~(limit > 0 ? (u32)limit : 0), none = limit <= (bs_i64)r.edges ? ~0u : 0, flip = p.flip ? ~0u : 0;
#pragma unroll
    for (int w = 0; w < words; w++)
        ones[w] = ~0u; // from the lowest plane up, since a higher plane overrides it
#pragma unroll
    for (int q = 0; q < n; q++) {
        const u32 missing = (u32)((int)(k << (31 - q)) >> 31);
#pragma unroll
        for (int w = 0; w < words; w++)
            ones[w] = majority(plane[w][q], ones[w], missing);
    }
#pragma unroll
    for (int w = 0; w < words; w++)
        ones[w] = (ones[w] & none) ^ flip;
}

// Loads neighbouring words; their number is a power of two, and they are aligned to it.
template <int words> BS_INLINE void load_words(u32 (&to)[words], const u32 *from)
{
    if constexpr (words == 4) {
        const uint4 v = __ldg((const uint4 *)from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (words == 2) {
        const uint2 v = __ldg((const uint2 *)from);
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = __ldg(from);
    }
}

// The same with a threshold for each feature: compares 2c + (base - edges) with thresholds that include base.
template <int words, int n>
BS_INLINE void reach_limits(const CountParams &p, const CountedRow &r, int word, const u32 (&plane)[words][n], u32 (&ones)[words])
{
    const bs_u64 line = p.class_of ? (bs_u64)(unsigned)__ldg(p.class_of + r.row) : 0;
    const u32 *limits = p.limits + line * (unsigned)(p.limit_planes * p.width) + word;
    const u32 raise = p.bipolar ? (u32)p.base - (u32)r.edges : 0;
    u32 carry[words];
#pragma unroll
    for (int w = 0; w < words; w++)
        carry[w] = 0, ones[w] = ~0u;
    constexpr int together = words == 4 ? 4 : 8; // planes loaded together
#pragma unroll
    for (int q0 = 0; q0 < 32; q0 += together) {
        if (q0 >= p.limit_planes)
            break;
        u32 limit[together][words];
#pragma unroll
        for (int i = 0; i < together; i++) {
#pragma unroll
            for (int w = 0; w < words; w++)
                limit[i][w] = 0;
            if (q0 + i < p.limit_planes)
                load_words(limit[i], limits + (q0 + i) * p.width);
        }
#pragma unroll
        for (int i = 0; i < together; i++) {
            const int q = q0 + i;
            const u32 more = (u32)((int)(raise << (31 - q)) >> 31);
#pragma unroll
            for (int w = 0; w < words; w++) {
                const u32 twice = q > 0 && q <= n ? plane[w][q > 0 && q <= n ? q - 1 : 0] : 0, once = q < n ? plane[w][q < n ? q : 0] : 0;
                const u32 value = p.bipolar ? twice : once, sum = xor3(value, more, carry[w]);
                carry[w] = majority(value, more, carry[w]);
                ones[w] = majority(sum, ones[w], ~limit[i][w]);
            }
        }
    }
    u32 flip[words];
    load_words(flip, p.flips + line * (unsigned)p.width + word);
#pragma unroll
    for (int w = 0; w < words; w++)
        ones[w] ^= flip[w];
}

// Stores the bits of neighbouring words of a row; their number is a power of two.
template <int words, int n> BS_INLINE void store_signs(const CountParams &p, const CountedRow &r, int word, const u32 (&plane)[words][n])
{
    if (!r.there || word >= p.width)
        return;
    u32 ones[words];
#if BS_LIMITS
    reach_limits(p, r, word, plane, ones);
#else
    reach_one_limit(p, r, plane, ones);
#endif
#pragma unroll
    for (int w = 0; w < words; w++)
        ones[w] &= features_of_word(p, word + w);
    u32 *to = (u32 *)p.out + (bs_u64)r.row * (unsigned)p.width + word;
    if constexpr (words == 4)
        *(uint4 *)to = make_uint4(ones[0], ones[1], ones[2], ones[3]);
    else if constexpr (words == 2)
        *(uint2 *)to = make_uint2(ones[0], ones[1]);
    else
        *to = ones[0];
}

#if BS_OUT != BS_SIGNS
// Counts 4j .. 4j + 3 and 16 + 4j .. 16 + 4j + 3 of a word whose planes are in lane `source`; `top` planes are in use. Called by whole
// warps.
template <int n> BS_INLINE void counts_of_word(const u32 (&plane)[n], int top, int source, int j, int (&count)[8])
{
    constexpr int chunks = (n + 7) / 8;
    u32 low[chunks], high[chunks]; // one byte per count
#pragma unroll
    for (int k = 0; k < chunks; k++)
        low[k] = high[k] = 0;
#pragma unroll
    for (int q = 0; q < n; q++) {
        if (q >= top)
            break;
        const u32 bits = __shfl_sync(~0u, plane[q], source) >> 4 * j;
        // The product puts bit i of four at 8i; no two of its terms meet.
        low[q / 8] |= ((bits & 15u) * 0x00204081u & 0x01010101u) << (q & 7);
        high[q / 8] |= ((bits >> 16 & 15u) * 0x00204081u & 0x01010101u) << (q & 7);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        count[i] = (int)(low[0] >> 8 * i & 255u), count[4 + i] = (int)(high[0] >> 8 * i & 255u);
#pragma unroll
        for (int k = 1; k < chunks; k++) {
            count[i] |= (int)(low[k] >> 8 * i & 255u) << 8 * k;
            count[4 + i] |= (int)(high[k] >> 8 * i & 255u) << 8 * k;
        }
    }
}

// Stores eight sums of a row: columns `column` .. `column` + 3 and those 16 further.
BS_INLINE void store_sums(const CountParams &p, Index row, int column, const int (&sum)[8])
{
    int *to = (int *)p.out + (bs_u64)row * (unsigned)p.features + column;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int left = p.features - column - 16 * half;
        if (p.aligned) {
            if (left > 0)
                *(int4 *)(to + 16 * half) = make_int4(sum[4 * half], sum[4 * half + 1], sum[4 * half + 2], sum[4 * half + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left)
                    to[16 * half + i] = sum[4 * half + i];
        }
    }
}

#if BS_OUT == BS_CHAIN
// Applies the chain to eight sums; returns their bits at their places in a word, or stores the floats.
BS_INLINE u32 chain_of_sums(const CountParams &p, const CountedRow &r, int column, const int (&sum)[8])
{
    const EpilogueParams &e = p.epilogue;
    const EpilogueSpot spot = {0, (int)r.row, column, 16};
    RowValues<false> row;
    ColumnValues<false> columns;
    row.load(e, spot);
    columns.load(e, spot);
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = (float)sum[i];
        if (p.mean)
            v[i] = bs_divf(v[i], (float)max(r.edges, (Index)1));
    }
    apply_chain<false, false>(e, row, columns, spot, v);
    if (!(e.steps & kBits)) {
        store_floats(e, spot, (unsigned char *)e.out + 4 * ((bs_u64)r.row * (unsigned)e.n + (unsigned)column), v);
        return 0;
    }
    u32 bits = 0;
    bool nan = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bits |= (u32)(v[i] >= 0.0f) << ((i & 3) + 4 * (i & 4));
        nan = nan || (v[i] != v[i] && column + (i & 3) + 4 * (i & 4) < e.n);
    }
    if (nan)
        *e.nan = 1;
    return bits << (column & 15);
}
#endif

// Stores eight sums of a word, or what they become; four lanes (numbered j) share a word. `mine`: this lane has such sums. Called by whole
// warps.
BS_INLINE void store_numbers(const CountParams &p, const CountedRow &r, int word, int j, bool mine, int (&sum)[8])
{
    const int column = 32 * word + 4 * j;
    if (p.bipolar) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = 2 * sum[i] - (int)r.edges;
    }
#if BS_OUT == BS_SUMS
    if (mine && 32 * word < p.features)
        store_sums(p, r.row, column, sum);
#else
    u32 bits = mine && 32 * word < p.features ? chain_of_sums(p, r, column, sum) : 0;
    if (!(p.epilogue.steps & kBits))
        return;
    bits |= __shfl_xor_sync(~0u, bits, 1);
    bits |= __shfl_xor_sync(~0u, bits, 2);
    if (mine && j == 0 && word < p.width)
        ((u32 *)p.out)[(bs_u64)r.row * (unsigned)p.width + word] = bits & features_of_word(p, word);
#endif
}

// How many planes the counts of a warp's rows need. Called by whole warps.
BS_INLINE int planes_in_use(const CountedRow &r) { return 32 - __clz((int)__reduce_max_sync(~0u, r.there ? (u32)r.edges : 0u)); }
#endif

#if BS_OUT != BS_SIGNS
// Finishes the rows that teams of a warp have counted, as far as they are there. Every four lanes take a word at a time, so that their
// stores are adjacent and no lane waits for teams that are still counting. A lane has `left` words. Called by whole warps.
template <int left, int n>
BS_INLINE void finish_numbers(const CountParams &p, const CountLane &me, const CountedRow &r, const u32 (&plane)[left][n])
{
    __shared__ int leaders[BS_THREADS / 32][32];
    int (&leader)[32] = leaders[threadIdx.x >> 5];
    const int lane = (int)threadIdx.x & 31, j = lane & 3, top = planes_in_use(r);
    const u32 mask = __ballot_sync(~0u, r.there && me.lane == 0);
    const int rows = __popc(mask), lanes = BS_WORDS / left << p.across; // lanes: those that have words of a row
    if (mask >> lane & 1u)
        leader[__popc(mask & ((1u << lane) - 1))] = lane;
    __syncwarp();
#pragma unroll 1
    for (int w = 0; w < left; w++) {
        u32 mine[1][n];
#pragma unroll
        for (int q = 0; q < n; q++) {
            mine[0][q] = plane[0][q];
#pragma unroll
            for (int other = 1; other < left; other++)
                mine[0][q] = w == other ? plane[other][q] : mine[0][q];
        }
#pragma unroll 1
        for (int turn = 0; turn < rows * lanes; turn += 8) {
            const int item = min(turn + (lane >> 2), rows * lanes - 1), from = item & (lanes - 1), first = leader[item / lanes];
            const CountedRow one = {__shfl_sync(~0u, r.row, first), __shfl_sync(~0u, r.edges, first), turn + (lane >> 2) < rows * lanes};
            // The words of a row, in the order of the lanes of a group and then of their parts.
            const int vector = from / (BS_WORDS / left), part = from & (BS_WORDS / left - 1);
            int sum[8];
            counts_of_word(mine[0], top, first + (part << p.across) + vector, j, sum);
            store_numbers(p, one, me.first + vector * BS_WORDS + part * left + w, j, one.there, sum);
        }
    }
    __syncwarp(); // before the table is written again
}
#endif

// Clears the padding words that no lane has: rows are padded to four words, and a row of so few features fills only `filled` of them.
BS_INLINE void clear_pad_words(const CountParams &p, const CountedRow &r, int word, int filled)
{
    bool bits = BS_OUT == BS_SIGNS;
#if BS_OUT == BS_CHAIN
    bits = p.epilogue.steps & kBits;
#endif
    if (bits && r.there && word >= filled && word < 4)
        ((u32 *)p.out)[(bs_u64)r.row * (unsigned)p.width + word] = 0;
}

#endif
