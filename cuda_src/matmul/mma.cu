// Product of two packed operands with the matrix instructions of a warp (sm_80 and later): C (m, n) = sum over planes p, q of
// w_p w_q A_p B_q^T.
//
// Operands are (batch, outer, planes, 16-byte padded contraction axis); an element is a bit, or a byte with BS_BYTES.
// A block of BS_WM x BS_WN warps computes 16 BS_MI BS_WM rows by 8 BS_NJ BS_WN columns, each warp 16 BS_MI by 8 BS_NJ of them. A column of
// the tile is a column of the result together with a plane of B: qb (1, 2, 4) planes lie next to each other, so each tile of A is loaded
// once for all of them. Further planes follow in passes, heaviest first; before each pass the accumulators are multiplied by the ratio of
// the weights.
// All threads copy the next stages (128 bytes of the contraction axis) between the products of the current one, across passes and tiles:
// while one tile is stored, the next one arrives. For small results the contraction axis is cut into parts, which add their sums to a
// result that was zero; since these are integers, the order does not matter.
//
// Compile-time: BS_WM, BS_WN, BS_MI, BS_NJ, BS_STAGES, BS_BLOCKS (resident blocks of a multiprocessor), BS_BYTES, BS_OUT64 (adds every pass
// to an int64 result), BS_EPILOGUE (sums go through finish/strips.cuh, in the ring's memory, so nothing is copied ahead for the next tile).
// Floor: 2 m n k planes operations at the chip's rate for these instructions, 5.0e15 a second for bits on an A100 and 10.1e15 on an H200 (a
// third below wgmma's there), or the bytes of operands and result. See docs/kernels/matmul.md.
#include "matmul/mma_store.cuh"

struct Fragments {
    u32 a[BS_MI][4], b[BS_NJ / 2][4];
};

struct Worker {
    const MmaParams &g;
    const u32 tiles; // address of the ring
    Loader loader;
    int stage; // the current stage
    u32 at_a, at_b; // the addresses in stage 0 that this lane passes to load_matrices
    Fragments parts[2]; // of this step and the next one
    Accumulators acc;

    __device__ __forceinline__ Worker(const MmaParams &params, u32 ring) : g(params), tiles(ring), loader(params, ring)
    {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, swap = lane & 7;
        at_a = tiles + ((warp / BS_WN) * (16 * BS_MI) + (lane & 15)) * kRowBytes + (((lane >> 4) ^ swap) << 4);
        at_b = tiles + kBytesA + ((warp % BS_WN) * (8 * BS_NJ) + ((lane >> 4) << 3) + swap) * kRowBytes + ((((lane >> 3) & 1) ^ swap) << 4);
    }

    __device__ __forceinline__ void load(Fragments &to, int from, int step)
    {
        const u32 a = (at_a + from * kBytesStage) ^ (step << 5), b = (at_b + from * kBytesStage) ^ (step << 5);
#pragma unroll
        for (int i = 0; i < BS_MI; i++)
            load_matrices(to.a[i], a + i * (16 * kRowBytes));
#pragma unroll
        for (int j = 0; j < BS_NJ / 2; j++)
            load_matrices(to.b[j], b + j * (16 * kRowBytes));
    }

    __device__ __forceinline__ void multiply_step(const Fragments &by)
    {
#pragma unroll
        for (int i = 0; i < BS_MI; i++)
#pragma unroll
            for (int j = 0; j < BS_NJ; j++)
#ifdef BS_BYTES
                mma_m16n8k32_u8(acc[i][j], by.a[i], by.b[j >> 1][2 * (j & 1)], by.b[j >> 1][2 * (j & 1) + 1]);
#else
                mma_m16n8k256_b1(acc[i][j], by.a[i], by.b[j >> 1][2 * (j & 1)], by.b[j >> 1][2 * (j & 1) + 1]);
#endif
    }

    // Fills all stages but one and loads the operands of the first step.
    __device__ __forceinline__ void start()
    {
        stage = 0;
#pragma unroll 1
        for (int i = 0; i < BS_STAGES - 1; i++) {
            loader.begin(i);
            loader.copy(0, Loader::kCopies);
            copy_commit();
        }
        copy_wait<BS_STAGES - 2>();
        __syncthreads();
        load(parts[0], 0, 0);
    }

    // At the barrier all warps are done with the previous stage, which is filled again meanwhile. The first step of the next stage is read
    // before the last products of this one.
    __device__ __forceinline__ void multiply_stage()
    {
        constexpr int kShare = (Loader::kCopies + kSteps - 2) / (kSteps - 1);
        loader.begin(stage == 0 ? BS_STAGES - 1 : stage - 1);
#pragma unroll
        for (int step = 0; step < kSteps - 1; step++) {
            load(parts[(step + 1) & 1], stage, step + 1);
            loader.copy(step * kShare, min(Loader::kCopies, (step + 1) * kShare));
            multiply_step(parts[step & 1]);
        }
        copy_commit();
        copy_wait<BS_STAGES - 2>();
        __syncthreads();
        stage = stage == BS_STAGES - 1 ? 0 : stage + 1;
        load(parts[0], stage, 0);
        multiply_step(parts[(kSteps - 1) & 1]);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < BS_MI; i++)
#pragma unroll
            for (int j = 0; j < BS_NJ; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[i][j][e] = 0;
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, BS_BLOCKS) matmul_mma(const __grid_constant__ MmaParams g)
{
    extern __shared__ __align__(128) unsigned char memory[];
    Worker me(g, (shared_address(memory) + 127u) & ~127u);
#ifndef BS_EPILOGUE
    me.start();
#endif
    const Pass *list = passes_of(g);
    const int items = items_of(g);
    for (int index = blockIdx.x; index < items; index += gridDim.x) {
        const Item w = item_of(g, index);
        const u32 *blocks = blocks_of(g, w);
#ifdef BS_EPILOGUE
        __syncthreads(); // the epilogue of the previous item is done with the ring
        me.loader.enter(index);
        me.start();
#endif
        me.clear();
        for (int t = 0; t < g.n_passes; t++) {
            const Range k = range_of(g, list + t, w);
#ifndef BS_OUT64
            if (t > 0)
                multiply(g, me.acc, list[t].ratio);
#endif
            for (int kb = next_block(blocks, k.begin, k.end); kb < k.end; kb = next_block(blocks, kb + 1, k.end))
                me.multiply_stage();
#ifdef BS_OUT64
            flush_pass(g, me.acc, w, list[t].weight[0], t == 0);
            me.clear();
#endif
        }
#ifndef BS_OUT64
        combine_planes(g, me.acc, list[g.n_passes - 1].weight);
#ifdef BS_EPILOGUE
        copy_wait<0>();
        finish_tile(g, me.tiles, me.acc, w);
#else
        store_tile(g, me.acc, w);
#endif
#endif
    }
    copy_wait<0>();
}
