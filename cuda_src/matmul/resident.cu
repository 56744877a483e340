// Mixed-input product on warpgroups (sm_90a): rows of bytes times columns of packed planes, which a block unpacks once and keeps.
//
// A block has BS_COLUMNS columns of the result. All its threads unpack them to bytes in shared memory, for the whole contraction axis and
// in the layout of the matrix unit. Then each of its first `groups` warpgroups multiplies them by one strip of 64 rows after another,
// independently. The first thread of a group keeps its ring filled with the next rows (TMA, 128 bytes of the contraction axis a stage); it
// begins before the previous kernel ends, unless that kernel computes the rows. Sums are stored from registers while the next rows arrive.
// Like matmul/mixed.cu this takes one launch, for short contraction axes. Bytes are in the order of the transposition of planes
// (bits/octet_turn.cuh), and so are those of the rows.
//
// Compile-time: BS_COLUMNS (16, 32, 48, 64, 96, 128), BS_PLANES (of the columns, up to 8), BS_EXTEND (the last plane is a sign, repeated up
// to the sign bit of the byte), BS_SIGNED (1: bytes of rows, 2: of columns), BS_STAGED (results are stored through shared memory).
// Floor: a launch and the latency from a load to the result; the result at some 3.3 TB/s. See docs/kernels/matmul.md.
#define BS_BYTES
#include "bits/octet_turn.cuh"
#include "common/wgmma.cuh"
#include "common/wgmma_store.cuh"
#include "matmul/passes.cuh"

constexpr int kMostThreads = 512, kStripRows = 64;
constexpr int kBytesStage = kStripRows * kRowBytes, kBytesBlock = BS_COLUMNS * kRowBytes; // of rows, of columns
#ifdef BS_STAGED
constexpr int kBytesStaging = 4 * 2048; // of a group, through which results are stored
#else
constexpr int kBytesStaging = 0;
#endif
#ifdef BS_EXTEND
constexpr int kFilled = 8;
#else
constexpr int kFilled = BS_PLANES;
#endif

struct ResidentParams {
    TensorMap a; // bytes (batches, m, 32 words for each block)
    const u32 *b; // (batches, n, planes, 4 blocks)
    int *out;
    const int *row_term, *col_term; // added to every row, column; may be null
    const int2 *batch_indices; // batch -> index into a, b; null: the batch itself
    int m, n, blocks;
    int words; // of a plane of a column that hold elements
    u32 by_words; // for quotient()
    int groups; // how many of the block's warpgroups multiply
    int stages; // of a group's ring, a multiple of blocks
    int weight; // of a product of bytes
    int early; // whether no kernel that may still be running computes a
    int last_steps; // of 32 bytes in the last block that hold elements
    int pad[12]; // to a multiple of 64 bytes
};

// Unpacks the block's columns to bytes, one word of each plane at a time; the next words are loaded before the previous ones are
// transposed.
struct Unpacker {
    const u32 *planes; // of the first column
    int pitch; // words from plane to plane
    int columns, words;
    u32 by_words, to;

    __device__ __forceinline__ void load(u32 (&w)[BS_PLANES], int unit) const
    {
        const int column = quotient(unit, words, by_words), word = unit - column * words;
        const u32 *from = planes + (long long)column * BS_PLANES * pitch + word;
#pragma unroll
        for (int p = 0; p < BS_PLANES; p++)
            w[p] = from[p * pitch];
    }

    __device__ __forceinline__ void store(const u32 (&from)[BS_PLANES], int unit) const
    {
        const int column = quotient(unit, words, by_words), word = unit - column * words;
        u32 w[8];
#pragma unroll
        for (int p = 0; p < 8; p++)
            w[p] = p < BS_PLANES ? from[p < BS_PLANES ? p : 0] : kFilled == 8 ? from[BS_PLANES - 1] : 0;
        turn_octets<kFilled>(w);
        // 16-byte chunk c of a row of 128 bytes lies at c ^ (row % 8).
        const u32 row = to + (word >> 2) * kBytesBlock + column * kRowBytes, chunk = (2 * (word & 3)) ^ (column & 7);
        store_shared(row + chunk * 16, w[0], w[1], w[2], w[3]);
        store_shared(row + (chunk ^ 1) * 16, w[4], w[5], w[6], w[7]);
    }

    __device__ __forceinline__ void run() const
    {
        const int units = columns * words, step = blockDim.x;
        int unit = threadIdx.x;
        if (unit >= units)
            return;
        u32 next[BS_PLANES];
        load(next, unit);
#pragma unroll 1
        for (int after; unit < units; unit = after) {
            u32 now[BS_PLANES];
#pragma unroll
            for (int p = 0; p < BS_PLANES; p++)
                now[p] = next[p];
            after = unit + step;
            if (after < units)
                load(next, after);
            store(now, unit);
        }
    }
};

// The rows of one warpgroup: strips of 64 from `first` on, every step-th one, through a ring that starts at `tiles`.
struct Strips {
    const ResidentParams &g;
    u32 tiles, full; // stages, and a barrier for each
    int first, step, count; // `count`: strips of the result
    int batch;
    int to_load, stage; // the next strip, and the stage that it goes to

    // Loads the next strip if there is one. Called by one thread.
    __device__ __forceinline__ void load()
    {
        if (to_load >= count)
            return;
        for (int block = 0; block < g.blocks; block++) {
            barrier_expect(full + stage * 8, kBytesStage);
            tma_load(tiles + stage * kBytesStage, &g.a, full + stage * 8, 32 * block, to_load * kStripRows, 0, batch);
            stage = stage + 1 == g.stages ? 0 : stage + 1;
        }
        to_load += step;
    }

    __device__ __forceinline__ void begin()
    {
        for (int i = 0; i < g.stages; i++)
            barrier_init(full + i * 8, 1);
        fence_barrier_init();
    }
};

BS_INLINE void store_strip(const ResidentParams &g, int (&acc)[BS_COLUMNS / 2], int batch, int2 operand, int strip, u32 staging)
{
    const int lane = threadIdx.x & 31, row = strip * kStripRows + ((threadIdx.x >> 5) & 3) * 16 + (lane >> 2);
    const int column = (int)blockIdx.y * BS_COLUMNS + 2 * (lane & 3), columns = g.n - column;
    const bool upper = row < g.m, lower = row + 8 < g.m;
    if (g.weight != 1)
#pragma unroll
        for (int i = 0; i < BS_COLUMNS / 2; i++)
            acc[i] *= g.weight;
    if (g.row_term) {
        const int *term = g.row_term + (long long)operand.x * g.m + row;
        const int above = upper ? term[0] : 0, below = lower ? term[8] : 0;
#pragma unroll
        for (int i = 0; i < BS_COLUMNS / 2; i++)
            acc[i] += i & 2 ? below : above;
    }
    if (g.col_term) {
        const int *term = g.col_term + (long long)operand.y * g.n + column;
#pragma unroll
        for (int i = 0; i < BS_COLUMNS / 4; i++) {
            const int c = 8 * (i >> 1) + (i & 1), at = 4 * (i >> 1) + (i & 1), here = c < columns ? term[c] : 0;
            acc[at] += here;
            acc[at + 2] += here;
        }
    }
#ifdef BS_STAGED
    if (g.n % 4 == 0 && ((size_t)g.out & 15) == 0) {
        const int warp = threadIdx.x >> 5, row0 = strip * kStripRows + (warp & 3) * 16, column0 = (int)blockIdx.y * BS_COLUMNS;
        store_sums_staged(staging + warp * 2048, g.out + ((long long)batch * g.m + row0) * g.n + column0, g.n, acc, g.m - row0,
                          g.n - column0);
        return;
    }
#endif
    const bool pairs = g.n % 2 == 0 && ((size_t)g.out & 7) == 0;
    store_sums(g.out + ((long long)batch * g.m + row) * g.n + column, g.n, acc, upper, lower, columns, pairs);
}

// Adds the products of `steps` times 32 bytes; those of the first block begin the sums.
template <int steps> BS_INLINE void multiply_rows(int (&acc)[BS_COLUMNS / 2], u64 a, u64 b, int block)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < steps; k++)
        Wgmma<BS_COLUMNS>::run(acc, a + 2 * k, b + 2 * k, block + k);
    wgmma_commit();
}

// Grid: (parts of the rows, column tiles, batches).
extern "C" __global__ void __launch_bounds__(kMostThreads) matmul_resident(const __grid_constant__ ResidentParams g)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 bytes = (shared_address(memory) + 1023u) & ~1023u, rings = bytes + g.blocks * kBytesBlock;
    const u32 staging = rings + g.groups * g.stages * kBytesStage, barriers = staging + g.groups * kBytesStaging;
    const int group = (int)threadIdx.x >> 7, batch = blockIdx.z, column0 = (int)blockIdx.y * BS_COLUMNS;
    const bool multiplies = group < g.groups, leads = multiplies && (threadIdx.x & 127) == 0;
    const int2 operand = operands_of(g.batch_indices, batch);
    const int first = (int)blockIdx.x * g.groups + group;
    Strips strips = {g,
                     rings + group * g.stages * kBytesStage,
                     barriers + group * g.stages * 8,
                     first,
                     (int)gridDim.x * g.groups,
                     (g.m + kStripRows - 1) / kStripRows,
                     operand.x,
                     first,
                     0};
    let_next_kernel_start(); // starting it takes as long as a small product
    if (!g.early)
        wait_for_previous_kernel();
    if (leads) {
        strips.begin();
        for (int i = 0; i < g.stages; i += g.blocks)
            strips.load();
    }
    wait_for_previous_kernel();
    const int pitch = 4 * g.blocks;
    const Unpacker unpacker = {g.b + ((long long)operand.y * g.n + column0) * BS_PLANES * pitch,
                               pitch,
                               min(BS_COLUMNS, g.n - column0),
                               g.words,
                               g.by_words,
                               bytes};
    unpacker.run();
    fence_async_proxy();
    __syncthreads();
    if (!multiplies)
        return;
    const u64 columns = wgmma_descriptor(bytes);
    int stage = 0;
    u32 phase = 0;
#pragma unroll 1
    for (int strip = strips.first; strip < strips.count; strip += strips.step) {
        int acc[BS_COLUMNS / 2];
#pragma unroll 1
        for (int block = 0; block < g.blocks; block++) {
            barrier_wait(strips.full + stage * 8, phase);
            const u64 a = wgmma_descriptor(strips.tiles + stage * kBytesStage), b = columns + block * (kBytesBlock / 16);
            // Rows end with zeros, so the columns' bytes there do not matter.
            if (block + 1 == g.blocks && g.last_steps <= 2)
                multiply_rows<2>(acc, a, b, block);
            else
                multiply_rows<4>(acc, a, b, block);
            if (++stage == g.stages) {
                stage = 0;
                phase ^= 1;
            }
        }
        wgmma_wait<0>();
        wgmma_pin(acc);
        if (strip + strips.step < strips.count) {
            named_barrier(1 + group, 128); // all four warps have read the strip's stages
            if (leads)
                strips.load();
        }
        store_strip(g, acc, batch, operand, strip, staging);
    }
}
