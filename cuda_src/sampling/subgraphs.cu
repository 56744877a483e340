// Parts of a graph for training in batches, with the same bits as _ext/drivers/subgraphs.c on the host. A hop takes several kernels, since
// new columns are numbered in the order in which edges first reach them: `place` holds each column's least place among targets and edges.
#include "common/draws.h"
#include "sparse/groups.cuh"

#define BS_NONE 0xffffffffu // `place` of a column that no edge has reached

struct SubgraphParams {
    const Index *indptr, *indices; // of the graph
    const i64 *rows; // targets, nodes or roots
    i64 *starts; // count + 1: first the number of edges of row i at i + 1; after a prefix sum, where the edges of each row begin
    i64 *fresh; // total + 1: in the same way for edges that reach a new column
    u32 *place; // of every column
    i64 *picked; // total: the position of each edge, or its new column, in the order in which it was found
    i64 *edges; // total
    int *columns; // total
    i64 *out; // sources, walks or numbers
    bs_draws draws;
    i64 count, total, width; // width < 0: all neighbours
    u32 first; // how many targets come before the new columns
};

BS_INLINE i64 item() { return (i64)blockIdx.x * BS_THREADS + threadIdx.x; }
BS_INLINE i64 warp_row() { return item() >> 5; }
BS_INLINE int lane_here() { return threadIdx.x & 31; }

// Count the neighbours that each target will have; targets that are columns themselves take the first places.
extern "C" __global__ void __launch_bounds__(BS_THREADS) hop_counts(const SubgraphParams p)
{
    const i64 i = item();
    if (i >= p.count)
        return;
    const i64 row = p.rows[i], degree = p.indptr[row + 1] - p.indptr[row];
    p.starts[i + 1] = p.width < 0 || degree < p.width ? degree : p.width;
    if (p.first)
        p.place[row] = (u32)i;
}

// Choose `k` of `n` positions, in the order of the draws (Floyd; Bentley, CACM 30, 1987). A candidate that has been chosen before is
// replaced by the last position that this draw could give, which no earlier draw could. A warp takes 32 draws at a time, and looks for each
// candidate among all positions chosen before.
BS_INLINE void choose(const SubgraphParams &p, i64 row, i64 n, i64 k, i64 *picked)
{
    for (i64 base = 0; base < k; base += 32) {
        const i64 i = base + lane_here(), last = n - k + i;
        const bool here = i < k;
        const i64 candidate = here ? (i64)bs_draw_below(p.draws, BS_FOR_NEIGHBOURS, (u64)row, (u64)i, (u64)last + 1) : -1;
        bool seen = false;
        for (i64 j = 0; j < base; j++)
            seen |= picked[j] == candidate;
        i64 mine = -1;
#pragma unroll 4
        for (int t = 0; t < 32; t++) {
            const i64 other = __shfl_sync(~0u, candidate, t);
            const bool taken = __any_sync(~0u, lane_here() < t ? mine == other : lane_here() == t && seen);
            if (lane_here() == t)
                mine = taken ? last : candidate;
        }
        if (here)
            picked[i] = mine;
        __syncwarp();
    }
}

// One warp for each target: store its edges in ascending order, and the least place of each edge's column.
extern "C" __global__ void __launch_bounds__(BS_THREADS) hop_edges(const SubgraphParams p)
{
    const i64 i = warp_row();
    if (i >= p.count)
        return;
    const i64 row = p.rows[i], begin = p.indptr[row], n = p.indptr[row + 1] - begin, from = p.starts[i], k = p.starts[i + 1] - from;
    i64 *picked = p.picked + from;
    if (k < n)
        choose(p, row, n, k, picked);
    for (i64 j = lane_here(); j < k; j += 32) {
        i64 edge = j, rank = j;
        if (k < n) {
            edge = picked[j];
            rank = 0;
            for (i64 other = 0; other < k; other++)
                rank += picked[other] < edge;
        }
        edge += begin;
        p.edges[from + rank] = edge;
        atomicMin(p.place + p.indices[edge], p.first + (u32)(from + rank));
    }
}

// Mark the edges that are the first to reach their column.
extern "C" __global__ void __launch_bounds__(BS_THREADS) hop_fresh(const SubgraphParams p)
{
    const i64 e = item();
    if (e < p.total)
        p.fresh[e + 1] = p.place[p.indices[p.edges[e]]] == p.first + (u32)e;
}

// Store the targets and the new columns, and number the latter.
extern "C" __global__ void __launch_bounds__(BS_THREADS) hop_sources(const SubgraphParams p)
{
    const i64 e = item();
    if (e < p.first)
        p.out[e] = p.rows[e];
    if (e >= p.total || p.fresh[e + 1] == p.fresh[e])
        return;
    const Index column = p.indices[p.edges[e]];
    const i64 number = p.first + p.fresh[e];
    p.out[number] = column;
    p.place[column] = (u32)number;
}

// Store the new number of each edge's column, in the order of the edges.
extern "C" __global__ void __launch_bounds__(BS_THREADS) hop_numbers(const SubgraphParams p)
{
    const i64 e = item();
    if (e < p.total)
        p.columns[e] = (int)p.place[p.indices[p.edges[e]]];
}

// One warp for each target, for targets with few edges: sort its edges by column.
extern "C" __global__ void __launch_bounds__(BS_THREADS) hop_sorted(const SubgraphParams p)
{
    const i64 i = warp_row();
    if (i >= p.count)
        return;
    const i64 from = p.starts[i], k = p.starts[i + 1] - from;
    for (i64 j = lane_here(); j < k; j += 32)
        p.picked[from + j] = (i64)p.place[p.indices[p.edges[from + j]]] << 32 | j;
    __syncwarp();
    // The numbers of a row's columns differ, so each edge has its own rank.
    for (i64 j = lane_here(); j < k; j += 32) {
        const i64 mine = p.picked[from + j];
        i64 rank = 0;
        for (i64 other = 0; other < k; other++)
            rank += p.picked[from + other] < mine;
        p.columns[from + rank] = (int)(mine >> 32);
        p.out[from + rank] = p.edges[from + j];
    }
}

// Reset the places of some columns.
extern "C" __global__ void __launch_bounds__(BS_THREADS) forget_places(const SubgraphParams p)
{
    const i64 i = item();
    if (i < p.count)
        p.place[p.rows[i]] = BS_NONE;
}

// ---- the edges among some nodes ----
extern "C" __global__ void __launch_bounds__(BS_THREADS) place_nodes(const SubgraphParams p)
{
    const i64 i = item();
    if (i < p.count)
        p.place[p.rows[i]] = (u32)i;
}

// One warp for each node: store its edges to the other nodes or, if `columns` is null, count them.
extern "C" __global__ void __launch_bounds__(BS_THREADS) induced_rows(const SubgraphParams p)
{
    const i64 i = warp_row();
    if (i >= p.count)
        return;
    const i64 row = p.rows[i], begin = p.indptr[row], end = p.indptr[row + 1];
    i64 at = p.columns ? p.starts[i] : 0;
    for (i64 base = begin; base < end; base += 32) {
        const i64 e = base + lane_here();
        const u32 number = e < end ? p.place[p.indices[e]] : BS_NONE;
        const u32 kept = __ballot_sync(~0u, number != BS_NONE);
        if (p.columns && number != BS_NONE) {
            const i64 to = at + __popc(kept & ((1u << lane_here()) - 1));
            p.columns[to] = (int)number;
            p.edges[to] = e;
        }
        at += __popc(kept);
    }
    if (!p.columns && lane_here() == 0)
        p.starts[i + 1] = at;
}

// ---- walks and numbers ----
extern "C" __global__ void __launch_bounds__(BS_THREADS) walks(const SubgraphParams p)
{
    const i64 i = item();
    if (i >= p.count)
        return;
    i64 *out = p.out + i * (p.width + 1), node = p.rows[i];
    *out++ = node;
    for (i64 k = 0; k < p.width; k++) {
        const i64 begin = p.indptr[node], degree = p.indptr[node + 1] - begin;
        if (degree)
            node = p.indices[begin + (i64)bs_draw_below(p.draws, BS_FOR_WALKS, (u64)i, (u64)k, (u64)degree)];
        *out++ = node;
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) numbers_below(const SubgraphParams p)
{
    const i64 i = item();
    if (i < p.count)
        p.out[i] = (i64)bs_draw_below(p.draws, BS_FOR_NUMBERS, (u64)i >> 1, (u64)i & 1, (u64)p.width);
}
