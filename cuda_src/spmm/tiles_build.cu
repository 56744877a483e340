// Builds condensed windows from a translated pattern, and arranges values in their order. See spmm/tiles.cuh for the layout.
// Floor: reading the pattern and writing the tiles once.
#define BS_WIDTH 8 // not used here, like the next two
#define BS_VEC 4
#define BS_WEIGHTS 0
#include "common/warps.cuh"
#include "spmm/tiles.cuh"

struct BuildParams {
    const void *starts, *cols_indptr, *source_cols; // of windows: tiles, columns
    const void *indptr, *edge_col;                  // of the matrix; edge_col holds unsigned integers of `bytes` bytes
    u32 *cols, *bits, *offsets, *row_counts;
    const u32 *row_offsets;
    const Piece *pieces;
    const float *values;
    float *arranged;
    i64 windows, piece_count, edges, rows;
    int heads, bytes, large; // large: index arrays are int64
};

BS_INLINE i64 index_at(const void *array, i64 i, const BuildParams &p)
{
    return p.large ? ((const i64 *)array)[i] : (i64)((const int *)array)[i];
}

BS_INLINE i64 warp_of_grid() { return (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5); }

// A block fills the tiles of one window, whose bits are zero so far. If columns are missing, the last one is repeated.
extern "C" __global__ void __launch_bounds__(128, 8) place_tiles(const BuildParams p)
{
    const i64 window = blockIdx.x, first = ((const i64 *)p.starts)[window], columns = index_at(p.cols_indptr, window, p);
    const i64 count = index_at(p.cols_indptr, window + 1, p) - columns, slots = (((const i64 *)p.starts)[window + 1] - first) * BS_K;
    for (i64 i = threadIdx.x; i < slots; i += 128)
        p.cols[first * BS_K + i] = (u32)index_at(p.source_cols, columns + min(i, count - 1), p);
    constexpr int height = 16 * BS_M;
    __shared__ i64 ends[height]; // where the next row starts
    for (int row = threadIdx.x; row < height; row += 128)
        ends[row] = index_at(p.indptr, min(window * height + row + 1, p.rows), p);
    __syncthreads();
    for (i64 e = index_at(p.indptr, window * height, p) + threadIdx.x; e < ends[height - 1]; e += 128) {
        int row = 0;
#pragma unroll
        for (int step = height / 2; step; step /= 2)
            row += ends[row + step - 1] <= e ? step : 0;
        const int col = p.bytes == 1   ? ((const unsigned char *)p.edge_col)[e]
                        : p.bytes == 2 ? ((const unsigned short *)p.edge_col)[e]
                                       : ((const int *)p.edge_col)[e];
        const int k = col % BS_K;
        const int lane = 4 * (row % 8) + k / BS_ROWS, bit = lane * BS_BITS % 32 + BS_ROWS * (row / 8 % 2) + k % BS_ROWS;
        atomicOr(p.bits + ((first + col / BS_K) * BS_WORDS + lane * BS_BITS / 32) * BS_M + row / 16, 1u << bit);
    }
}

// How many edges of a window come before each word of its tiles; a warp takes a window.
extern "C" __global__ void __launch_bounds__(128, 8) offsets_of_words(const BuildParams p)
{
    const i64 window = warp_of_grid();
    const int lane = threadIdx.x & 31;
    if (window >= p.windows)
        return;
    const i64 words = BS_WORDS * BS_M, end = ((const i64 *)p.starts)[window + 1] * words;
    u32 before = 0;
    for (i64 base = ((const i64 *)p.starts)[window] * words; base < end; base += 32) {
        const i64 at = base + lane;
        const u32 own = at < end ? __popc(p.bits[at]) : 0, sum = sum_up_to_lane(own);
        if (at < end)
            p.offsets[at] = before + sum - own;
        before += __shfl_sync(~0u, sum, 31);
    }
}

// Counts the edges of each row in a piece. A warp takes a piece; lane 8 i + g takes rows g and g + 8 of every fourth tile.
extern "C" __global__ void __launch_bounds__(128, 8) count_rows(const BuildParams p)
{
    const i64 at = warp_of_grid();
    const int lane = threadIdx.x & 31, g = lane % 8, quad = 4 * BS_BITS * g & 31;
    if (at >= p.piece_count)
        return;
    const Piece piece = p.pieces[at];
    const u32 every = (BS_TYPE == BS_FLOAT ? 0x3333u : 0x0f0f0f0fu) << quad;
    for (int m = 0; m < BS_M; m++) {
        u32 low = 0, high = 0;
        for (int i = lane / 8; i < piece.tiles; i += 4) {
            const u32 word = p.bits[((piece.tile + i) * BS_WORDS + 4 * BS_BITS * g / 32) * BS_M + m];
            low += __popc(word & every), high += __popc(word & every << BS_ROWS);
        }
#pragma unroll
        for (int step = 8; step < 32; step *= 2)
            low += __shfl_xor_sync(~0u, low, step), high += __shfl_xor_sync(~0u, high, step);
        if (lane < 8) {
            u32 *to = p.row_counts + (at * BS_M + m) * 16 + g;
            to[0] = low, to[8] = high;
        }
    }
}

// Copies values (edges, heads) in the order of rows to (heads, edges) in the order of words and bits; a warp takes a piece.
extern "C" __global__ void __launch_bounds__(128, 8) arrange_values(const BuildParams p)
{
    const i64 at = warp_of_grid();
    const int lane = threadIdx.x & 31, g = lane / 4, quad = 4 * BS_BITS * g & 31;
    if (at >= p.piece_count)
        return;
    const Piece piece = p.pieces[at];
    const u32 every = (BS_TYPE == BS_FLOAT ? 0x3333u : 0x0f0f0f0fu) << quad, below = (1u << (lane * BS_BITS & 31)) - 1;
    u32 next[BS_M][2];
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++)
            next[m][upper] = p.row_offsets[(at * BS_M + m) * 16 + g + 8 * upper];
#pragma unroll 1
    for (i64 tile = piece.tile; tile < piece.tile + piece.tiles; tile++)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const i64 place = (tile * BS_WORDS + lane * BS_BITS / 32) * BS_M + m;
            const u32 word = p.bits[place], bits = word >> (lane * BS_BITS & 31) & ((1u << BS_BITS) - 1);
            i64 to = piece.edge + p.offsets[place] + __popc(word & below);
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                const u32 row = every << BS_ROWS * upper;
                i64 from = piece.edge + next[m][upper] + __popc(word & row & below);
                next[m][upper] += __popc(word & row);
#pragma unroll
                for (int i = 0; i < BS_ROWS; i++)
                    if (bits >> (BS_ROWS * upper + i) & 1) {
                        for (int head = 0; head < p.heads; head++)
                            p.arranged[head * p.edges + to] = p.values[from * p.heads + head];
                        from++, to++;
                    }
            }
        }
}
