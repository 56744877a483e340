// Turns accumulators into the result: weights of the planes, terms of rows and columns, and the ways to store a tile.
#ifndef BITSPARSE_MATMUL_STORE_CUH
#define BITSPARSE_MATMUL_STORE_CUH

#include "matmul/wide.cuh"
#include "common/wgmma_store.cuh"

#ifndef BS_OUT64
// How many of a thread's first sums are the result, once those of planes are added up; more only if that is not known yet.
#ifdef BS_WIDTH
constexpr int kResultSums = kPartSums;
#else
constexpr int kResultSums = kSums;
#endif

struct Weights {
    int of_part[kParts];
    bool plain; // all are 1
};

// Further planes than the largest index, `mask`, take the first weights again.
BS_INLINE Weights weights_of(const MatmulParams &g, const int *weight, int mask)
{
    Weights w;
    w.plain = true;
#pragma unroll
    for (int j = 0; j < kParts; j++) {
        w.of_part[j] = weight[plane_of(g, j) & mask];
        w.plain = w.plain && w.of_part[j] == 1;
    }
    return w;
}

BS_INLINE void multiply(int (&acc)[kSums], const Weights &w)
{
    if (!w.plain)
#pragma unroll
        for (int i = 0; i < kSums; i++)
            acc[i] *= w.of_part[i / kPartSums];
}

// Sums the adjacent planes of B; the first sums are then those of the tile's columns.
BS_INLINE void combine_planes(const MatmulParams &g, int (&acc)[kSums], const Weights &weights)
{
    multiply(acc, weights);
#ifdef BS_WIDTH
    const bool one_part = true;
#else
    const bool one_part = g.nb == 1;
#endif
    if (one_part) {
#pragma unroll
        for (int i = kPartSums; i < kSums; i++)
            acc[i % kPartSums] += acc[i];
    }
#if BS_NB == 4
    else if (g.nb == 2) {
#pragma unroll
        for (int i = 0; i < 64; i++)
            acc[i] += acc[i + 64];
    }
#endif
}
#endif

// Where a thread's accumulators lie: register 4 i + e of a block of 64 columns is row g + 8 (e / 2) and column 8 i + 2 t + e % 2, for lane
// 4 g + t. The loops below keep the common path short: it runs once a tile, so its instructions are not in the nearest cache.
BS_INLINE Out row_term(const MatmulParams &g, const Work &w, int row)
{
    return g.row_term && row < g.m ? g.row_term[(long long)w.operand.x * g.m + row] : 0;
}

BS_INLINE Out col_term(const MatmulParams &g, const Work &w, int column)
{
    return g.col_term && column < g.n ? g.col_term[(long long)w.operand.y * g.n + column] : 0;
}

#ifndef BS_OUT64
BS_INLINE void add_terms(const MatmulParams &g, int (&acc)[kSums], const Work &w, int row0)
{
    const int lane = threadIdx.x & 31, row = row0 + (lane >> 2);
    const int upper = row_term(g, w, row), lower = row_term(g, w, row + 8);
#if BS_EPILOGUE >= 2 // few registers are left
    int term[2 * BS_NB];
#pragma unroll
    for (int i = 0; i < 2 * BS_NB; i++)
        term[i] = col_term(g, w, w.n_tile * g.nb * 64 + 32 * i + lane);
#endif
#pragma unroll
    for (int i = 0; i < kSums / 2; i++) {
#if BS_EPILOGUE >= 2
        const int here = __shfl_sync(~0u, term[i >> 3], (8 * (i >> 1) + 2 * (lane & 3) + (i & 1)) & 31);
#else
        const int here = col_term(g, w, w.n_tile * width_of(g) + 8 * (i >> 1) + 2 * (lane & 3) + (i & 1));
#endif
        const int at = 4 * (i >> 1) + (i & 1);
        acc[at] += upper + here;
        acc[at + 2] += lower + here;
    }
}

BS_INLINE void store_tile(const MatmulParams &g, const int (&acc)[kSums], const Work &w, int row0)
{
    const int lane = threadIdx.x & 31, row = row0 + (lane >> 2), column0 = w.n_tile * width_of(g) + 2 * (lane & 3);
    int *out = g.out + ((long long)w.batch * g.m + row) * g.n + column0;
    store_sums<kResultSums>(out, g.n, acc, row < g.m, row + 8 < g.m, min(g.n - column0, width_of(g) - 2 * (lane & 3)), g.pairs);
}

// Only for tiles whose columns are a multiple of 32.
BS_INLINE void store_tile_bulk(const MatmulParams &g, const Shared &s, const int (&acc)[kSums], const Work &w, int row0)
{
    const StripStore strips(s.staging);
#pragma unroll
    for (int j = 0; j < kResultSums / 16; j++) {
        const int column0 = w.n_tile * width_of(g) + 32 * j;
        if (32 * j >= width_of(g) || column0 >= g.n || row0 >= g.m)
            break;
        strips.store(acc, j, &g.c, column0, row0, w.batch);
    }
}

// The warps of a tile are divided among the parts: this part of the cluster adds up the rows of this warp.
BS_INLINE int owner_of(const MatmulParams &g) { return (int)(threadIdx.x >> 5) * g.rk * g.rp / kWarps; }

// Where a warp's sums from another part lie in the shared memory of their owner: 16 bytes a lane, several times.
BS_INLINE u32 part_slot(const MatmulParams &g, const Shared &s, int owner, int from)
{
    const int owned = kWarps / (g.rk * g.rp), warp = (int)(threadIdx.x >> 5) - owner * owned;
    return (kOverRing ? s.tiles : s.staging) + ((from - (from > owner)) * owned + warp) * kBytesPart + (threadIdx.x & 31) * 16;
}

// Sends a warp's sums to the block that owns their rows.
BS_INLINE void send_part(const MatmulParams &g, const Shared &s, const int (&acc)[kSums], const Place &place, int owner)
{
    const u32 rank = owner * g.mc + place.member;
    const u32 to = remote_address(part_slot(g, s, owner, place.part), rank), barrier = remote_address(s.reduced, rank);
#pragma unroll
    for (int i = 0; i < kBytesPart / 512; i++)
        store_remote(to + i * 512, acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3], barrier);
}

// Adds the sums that the other parts have sent.
BS_INLINE void add_parts(const MatmulParams &g, const Shared &s, int (&acc)[kSums], const Place &place)
{
    barrier_wait(s.reduced, 0);
    for (int part = 0; part < g.rk * g.rp; part++) {
        if (part == place.part)
            continue;
        const u32 from = part_slot(g, s, place.part, part);
#pragma unroll
        for (int i = 0; i < kBytesPart / 512; i++) {
            const int4 v = load_shared(from + i * 512);
            acc[4 * i] += v.x, acc[4 * i + 1] += v.y, acc[4 * i + 2] += v.z, acc[4 * i + 3] += v.w;
        }
    }
}
#endif

#if BS_EPILOGUE == 1
// Where a warp puts its sums for the epilogue: 4 KB of its own; for a split tile the first of its part slots, which add_parts has read.
BS_INLINE u32 sums_slot(const MatmulParams &g, const Shared &s, int owner)
{
    return s.staging + ((int)(threadIdx.x >> 5) - owner * (kWarps / (g.rk * g.rp))) * 4096;
}

BS_INLINE void finish_tile(const MatmulParams &g, const Shared &s, const Place &place, int (&acc)[BS_MB][32 * BS_NB], const Work &w,
                           int row0)
{
    const u32 slot = sums_slot(g, s, place.part);
#pragma unroll 1
    for (int i = 0; i < BS_MB; i++) {
        finish_strip(g.epilogue, RegisterSums<32 * BS_NB>{{slot}, acc[0]}, w.batch, row0 + 64 * i, w.n_tile * g.nb * 64, g.nb);
#pragma unroll
        for (int e = 0; e < 32 * BS_NB; e++)
            acc[0][e] = acc[BS_MB - 1][e];
    }
}
#elif BS_EPILOGUE == 2
// The vectors take a warp's slot, since no part needs it. It is computed for each tile, so that it takes no registers in between.
BS_INLINE FragmentVectors<BS_MB, BS_NB> vectors_of(const MatmulParams &g, const Shared &s, const Place &place)
{
    const int parts = pinned(g.rk * g.rp), warp = pinned((int)threadIdx.x) >> 5;
    if (parts == 1)
        return {s.staging + warp * 4096};
    const int owned = kWarps / parts;
    return {warp / owned == place.part ? s.staging + (kWarps - owned + warp % owned) * 4096 : 0};
}

BS_INLINE void finish_tile(const MatmulParams &g, const Shared &s, const Place &place, int (&acc)[BS_MB][32 * BS_NB], const Work &w,
                           int row0)
{
#pragma unroll 1
    for (int i = 0; i < BS_MB; i++) {
        finish_fragments(g.epilogue, vectors_of(g, s, place), i, acc[0], w.batch, row0 + 64 * i, w.n_tile * g.nb * 64, g.nb);
#pragma unroll
        for (int e = 0; e < 32 * BS_NB; e++)
            acc[0][e] = acc[BS_MB - 1][e];
    }
}
#elif BS_EPILOGUE == 4
// The loop of a finishing warp.
BS_INLINE void finish_strips(const MatmulParams &g, const Shared &s, int first, int step, int units, const Place &place)
{
    const Handed handed{s.staging, s.handed};
    const int finisher = pinned((int)threadIdx.x - kConsumers - 32) >> 5;
    wait_for_previous_kernel();
#pragma unroll 1
    for (int at = finisher;; at += kFinishers) {
        const int tile = at / kWarps, strip = at % kWarps, unit = first + tile * step;
        if (unit >= units)
            break;
        const Work w = work_of(g, unit, place.member);
        const Strip to = {w.batch, w.m_tile * kBlockRows + strip * 16, w.n_tile * g.nb * kBlockWidth};
        handed.finish(g.epilogue, to, g.nb, strip, tile, finisher);
    }
}
#endif

#endif
