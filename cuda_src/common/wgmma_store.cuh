// From the accumulators of a warpgroup to the result, through the copy engine.
#ifndef BITSPARSE_WGMMA_STORE_CUH
#define BITSPARSE_WGMMA_STORE_CUH

#include "common/ptx.cuh"

// Leaves a warpgroup's 64 rows to the copy engine, 32 columns at a time through two slots of 8 KB with the 128-byte swizzle, so that the
// result is written while the next tile is being multiplied. Few large copies: the engine takes one every 40 clocks or so. Two warps
// take turns at starting them, one for each slot, since only who started a copy can wait for it.
struct StripStore {
    int lane = threadIdx.x & 31, group = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, r = lane >> 2, t = lane & 3;
    // Odd rows take the columns in another order, so that the 16 lanes of a half warp touch all 32 banks.
    bool odd = r & 1;
    u32 slots, to, chunk = ((t >> 1) ^ r ^ (odd ? 4 : 0)) << 4;

    __device__ __forceinline__ explicit StripStore(u32 staging)
        : slots(staging + group * 16384), to(slots + (16 * warp + r) * 128 + (t & 1) * 8)
    {
    }

    // Strip j of the accumulators; register 4 i + e is row r + 8 (e / 2), column 8 i + 2 t + e % 2.
    template <int kCount>
    __device__ __forceinline__ void store(const int (&acc)[kCount], int j, const TensorMap *map, int column, int row, int batch) const
    {
        const bool starts = warp == (j & 1) && lane == 0;
        if (starts)
            bulk_wait_read<0>();
        named_barrier(1 + group, 128);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = 16 * j + 2 * i, other = 16 * j + 2 * (i ^ 4);
            store_shared(to + (j & 1) * 8192 + (i & 1) * 1024 + (chunk ^ ((i & 6) << 4)), odd ? acc[other] : acc[at],
                         odd ? acc[other + 1] : acc[at + 1]);
        }
        fence_async_proxy();
        named_barrier(1 + group, 128);
        if (starts) {
            tma_store(map, slots + (j & 1) * 8192, column, row, batch);
            bulk_commit();
        }
    }
};
#endif
