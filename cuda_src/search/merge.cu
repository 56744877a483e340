// Merges the candidates of all parts into the answers of a query, and converts keys to distances.
#include "common/neighbours.h"
#include "common/ptx.cuh"

struct MergeParams {
    const u64 *entries; // (parts, n_queries, room): key << 32 | row
    const int *counts;  // (parts, n_queries)
    const u32 *limits;  // (n_queries): no answer has a larger key
    u32 *keys;          // (n_queries, k)
    long long *rows;
    long long n_queries;
    int parts, k, room;
};

constexpr int kThreads = 256;
constexpr int kHeld = 2048; // candidates of a query that are sorted in shared memory; k is at most half of it

// The sum of x over the block, in every thread; `of_warps` is room for one number per warp.
BS_INLINE int sum_of_block(int x, int *of_warps)
{
    x = __reduce_add_sync(0xffffffffu, x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        of_warps[threadIdx.x >> 5] = x;
    __syncthreads();
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kThreads / 32; i++)
        sum += of_warps[i];
    return sum;
}

// Calls body(entry) for each candidate of a query that can be an answer.
template <class Body> BS_INLINE void each_entry(const MergeParams &p, long long query, u64 most, Body body)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < p.parts * p.room; i += kThreads) {
        const int part = i / p.room, place = i - part * p.room;
        const long long list = part * p.n_queries + query;
        if (place < p.counts[list]) {
            const u64 entry = p.entries[list * p.room + place];
            if (entry <= most)
                body(entry);
        }
    }
}

// One block per query. Where there are more candidates than shared memory can hold, the k-th is found bit by bit. Those up to it are
// sorted.
extern "C" __global__ void __launch_bounds__(kThreads) merge_parts(const MergeParams p)
{
    __shared__ u64 chosen[kHeld];
    __shared__ int of_warps[kThreads / 32], n_chosen;
    const long long query = blockIdx.x;
    u64 most = (u64)p.limits[query] << 32 | 0xffffffffu;
    int mine = 0;
    each_entry(p, query, most, [&](u64) { mine++; });
    int total = sum_of_block(mine, of_warps);
    if (total > kHeld) {
        u64 known = 0;
        int need = p.k;
        for (int bit = 63; bit >= 0; bit--) {
            mine = 0;
            each_entry(p, query, most, [&](u64 e) { mine += e >> bit == known >> bit; });
            const int zeros = sum_of_block(mine, of_warps);
            if (zeros == need) {
                known |= (1ull << bit) - 1;
                break;
            }
            if (zeros < need) {
                need -= zeros;
                known |= 1ull << bit;
            }
        }
        most = known, total = p.k;
    }
    int size = 2;
    while (size < total)
        size <<= 1;
    if (threadIdx.x == 0)
        n_chosen = 0;
    for (int i = threadIdx.x; i < size; i += kThreads)
        chosen[i] = ~0ull;
    __syncthreads();
    each_entry(p, query, most, [&](u64 e) { chosen[atomicAdd(&n_chosen, 1)] = e; });
    __syncthreads();
    for (int run = 2; run <= size; run <<= 1)
        for (int stride = run >> 1; stride; stride >>= 1) {
            for (int i = threadIdx.x; i < size; i += kThreads) {
                const int other = i ^ stride;
                if (other > i && (chosen[i] > chosen[other]) == !(i & run)) {
                    const u64 x = chosen[i];
                    chosen[i] = chosen[other];
                    chosen[other] = x;
                }
            }
            __syncthreads();
        }
    for (int i = threadIdx.x; i < p.k; i += kThreads) {
        const bool there = i < total;
        p.keys[query * p.k + i] = there ? (u32)(chosen[i] >> 32) : BS_FARTHEST;
        p.rows[query * p.k + i] = there ? (long long)(u32)chosen[i] : -1;
    }
}

struct DistanceParams {
    const u32 *keys;
    const long long *rows;
    void *out; // int32, or float32 for Jaccard distances
    long long size;
    int metric, length; // 0 hamming, 1 jaccard, 2 dot
};

extern "C" __global__ void __launch_bounds__(kThreads) distances(const DistanceParams p)
{
    const long long i = (long long)blockIdx.x * kThreads + threadIdx.x;
    if (i >= p.size)
        return;
    const u32 key = p.keys[i];
    const bool there = p.rows[i] >= 0;
    if (p.metric == 1)
        ((float *)p.out)[i] = there ? bs_jaccard_of_key(key) : __uint_as_float(0x7f800000u);
    else if (p.metric == 0)
        ((int *)p.out)[i] = there ? (int)key : 2147483647;
    else
        ((int *)p.out)[i] = there ? p.length - 2 * (int)key : -2147483647 - 1;
}

struct OnesParams {
    const uint4 *words; // n rows of `width` vectors
    int *ones;
    long long n;
    int width;
};

// Eight lanes per row. Floor: reading the words once.
extern "C" __global__ void __launch_bounds__(kThreads) row_ones(const OnesParams p)
{
    const long long row = ((long long)blockIdx.x * kThreads + threadIdx.x) >> 3;
    int sum = 0;
    if (row < p.n)
        for (int i = threadIdx.x & 7; i < p.width; i += 8) {
            const uint4 v = __ldg(p.words + row * p.width + i);
            sum += __popc(v.x) + __popc(v.y) + __popc(v.z) + __popc(v.w);
        }
#pragma unroll
    for (int by = 4; by; by >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (row < p.n && (threadIdx.x & 7) == 0)
        p.ones[row] = sum;
}
