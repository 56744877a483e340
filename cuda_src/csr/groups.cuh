// Groups of lanes that wait for one another.
#ifndef BITSPARSE_CSR_GROUPS_CUH
#define BITSPARSE_CSR_GROUPS_CUH

#include "common/scalar.h"

#ifndef BS_INLINE
#define BS_INLINE static __device__ __forceinline__
#endif

// The lanes of this thread's group, as the warp numbers them.
BS_INLINE unsigned group_mask(int lanes) { return (lanes == 32 ? ~0u : (1u << lanes) - 1) << ((int)threadIdx.x & 31 & -lanes); }

// Adds one to `counter`, and returns what it was before. Whoever adds later sees what this thread wrote before, and what lanes of its warp
// wrote before a __syncwarp in front of the call; lanes of the later one's warp see it after another __syncwarp.
BS_INLINE int arrive(int *counter)
{
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(1) : "memory");
    return before;
}

// Whether this group is the last of `count` groups to reach `counter`, which they share; if so, it sees what the others wrote. All lanes of
// the group call it together.
BS_INLINE bool last_of_groups(int *counter, int count, int lane, int lanes)
{
    const unsigned mask = group_mask(lanes);
    __syncwarp(mask);
    int before = 0;
    if (lane == 0)
        before = arrive(counter);
    before = __shfl_sync(mask, before, (int)threadIdx.x & 31 & -lanes);
    if (before != count - 1)
        return false;
    __syncwarp(mask);
    if (lane == 0)
        *counter = 0; // for the next launch
    return true;
}

#endif
