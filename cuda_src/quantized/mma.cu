// Product of floats and byte weights by the matrix instructions of a warp (sm_80 and later): C (m, n) float32 = scale w_scale (codes of X)
// W^T + bias, where X (m, k) is quantised as it is loaded. Hopper uses quantized/wgmma.cu instead.
//
// A block computes 128 x 128, each of its eight warps 64 x 32. It takes 128 columns of the contraction axis at a time. While their codes
// are multiplied from shared memory, each warp computes the codes of sixteen rows of the next block, four at a time between the products,
// and the weights of the block after that are copied. Blocks that share rows follow each other, so X comes from memory once and from the L2
// after that.
//
// Compile-time: see quantized/load.cuh; BS_BLOCKS (resident blocks of a multiprocessor). Floor: bytes of X and of the result, or 2 m n k
// operations at the chip's rate.
#include "quantized/load.cuh"

constexpr int kThreads = 256, kRightSlots = 3, kSteps = kRowBytes / 32;
constexpr int kLoads = kTileRows / (kThreads / 32) / kSteps; // rows that a warp loads in a step

BS_INLINE u32 at_chunk(u32 block, int row, int chunk) { return block + row * kRowBytes + ((chunk ^ (row & 7)) << 4); }

struct Worker {
    const QuantizedParams &g;
    const Grid grid;
    const u32 left, right; // addresses of two and three blocks
    const int m_tile, n_tile, lane, warp;
    float odd = 0.0f;
    int acc[4][4][4];

    __device__ __forceinline__ Worker(const QuantizedParams &params, u32 memory)
        : g(params), grid(grid_of(params)), left(memory), right(memory + 2 * kBytesBlock), m_tile(blockIdx.x / params.n_tiles),
          n_tile(blockIdx.x % params.n_tiles), lane(threadIdx.x & 31), warp(threadIdx.x >> 5)
    {
    }

    __device__ __forceinline__ int row_of(int step, int i) const { return warp * (kLoads * kSteps) + step * kLoads + i; }

    __device__ __forceinline__ void load(Four (&fours)[kLoads], int block, int step) const
    {
#pragma unroll
        for (int i = 0; i < kLoads; i++) { // rows past the last one repeat it, and their results are not stored
            const int row = min(m_tile * kTileRows + row_of(step, i), g.m - 1);
            fours[i] = load_four(g.x + row * g.x_row, block * kRowBytes + 4 * lane, g.k);
        }
    }

    template <bool usual> __device__ __forceinline__ void quantise(const Four (&fours)[kLoads], int block, int step)
    {
        const u32 to = left + (block & 1) * kBytesBlock;
#pragma unroll
        for (int i = 0; i < kLoads; i += 2) {
            const int first = row_of(step, i), row = m_tile * kTileRows + first;
            const Draws draws(g, (u64)row * (u32)g.k + (block * kRowBytes + 4 * lane));
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 word = codes_of<usual>(grid, fours[i + j], draws.of[j], odd);
                store_shared_word(at_chunk(to, first + j, lane >> 2) + (lane & 3) * 4, (int)word);
                if (g.codes && n_tile == 0)
                    keep_codes(g, row + j, block * 32 + lane, word);
            }
        }
    }

    __device__ __forceinline__ void copy_weights(int block, int blocks) const
    {
        if (block < blocks) {
            const u32 to = right + block % kRightSlots * kBytesBlock;
#pragma unroll
            for (int i = 0; i < kTileColumns * 8 / kThreads; i++) {
                const int row = i * (kThreads / 8) + (threadIdx.x >> 3), chunk = threadIdx.x & 7;
                const int column = n_tile * kTileColumns + row, word = block * 32 + chunk * 4;
                const bool valid = column < g.n && word < g.w_words;
                copy_async(at_chunk(to, row, chunk), valid ? g.weights + (long long)column * g.w_words + word : g.weights, valid);
            }
        }
        copy_commit();
    }

    // Multiplies 32 columns of the contraction axis: all rows of the warp by all its columns.
    __device__ __forceinline__ void multiply(int block, int step)
    {
        const u32 codes = left + (block & 1) * kBytesBlock, weights = right + block % kRightSlots * kBytesBlock;
        u32 b[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_matrices(b[j],
                          at_chunk(weights, (warp & 3) * 32 + 16 * j + ((lane >> 4) << 3) + (lane & 7), 2 * step + ((lane >> 3) & 1)));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a[4];
            load_matrices(a, at_chunk(codes, (warp >> 2) * 64 + 16 * i + (lane & 15), 2 * step + (lane >> 4)));
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_m16n8k32_s8(acc[i][j], a, b[j >> 1][2 * (j & 1)], b[j >> 1][2 * (j & 1) + 1]);
        }
    }

    template <bool usual> __device__ __forceinline__ void run()
    {
        const int blocks = (g.k + kRowBytes - 1) / kRowBytes;
        Four fours[kLoads];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[i][j][e] = 0;
        copy_weights(0, blocks);
        copy_weights(1, blocks);
#pragma unroll 1
        for (int step = 0; step < kSteps; step++) {
            load(fours, 0, step);
            quantise<usual>(fours, 0, step);
        }
#pragma unroll 1
        for (int block = 0; block < blocks; block++) {
            copy_wait<1>();
            __syncthreads(); // codes and weights of this block have arrived, and all warps are done with the previous ones
            copy_weights(block + 2, blocks);
            const bool more = block + 1 < blocks;
#pragma unroll 1 // otherwise all loads would come first and need too many registers
            for (int step = 0; step < kSteps; step++) {
                if (more)
                    load(fours, block + 1, step);
                multiply(block, step);
                if (more)
                    quantise<usual>(fours, block + 1, step);
            }
        }
        if (odd != odd)
            *g.odd = 1;
        store();
    }

    // Element e of instruction (i, j) is row 16 i + g + 8 (e / 2), column 8 j + 2 t + e % 2 of the warp's tile, for lane 4 g + t.
    __device__ __forceinline__ void store()
    {
        Finish finish(grid.scale);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = n_tile * kTileColumns + (warp & 3) * 32 + 8 * j + 2 * (lane & 3);
            const float2 by = *(const float2 *)(g.w_scale + column);
            const float2 more = g.bias ? *(const float2 *)(g.bias + column) : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int row = m_tile * kTileRows + (warp >> 2) * 64 + 8 * i + (lane >> 2);
                float x = finish.value(acc[i / 2][j][2 * (i & 1)], by.x), y = finish.value(acc[i / 2][j][2 * (i & 1) + 1], by.y);
                if (g.bias)
                    x = bs_addf(x, more.x), y = bs_addf(y, more.y);
                if (row >= g.m || column >= g.n)
                    continue;
                const bool both = column + 1 < g.n;
                finish.see(x);
                if (both)
                    finish.see(y);
                float *out = g.out + (long long)row * g.n + column;
                if (g.pairs)
                    *(float2 *)out = make_float2(x, y);
                else {
                    out[0] = x;
                    if (both)
                        out[1] = y;
                }
            }
        }
        finish.report(g);
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, BS_BLOCKS) quantized_mma(const __grid_constant__ QuantizedParams g)
{
    extern __shared__ __align__(128) unsigned char memory[];
    Worker me(g, (shared_address(memory) + 127u) & ~127u);
    if (me.grid.usual)
        me.run<true>();
    else
        me.run<false>();
}
