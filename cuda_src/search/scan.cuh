// How a search turns counts in registers into candidates in memory, the same for warps and warpgroups.
//
// A warp owns 16 queries (BS_MI times), which are whole rows of the tile of counts, so the candidates of a row belong to one warp. One or
// two instructions compare a count with the bound of its row, for 16 counts of a thread together. This quick test lets some counts pass
// wrongly, but never drops one wrongly. Counts that pass go into a queue in shared memory. The queue is tested exactly, 32 counts at a
// time, when it is rather full or after eight tiles: the exact test loads the ones of the rows from memory, and a warp that waits for them
// delays its warpgroup. In global memory a row has room for a few more candidates than k. When they fill it, the k best stay, and the worst
// of these tightens the test, here and, through `limits`, in the other parts of the database.
//
// Compile-time: BS_JACCARD (counts are compared with fractions of the rows' ones, otherwise with halves of them), BS_PAIRS (one test for
// all, and every count that passes is a pair).
#ifndef BITSPARSE_SEARCH_SCAN_CUH
#define BITSPARSE_SEARCH_SCAN_CUH

#include "common/neighbours.h"
#include "common/ptx.cuh"

#ifndef BS_MI
#define BS_MI 1
#endif

// Replaces the number of ones for a row that must not be found.
constexpr int kExcluded = 1 << 20;
constexpr int kQueue = 768; // per warp; a group of counts takes up to 512
#ifdef BS_PAIRS
constexpr int kLinger = 0;
#else
constexpr int kLinger = 128; // if more than this is queued, it is tested right after its tile
#endif
constexpr int kTiles = 8; // the queue is tested after at most this many tiles
constexpr int kGroup = 4; // blocks of 8 columns that are tested together
// An entry of the queue: count << kCountShift | query of the warp << kRowShift | column after the first one of the queue.
constexpr int kRowShift = BS_MI == 1 ? 11 : 10, kCountShift = 15;

struct ScanParams {
    const u32 *queries, *database; // rows of `width` words
    const int *query_ones, *ones; // of the database: negative for rows that must not be found
    const int *terms; // of the database, in whole tiles: a further number that a count is compared with
    u64 *entries; // (parts, n_queries, room): key << 32 | row
    int *counts; // (parts, n_queries)
    u32 *limits; // (n_queries): no answer has a larger key
    int n_queries, n, width, k, room, jaccard;
    int q_tiles, parts, part_tiles, n_tiles; // tiles of queries, parts of the database, tiles of a part and of all
    // pairs
    const int *windows; // first and last tile of the database for each tile of queries
    int4 *pairs; // query, row, ones in common
    u64 *found;
    long long bound, room_pairs;
    int weight, share, triangle;
};

#ifdef BS_JACCARD
constexpr int kJaccard = 1;
typedef float Quick;
// Integers below 2^23 as the floats of the same bits: a multiply-add of these rounds to a whole unit, so counts need no conversion.
BS_INLINE Quick quick_of(long long x)
{
    const int limited = (int)(x < -8000000 ? -8000000 : x > 8000000 ? 8000000 : x);
    return __uint_as_float(limited < 0 ? 0x80000000u | (u32)-limited : (u32)limited);
}
BS_INLINE Quick quick_value(int count, int term, float share)
{
    return __fmaf_rn(-share, __uint_as_float((u32)term), __uint_as_float((u32)count));
}
BS_INLINE Quick larger(Quick a, Quick b) { return fmaxf(a, b); }
#define BS_LOWEST __uint_as_float(0xff800000u)
#define BS_HIGHEST __uint_as_float(0x7f800000u)
#else
constexpr int kJaccard = 0;
typedef int Quick;
BS_INLINE Quick quick_of(long long x) { return (int)(x < -8000000 ? -8000000 : x > 8000000 ? 8000000 : x); }
BS_INLINE Quick quick_value(int count, int term, float) { return count + term; }
BS_INLINE Quick larger(Quick a, Quick b) { return max(a, b); }
#define BS_LOWEST (-2147483647 - 1)
#define BS_HIGHEST 2147483647
#endif

// The test for the next counts of a query, and how many candidates it has.
struct Row {
    bs_nearer test;
    u32 key; // candidates above it are rejected
    int count, ones, valid;
    int tightened; // in this tile: of equal keys, lower rows may still come
};

struct WarpMemory {
    Row rows[16 * BS_MI];
    u32 queue[kQueue];
    int queued;
};

BS_INLINE int lane_id() { return threadIdx.x & 31; }
BS_INLINE u64 shuffled(u64 x, int by) { return __shfl_xor_sync(0xffffffffu, x, by); }

struct Scanner {
    const ScanParams &g;
    WarpMemory &m;
    int part, row0; // row0: the warp's first query
    int queue_column; // the queue's first column
    Quick quick[BS_MI][2];
    float share[BS_MI][2];
    u32 polled;

    __device__ __forceinline__ Scanner(const ScanParams &params, WarpMemory &memory)
        : g(params), m(memory), part(0), row0(0), queue_column(0), polled(BS_FARTHEST)
    {
    }

    __device__ __forceinline__ u64 *entries_of(int i) const { return g.entries + ((long long)part * g.n_queries + row0 + i) * g.room; }

    __device__ __forceinline__ void begin(int at_part, int first_row, int column)
    {
        part = at_part, row0 = first_row, queue_column = column;
        __syncwarp();
        if (lane_id() < 16 * BS_MI) {
            Row row;
            row.valid = row0 + lane_id() < g.n_queries;
            row.count = row.tightened = 0;
            row.ones = row.valid ? g.query_ones[row0 + lane_id()] : 0;
            row.key = BS_FARTHEST;
#ifdef BS_PAIRS
            row.test.weight = g.weight, row.test.share = g.share, row.test.bound = g.share * (long long)row.ones + g.bound;
#else
            row.test.weight = row.test.share = 0, row.test.bound = 0;
            if (row.valid)
                row.key = __ldcg(g.limits + row0 + lane_id());
            if (row.key != BS_FARTHEST)
                row.test = bs_nearer_than(kJaccard, row.key, row.ones, 1);
#endif
            m.rows[lane_id()] = row;
        }
        if (lane_id() == 0)
            m.queued = 0;
        __syncwarp();
        refresh();
    }

    // Computes the quick tests for the rows of this lane's counts.
    __device__ __forceinline__ void refresh()
    {
#pragma unroll
        for (int i = 0; i < 2 * BS_MI; i++) {
            const Row &row = m.rows[(i >> 1) * 16 + (lane_id() >> 2) + 8 * (i & 1)];
            const int w = row.test.weight;
            const long long bound = row.test.bound;
            Quick least = BS_LOWEST;
#ifdef BS_JACCARD
            share[i >> 1][i & 1] = w ? (float)row.test.share / (float)w : row.test.share;
            // One unit for the rounding of the product, and one for that of the fraction.
            if (w || row.test.share)
                least = quick_of((w ? bound / w : bound) - 2);
#else
            // Half of the ones is rounded down, which makes the term larger.
            if (w)
                least = quick_of((bound + (bound > 0)) / 2);
#endif
            quick[i >> 1][i & 1] = row.valid ? least : BS_HIGHEST;
        }
    }

    // Takes over the tests of other parts of the database, which were loaded a tile earlier.
    __device__ __forceinline__ void poll()
    {
#ifndef BS_PAIRS
        if (lane_id() < 16 * BS_MI && row0 + lane_id() < g.n_queries)
            polled = __ldcg(g.limits + row0 + lane_id());
#endif
    }

    __device__ __forceinline__ void take_polled()
    {
#ifndef BS_PAIRS
        const bool better = lane_id() < 16 * BS_MI && m.rows[lane_id() & (16 * BS_MI - 1)].key > polled;
        if (!__any_sync(0xffffffffu, better))
            return;
        if (better) {
            Row &row = m.rows[lane_id()];
            row.key = polled;
            row.test = bs_nearer_than(kJaccard, polled, row.ones, 1);
        }
        __syncwarp();
        refresh();
#endif
    }

    // Keeps the k best candidates of a full row. The last one to keep is found bit by bit, in registers if there are few candidates.
    __device__ __forceinline__ void tighten(int i)
    {
        const int n = min(m.rows[i].count, g.room);
        if (n <= 64)
            tighten_held<2>(i, n);
        else if (n <= 160)
            tighten_held<5>(i, n);
        else
            tighten_held<0>(i, n);
    }

    // Each lane holds `held` candidates; with 0 they are read again from memory.
    template <int held> __device__ __forceinline__ void tighten_held(int i, int n)
    {
        u64 *const entries = entries_of(i);
        const int lane = lane_id(), rounds = held ? held : (n + 31) / 32;
        u64 mine[held ? held : 1];
        if (held) {
#pragma unroll
            for (int r = 0; r < held; r++)
                mine[r] = 32 * r + lane < n ? __ldcg(entries + 32 * r + lane) : 0;
        }
        // Calls body(entry) for the candidates of this lane.
        const auto each = [&](auto body) {
#pragma unroll held ? held : 1
            for (int r = 0; r < rounds; r++)
                if (32 * r + lane < n)
                    body(held ? mine[held ? r : 0] : __ldcg(entries + 32 * r + lane));
        };
        u64 any = 0, all = ~0ull;
        each([&](u64 e) { any |= e, all &= e; });
#pragma unroll
        for (int by = 16; by; by >>= 1)
            any |= shuffled(any, by), all &= shuffled(all, by);
        u64 differing = any & ~all, known = all & ~differing, below = 0;
        int need = g.k;
        while (differing) {
            const int bit = 63 - __clzll(differing);
            const u64 one = 1ull << bit;
            int zeros = 0;
            each([&](u64 e) { zeros += e >> bit == known >> bit; });
            zeros = __reduce_add_sync(0xffffffffu, zeros);
            differing &= ~one;
            if (zeros >= need) {
                if (zeros == need) {
                    below = one - 1;
                    break;
                }
            } else {
                need -= zeros;
                known |= one;
            }
            // Bits in which all candidates agree are known already; lower bits are left to the next rounds.
        }
        const u64 last = known | below;
        int kept = 0;
        u64 worst = 0;
#pragma unroll held ? held : 1
        for (int r = 0; r < rounds; r++) {
            const bool there = 32 * r + lane < n;
            const u64 e = held ? mine[held ? r : 0] : there ? __ldcg(entries + 32 * r + lane) : 0;
            const bool stays = there && e <= last;
            const u32 these = __ballot_sync(0xffffffffu, stays);
            if (stays) {
                entries[kept + __popc(these & ((1u << lane) - 1u))] = e;
                worst = e > worst ? e : worst;
            }
            kept += __popc(these);
            __syncwarp();
        }
#pragma unroll
        for (int by = 16; by; by >>= 1) {
            const u64 other = shuffled(worst, by);
            worst = other > worst ? other : worst;
        }
        if (lane == 0) {
            Row &row = m.rows[i];
            row.count = kept;
            const u32 key = (u32)(worst >> 32);
            if (key <= row.key) {
                row.key = key;
                row.test = bs_nearer_than(kJaccard, key, row.ones, 1);
                row.tightened = 1;
                atomicMin(g.limits + row0 + i, key);
            }
        }
        __syncwarp();
    }

    __device__ __forceinline__ void drain()
    {
        const int lane = lane_id(), queued = m.queued;
#pragma unroll 1
        for (int at = 0; at < queued; at += 32) {
            bool pending = at + lane < queued;
            const u32 code = pending ? m.queue[at + lane] : 0;
            const int i = (code >> kRowShift) & (16 * BS_MI - 1), count = (int)(code >> kCountShift);
            const int row = queue_column + (int)(code & ((1u << kRowShift) - 1u));
            const int ones = pending && row < g.n ? __ldg(g.ones + row) : -1;
            pending = pending && ones >= 0;
#ifdef BS_PAIRS
            pending = pending && !(g.triangle && row <= row0 + i);
            const bs_nearer test = m.rows[i].test;
            if (pending && (long long)test.weight * count - (long long)test.share * ones >= test.bound) {
                const u64 place = atomicAdd(g.found, 1ull);
                if (place < (u64)g.room_pairs)
                    g.pairs[place] = make_int4(row0 + i, row, count, 0);
            }
#else
#pragma unroll 1
            while (__any_sync(0xffffffffu, pending)) {
                if (pending) {
                    Row &mine = m.rows[i];
                    const bs_nearer test = mine.test;
                    if ((long long)test.weight * count - (long long)test.share * ones < test.bound)
                        pending = false;
                    else {
                        const int place = atomicAdd(&mine.count, 1);
                        if (place < g.room) {
                            entries_of(i)[place] = (u64)bs_key_of(kJaccard, (u32)count, (u32)(mine.ones + ones)) << 32 | (u32)row;
                            pending = false;
                        }
                    }
                }
                __syncwarp();
                u32 full = __ballot_sync(0xffffffffu, lane < 16 * BS_MI && m.rows[lane & (16 * BS_MI - 1)].count >= g.room);
                while (full) {
                    tighten(__ffs(full) - 1);
                    full &= full - 1;
                }
            }
#endif
        }
        __syncwarp();
        if (lane == 0)
            m.queued = 0;
        __syncwarp();
        refresh();
    }

    // Tests the queued counts; the next tile begins at `column`. Must be called at least every kTiles tiles.
    __device__ __forceinline__ void next_queue(int column)
    {
        if (kLinger && m.queued) {
            drain();
            settle();
        }
        queue_column = column;
    }

    // After a tile, candidates with equal keys can only come from higher rows, which are not wanted.
    __device__ __forceinline__ void settle()
    {
#ifndef BS_PAIRS
        Row &row = m.rows[lane_id() & (16 * BS_MI - 1)];
        const bool changes = lane_id() < 16 * BS_MI && row.tightened;
        if (!__any_sync(0xffffffffu, changes))
            return;
        if (changes) {
            row.test = bs_nearer_than(kJaccard, row.key, row.ones, 0);
            row.tightened = 0;
        }
        __syncwarp();
        refresh();
#endif
    }

    // Puts the counts that pass, of 16 in each lane, into the queue, which has room for all of them.
    template <int blocks, class Term>
    __device__ __forceinline__ void push(const int (&acc)[4 * blocks], int i, int group, int behind, Term term)
    {
        u32 passing = 0;
#pragma unroll
        for (int j = 0; j < kGroup; j++) {
            const int2 t = term(group * kGroup + j);
#pragma unroll
            for (int e = 0; e < 4; e++)
                passing |= (u32)(quick_value(acc[4 * (group * kGroup + j) + e], e & 1 ? t.y : t.x, share[i][e >> 1]) >= quick[i][e >> 1])
                           << (4 * j + e);
        }
        if (passing) {
            int place = atomicAdd(&m.queued, __popc(passing));
            const u32 here = (u32)(16 * i + (lane_id() >> 2)) << kRowShift | (u32)(behind + 8 * kGroup * group + 2 * (lane_id() & 3));
#pragma unroll
            for (int j = 0; j < kGroup; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (passing >> (4 * j + e) & 1)
                        m.queue[place++] = ((u32)acc[4 * (group * kGroup + j) + e] << kCountShift) + here +
                                           ((u32)(8 * (e >> 1)) << kRowShift) + 8 * j + (e & 1);
        }
        __syncwarp();
    }

    // Tests the counts of a tile: register 4 j + e of block i is query 16 i + r + 8 (e / 2), column 8 j + 2 t + e % 2 (r = lane / 4, t =
    // lane % 4). `term(j)` gives the terms of columns 8 j + 2 t and the next one. When the queue is full, it is emptied and the rest is
    // tested again.
    template <int blocks, class Term> __device__ __forceinline__ void scan(const int (&acc)[BS_MI][4 * blocks], int column0, Term term)
    {
        constexpr int kGroups = blocks / kGroup * BS_MI;
        // The largest of the row's counts in each group; where nothing passes only these are tested, with one vote a tile.
        Quick best[kGroups][2], most[BS_MI][2];
#pragma unroll
        for (int i = 0; i < BS_MI; i++)
            most[i][0] = most[i][1] = BS_LOWEST;
#pragma unroll
        for (int f = 0; f < kGroups; f++) {
            const int i = f % BS_MI, group = f / BS_MI;
            best[f][0] = best[f][1] = BS_LOWEST;
#pragma unroll
            for (int j = group * kGroup; j < (group + 1) * kGroup; j++) {
                const int2 t = term(j);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    best[f][e >> 1] = larger(quick_value(acc[i][4 * j + e], e & 1 ? t.y : t.x, share[i][e >> 1]), best[f][e >> 1]);
            }
            most[i][0] = larger(best[f][0], most[i][0]);
            most[i][1] = larger(best[f][1], most[i][1]);
        }
        bool passes = false;
#pragma unroll
        for (int i = 0; i < BS_MI; i++)
            passes |= most[i][0] >= quick[i][0] || most[i][1] >= quick[i][1];
        if (!__any_sync(0xffffffffu, passes))
            return;
        int from = 0, queued = m.queued;
        bool drained = false;
        do {
            int next = kGroups;
#pragma unroll
            for (int f = 0; f < kGroups; f++) {
                const int i = f % BS_MI, group = f / BS_MI;
                if (f < from || next < kGroups)
                    continue;
                if (!__any_sync(0xffffffffu, best[f][0] >= quick[i][0] || best[f][1] >= quick[i][1]))
                    continue;
                if (queued > kQueue - 512) {
                    next = f;
                } else {
                    push<blocks>(acc[i], i, group, column0 - queue_column, term);
                    queued = m.queued; // read before the next vote, after which other lanes may add to the queue
                }
            }
            if (next < kGroups || queued > kLinger) {
                drain();
                drained = true;
                queued = 0;
            }
            from = next;
        } while (from < kGroups);
        if (drained)
            settle();
    }

    __device__ __forceinline__ void end()
    {
        next_queue(0);
#ifndef BS_PAIRS
        if (lane_id() < 16 * BS_MI && m.rows[lane_id()].valid)
            g.counts[(long long)part * g.n_queries + row0 + lane_id()] = m.rows[lane_id()].count;
#endif
        __syncwarp();
    }
};

// What one block does at a time: compares a tile of queries with tiles first .. end - 1 of the database.
struct Unit {
    int q_tile, part, first, end;
};

BS_INLINE Unit unit_of(const ScanParams &g, int index)
{
    const int part = index / g.q_tiles, q_tile = index - part * g.q_tiles;
#ifdef BS_PAIRS
    return {q_tile, 0, g.windows[2 * q_tile], g.windows[2 * q_tile + 1]};
#else
    return {q_tile, part, part * g.part_tiles, min(g.n_tiles, (part + 1) * g.part_tiles)};
#endif
}

#endif
