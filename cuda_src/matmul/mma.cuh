// A product by warps: parameters, work items, and the copies that bring tiles into the ring of stages.
#ifndef BITSPARSE_MATMUL_MMA_CUH
#define BITSPARSE_MATMUL_MMA_CUH

#include "matmul/passes.cuh"
#ifdef BS_EPILOGUE
#include "finish/strips.cuh"
#endif

constexpr int kThreads = 32 * BS_WM * BS_WN;
constexpr int kRows = 16 * BS_MI * BS_WM;   // of a tile of A
constexpr int kColumns = 8 * BS_NJ * BS_WN; // of a tile of B, all planes included
constexpr int kBytesA = kRows * kRowBytes, kBytesStage = (kRows + kColumns) * kRowBytes;
constexpr int kSteps = kRowBytes / 32; // instructions along the contraction axis of a stage

struct MmaParams {
    const u32 *a, *b; // (batches, outer, planes, words)
    Out *out;
    const Out *row_term, *col_term; // added to every row, column; may be null
    const Pass *passes;
    const u32 *blocks;         // which contraction blocks of a row tile are not all zero, one bit each; null: all
    const int2 *batch_indices; // batch -> index into a, b; null: the batch itself
    int m, n, words, a_planes, b_planes;
    int block_words, n_passes;
    int qb_log; // log2 of the number of planes of B in a tile
    int parts;  // of the contraction axis; if more than one, they add to a result that was zero
    int m_tiles, n_tiles, batches, raster;
    int pairs; // whether two neighbouring results may be stored at once
    Pass inline_passes[kInlinePasses];
#ifdef BS_EPILOGUE
    EpilogueParams epilogue;
#endif
};

// A tile of the result, or one part of it.
struct Item {
    int batch, m_tile, n_tile, part;
    int2 operand; // batch indices of a and b
};

BS_INLINE const Pass *passes_of(const MmaParams &g) { return g.n_passes <= kInlinePasses ? g.inline_passes : g.passes; }
BS_INLINE int items_of(const MmaParams &g) { return g.batches * g.m_tiles * g.n_tiles * g.parts; }

BS_INLINE Item item_of(const MmaParams &g, int index)
{
    int unit = index / g.parts;
    const int part = index - unit * g.parts, per_batch = g.m_tiles * g.n_tiles, batch = unit / per_batch;
    unit -= batch * per_batch;
    const int band = unit / (g.raster * g.n_tiles), first = band * g.raster;
    const int height = min(g.raster, g.m_tiles - first);
    unit -= band * g.raster * g.n_tiles;
    const int2 operand = operands_of(g.batch_indices, batch);
    return {batch, first + unit % height, unit / height, part, operand};
}

BS_INLINE const u32 *blocks_of(const MmaParams &g, const Item &w)
{
    return g.blocks ? g.blocks + ((long long)w.operand.x * g.m_tiles + w.m_tile) * g.block_words : nullptr;
}

BS_INLINE Range range_of(const MmaParams &g, const Pass *pass, const Item &w) { return part_of(pass->k0, pass->k1, w.part, g.parts); }

// Runs ahead of the products through the stages of this block's items, in the same order. A row of a tile is 128 bytes, with 16-byte chunk
// c at c ^ (row % 8), so that neither copies nor load_matrices conflict in banks. Row 8 f + r of a tile of B is plane f % qb of column 8 (f
// / qb) + r, so the planes of a column meet in the accumulators of one thread.
struct Loader {
    const MmaParams &g;
    const u32 tiles; // address of the ring
    int index, pass, kb, k_end;
    Item w;
    const u32 *blocks;
    const u32 *a, *b; // this thread's first words of the stage
    u32 to;
    int rows, columns; // how many rows and columns of the result lie from the thread's first ones on; none if nothing is to be copied
    int plane; // first plane of B

    static constexpr int kStride = kThreads / 8; // rows from one copy of a thread to its next
    static constexpr int kCopiesA = kRows / kStride, kCopies = (kRows + kColumns) / kStride;
    static_assert(kStride % 8 == 0 && kRows % kStride == 0 && kColumns % kStride == 0, "every thread copies the same chunk of each row");

    __device__ __forceinline__ Loader(const MmaParams &params, u32 ring) : g(params), tiles(ring) { enter(blockIdx.x); }

    // Goes to the first stage of this item, or of the next item that has any.
    __device__ __forceinline__ void enter(int item)
    {
        index = item;
        if (index >= items_of(g))
            return;
        w = item_of(g, index);
        blocks = blocks_of(g, w);
        pass = -1, kb = k_end = 0;
        seek();
    }

    // If kb >= k_end, goes on to the next stage that exists.
    __device__ __forceinline__ void seek()
    {
        while (kb >= k_end) {
            if (++pass == g.n_passes) {
#ifdef BS_EPILOGUE
                index = items_of(g); // another use of the ring comes before the next item
                return;
#else
                pass = 0;
                index += gridDim.x;
                if (index >= items_of(g))
                    return;
                w = item_of(g, index);
                blocks = blocks_of(g, w);
#endif
            }
            const Range k = range_of(g, passes_of(g) + pass, w);
            k_end = k.end;
            kb = next_block(blocks, k.begin, k.end);
        }
    }

    // Fixes the addresses of the current stage, to be copied into `stage`, and moves on to the next one.
    __device__ __forceinline__ void begin(int stage)
    {
        const int chunk = threadIdx.x & 7, r = threadIdx.x >> 3;
        to = tiles + stage * kBytesStage + r * kRowBytes + ((chunk ^ (r & 7)) << 4);
        a = g.a, b = g.b, rows = columns = plane = 0;
        if (index >= items_of(g))
            return;
        const Pass *now = passes_of(g) + pass;
        const int word = kb * (kRowBytes / 4) + chunk * 4;
        if (word < g.words) {
            const int row = w.m_tile * kRows + r, column = w.n_tile * (kColumns >> g.qb_log) + (r & 7);
            plane = now->q0;
            rows = g.m - row;
            columns = g.n - column;
            a += (((long long)w.operand.x * g.m + row) * g.a_planes + now->p) * g.words + word;
            b += (((long long)w.operand.y * g.n + column) * g.b_planes + plane) * g.words + word;
        }
        kb = next_block(blocks, kb + 1, k_end);
        seek();
    }

    // Makes copies number `from` to `until` - 1 of this thread.
    __device__ __forceinline__ void copy(int from, int until) const
    {
#pragma unroll
        for (int i = from; i < until; i++) {
            bool valid;
            const u32 *words;
            if (i < kCopiesA) {
                valid = i * kStride < rows;
                words = a + (long long)(i * kStride * g.a_planes) * g.words;
            } else {
                const int f = (int)(threadIdx.x >> 6) + (i - kCopiesA) * (kStride / 8);
                const int column = (f >> g.qb_log) * 8, q = f & ((1 << g.qb_log) - 1);
                valid = column < columns && plane + q < g.b_planes;
                words = b + (long long)(column * g.b_planes + q) * g.words;
            }
            copy_async(to + i * (kStride * kRowBytes), valid ? words : g.a, valid);
        }
    }
};

#endif
