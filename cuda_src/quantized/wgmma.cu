// Product of floats and byte weights on Hopper: C (m, n) float32 = scale w_scale (codes of X) W^T + bias, where X (m, k) is quantised on
// the way.
//
// Blocks are persistent and take 128 rows at a time. Seven warps load X, BS_AHEAD rows of 128 columns at a time, one or two such parts
// ahead of those they are turning into codes, and put the codes into a ring of eight blocks of 128 rows by 128 columns. One thread loads
// the weights through TMA into a ring of four such blocks (quantized/produce.cuh). Two warpgroups multiply 64 rows each by 128 columns at a
// time, scale the sums and store them with the copy engine. A row of X is read and quantised once if its codes fit into the ring (k <=
// 1024) or if n <= 128; otherwise once for each 128 columns, from the L2. Accumulators of 64 x 128 leave registers for that many warps
// without reallocation; with 64 x 256 the assembler allows at most 384 threads. What is left when all blocks have had their share is
// divided among them by columns. Where k is long for so few rows, blocks share the contraction axis too, and the last one adds up, exactly.
//
// Compile-time: see quantized/load.cuh; BS_AHEAD (8, 16). Floor on an H200: bytes of X and of the result at 4.0 TB/s (read and write
// together), 2 m n k operations at 1.93e15 a second. (169 343 x 512) x (512 x 512): 174 us and 46 us; measured 238 us with the scale given.
// See docs/kernels/quantized.md.
#include "quantized/produce.cuh"
#define BS_BYTES
#define BS_SIGNED 3
#include "common/wgmma.cuh"
#include "common/wgmma_store.cuh"

// ---- multiplying warps
struct Consumer {
    const QuantizedParams &g;
    const Shared &s;
    Finish finish;
    Ring<kLeftSlots> left{0};
    Ring<kRightSlots> right{0};
    u32 held_left = 0, held_right = 0; // barriers of slots whose products may still be running
    int acc[64];

    // A slot is empty once every warp that reads it is done with it.
    __device__ __forceinline__ void release()
    {
        if ((threadIdx.x & 31) == 0) {
            if (held_right)
                barrier_arrive(held_right);
            if (held_left)
                barrier_arrive(held_left);
        }
        held_left = held_right = 0;
    }

    // `fresh`: these codes have not been waited for; `last`: no later product uses them.
    __device__ __forceinline__ void multiply(bool fresh, bool last, bool begins)
    {
        if (fresh)
            barrier_wait(s.left_full + left.slot * 8, left.phase);
        barrier_wait(s.right_full + right.slot * 8, right.phase);
        const u64 a = wgmma_descriptor(s.left + left.slot * kBytesBlock + (threadIdx.x >> 7) * (64 * kRowBytes));
        const u64 b = wgmma_descriptor(s.right + right.slot * kBytesBlock);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Wgmma<128>::run(acc, a + 2 * step, b + 2 * step, step == 0 && begins ? 0 : 1);
        wgmma_commit();
        wgmma_wait<1>();
        release();
        held_left = last ? s.left_empty + left.slot * 8 : 0;
        held_right = s.right_empty + right.slot * 8;
        left.advance();
        right.advance();
    }

    // Scales the sums of 32 columns. Element 4 i + e is row g + 8 (e / 2), column 8 i + 2 t + e % 2, for lane 4 g + t.
    __device__ __forceinline__ void scale(int j, int row, int column)
    {
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) {
            const float2 by = *(const float2 *)(g.w_scale + column + 8 * i);
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[e] = finish.value(acc[4 * i + e], e & 1 ? by.y : by.x);
            if (g.bias) {
                const float2 more = *(const float2 *)(g.bias + column + 8 * i);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    v[e] = bs_addf(v[e], e & 1 ? more.y : more.x);
            }
            if (g.absmax)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (row + 8 * (e / 2) < g.m)
                        finish.see(v[e]);
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[4 * i + e] = (int)bs_bits_of(v[e]);
        }
        wgmma_pin(acc); // nor may loads for the next columns move before this
    }

    // The sums of a part wait in memory; the warp that comes last adds up all parts of its rows. False for all others.
    __device__ __forceinline__ bool add_parts(int tile, int part)
    {
        constexpr int threads = 32 * kConsumerWarps;
        int4 *const slots = (int4 *)g.partial + (long long)tile * g.k_parts * 16 * threads + threadIdx.x;
        int *const arrived = g.arrived + tile * kConsumerWarps + (threadIdx.x >> 5);
#pragma unroll
        for (int j = 0; j < 16; j++)
            slots[(part * 16 + j) * threads] = make_int4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
        __threadfence();
        __syncwarp();
        int before = 0;
        if ((threadIdx.x & 31) == 0)
            before = atomicAdd(arrived, 1);
        if (__shfl_sync(~0u, before, 0) != g.k_parts - 1)
            return false;
        __threadfence();
        if ((threadIdx.x & 31) == 0)
            *arrived = 0; // for the next launch
#pragma unroll 1
        for (int other = 0; other < g.k_parts; other++) {
            if (other == part)
                continue;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                if (j % 4 == 0)
                    asm volatile("" ::: "memory"); // four loads at a time, since the sums take most registers
                const int4 v = __ldcg(slots + (other * 16 + j) * threads);
                acc[4 * j] += v.x, acc[4 * j + 1] += v.y, acc[4 * j + 2] += v.z, acc[4 * j + 3] += v.w;
            }
        }
        return true;
    }

    // Straight from the registers: every four lanes write 32 bytes of a row.
    __device__ __forceinline__ void store(int row, int column)
    {
        float *out = g.out + (long long)row * g.n + column;
        const long long eight_rows = 8ll * g.n;
        const bool upper = row < g.m, lower = row + 8 < g.m;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scale(j, row, column);
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; i++) {
                if (g.pairs) {
                    if (upper && column + 8 * i < g.n)
                        *(int2 *)(out + 8 * i) = make_int2(acc[4 * i], acc[4 * i + 1]);
                    if (lower && column + 8 * i < g.n)
                        *(int2 *)(out + eight_rows + 8 * i) = make_int2(acc[4 * i + 2], acc[4 * i + 3]);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if ((e < 2 ? upper : lower) && column + 8 * i + (e & 1) < g.n)
                            out[(e < 2 ? 0 : eight_rows) + 8 * i + (e & 1)] = bs_float_of((u32)acc[4 * i + e]);
                }
            }
        }
    }

    // Through the copy engine, while the next products run. All four warps of a warpgroup must call this together, since they wait for each
    // other. It does not work for parts, where each warp may find its own last one.
    __device__ __forceinline__ void store_bulk(int row0, int column0)
    {
        const StripStore strips(s.staging);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (column0 + 32 * j >= g.n || row0 >= g.m)
                break;
            scale(j, row0 + 16 * strips.warp + strips.r, column0 + 2 * strips.t);
            strips.store(acc, j, &g.y, column0 + 32 * j, row0, 0);
        }
    }

    __device__ __forceinline__ void run()
    {
        const int lane = threadIdx.x & 31;
        const bool again = makes_again(g);
#pragma unroll 1
        for (int index = blockIdx.x; index < g.units; index += gridDim.x) {
            const Unit unit = unit_of(g, index);
            const Ring<kLeftSlots> begin = left;
#pragma unroll 1
            for (int tile = unit.first; tile < unit.last; tile++) {
                if (!again)
                    left = begin;
#pragma unroll 1
                for (int block = unit.begin(); block < unit.end(); block++)
                    multiply(again || tile == unit.first, again || tile == unit.last - 1, block == unit.begin());
                wgmma_wait<0>();
                wgmma_pin(acc);
                release();
                if (g.k_parts > 1 && !add_parts(unit.m_tile * g.n_tiles + tile, unit.part))
                    continue;
                const int row0 = unit.m_tile * kTileRows + (threadIdx.x >> 7) * 64;
                if (g.bulk)
                    store_bulk(row0, tile * kTileColumns);
                else
                    store(row0 + ((threadIdx.x >> 5) & 3) * 16 + (lane >> 2), tile * kTileColumns + 2 * (lane & 3));
            }
        }
        finish.report(g);
        bulk_wait_read<0>();
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) quantized_wgmma(const __grid_constant__ QuantizedParams g)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * (kLeftSlots + kRightSlots)];
    const u32 base = (shared_address(memory) + 1023u) & ~1023u, first = shared_address(barriers);
    const u32 right = base + kLeftSlots * kBytesBlock, right_full = first + 16 * kLeftSlots;
    const Shared s = {
        base, right, right + kRightSlots * kBytesBlock, first, first + 8 * kLeftSlots, right_full, right_full + 8 * kRightSlots};
    const int warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kLeftSlots; i++) {
            barrier_init(s.left_full + i * 8, kParts);
            barrier_init(s.left_empty + i * 8, kConsumerWarps);
        }
        for (int i = 0; i < kRightSlots; i++) {
            barrier_init(s.right_full + i * 8, 1);
            barrier_init(s.right_empty + i * 8, kConsumerWarps);
        }
        fence_barrier_init();
    }
    __syncthreads();
    const Grid grid = grid_of(g);
    if (warp < kConsumerWarps) {
        Consumer me{g, s, Finish(grid.scale)};
        me.run();
    } else if (warp < kConsumerWarps + kLoaderWarps) {
        if (g.codes)
            load_all<true>(g, s, grid);
        else
            load_all<false>(g, s, grid);
    } else if ((threadIdx.x & 31) == 0) {
        tma_prefetch(&g.w);
        load_weights(g, s);
    }
}
