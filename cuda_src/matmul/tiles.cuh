// How a product of packed operands is divided: parameters, tiles, parts of the contraction axis, places in a cluster.
#ifndef BITSPARSE_MATMUL_TILES_CUH
#define BITSPARSE_MATMUL_TILES_CUH

#include "matmul/passes.cuh"
#include "common/wgmma.cuh"
#ifdef BS_EPILOGUE
#include "finish/handed.cuh"
#endif

constexpr int kConsumers = 128 * BS_GROUPS, kThreads = kConsumers + 128, kWarps = 4 * BS_GROUPS;
#ifdef BS_PA // the row blocks of a warpgroup are successive planes of the same 64 rows
constexpr int kRowBlocks = 1, kPlanesA = BS_MB;
#else
constexpr int kRowBlocks = BS_MB, kPlanesA = 1;
#endif
constexpr int kBlockRows = 64 * BS_GROUPS * kRowBlocks;
#ifdef BS_WIDTH // a tile of BS_QB planes of BS_WIDTH columns
constexpr int kColumns = BS_QB * BS_WIDTH, kParts = BS_QB;
#else // of BS_NB blocks of 64 columns; how many of them are planes is known when the kernel runs
constexpr int kColumns = 64 * BS_NB, kParts = BS_NB;
#endif
constexpr int kSums = kColumns / 2, kPartSums = kSums / kParts; // of a thread, in a row block; those of one plane or block
#if BS_EPILOGUE == 3
constexpr int kBytesStrip = 2048 * BS_HELD, kStaging = kBytesStrip * kWarps; // after the ring: waiting sums
#elif BS_EPILOGUE == 4
typedef HandedSums<kWarps, BS_NB> Handed;
constexpr int kBytesStrip = Handed::kStrip, kStaging = Handed::kBytes;
#else
constexpr int kStaging = 4096 * kWarps; // after the ring: tiles being stored
#endif
#ifdef BS_WIDTH // bytes of a warp's sums that go to another part
constexpr int kBytesPart = 128 * kPartSums;
#else
constexpr int kBytesPart = 4096;
#endif
#ifdef BS_OVER_RING
constexpr bool kOverRing = true;
#else
constexpr bool kOverRing = false;
#endif
#if BS_EPILOGUE == 4 // besides the loading thread there are warps that finish tiles
constexpr int kHandedBarriers = Handed::kBarriers, kConsumerRegisters = 184, kOthersRegisters = 136;
#else
constexpr int kHandedBarriers = 0, kConsumerRegisters = BS_GROUPS == 1 ? 240 : BS_GROUPS == 2 ? 232 : 152;
constexpr int kOthersRegisters = BS_GROUPS == 3 ? 56 : 40;
#endif
#ifdef BS_HELD
typedef DeferredSums<BS_HELD> Deferred;
#endif
constexpr int kBytesA = kBlockRows * kPlanesA * kRowBytes, kBytesB = kColumns * kRowBytes, kBytesStage = kBytesA + kBytesB;

struct MatmulParams {
    TensorMap a, b, c;
    Out *out;
    const Out *row_term, *col_term; // added to every row, column; may be null
    const Pass *passes;
    const u32 *blocks;         // which contraction blocks of a row tile are not all zero, one bit each; null: all
    const int2 *batch_indices; // batch -> index into a, b; null: the batch itself
    int m, n, block_words;
    int n_passes, nb, qb;
    int mc, rk, rp, box_rows, boxes;
    int m_groups, n_tiles, batches, raster;
    int bulk;       // whether c is set: the result is stored by the copy engine
    int pairs;      // whether two neighbours of a result can be stored together
    int early;      // whether kernels that may still be running only compute b: a can be loaded before they end
    u32 by_batch, by_band, by_height, by_last; // for quotient(): units of a batch, of a band, row tiles of a band, of the last band
    int kept;       // for bytes: how many of eight blocks of the left operand stay in the L2 for the next product
    int last_block, last_steps; // the contraction axis ends within this block, after this many steps of 32 bytes
    int pad[11];
    Pass inline_passes[kInlinePasses];
#ifdef BS_EPILOGUE
    EpilogueParams epilogue;
#endif
};

struct Work {
    int batch, m_tile, n_tile;
    int2 operand; // batch indices of a and b
};

// A block's place in its cluster.
struct Place {
    int member, first_member; // among the mc blocks of one part, and the rank of the first of them
    int part, k_part, pass_part;
};

BS_INLINE Place place_of(const MatmulParams &g, int rank)
{
    if (g.mc * g.rk * g.rp == 1)
        return {0, 0, 0, 0, 0};
    const int part = rank / g.mc;
    return {rank - part * g.mc, part * g.mc, part, part % g.rk, part / g.rk};
}

BS_INLINE const Pass *passes_of(const MatmulParams &g) { return g.n_passes <= kInlinePasses ? g.inline_passes : g.passes; }

BS_INLINE Work work_of(const MatmulParams &g, int unit, int member)
{
    if (g.batches == 1 && g.n_tiles == 1)
        return {0, unit * g.mc + member, 0, operands_of(g.batch_indices, 0)};
    const int per_batch = g.m_groups * g.n_tiles, batch = g.batches == 1 ? 0 : quotient(unit, per_batch, g.by_batch);
    unit -= batch * per_batch;
    const int in_band = g.raster * g.n_tiles, band = quotient(unit, in_band, g.by_band), first = band * g.raster;
    const bool last = g.m_groups - first < g.raster;
    const int height = last ? g.m_groups - first : g.raster;
    unit -= band * in_band;
    const int2 operand = operands_of(g.batch_indices, batch);
    const int n_tile = quotient(unit, height, last ? g.by_last : g.by_height);
    return {batch, (first + unit - n_tile * height) * g.mc + member, n_tile, operand};
}

#ifdef BS_WIDTH
BS_INLINE int width_of(const MatmulParams &) { return BS_WIDTH; }
BS_INLINE int plane_of(const MatmulParams &, int part) { return part; }
#else
// Columns of the result in a tile.
BS_INLINE int width_of(const MatmulParams &g) { return 64 * g.nb; }

// Which of the adjacent planes a block of 64 columns belongs to: block / nb without a division.
BS_INLINE int plane_of(const MatmulParams &g, int block) { return g.qb == 1 ? 0 : g.nb == 1 ? block : block >> 1; }
#endif

BS_INLINE const u32 *blocks_of(const MatmulParams &g, const Work &w)
{
    const long long tile = (long long)w.operand.x * g.m_groups * g.mc + w.m_tile;
    return g.blocks ? g.blocks + tile * g.block_words : nullptr;
}

struct Shared {
    u32 tiles, staging, full, empty, reduced, handed; // addresses: the ring's stages, staging for results, barriers
};

#endif
