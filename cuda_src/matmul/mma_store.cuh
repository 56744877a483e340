// Turns a warp's accumulators into the result: weights of the planes, terms of rows and columns.
#ifndef BITSPARSE_MATMUL_MMA_STORE_CUH
#define BITSPARSE_MATMUL_MMA_STORE_CUH

#include "matmul/mma.cuh"

typedef int Accumulators[BS_MI][BS_NJ][4];

// Where a thread's accumulators lie: once the planes are combined, acc[i][j][e] of lane 4 g + t is at row 16 i + g + 8 (e / 2) and column 8
// j + 2 t + e % 2 from here; j is below `blocks`.
struct Corner {
    int row, column, blocks;
};

BS_INLINE Corner corner_of(const MmaParams &g, const Item &w)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = BS_NJ >> g.qb_log;
    return {w.m_tile * kRows + (warp / BS_WN) * (16 * BS_MI) + (lane >> 2),
            w.n_tile * (kColumns >> g.qb_log) + (warp % BS_WN) * 8 * blocks + 2 * (lane & 3), blocks};
}

BS_INLINE Out row_term(const MmaParams &g, const Item &w, int row)
{
    return g.row_term && row < g.m ? g.row_term[(long long)w.operand.x * g.m + row] : 0;
}

BS_INLINE Out col_term(const MmaParams &g, const Item &w, int column)
{
    return g.col_term && column < g.n ? g.col_term[(long long)w.operand.y * g.n + column] : 0;
}

#ifdef BS_OUT64
// Adds one pass, whose sums are below 2^32, to the result. Unless parts share an element, only the thread that owns it touches it, and the
// first pass overwrites it.
BS_INLINE void flush_pass(const MmaParams &g, const Accumulators &acc, const Item &w, int shift, bool first)
{
    const Corner at = corner_of(g, w);
    const bool terms = first && w.part == 0;
#pragma unroll
    for (int i = 0; i < 2 * BS_MI; i++) {
        const int row = at.row + 8 * i;
        if (row >= g.m)
            break;
        Out *out = g.out + ((long long)w.batch * g.m + row) * g.n;
        const Out here = terms ? row_term(g, w, row) : 0;
#pragma unroll
        for (int j = 0; j < 2 * BS_NJ; j++) {
            const int column = at.column + 8 * (j >> 1) + (j & 1);
            if (column >= g.n)
                continue;
            const u32 low = acc[i >> 1][j >> 1][2 * (i & 1) + (j & 1)];
            Out x = (Out)((u64)low << (shift & 63)); // bit 6 of the shift means a negative weight
            x = (shift & 64 ? -x : x) + (terms ? here + col_term(g, w, column) : 0);
            if (g.parts > 1)
                atomicAdd((u64 *)(out + column), (u64)x);
            else
                out[column] = first ? x : out[column] + x;
        }
    }
}
#else
// The adjacent planes have the weights weight[0], weight[1], ... in turn.
BS_INLINE void multiply(const MmaParams &g, Accumulators &acc, const int *weight)
{
    const int mask = (1 << g.qb_log) - 1;
    const int w[4] = {weight[0], weight[1 & mask], weight[2 & mask], weight[3 & mask]};
    if (w[0] == 1 && w[1] == 1 && w[2] == 1 && w[3] == 1)
        return;
#pragma unroll
    for (int i = 0; i < BS_MI; i++)
#pragma unroll
        for (int j = 0; j < BS_NJ; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][j][e] *= w[j & 3];
}

// Sums the adjacent planes of B; the result has one sum per column.
BS_INLINE void combine_planes(const MmaParams &g, Accumulators &acc, const int *weight)
{
    multiply(g, acc, weight);
    for (int left = g.qb_log; left > 0; left--)
#pragma unroll
        for (int i = 0; i < BS_MI; i++)
#pragma unroll
            for (int j = 0; j < BS_NJ / 2; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[i][j][e] = acc[i][2 * j][e] + acc[i][2 * j + 1][e];
}

// Straight from the registers: every four lanes write 32 bytes of a row. Parts of the contraction axis add to each other's sums.
BS_INLINE void store_tile(const MmaParams &g, const Accumulators &acc, const Item &w)
{
    const Corner at = corner_of(g, w);
    const bool terms = w.part == 0;
    int here[2 * BS_MI];
#pragma unroll
    for (int i = 0; i < 2 * BS_MI; i++)
        here[i] = terms ? row_term(g, w, at.row + 8 * i) : 0;
    int *const out = g.out + ((long long)w.batch * g.m + at.row) * g.n + at.column;
    const long long eight_rows = 8ll * g.n;
#pragma unroll
    for (int j = 0; j < BS_NJ; j++) {
        const int column = at.column + 8 * j;
        if (j >= at.blocks || column >= g.n)
            break;
        const bool second = column + 1 < g.n;
        const int left = terms ? col_term(g, w, column) : 0, right = terms ? col_term(g, w, column + 1) : 0;
#pragma unroll
        for (int i = 0; i < 2 * BS_MI; i++) {
            if (at.row + 8 * i >= g.m)
                break;
            int *const to = out + i * eight_rows + 8 * j;
            const int x = acc[i >> 1][j][2 * (i & 1)] + here[i] + left, y = acc[i >> 1][j][2 * (i & 1) + 1] + here[i] + right;
            if (g.parts > 1) {
                atomicAdd(to, x);
                if (second)
                    atomicAdd(to + 1, y);
            } else if (g.pairs) {
                *(int2 *)to = make_int2(x, y);
            } else {
                to[0] = x;
                if (second)
                    to[1] = y;
            }
        }
    }
}

#ifdef BS_EPILOGUE
// The tile goes through the epilogue in blocks of 16 x 64, each in 4 KB of the ring, which holds nothing else by now: all warps store their
// sums there and take blocks in turn.
static_assert(kRows / 16 * (kColumns / 64) * 4096 + 384 <= BS_STAGES * kBytesStage, "the sums must fit into the ring");

BS_INLINE void finish_tile(const MmaParams &g, u32 ring, const Accumulators &acc, const Item &w)
{
    const Corner at = corner_of(g, w);
    const int columns = kColumns >> g.qb_log, row0 = w.m_tile * kRows, column0 = w.n_tile * columns, across = columns / 64;
    const u32 slots = (ring + 511u) & ~511u;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < BS_NJ; j++) {
        const int column = at.column + 8 * j;
        if (j >= at.blocks)
            break;
        const int left = col_term(g, w, column), right = col_term(g, w, column + 1);
#pragma unroll
        for (int i = 0; i < 2 * BS_MI; i++) {
            const int row = at.row + 8 * i, here = row_term(g, w, row);
            const u32 slot = slots + (((row - row0) >> 4) * across + ((column - column0) >> 6)) * 4096;
            store_shared(sum_address(slot, (row - row0) & 15, (column - column0) & 63), acc[i >> 1][j][2 * (i & 1)] + here + left,
                         acc[i >> 1][j][2 * (i & 1) + 1] + here + right);
        }
    }
    __syncthreads();
    for (int block = threadIdx.x >> 5; block < kRows / 16 * across; block += BS_WM * BS_WN) {
        const int down = block / across;
        finish_strip(g.epilogue, SharedSums{slots + block * 4096}, w.batch, row0 + 16 * down, column0 + 64 * (block - down * across), 1);
    }
}
#endif
#endif

#endif
