// Groups of lanes that share a row of a sparse array.
#ifndef BITSPARSE_SPARSE_GROUPS_CUH
#define BITSPARSE_SPARSE_GROUPS_CUH

#include "csr/groups.cuh"
#include "sparse/build.cuh"

// Number of this thread's group among all groups, the thread's place in the group, and the group's place in its warp.
struct Group {
    int lanes, lane, shift;
    u32 mask;
    i64 first, step;
};

BS_INLINE Group group_of(int lanes) // a power of two
{
    const int lane = threadIdx.x & (lanes - 1), shift = 31 - __clz(lanes);
    return {lanes,
            lane,
            (int)threadIdx.x & 31 & -lanes,
            group_mask(lanes),
            ((i64)blockIdx.x * BS_THREADS + threadIdx.x) >> shift,
            ((i64)gridDim.x * BS_THREADS) >> shift};
}

// A bit for each lane of the group that has `set`: votes_of where groups diverge, votes_in_step where all lanes of the warp take part.
// in_front gives the bits of the lanes before one, with lane at most 32.
BS_INLINE u32 votes_of(const Group &g, bool set) { return (__ballot_sync(g.mask, set) & g.mask) >> g.shift; }
BS_INLINE u32 votes_in_step(const Group &g, bool set) { return (__ballot_sync(~0u, set) & g.mask) >> g.shift; }
BS_INLINE u32 in_front(u32 votes, int lane) { return votes & (u32)((1ull << lane) - 1); }

#endif
