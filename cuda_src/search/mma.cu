// Nearest rows of bits, or pairs of rows, with the matrix instructions of a warp (sm_80 and later).
//
// A block of four warps takes 128 queries, 32 a warp, and goes through a part of the database in tiles of 64 rows, which come through a
// ring of stages (1024 bits each, swizzled as in matmul/mma.cuh). The queries stay in shared memory if they fit (BS_RESIDENT); otherwise
// they come with every stage. Counts never leave the registers: search/scan.cuh. If queries are few, warps without any queries only copy.
//
// Compile-time: BS_STAGES, BS_RESIDENT, BS_BYTES (for chips that emulate the one-bit instruction: bits are spread to bytes in registers,
// four of a word's 32 at a time, in an order that is the same for both operands), BS_JACCARD, BS_PAIRS.
// Floor: 2 queries rows bits operations at the chip's rate for these instructions, or the bytes of the database; see
// docs/kernels/search.md.
#define BS_MI 2
#include "search/scan.cuh"

constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 128, kColumns = 64, kRowBytes = 128;
constexpr int kBytesQueries = kRows * kRowBytes, kBytesRows = kColumns * kRowBytes;
#ifdef BS_RESIDENT
constexpr int kBytesStage = kBytesRows + kColumns * 4;
#else
constexpr int kBytesStage = kBytesRows + kColumns * 4 + kBytesQueries;
#endif

struct Fragments {
    u32 a[2][4], b[4][4];
};

// Copies `rows` rows of block kb of the contraction axis into a stage; chunk c of row r lies at c ^ (r % 8).
template <int rows> BS_INLINE void copy_rows(u32 to, const u32 *from, long long first, long long n, int width, int kb)
{
    const int chunk = threadIdx.x & 7, word = kb * 32 + chunk * 4;
#pragma unroll
    for (int r = threadIdx.x >> 3; r < rows; r += kThreads / 8) {
        const bool valid = first + r < n && word < width;
        copy_async(to + r * kRowBytes + ((chunk ^ (r & 7)) << 4), valid ? from + (first + r) * width + word : from, valid);
    }
}

struct Stages {
    const ScanParams &g;
    u32 resident, ring;
    Unit unit;
    int blocks; // of the contraction axis
    int tile, kb, stage; // the next ones to copy

    __device__ __forceinline__ void copy_next()
    {
        if (tile < unit.end) {
            const u32 to = ring + stage * kBytesStage;
            copy_rows<kColumns>(to, g.database, (long long)tile * kColumns, g.n, g.width, kb);
            if (threadIdx.x < kColumns / 4)
                copy_async(to + kBytesRows + threadIdx.x * 16, g.terms + (long long)tile * kColumns + threadIdx.x * 4, true);
#ifndef BS_RESIDENT
            copy_rows<kRows>(to + kBytesRows + kColumns * 4, g.queries, (long long)unit.q_tile * kRows, g.n_queries, g.width, kb);
#endif
            if (++kb == blocks)
                kb = 0, tile++;
            stage = stage == BS_STAGES - 1 ? 0 : stage + 1;
        }
        copy_commit();
    }
};

// Multiplies one step of 256 bits: 32 queries by 64 rows.
BS_INLINE void multiply(int (&acc)[2][32], const Fragments &f)
{
#ifdef BS_BYTES
#pragma unroll 1
    for (int bit = 0; bit < 8; bit++) {
        u32 a[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i >> 2][i & 3] = f.a[i >> 2][i & 3] >> bit & 0x01010101u;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u32 b0 = f.b[j >> 1][2 * (j & 1)] >> bit & 0x01010101u, b1 = f.b[j >> 1][2 * (j & 1) + 1] >> bit & 0x01010101u;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int d[4] = {acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2], acc[i][4 * j + 3]};
                mma_m16n8k32_u8(d, a[i], b0, b1);
                acc[i][4 * j] = d[0], acc[i][4 * j + 1] = d[1], acc[i][4 * j + 2] = d[2], acc[i][4 * j + 3] = d[3];
            }
        }
    }
#else
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int d[4] = {acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2], acc[i][4 * j + 3]};
            mma_m16n8k256_b1(d, f.a[i], f.b[j >> 1][2 * (j & 1)], f.b[j >> 1][2 * (j & 1) + 1]);
            acc[i][4 * j] = d[0], acc[i][4 * j + 1] = d[1], acc[i][4 * j + 2] = d[2], acc[i][4 * j + 3] = d[3];
        }
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) search_mma(const __grid_constant__ ScanParams g)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ WarpMemory of_warps[kWarps];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, swap = lane & 7;
    const u32 base = (shared_address(memory) + 127u) & ~127u;
    const int blocks = (g.width + 31) / 32, units = g.q_tiles * g.parts;
#ifdef BS_RESIDENT
    const u32 ring = base + blocks * kBytesQueries;
#else
    const u32 ring = base;
#endif
    const u32 at_a = (warp * 32 + (lane & 15)) * kRowBytes + (((lane >> 4) ^ swap) << 4);
    const u32 at_b = (((lane >> 4) << 3) + swap) * kRowBytes + ((((lane >> 3) & 1) ^ swap) << 4);
    Scanner scanner(g, of_warps[warp]);
    int acc[2][32];
    for (int index = blockIdx.x; index < units; index += gridDim.x) {
        const Unit unit = unit_of(g, index);
        const int row0 = unit.q_tile * kRows + warp * 32;
        const bool active = row0 < g.n_queries;
        Stages next{g, base, ring, unit, blocks, unit.first, 0, 0};
        __syncthreads(); // all warps are done with the previous unit
#ifdef BS_RESIDENT
        for (int kb = 0; kb < blocks; kb++)
            copy_rows<kRows>(base + kb * kBytesQueries, g.queries, (long long)unit.q_tile * kRows, g.n_queries, g.width, kb);
#endif
#pragma unroll 1
        for (int i = 0; i < BS_STAGES - 1; i++)
            next.copy_next();
        scanner.begin(unit.part, row0, unit.first * kColumns);
        int stage = 0;
        for (int tile = unit.first; tile < unit.end; tile++) {
            if (active && tile % kTiles == 0) {
                scanner.next_queue(tile * kColumns);
                scanner.poll();
            }
#pragma unroll
            for (int i = 0; i < 64; i++)
                acc[i >> 5][i & 31] = 0;
            u32 rows = ring;
#pragma unroll 1
            for (int kb = 0; kb < blocks; kb++) {
                copy_wait<BS_STAGES - 2>();
                __syncthreads();
                next.copy_next(); // into the stage that all warps are done with
                rows = ring + stage * kBytesStage;
                stage = stage == BS_STAGES - 1 ? 0 : stage + 1;
#ifdef BS_RESIDENT
                const u32 queries = base + kb * kBytesQueries;
#else
                const u32 queries = rows + kBytesRows + kColumns * 4;
#endif
                const int steps = active ? min(4, (g.width + 7) / 8 - 4 * kb) : 0;
#pragma unroll 1
                for (int step = 0; step < steps; step++) {
                    Fragments f;
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        load_matrices(f.a[i], queries + (at_a ^ (step << 5)) + i * 16 * kRowBytes);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        load_matrices(f.b[j], rows + (at_b ^ (step << 5)) + j * 16 * kRowBytes);
                    multiply(acc, f);
                }
            }
            if (!active)
                continue;
            if (tile % kTiles == 0)
                scanner.take_polled();
            const u32 terms = rows + kBytesRows + (lane & 3) * 8;
            scanner.scan<8>(acc, tile * kColumns, [=](int j) { return load_shared_pair(terms + j * 32); });
        }
        scanner.end();
        copy_wait<0>();
    }
}
