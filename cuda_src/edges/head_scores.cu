// Scores of nodes for graph attention, dot products of each head's features with two vectors, and their gradients; sums over nodes.
#include "edges/vectors.cuh"

struct HeadScoresParams {
    const char *x;               // (nodes, heads, width)
    const void *first, *second;  // Sum (heads, width)
    void *by_first, *by_second;  // Sum (nodes, heads): the scores, or the gradients by them
    char *dx;                    // as x: what is added to; null without scores
    void *partial;               // Sum (blocks, BS_SETS, columns)
    i64 nodes;
    int heads, vectors, head_vectors; // vectors of a row and of a head
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

// Sums over a block's nodes, every gridDim.x-th stripe of them: BS_SETS 1, of the rows of x; 2, of the rows of x by the gradients of both
// scores, and dx gets what these are by the features. BS_LANES threads a row, BS_LANES vectors from blockIdx.y * BS_LANES on.
#ifdef BS_SETS
#define AHEAD (BS_SETS == 1 ? 4 : BS_TYPE == 3 ? 1 : 2)
extern "C" __global__ void __launch_bounds__(256) sum_nodes(const HeadScoresParams p)
{
    __shared__ Sum shared[256 * BS_ELEMENTS];
    const int t = threadIdx.x % BS_LANES, group = threadIdx.x / BS_LANES, groups = 256 / BS_LANES;
    const int v = blockIdx.y * BS_LANES + t, bytes = p.vectors * BS_VECTOR;
    const bool inside = v < p.vectors;
    Sum sum[BS_SETS][BS_ELEMENTS];
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
    // Rows are asked for AHEAD at a time and added in their order.
    const i64 step = (i64)gridDim.x * groups, end = inside ? p.nodes : 0;
    for (i64 row = (i64)blockIdx.x * groups + group; row < end; row += AHEAD * step) {
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
#pragma unroll
    for (int s = 0; s < BS_SETS; s++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            shared[threadIdx.x * BS_ELEMENTS + i] = sum[s][i];
        __syncthreads();
        // A thread for each element of a row, which adds up the groups in order.
        for (int e = threadIdx.x; e < BS_LANES * BS_ELEMENTS; e += 256) {
            const int column = blockIdx.y * BS_LANES * BS_ELEMENTS + e, columns = p.vectors * BS_ELEMENTS;
            Sum total = 0;
            for (int k = 0; k < groups; k++)
                total += shared[k * BS_LANES * BS_ELEMENTS + e];
            if (column < columns)
                ((Sum *)p.partial)[((i64)blockIdx.x * BS_SETS + s) * columns + column] = total;
        }
    }
}
#endif
