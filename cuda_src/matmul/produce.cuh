// The producer of matmul/wgmma.cu: one thread that fills the ring of stages through TMA.
#ifndef BITSPARSE_MATMUL_PRODUCE_CUH
#define BITSPARSE_MATMUL_PRODUCE_CUH

#include "matmul/tiles.cuh"

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

// Load the left operand's part of a stage.
BS_INLINE void load_left(const MatmulParams &g, const Shared &s, int stage, const Work &w, const Pass &pass, int kb)
{
    barrier_expect(s.full + stage * 8, kBytesStage);
#ifdef BS_BYTES
    // Of every eight blocks along k, `kept` stay in the L2, so that memory is as busy at the beginning of a tile as at its end.
    tma_load_hinted(s.tiles + stage * kBytesStage, &g.a, s.full + stage * 8, kb * 32, w.m_tile * kBlockRows, pass.p, w.operand.x,
                    (kb & 7) < g.kept ? kEvictNormally : kEvictFirst);
#else
    tma_load(s.tiles + stage * kBytesStage, &g.a, s.full + stage * 8, kb * 32, w.m_tile * kBlockRows, pass.p, w.operand.x);
#endif
}

BS_INLINE void load_right(const MatmulParams &g, const Shared &s, int stage, const Work &w, const Pass &pass, int kb, const Place &place)
{
    const u32 b = s.tiles + stage * kBytesStage + kBytesA, bar = s.full + stage * 8;
    for (int i = 0; i < g.boxes; i++) {
        const int row = (place.member * g.boxes + i) * g.box_rows;
#ifdef BS_WIDTH
        const int q = row / BS_WIDTH;
#else
        const int q = plane_of(g, row >> 6);
#endif
        const int column = w.n_tile * width_of(g) + row - q * width_of(g), plane = pass.q0 + q;
        if (g.mc == 1)
            tma_load(b + row * kRowBytes, &g.b, bar, kb * 32, column, plane, w.operand.y);
        else
            tma_load_multicast(b + row * kRowBytes, &g.b, bar, kb * 32, column, plane, w.operand.y,
                               (unsigned short)(((1u << g.mc) - 1u) << place.first_member));
    }
}

// The first unit of work of a block. Before the previous kernel has ended, only the kernel's argument may be read.
BS_INLINE Work first_work(const MatmulParams &g, int unit, const Place &place)
{
    if (g.batch_indices)
        wait_for_previous_kernel();
    return work_of(g, unit, place.member);
}

// Fill the ring with tiles of the left operand while the previous kernel still computes the right one; returns the number of stages filled.
BS_INLINE int load_ahead(const MatmulParams &g, const Shared &s, const Work &w, const Pass *list, Range passes, const Place &place)
{
    int stage = 0;
    for (int t = passes.begin; t < passes.end; t++) {
        const Range k = part_of(list[t].k0, list[t].k1, place.k_part, g.rk);
        for (int kb = k.begin; kb < k.end; kb++) {
            if (stage == BS_STAGES)
                return stage;
            load_left(g, s, stage++, w, list[t], kb);
        }
    }
    return stage;
}

BS_INLINE void produce(const MatmulParams &g, const Shared &s, int first, int step, int units, const Place &place)
{
    Ring ring;
    ring.phase = 1; // the stages start empty
    const Pass *list = passes_of(g);
    const Range passes = part_of(0, g.n_passes, place.pass_part, g.rp);
    Work w = first_work(g, first, place);
    int ahead = g.early ? load_ahead(g, s, w, list, passes, place) : 0;
    wait_for_previous_kernel();
    for (int unit = first; unit < units; unit += step) {
        if (unit != first)
            w = work_of(g, unit, place.member);
        const u32 *blocks = blocks_of(g, w);
        for (int t = passes.begin; t < passes.end; t++) {
            const Pass pass = list[t];
            const Range k = part_of(pass.k0, pass.k1, place.k_part, g.rk);
            for (int kb = next_block(blocks, k.begin, k.end); kb < k.end; kb = next_block(blocks, kb + 1, k.end)) {
                barrier_wait(s.empty + ring.stage * 8, ring.phase);
                if (ahead > 0)
                    ahead--;
                else
                    load_left(g, s, ring.stage, w, pass, kb);
                load_right(g, s, ring.stage, w, pass, kb, place);
                ring.advance();
            }
        }
    }
}

#endif
