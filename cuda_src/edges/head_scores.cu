// Scores of nodes for graph attention, which are dot products of each head's features with two vectors; their gradients; and sums over
// nodes.
#include "edges/vectors.cuh"

struct HeadScoresParams {
    const char *x;               // (nodes, heads, width)
    const void *first, *second;  // Sum (heads, width)
    void *by_first, *by_second;  // Sum (nodes, heads): the scores, or the gradients by them
    char *dx;                    // like x: this array is added to; null without scores
    void *partial, *out;         // Total (blocks, BS_SETS, columns): sums over each block's nodes; Sum (BS_SETS, columns): over all nodes
    int *arrived;                // how many blocks are done with each stripe of columns: zeros before and after
    i64 nodes;
    int heads, vectors, head_vectors; // vectors of a row and of a head
    int blocks;                       // blocks that share the nodes of a stripe of columns
};

// by_first = <x, first>, by_second = <x, second> for each node and head; BS_LANES lanes a head.
extern "C" __global__ void __launch_bounds__(256) head_scores(const HeadScoresParams p)
{
    const int t = threadIdx.x % BS_LANES;
    const i64 items = p.nodes * p.heads, item = (i64)blockIdx.x * (256 / BS_LANES) + threadIdx.x / BS_LANES;
    const i64 from = min(item, items - 1) * p.head_vectors;
    const int head = (int)(min(item, items - 1) % p.heads);
    const Sum *first = (const Sum *)p.first + (i64)head * p.head_vectors * BS_ELEMENTS;
    const Sum *second = (const Sum *)p.second + (i64)head * p.head_vectors * BS_ELEMENTS;
    Sum one = 0, two = 0;
    for (int v = t; v < p.head_vectors; v += BS_LANES) {
        const Vector a = load_vector(p.x + (from + v) * BS_VECTOR);
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++) {
            one = fused(widen(a, i), first[v * BS_ELEMENTS + i], one);
            two = fused(widen(a, i), second[v * BS_ELEMENTS + i], two);
        }
    }
    __syncwarp();
#pragma unroll
    for (int lanes = BS_LANES / 2; lanes > 0; lanes /= 2) {
        one += __shfl_xor_sync(~0u, one, lanes);
        two += __shfl_xor_sync(~0u, two, lanes);
    }
    if (t == 0 && item < items)
        ((Sum *)p.by_first)[item] = one, ((Sum *)p.by_second)[item] = two;
}

#ifdef BS_SETS
#define AHEAD (BS_SETS == 1 ? 4 : BS_TYPE == 3 ? 1 : 2)
#define AT_ONCE (BS_SETS == 1 ? 4 : BS_VECTOR == 4 ? 2 : 1)

// BS_WIDE: sums are held in float64.
#ifdef BS_WIDE
typedef double Total;
#else
typedef Sum Total;
#endif

#define TEAM (BS_LANES < 32 ? 32 : BS_LANES) // threads that add up the sums of their groups without shared memory
#define TEAMS (256 / TEAM)

// Adds up the sums of a block's groups, in a tree over each warp and then team by team, into the stripe's columns of `to` (BS_SETS,
// columns).
template <class T>
BS_INLINE void over_groups(const Total (&sum)[BS_SETS][BS_ELEMENTS], Total (&shared)[TEAMS * BS_LANES * BS_ELEMENTS], int stripe,
                           int columns, T *to)
{
    const int member = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
#pragma unroll
    for (int s = 0; s < BS_SETS; s++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++) {
            Total one = sum[s][i];
#pragma unroll
            for (int lanes = BS_LANES; lanes < 32; lanes *= 2)
                one += __shfl_xor_sync(~0u, one, lanes);
            if (member < BS_LANES)
                shared[(team * BS_LANES + member) * BS_ELEMENTS + i] = one;
        }
        __syncthreads();
        for (int e = threadIdx.x; e < BS_LANES * BS_ELEMENTS; e += 256) {
            const int column = stripe * BS_LANES * BS_ELEMENTS + e;
            Total total = 0;
#pragma unroll
            for (int k = 0; k < TEAMS; k++)
                total += shared[k * BS_LANES * BS_ELEMENTS + e];
            if (column < columns)
                to[(i64)s * columns + column] = (T)total;
        }
    }
}

// Sums over the nodes. BS_SETS 1: sums of the rows of x. BS_SETS 2: sums of the rows of x times the gradients by both scores; the gradient
// by the features is added to dx. BS_LANES threads take a row. p.blocks blocks share a stripe of BS_LANES vectors; each takes every
// p.blocks-th row. The last one to finish adds up the results of all blocks in their order, so that the bits do not depend on which block
// that is.
extern "C" __global__ void __launch_bounds__(256) sum_nodes(const HeadScoresParams p)
{
    __shared__ Total shared[TEAMS * BS_LANES * BS_ELEMENTS];
    __shared__ bool last;
    const int t = threadIdx.x % BS_LANES, group = threadIdx.x / BS_LANES, groups = 256 / BS_LANES;
    const int stripe = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks;
    const int v = stripe * BS_LANES + t, bytes = p.vectors * BS_VECTOR;
    const bool inside = v < p.vectors;
    Total sum[BS_SETS][BS_ELEMENTS];
#pragma unroll
    for (int s = 0; s < BS_SETS; s++)
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            sum[s][i] = 0;
#if BS_SETS == 2
    const int head = inside ? v / p.head_vectors : 0;
    Sum first[BS_ELEMENTS], second[BS_ELEMENTS];
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++) {
        first[i] = inside ? ((const Sum *)p.first)[v * BS_ELEMENTS + i] : (Sum)0;
        second[i] = inside ? ((const Sum *)p.second)[v * BS_ELEMENTS + i] : (Sum)0;
    }
#endif
    // Rows are loaded AHEAD at a time and added in their order.
    const i64 step = (i64)p.blocks * groups, end = inside ? p.nodes : 0;
    for (i64 row = (i64)block * groups + group; row < end; row += AHEAD * step) {
        Vector a[AHEAD];
#if BS_SETS == 2
        Vector d[AHEAD];
        Sum one[AHEAD], two[AHEAD];
#endif
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const i64 there = min(row + u * step, end - 1), at = there * bytes + (i64)v * BS_VECTOR;
            a[u] = load_vector(p.x + at);
#if BS_SETS == 2
            one[u] = __ldg((const Sum *)p.by_first + there * p.heads + head);
            two[u] = __ldg((const Sum *)p.by_second + there * p.heads + head);
            d[u] = load_vector(p.dx + at);
#endif
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (row + u * step >= end)
                break;
#if BS_SETS == 2
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++) {
                sum[0][i] = fused(one[u], widen(a[u], i), sum[0][i]);
                sum[1][i] = fused(two[u], widen(a[u], i), sum[1][i]);
                d[u].at[i] = narrow(fused(one[u], first[i], fused(two[u], second[i], widen(d[u], i))));
            }
            store_vector(p.dx + (row + u * step) * bytes + (i64)v * BS_VECTOR, d[u]);
#else
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                sum[0][i] += widen(a[u], i);
#endif
        }
    }
    const int columns = p.vectors * BS_ELEMENTS;
    if (p.blocks == 1) {
        over_groups(sum, shared, stripe, columns, (Sum *)p.out);
        return;
    }
    Total *const partial = (Total *)p.partial;
    over_groups(sum, shared, stripe, columns, partial + (i64)block * BS_SETS * columns);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(p.arrived + stripe, 1) == p.blocks - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        p.arrived[stripe] = 0; // for the next launch
    // ---- the sums of the blocks are divided among the groups as rows were, and AT_ONCE of them are loaded together
#pragma unroll
    for (int s = 0; s < BS_SETS; s++)
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            sum[s][i] = 0;
    for (int other = inside ? group : p.blocks; other < p.blocks; other += AT_ONCE * groups) {
        Total found[AT_ONCE][BS_SETS][BS_ELEMENTS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const Total *from = partial + (i64)min(other + u * groups, p.blocks - 1) * BS_SETS * columns + v * BS_ELEMENTS;
#pragma unroll
            for (int s = 0; s < BS_SETS; s++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    found[u][s][i] = __ldcg(from + (i64)s * columns + i);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (other + u * groups < p.blocks)
#pragma unroll
                for (int s = 0; s < BS_SETS; s++)
#pragma unroll
                    for (int i = 0; i < BS_ELEMENTS; i++)
                        sum[s][i] += found[u][s][i];
    }
    over_groups(sum, shared, stripe, columns, (Sum *)p.out);
}
#endif
