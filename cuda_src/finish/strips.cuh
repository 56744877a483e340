// The epilogue of one warp: strips of 16 rows go through the steps of finish/chain.cuh in blocks of 64 columns, and are stored as floats or
// as packed codes, including padding bits. It needs no barrier other than __syncwarp.
//
// A product passes its accumulators in the order of the matrix instructions (register 4 i + e of a block of 64 columns is row
// g + 8 (e / 2), column 8 i + 2 t + e % 2, for lane 4 g + t):
//     finish_strip(e, RegisterSums<32 * blocks>{{slot}, acc}, batch, row0, column0, blocks);
// where `slot` is the shared address of 4096 bytes of the warp's own, aligned to 256 bytes. Or it writes the sums of a block to the
// addresses that sum_address gives, and, after a barrier among the writers, calls
//     finish_block(e, SharedSums{slot}, batch, row0, column0);
#ifndef BITSPARSE_EPILOGUE_CUH
#define BITSPARSE_EPILOGUE_CUH

#include "finish/store.cuh"

// The sums of a block are in rows of 256 bytes. The 32-byte pieces of a row, and the halves of these, are permuted, so that writing
// fragments, reading octets of a row, and reading columns of rows r and r + 8 all touch each bank once.
BS_INLINE u32 sum_address(u32 slot, int row, int column)
{
    const int piece = (column >> 3) ^ (row & 7) ^ ((row >> 3) << 1);
    return slot + row * 256 + piece * 32 + ((((column >> 2) ^ (piece >> 2)) & 1) << 4) + (column & 3) * 4;
}

// Row g + 8 of column 8 i + 2 t is 2048 bytes after row g of column 8 (i ^ 2) + 2 t, so eight addresses serve both halves of the block.
template <int n> BS_INLINE void put_sums(u32 slot, const int (&acc)[n], int first)
{
    const int lane = pinned_lane();
    const u32 here = sum_address(slot, lane >> 2, 2 * (lane & 3));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 to = here ^ (i << 5 | i >> 2 << 4);
        const int upper = first + 4 * i, lower = first + 4 * (i ^ 2) + 2;
        store_shared(to, acc[upper], acc[upper + 1]);
        store_shared(to + 2048, acc[lower], acc[lower + 1]);
    }
}

// Sums of a block in shared memory. The octet of turn 0 begins at (row, column) of the block; that of each further turn is four rows, or
// sixteen columns, further on, which changes only a few bits of the address.
struct SharedSums {
    typedef int Value;
    static constexpr bool ahead = false; // whether the next octet is loaded while one is being finished
    u32 slot;

    __device__ __forceinline__ void begin(int) const {}

    template <bool down> __device__ __forceinline__ void load(int (&v)[8], int, int turn, int row, int column, int jump) const
    {
        const u32 first = sum_address(slot, row, column);
        if constexpr (down) {
            const u32 here = first ^ (turn << 6 | turn >> 1 << 4);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = load_shared_word((here ^ (i << 5 | i >> 2 << 4)) + i * 256);
        } else {
            const u32 here = first ^ ((turn & 1) * 0x90 | (turn >> 1) * 0x40), other = here ^ (jump == 4 ? 0x10 : 0x90);
            const int4 x = load_shared(here + turn * 1024), y = load_shared(other + turn * 1024);
            v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
        }
    }
};

// Sums in the registers of a warp, which are copied to the slot block by block. Only the copying is unrolled; the epilogue's code is not.
template <int n> struct RegisterSums : SharedSums {
    const int (&acc)[n];

    __device__ __forceinline__ void begin(int block) const
    {
        __syncwarp();
#pragma unroll
        for (int at = 0; at < n / 32; at++)
            if (at == block)
                put_sums(slot, acc, at * 32);
        __syncwarp();
    }
};

// ---- a strip
template <bool down, bool plain, class Sums>
BS_INLINE void finish_blocks(const EpilogueParams &e, const Sums &sums, int batch, int row0, int column0, int blocks)
{
    const int lane = pinned_lane();
    const bool bits = plain || (e.steps & kBits), whole = !plain && (e.steps & kWhole);
    const int jump = bits ? 4 : 32;
    const int row = down ? 8 * (lane >> 4) : lane >> 3, column = down ? lane & 15 : (bits ? 8 : 4) * (lane & 7);
    EpilogueSpot s = {batch, row0 + row, column0 + column, jump};
    EpilogueTarget target = target_of<down>(e, s, lane, bits, whole);
    RowValues<down> rows;
    ColumnValues<down> columns;
    AcrossRows<down> across_rows;
    AcrossColumns<down> across_columns;
    const bool edge_below = row0 + kBlockHeight > e.m;
    across_rows.load(e, lane, batch, row0);
    if constexpr (down)
        rows.load(e, s);
    bool nan = false;
    typename Sums::Value sum[8], later[8];
    if (Sums::ahead)
        sums.template load<down>(sum, 0, 0, row, column, jump);
#pragma unroll 1
    for (int block = 0; block < blocks && column0 + block * kBlockWidth < e.n; block++) {
        sums.begin(block);
        if constexpr (!down)
            columns.load(e, s);
        across_columns.load(e, lane, batch, column0 + block * kBlockWidth);
        const bool edge = down ? edge_below : column0 + (block + 1) * kBlockWidth > e.n;
#pragma unroll 1
        for (int turn = 0; turn < 4; turn++) {
            if (!Sums::ahead)
                sums.template load<down>(sum, block, turn, row, column, jump);
            else if (turn < 3 || (block + 1 < blocks && column0 + (block + 1) * kBlockWidth < e.n))
                sums.template load<down>(later, block + (turn == 3), (turn + 1) & 3, row, column, jump);
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = (float)sum[i];
            across_rows.take(lane, turn, rows);
            across_columns.take(lane, turn, columns);
            apply_chain<down, plain>(e, rows, columns, s, v);
            if (!bits) {
                store_floats(e, s, target.to, v);
            } else {
                u32 code[8];
                const u32 big = plain ? BS_BIG_BITS : 0u;
                if (plain)
                    codes_plainly(e, v, code);
                if (plain ? !(e.steps & kBounded) && !usual_quotients(e, v)
                          : !(e.steps & kQuick) || !codes_quickly(e, grid_at(e, batch, s.row, s.column), v, code))
                    nan = codes_exactly<down>(e, s, v, code, big) || nan;
                if (edge) {
                    const int left = down ? e.m - s.row : e.n - s.column;
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        code[i] = i < left ? code[i] : big;
                }
                if (whole)
                    store_whole<down>(e, s, target.to, code);
                else if (plain && e.bits <= 4)
                    store_four_planes<down>(e, s, lane, target.to, plane_bytes(four_bits_under_big(code)), 0);
                else
                    store_planes<down>(e, s, lane, target.to, code);
            }
            if (Sums::ahead)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[i] = later[i];
            (down ? s.column : s.row) += down ? 16 : 4;
            target.to += target.next;
        }
        if constexpr (!down) {
            s.row -= 16, s.column += kBlockWidth;
            target.to += target.block;
        }
        if (bits)
            clear_pad<down>(e, lane, batch, row0, column0 + block * kBlockWidth);
    }
    if (nan)
        atomicOr(e.nan, 1);
}

// Finish `blocks` blocks of 64 columns with one warp. They begin at (row0, column0) of the result, and may extend beyond its edge.
template <class Sums> BS_INLINE void finish_strip(const EpilogueParams &e, const Sums &sums, int batch, int row0, int column0, int blocks)
{
    if (row0 >= e.m)
        return;
    if (e.steps & kPlain) {
        if (e.steps & kDown)
            finish_blocks<true, true>(e, sums, batch, row0, column0, blocks);
        else
            finish_blocks<false, true>(e, sums, batch, row0, column0, blocks);
    } else if (e.steps & kDown) {
        finish_blocks<true, false>(e, sums, batch, row0, column0, blocks);
    } else {
        finish_blocks<false, false>(e, sums, batch, row0, column0, blocks);
    }
}

// Prefetch the floats that a strip's results are added to into the L2 before its sums are ready, since each turn waits for what it reads.
BS_INLINE void ask_for_strip(const EpilogueParams &e, int batch, int row0, int column0, int blocks)
{
    constexpr int kLine = 32; // floats
    const int lane = pinned_lane(), row = row0 + lane % kBlockHeight;
    if (!(e.steps & kJoins) || row >= e.m)
        return;
    const int columns = min(blocks * kBlockWidth, e.n - column0);
    const float *from = (const float *)e.out + ((bs_i64)batch * e.m + row) * e.n + column0;
#pragma unroll 1
    for (int i = lane / kBlockHeight * kLine; i < columns; i += 32 / kBlockHeight * kLine)
        prefetch_l2(from + i);
}

template <class Sums> BS_INLINE void finish_block(const EpilogueParams &e, const Sums &sums, int batch, int row0, int column0)
{
    finish_strip(e, sums, batch, row0, column0, 1);
}

#endif
