// What the builders of sparse formats share: index types, rows of entries, prefix sums of a block.
#ifndef BITSPARSE_BUILD_CUH
#define BITSPARSE_BUILD_CUH

#include "common/scalar.h"
#include "common/warps.cuh"

typedef bs_u8 u8;
typedef bs_u16 u16;
typedef bs_u32 u32;
typedef bs_u64 u64;
typedef bs_i64 i64;

// The type of an index, and an index that is beyond all columns.
#ifdef BS_LARGE
typedef i64 Index;
#define BS_BEYOND 0x7fffffffffffffffll
#else
typedef int Index;
#define BS_BEYOND 0x7fffffff
#endif

// Entries that a block takes together where they are dealt out evenly, whatever the lengths of the rows.
#define BS_THREADS 256
#define BS_EACH 8
#define BS_CHUNK (BS_THREADS * BS_EACH)

// The last r of [low, high] with starts[r] <= e, if starts[low] <= e. Positions have the width of indices, since halving them is most of
// the cost of a search.
static __device__ __forceinline__ i64 last_start(const Index *starts, i64 low, i64 high, i64 e)
{
    Index first = (Index)low, last = (Index)high;
    const Index entry = (Index)e;
    while (first < last) {
        const Index middle = first + ((last - first + 1) >> 1);
        if (starts[middle] <= entry)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

// The first position of [low, high) whose column is not below `column`; high if there is none.
static __device__ __forceinline__ i64 first_from(const Index *columns, i64 low, i64 high, i64 column)
{
    Index first = (Index)low, last = (Index)high;
    const Index wanted = column > BS_BEYOND ? BS_BEYOND : (Index)column;
    while (first < last) {
        const Index middle = first + ((last - first) >> 1);
        if (columns[middle] < wanted)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

// last_start computed by a warp, which examines 32 positions at a time.
static __device__ __forceinline__ i64 last_start_by_warp(const Index *starts, i64 low, i64 high, i64 e)
{
    while (low < high) {
        const i64 step = (high - low + 31) / 32, place = low + ((threadIdx.x & 31) + 1) * step;
        low += step * __popc(__ballot_sync(~0u, place <= high && starts[place] <= e));
        high = high < low + step - 1 ? high : low + step - 1;
    }
    return low;
}

// The first and the last of `rows` rows that a block's entries [from, to) are in; some rows if indptr is invalid. Called by all threads.
static __device__ __forceinline__ void rows_of_chunk(const Index *starts, i64 rows, i64 from, i64 to, i64 ends[2])
{
    if (threadIdx.x < 64) {
        const i64 row = last_start_by_warp(starts, 0, rows - 1, threadIdx.x < 32 ? from : to - 1);
        if ((threadIdx.x & 31) == 0)
            ends[threadIdx.x >> 5] = row;
    }
    __syncthreads();
}

// Calls task(word), where word is an integer of `unit` bytes.
template <class Task> static __device__ __forceinline__ void by_unit(int unit, Task task)
{
    switch (unit) {
    case 1: task((unsigned char)0); break;
    case 2: task((u16)0); break;
    case 4: task(0u); break;
    default: task((u64)0);
    }
}

static __device__ __forceinline__ void add_index(Index *to, Index value)
{
#ifdef BS_LARGE
    atomicAdd((u64 *)to, (u64)value);
#else
    atomicAdd(to, value);
#endif
}

// How many threads of the block before this one have `set`; `total` becomes how many have it in all. `room` holds 33 integers. Called by
// all threads.
static __device__ __forceinline__ int count_before(bool set, int *room, int *total)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    const u32 votes = __ballot_sync(~0u, set);
    __syncthreads(); // earlier values in the room may still be read
    if (lane == 0)
        room[warp] = __popc(votes);
    __syncthreads();
    if (warp == 0) {
        const int mine = lane < warps ? room[lane] : 0;
        const int sum = sum_up_to_lane(mine);
        if (lane < warps)
            room[lane] = sum - mine;
        if (lane == 31)
            room[32] = sum;
    }
    __syncthreads();
    *total = room[32];
    return room[warp] + __popc(votes & ((1u << lane) - 1u));
}

#endif
