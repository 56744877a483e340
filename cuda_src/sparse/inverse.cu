// The CSR pattern of 4 x 4 blocks, checked while it is built: no input is trusted.
#include "sparse/build.cuh"

struct InverseParams {
    const Index *starts, *cells; // where each block row starts, and its block columns
    const u16 *tiles;
    Index *indptr, *indices;     // results; indptr holds a 0 and the entries of each row until they are added up
    u64 *found;                  // the first wrong block row, counted from the end; zero at the start
    i64 rows, cols, windows;     // windows: block rows
};

#define BS_FROM_END (1ull << 62)

static __device__ __forceinline__ void report(const InverseParams &p, i64 w) { atomicMax(p.found, BS_FROM_END - (u64)w); }

// -- 4 x 4 blocks: a warp a block row ------------------------------------------------------------------------------------------------
// Counts the entries of each row. The block columns are known to be valid.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_tiles(const InverseParams p)
{
    const int lane = threadIdx.x & 31;
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 w = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); w < p.windows; w += step) {
        i64 counts[4] = {0, 0, 0, 0};
        const int rows = (int)(p.rows - 4 * w < 4 ? p.rows - 4 * w : 4);
        bool bad = false;
        for (i64 at = p.starts[w] + lane; at < p.starts[w + 1]; at += 32) {
            const u32 tile = p.tiles[at];
            const i64 left = p.cols - 4 * (i64)p.cells[at];
            const u32 columns = left >= 4 ? 0xffffu : ((1u << left) - 1u) * 0x1111u;
            const u32 allowed = columns & ((1u << (4 * rows)) - 1u);
            bad = bad || tile == 0 || (tile & ~allowed);
#pragma unroll
            for (int r = 0; r < 4; r++)
                counts[r] += __popc((tile >> (4 * r)) & 15u);
        }
        if (bad)
            report(p, w);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            for (int offset = 16; offset > 0; offset >>= 1)
                counts[r] += __shfl_xor_sync(~0u, counts[r], offset);
            if (lane == 0 && r < rows)
                p.indptr[4 * w + r + 1] = (Index)counts[r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) fill_tiles(const InverseParams p)
{
    const int lane = threadIdx.x & 31;
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 w = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); w < p.windows; w += step) {
        const int rows = (int)(p.rows - 4 * w < 4 ? p.rows - 4 * w : 4);
        i64 to[4];
        for (int r = 0; r < 4; r++)
            to[r] = r < rows ? p.indptr[4 * w + r] : 0;
        for (i64 first = p.starts[w]; first < p.starts[w + 1]; first += 32) {
            const bool inside = first + lane < p.starts[w + 1];
            const u32 tile = inside ? p.tiles[first + lane] : 0;
            const i64 block = inside ? p.cells[first + lane] : 0;
            u32 counts = 0; // one byte for each row: 32 tiles have at most 128 entries of a row
#pragma unroll
            for (int r = 0; r < 4; r++)
                counts |= (u32)__popc((tile >> (4 * r)) & 15u) << (8 * r);
            const u32 sum = sum_up_to_lane(counts);
            const u32 all = __shfl_sync(~0u, sum, 31), before = sum - counts;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                i64 at = to[r] + ((before >> (8 * r)) & 255u);
                for (u32 bits = (tile >> (4 * r)) & 15u; bits; bits &= bits - 1)
                    p.indices[at++] = (Index)(4 * block + __ffs(bits) - 1);
                to[r] += (all >> (8 * r)) & 255u;
            }
        }
    }
}
