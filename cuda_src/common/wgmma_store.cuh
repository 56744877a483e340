// Stores the accumulators of a warpgroup as the result: straight from the registers, or through the copy engine.
#ifndef BITSPARSE_WGMMA_STORE_CUH
#define BITSPARSE_WGMMA_STORE_CUH

#include "common/ptx.cuh"

// Straight from the registers: every four lanes write 32 bytes of a row. `out` is where this lane's first sum belongs. Register 4 i + e is
// 8 (e / 2) rows and 8 i + e % 2 columns from there; `columns` columns follow. `pairs`: whether two neighbours can be stored together.
// Only the first kStored sums are stored; 0: all.
template <int kStored = 0, int kCount>
BS_INLINE void store_sums(int *out, int n, const int (&acc)[kCount], bool upper, bool lower, int columns, bool pairs)
{
    const long long eight_rows = 8ll * n;
    constexpr int kUsed = kStored ? kStored : kCount;
    if (pairs) {
#pragma unroll
        for (int i = 0; i < kUsed / 4; i++) {
            if (upper && 8 * i < columns)
                *(int2 *)(out + 8 * i) = make_int2(acc[4 * i], acc[4 * i + 1]);
            if (lower && 8 * i < columns)
                *(int2 *)(out + eight_rows + 8 * i) = make_int2(acc[4 * i + 2], acc[4 * i + 3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kUsed / 2; i++) {
            const int c = 8 * (i >> 1) + (i & 1), at = 4 * (i >> 1) + (i & 1);
            if (upper && c < columns)
                out[c] = acc[at];
            if (lower && c < columns)
                out[eight_rows + c] = acc[at + 2];
        }
    }
}

// Through 2 KB of shared memory for each warp, so that eight lanes write 128 bytes of a row. `out` is where the warp's 16 rows begin;
// `rows` of them exist. Rows of the result must be multiples of 16 bytes and begin at one.
template <int kCount>
BS_INLINE void store_sums_staged(u32 slot, int *out, int n, const int (&acc)[kCount], int rows, int columns)
{
    const int lane = threadIdx.x & 31, r = lane >> 2, t = lane & 3, row = lane >> 3, quad = lane & 7;
    const bool odd = r & 1; // odd rows take the columns in another order, so that 16 lanes touch all banks
    const u32 to = slot + r * 128 + (t & 1) * 8, chunk = ((t >> 1) ^ r ^ (odd ? 4 : 0)) << 4;
#pragma unroll
    for (int j = 0; j < kCount; j += 16) { // 32 columns
        if (2 * j >= columns)
            break;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // Pair i & 1 (1: the lower half of the rows) of the eight columns number i / 2; beyond the last column there are none.
            const int at = j + 2 * i, other = j + 2 * (i ^ 4), here = at < kCount ? at : 0, there = other < kCount ? other : 0;
            store_shared(to + (i & 1) * 1024 + (chunk ^ ((i >> 1) << 5)), odd ? acc[there] : acc[here],
                         odd ? acc[there + 1] : acc[here + 1]);
        }
        __syncwarp();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const int down = 4 * step + row, across = 2 * j + 4 * quad;
            const int4 v = load_shared(slot + down * 128 + ((quad ^ (down & 7)) << 4));
            if (down < rows && across < columns && across < 2 * kCount)
                *(int4 *)(out + (long long)down * n + across) = v;
        }
    }
}

// Leaves a warpgroup's 64 rows to the copy engine, 32 columns at a time through two slots of 8 KB with the 128-byte swizzle, so that the
// result is written while the next tile is multiplied. Copies are few and large, since the engine takes one every 40 clocks or so. Two
// warps take turns at starting them, one for each slot, since only the thread that started a copy can wait for it.
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
