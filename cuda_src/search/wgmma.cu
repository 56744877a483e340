// Nearest rows of bits, or pairs of rows, with Hopper's warpgroup matrix units.
//
// A block has 128 queries, 64 a warpgroup, in shared memory, and goes through a part of the database in tiles of 256 rows. A producer
// thread brings these into a ring of stages (1024 bits each) through TMA, together with the terms that counts are compared with. While one
// warpgroup multiplies, the other often tests its 128 counts a thread, which never leave the registers (search/scan.cuh); making them take
// turns took a tenth longer. For 64 queries and fewer the second warpgroup only releases stages.
//
// Compile-time: BS_STAGES, BS_RESIDENT (the queries stay in shared memory; otherwise they come with every stage), BS_STEPS (of 256 bits in
// a stage, 4 by default), BS_JACCARD, BS_PAIRS.
// Floor on an H200, 1024 bits: 2048 operations a pair at 15.4e15 a second, 7.5e12 pairs a second; two instructions and a load of a quarter
// word a pair leave the other units half idle. With 128 queries and fewer, the bytes of the database at 4.5 TB/s. Measured on an H100: 10
// 000 queries by 10 M rows, k = 10, 32 ms (floor 13.3); one query by 100 M rows 4.7 ms (2.8, at an H100's rate 3.8). See
// docs/kernels/search.md.
#include "common/wgmma.cuh"
#include "search/scan.cuh"

#ifndef BS_STEPS
#define BS_STEPS 4
#endif

constexpr int kConsumers = 256, kThreads = 384, kRows = 128, kColumns = 256, kRowBytes = 128;
constexpr int kBytesQueries = kRows * kRowBytes, kBytesRows = kColumns * kRowBytes, kBytesTerms = kColumns * 4;
#ifdef BS_RESIDENT
constexpr int kBytesStage = kBytesRows + kBytesTerms;
#else
constexpr int kBytesStage = kBytesRows + kBytesTerms + kBytesQueries;
#endif

struct WgmmaParams {
    TensorMap queries, database; // words, rows
    TensorMap terms; // 32 to a row
    ScanParams scan;
    int unused[8]; // up to a multiple of 64 bytes
};

struct Barriers {
    u32 full, empty, queries_full, queries_empty;
};

struct Ring {
    int stage = 0;
    u32 phase = 0;
    __device__ __forceinline__ void advance()
    {
        if (++stage == BS_STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

BS_INLINE void produce(const WgmmaParams &p, u32 base, u32 tiles, const Barriers &b)
{
    const ScanParams &g = p.scan;
    const int blocks = (g.width + 31) / 32, units = g.q_tiles * g.parts;
    Ring ring;
    ring.phase = 1; // the stages start empty
    [[maybe_unused]] u32 queries_phase = 1;
    for (int index = blockIdx.x; index < units; index += gridDim.x) {
        const Unit unit = unit_of(g, index);
#ifdef BS_RESIDENT
        barrier_wait(b.queries_empty, queries_phase);
        queries_phase ^= 1;
        barrier_expect(b.queries_full, blocks * kBytesQueries);
        for (int kb = 0; kb < blocks; kb++)
            tma_load(base + kb * kBytesQueries, &p.queries, b.queries_full, kb * 32, unit.q_tile * kRows, 0, 0);
#endif
        for (int tile = unit.first; tile < unit.end; tile++)
            for (int kb = 0; kb < blocks; kb++) {
                const u32 to = tiles + ring.stage * kBytesStage, full = b.full + ring.stage * 8;
                barrier_wait(b.empty + ring.stage * 8, ring.phase);
                barrier_expect(full, kBytesStage);
                tma_load(to, &p.database, full, kb * 32, tile * kColumns, 0, 0);
                tma_load(to + kBytesRows, &p.terms, full, 0, tile * (kColumns / 32), 0, 0);
#ifndef BS_RESIDENT
                tma_load(to + kBytesRows + kBytesTerms, &p.queries, full, kb * 32, unit.q_tile * kRows, 0, 0);
#endif
                ring.advance();
            }
    }
}

struct Consumer {
    const ScanParams &g;
    const Barriers &b;
    Scanner scanner;
    Ring ring;
    int acc[1][128];

    __device__ __forceinline__ void release(int stage)
    {
        __syncwarp();
        if (lane_id() == 0)
            barrier_arrive(b.empty + stage * 8);
    }

    // Multiplies one tile; returns the stage that is still held, which has the tile's terms.
    __device__ __forceinline__ int multiply(u32 base, u32 tiles, int blocks)
    {
        const int group = threadIdx.x >> 7;
        int held = -1;
#pragma unroll 1
        for (int kb = 0; kb < blocks; kb++) {
            const u32 rows = tiles + ring.stage * kBytesStage;
#ifdef BS_RESIDENT
            const u32 queries = base + kb * kBytesQueries;
#else
            const u32 queries = rows + kBytesRows + kBytesTerms;
#endif
            const u64 a = wgmma_descriptor(queries + group * 64 * kRowBytes), d = wgmma_descriptor(rows);
            barrier_wait(b.full + ring.stage * 8, ring.phase);
            wgmma_fence();
            // The last words take as many steps, since TMA fills up with zeros: with a branch the assembler would make each step wait for
            // the one before.
#pragma unroll
            for (int step = 0; step < BS_STEPS; step++)
                Wgmma<256>::run(acc[0], a + 2 * step, d + 2 * step, kb + step);
            wgmma_commit();
            if (held >= 0) {
                wgmma_wait<1>();
                release(held);
            }
            held = ring.stage;
            ring.advance();
        }
        wgmma_wait<0>();
        wgmma_pin(acc[0]);
        return held;
    }

    __device__ __forceinline__ void run(u32 base, u32 tiles)
    {
        const int blocks = (g.width + 31) / 32, units = g.q_tiles * g.parts, lane = lane_id(), warp = threadIdx.x >> 5;
        [[maybe_unused]] u32 queries_phase = 0;
        for (int index = blockIdx.x; index < units; index += gridDim.x) {
            const Unit unit = unit_of(g, index);
            const int row0 = unit.q_tile * kRows + warp * 16;
            const bool active = unit.q_tile * kRows + (warp & 4) * 16 < g.n_queries; // the whole warpgroup
            scanner.begin(unit.part, row0, unit.first * kColumns);
#ifdef BS_RESIDENT
            barrier_wait(b.queries_full, queries_phase);
            queries_phase ^= 1;
#endif
            for (int tile = unit.first; tile < unit.end; tile++) {
                if (!active) {
                    for (int kb = 0; kb < blocks; kb++, ring.advance()) {
                        barrier_wait(b.full + ring.stage * 8, ring.phase);
                        release(ring.stage);
                    }
                    continue;
                }
                if (tile % kTiles == 0) {
                    scanner.next_queue(tile * kColumns);
                    scanner.poll();
                }
                const int held = multiply(base, tiles, blocks);
                if (tile % kTiles == 0)
                    scanner.take_polled();
                // Terms lie as the 128-byte swizzle puts them: column 8 j + 2 t in row j / 4, chunk 2 (j % 4) + t / 2.
                const u32 terms = tiles + held * kBytesStage + kBytesRows + (lane & 1) * 8, half = (lane & 2) << 3;
                scanner.scan<32>(acc, tile * kColumns, [=](int j) {
                    return load_shared_pair(terms + (j >> 2) * kRowBytes + ((half | (j & 3) << 5) ^ ((j >> 2 & 7) << 4)));
                });
                release(held);
            }
#ifdef BS_RESIDENT
            __syncwarp();
            if (lane == 0)
                barrier_arrive(b.queries_empty);
#endif
            scanner.end();
        }
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) search_wgmma(const __grid_constant__ WgmmaParams p)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * BS_STAGES + 2];
    __shared__ WarpMemory of_warps[kConsumers / 32];
    const u32 base = (shared_address(memory) + 1023u) & ~1023u;
#ifdef BS_RESIDENT
    const u32 tiles = base + (p.scan.width + 31) / 32 * kBytesQueries;
#else
    const u32 tiles = base;
#endif
    const u32 full = shared_address(barriers), behind = full + BS_STAGES * 16;
    const Barriers b = {full, full + BS_STAGES * 8, behind, behind + 8};
    if (threadIdx.x == kConsumers) {
        tma_prefetch(&p.queries);
        tma_prefetch(&p.database);
        tma_prefetch(&p.terms);
        for (int i = 0; i < BS_STAGES; i++) {
            barrier_init(b.full + i * 8, 1);
            barrier_init(b.empty + i * 8, kConsumers / 32);
        }
        barrier_init(b.queries_full, 1);
        barrier_init(b.queries_empty, kConsumers / 32);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x >= kConsumers) {
        registers_release<40>();
        if (threadIdx.x == kConsumers)
            produce(p, base, tiles, b);
        __syncwarp();
    } else {
        registers_claim<232>();
        Consumer me{p.scan, b, Scanner(p.scan, of_warps[threadIdx.x >> 5])};
        me.run(base, tiles);
    }
}
