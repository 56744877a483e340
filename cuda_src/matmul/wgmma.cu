// Product of two packed operands on Hopper's warpgroup matrix units: C (m, n) = sum over planes p, q of w_p w_q A_p B_q^T.
//
// Operands are (batch, outer, planes, 16-byte padded contraction axis); an element is a bit, or a byte with BS_BYTES.
// A block computes 64 BS_GROUPS BS_MB rows by 64 BS_NB columns: consumer warpgroups of 64 BS_MB rows each, and one producer thread that
// feeds a ring of stages (128 bytes of the contraction axis: 1024 bits) through TMA. The BS_NB column blocks are nb blocks of 64 columns
// times qb planes of B (nb qb = BS_NB), so each tile of A is loaded once for qb planes. Further planes follow in passes, heaviest first:
// before each pass the accumulators are multiplied by the ratio of the weights, so no second set is needed.
// Kernels for a width have BS_QB planes of BS_WIDTH columns instead, both known when they are compiled.
// A cluster holds mc row tiles that share the loads of B by multicast, times the parts that split the contraction axis (rk) and the passes
// (rp) and add their results through distributed shared memory (only with BS_MB = 1, and nb = 1 or
// BS_WIDTH with at most two groups). Sums on their way to another part lie behind the ring; with BS_OVER_RING they lie in its place, once
// all blocks of the cluster are done with it.
//
// Results of 64 bits take the passes in the opposite order: matmul/wide.cuh.
//
// Compile-time: BS_GROUPS (1, 2, or 3 with BS_WIDTH), BS_MB (1, 2), BS_NB (1..4), or BS_WIDTH and BS_QB (1..4, 8; their product is a
// multiple of 16 up to 256, up to 192 with three groups) for an int32 result without BS_EPILOGUE, BS_STAGES, BS_BYTES, BS_SIGNED (which operands have signed bytes, 1 for A and
// 2 for B), BS_OVER_RING (with BS_WIDTH and a cluster with parts), BS_OUT64 (an int64 result), BS_PA (the BS_MB row blocks of a warpgroup are that many planes of the same 64 rows; always and
// only with BS_OUT64 and BS_MB = 2), BS_EPILOGUE (sums are not stored but go through finish/strips.cuh: 1, finish/fragments.cuh: 2, or,
// while the next tile is multiplied, finish/handed.cuh: 4, or finish/deferred.cuh: 3, with BS_HELD blocks of columns at a time; 3 and 4
// only with BS_MB = 1 and a cluster without parts).
// Floor on an H200: 2 m n k planes / 15.4e15 operations a second (1.93e15 for bytes), or bytes at 4.2 TB/s; about 2.4 us for a launch in a
// graph. Reached there: 1 x 1 bits 16384^3 0.83 ms (floor 0.57), 8192^3 0.137 ms (0.071), 32768 x 32768 x 64 0.038 ms (0.036), 4 x 2 bits
// 16384^3 5.1 ms (4.6), bytes 16384^3 5.9 ms with unpacking (4.6). All figures and what did not help: docs/kernels/matmul.md.
#include "matmul/produce.cuh"
#include "matmul/store.cuh"

// Bytes from one row block of a warpgroup to the next: the next rows, or the same rows of the next plane.
constexpr int kNextBlock = (kPlanesA > 1 ? kBlockRows : 64) * kRowBytes;

#ifdef BS_EPILOGUE // which leaves no registers for it
constexpr bool kHalfBlocks = false;
#else
constexpr bool kHalfBlocks = true;
#endif

struct Consumer {
    const MatmulParams &g;
    const Shared &s;
    const Place &place;
    Ring ring;
    int held = -1; // the stage whose products may still be running
    int keep = 0;
    int acc[BS_MB][kSums];
#ifdef BS_HELD
    Deferred deferred{s.staging + (threadIdx.x >> 5) * kBytesStrip};
#endif

    // A stage is empty once every warp that reads it, in this block and in those it was multicast to, is done with it.
    __device__ __forceinline__ void release()
    {
        const int lane = threadIdx.x & 31;
        if (held >= 0 && lane < g.mc)
            barrier_arrive_remote(s.empty + held * 8, place.first_member + lane);
        held = -1;
    }

    __device__ __forceinline__ void finish()
    {
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < BS_MB; i++)
            wgmma_pin(acc[i]);
        release();
    }

    template <int steps> __device__ __forceinline__ void multiply_steps(u64 a, u64 b)
    {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < steps; step++)
#pragma unroll
            for (int i = 0; i < BS_MB; i++)
                Wgmma<kColumns>::run(acc[i], a + 2 * step + i * (kNextBlock / 16), b + 2 * step, step == 0 ? keep : 1);
        wgmma_commit();
    }

    // `steps` of 32 bytes: fewer than four where the contraction axis ends. Two or four are multiplied, as every number has code of its own.
    __device__ __forceinline__ void multiply_stage(int steps)
    {
        const int group = threadIdx.x >> 7;
#ifdef BS_HELD
        const bool waiting = deferred.waiting();
        HalfVectors vectors;
        if (waiting)
            deferred.ask(g.epilogue, vectors);
#endif
        barrier_wait(s.full + ring.stage * 8, ring.phase);
        const u32 tile = s.tiles + ring.stage * kBytesStage;
        const u64 a = wgmma_descriptor(tile + group * 64 * kRowBlocks * kRowBytes), b = wgmma_descriptor(tile + kBytesA);
        if (kHalfBlocks && steps <= 2)
            multiply_steps<2>(a, b);
        else
            multiply_steps<4>(a, b);
        keep = 1;
        wgmma_wait<1>();
        release();
        held = ring.stage;
        ring.advance();
#ifdef BS_HELD
        if (waiting)
            deferred.finish_half(g.epilogue, vectors);
#endif
    }

#ifdef BS_HELD
    __device__ __forceinline__ void finish_deferred()
    {
#pragma unroll 1
        while (deferred.waiting()) {
            HalfVectors vectors;
            deferred.ask(g.epilogue, vectors);
            deferred.finish_half(g.epilogue, vectors);
        }
    }

    // If shared memory cannot hold all sums at once, only the last part of them can wait.
    __device__ __forceinline__ void defer(const Work &w, int row0)
    {
#pragma unroll 1
        for (int first = 0; first < g.nb && (w.n_tile * g.nb + first) * 64 < g.n; first += BS_HELD) {
            finish_deferred();
            deferred.take(g.epilogue, acc[0], first, g.nb, w.batch, row0, w.n_tile * g.nb * 64);
        }
    }
#endif

    __device__ __forceinline__ void clear_if_untouched()
    {
        if (keep == 0) {
#if BS_EPILOGUE != 1 // epilogue 1 leaves no registers for it
            asm volatile(""); // one jump over the loop, not a select for each register
#endif
#pragma unroll
            for (int i = 0; i < BS_MB; i++)
#pragma unroll
                for (int e = 0; e < kSums; e++)
                    acc[i][e] = 0;
        }
    }

#ifdef BS_OUT64
    int low[BS_MB][32 * BS_NB]; // unused where kCarries is false

    __device__ __forceinline__ void settle()
    {
        finish();
        clear_if_untouched();
        keep = 1;
    }

    __device__ __forceinline__ void begin_pass(const WidePass &pass)
    {
        if (pass.opens) {
            keep = 0;
            if (kCarries)
#pragma unroll
                for (int i = 0; i < BS_MB; i++)
#pragma unroll
                    for (int e = 0; e < 32 * BS_NB; e++)
                        low[i][e] = 0;
        } else if (kCarries && (pass.drop || pass.signs != pass.signs_before)) {
            settle();
            apply_signs(g, acc, pass.signs_before);
            carry(acc, low, pass.drop, pass.done);
            apply_signs(g, acc, pass.signs);
        }
    }
#endif
};

BS_INLINE void consume(const MatmulParams &g, const Shared &s, int first, int step, int units, const Place &place)
{
    Consumer me{g, s, place};
    const Pass *list = passes_of(g);
    const int row0 = (threadIdx.x >> 7) * 64 * kRowBlocks + ((threadIdx.x >> 5) & 3) * 16;
    const Range passes = part_of(0, g.n_passes, place.pass_part, g.rp);
    Work next = first_work(g, first, place);
    wait_for_previous_kernel();
#if BS_EPILOGUE == 4
    int tile = 0;
#endif
    for (int unit = first; unit < units; unit += step) {
        const Work w = next;
        const u32 *blocks = blocks_of(g, w);
        me.keep = 0;
#ifdef BS_OUT64
        bool untouched = true; // whether the result is untouched
#endif
#if BS_EPILOGUE == 1
#pragma unroll 1
        for (int i = 0; i < BS_MB; i++)
            ask_for_strip(g.epilogue, w.batch, w.m_tile * kBlockRows + row0 + 64 * i, w.n_tile * g.nb * 64, g.nb);
#endif
#if BS_EPILOGUE == 2
        vectors_of(g, s, place).fetch(g.epilogue, w.batch, w.m_tile * kBlockRows + row0, w.n_tile * g.nb * 64);
#endif
        for (int t = passes.begin; t < passes.end; t++) {
            const Pass *pass = list + t;
            const Range k = part_of(pass->k0, pass->k1, place.k_part, g.rk);
#ifdef BS_OUT64
            const WidePass &wide = *(const WidePass *)pass;
            me.begin_pass(wide);
#else
            if (t > passes.begin && me.keep) {
                const Weights ratio = weights_of(g, pass->ratio, 3);
                me.finish();
#pragma unroll
                for (int i = 0; i < BS_MB; i++)
                    multiply(me.acc[i], ratio);
            }
#endif
            for (int kb = next_block(blocks, k.begin, k.end); kb < k.end; kb = next_block(blocks, kb + 1, k.end))
                me.multiply_stage(kb == g.last_block ? g.last_steps : 4);
#ifdef BS_OUT64
            if (wide.closes) {
                me.settle();
                apply_signs(g, me.acc, wide.signs);
                flush(g, me.acc, me.low, w, w.m_tile * kBlockRows + row0, wide, untouched);
                untouched = false;
            }
#endif
        }
#if !defined(BS_EPILOGUE) || BS_MB == 1
        if (unit + step < units)
            next = work_of(g, unit + step, place.member); // computed while the last products run
#endif
#ifndef BS_OUT64
#if BS_GROUPS < 3
        const Weights weights = weights_of(g, list[passes.end - 1].weight, 7);
        me.finish();
#else // three groups leave fewer registers
        me.finish();
        const Weights weights = weights_of(g, list[passes.end - 1].weight, 7);
#endif
        me.clear_if_untouched();
        const bool split = BS_GROUPS < 3 && g.rk * g.rp > 1;
        const int owner = split ? owner_of(g) : 0;
        if (kOverRing)
            cluster_meet(); // no block of the cluster reads its stages any more
#pragma unroll
        for (int i = 0; i < BS_MB; i++) {
            const int row = w.m_tile * kBlockRows + row0 + 64 * i;
            combine_planes(g, me.acc[i], weights);
            if (split) {
                if (owner != place.part) {
                    send_part(g, s, me.acc[i], place, owner);
                    continue;
                }
                add_parts(g, s, me.acc[i], place);
            }
            if (g.row_term || g.col_term)
                add_terms(g, me.acc[i], w, row);
#ifndef BS_EPILOGUE
            if (BS_GROUPS < 3 && g.bulk)
                store_tile_bulk(g, s, me.acc[i], w, row - ((threadIdx.x >> 5) & 3) * 16);
            else
                store_tile(g, me.acc[i], w, row);
#endif
        }
#ifdef BS_HELD
        me.defer(w, w.m_tile * kBlockRows + row0);
#endif
#if BS_EPILOGUE == 4
        Handed{s.staging, s.handed}.give(me.acc[0], g.nb, pinned((int)threadIdx.x) >> 5, tile++);
#elif BS_EPILOGUE == 1 || BS_EPILOGUE == 2
        if (owner == place.part || !split)
            finish_tile(g, s, place, me.acc, w, w.m_tile * kBlockRows + row0);
#if BS_MB > 1
        if (unit + step < units)
            next = work_of(g, unit + step, place.member); // the chain left no registers for it earlier
#endif
#endif
#endif
    }
#ifdef BS_HELD
    me.finish_deferred();
#endif
    bulk_wait_read<0>();
}

// Grid: clusters of mc rk rp blocks; each takes units first, first + clusters, ... With rk rp > 1 there is one cluster a unit.
extern "C" __global__ void __launch_bounds__(kThreads, 1) matmul_wgmma(const __grid_constant__ MatmulParams g)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * BS_STAGES + 1 + kHandedBarriers];
    const int cluster = g.mc * g.rk * g.rp;
    const Place place = place_of(g, (int)cluster_rank());
    const u32 base = (shared_address(memory) + 1023u) & ~1023u;
    const u32 staging = base + BS_STAGES * kBytesStage;
    const u32 full = shared_address(barriers);
    const Shared s = {base, staging, full, full + BS_STAGES * 8, full + BS_STAGES * 16, full + BS_STAGES * 16 + 8};
    const bool is_producer = threadIdx.x >= kConsumers;
    let_next_kernel_start(); // it waits for this kernel's end before it touches memory, but its start takes as long as a small product
    if (threadIdx.x == kConsumers) {
        tma_prefetch(&g.a);
        tma_prefetch(&g.b);
        for (int i = 0; i < BS_STAGES; i++) {
            barrier_init(s.full + i * 8, 1);
            barrier_init(s.empty + i * 8, (kConsumers / 32) * g.mc);
        }
        barrier_init(s.reduced, 1);
        barrier_expect(s.reduced, kWarps * kBytesPart - kWarps * kBytesPart / (g.rk * g.rp));
#if BS_EPILOGUE == 4
        Handed{s.staging, s.handed}.begin();
#endif
        fence_barrier_init();
    }
    if (cluster > 1)
        cluster_meet();
    else
        __syncthreads();
    const int units = g.batches * g.m_groups * g.n_tiles, first = (int)blockIdx.x / cluster, step = (int)gridDim.x / cluster;
    if (is_producer) {
        registers_release<kOthersRegisters>();
        if (threadIdx.x == kConsumers)
            produce(g, s, first, step, units, place);
#if BS_EPILOGUE == 4
        else if (threadIdx.x >= kConsumers + 32)
            finish_strips(g, s, first, step, units, place);
#endif
        __syncwarp();
        if (kOverRing)
            cluster_meet(); // the consumers' meeting, once a launch
    } else {
        registers_claim<kConsumerRegisters>();
        consume(g, s, first, step, units, place);
    }
    if (g.mc > 1) // no block leaves while another may still signal its barriers
        cluster_meet();
}
