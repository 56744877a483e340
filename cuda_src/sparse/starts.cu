// Where rows start, from the number of entries of each. A block takes a tile of rows. If there are several tiles, their sums are computed
// first, and every block adds up those before its own, which are few. Floor: reading the counts twice and writing the starts.
#include "sparse/build.cuh"

struct StartParams {
    Index *starts; // counts, shifted by one place, then the starts, with a zero first
    i64 *sums;     // of tiles
    i64 *total;    // of all counts
    i64 rows;
};

// Threads of a block, and adjacent counts of a thread.
#define BS_SCANNERS 1024
#define BS_SHARE 8
#define BS_TILE (BS_SCANNERS * BS_SHARE)

// The sum over the threads of the block up to this one; `all` becomes the sum over every thread. Called by all threads; `room` can be used
// once.
static __device__ __forceinline__ i64 sum_up_to(i64 mine, i64 *room, i64 *all)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 sum = sum_up_to_lane(mine);
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    const i64 warps = sum_up_to_lane(room[lane]);
    *all = __shfl_sync(~0u, warps, 31);
    const i64 before = __shfl_sync(~0u, warps, warp > 0 ? warp - 1 : 0);
    return sum + (warp > 0 ? before : 0);
}

// Loads the counts of this thread and returns their sum.
static __device__ __forceinline__ i64 load_counts(const StartParams &p, Index counts[BS_SHARE])
{
    const i64 from = (i64)blockIdx.x * BS_TILE + threadIdx.x * BS_SHARE;
    i64 sum = 0;
#pragma unroll
    for (int k = 0; k < BS_SHARE; k++) {
        counts[k] = from + k < p.rows ? p.starts[from + k + 1] : 0;
        sum += counts[k];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(BS_SCANNERS) sum_tiles(const StartParams p)
{
    __shared__ i64 room[32];
    Index counts[BS_SHARE];
    i64 all;
    sum_up_to(load_counts(p, counts), room, &all);
    if (threadIdx.x == 0)
        p.sums[blockIdx.x] = all;
}

extern "C" __global__ void __launch_bounds__(BS_SCANNERS) start_rows(const StartParams p)
{
    __shared__ i64 room[2][32];
    Index counts[BS_SHARE];
    i64 mine = load_counts(p, counts), before = 0, all;
    for (i64 tile = threadIdx.x; tile < blockIdx.x; tile += BS_SCANNERS)
        before += p.sums[tile];
    sum_up_to(before, room[0], &before);
    i64 sum = before + sum_up_to(mine, room[1], &all) - mine;
    const i64 from = (i64)blockIdx.x * BS_TILE + threadIdx.x * BS_SHARE;
#pragma unroll
    for (int k = 0; k < BS_SHARE; k++) {
        sum += counts[k];
        if (from + k < p.rows)
            p.starts[from + k + 1] = (Index)sum;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0)
        p.starts[0] = 0;
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1)
        *p.total = before + all;
}
