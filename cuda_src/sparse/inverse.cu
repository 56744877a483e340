// The CSR pattern of a translated array or of 4 x 4 blocks, checked on the way: nothing that is read is believed.
#include "sparse/build.cuh"

struct InverseParams {
    const Index *starts, *cells;   // where the cells of each window start, and the cells: columns, or blocks of 4
    const Index *edges;            // where the edges of each window start
    const u8 *edge_row;
    const int *edge_cell;
    const Index *perm;
    const u16 *tiles;
    Index *indptr, *indices;       // results; indptr holds a 0 and the entries of each row until they are added up
    u64 *found;                    // the first window that is wrong, counted from the end; zero at the start
    i64 rows, cols, nnz, windows, cell_count;
    int window;
};

#define BS_FROM_END (1ull << 62)

enum { BS_BAD_EDGES, BS_BAD_PERM, BS_BAD_TILE };

struct Edge {
    i64 row, col; // -1: the edge is wrong
    i64 window;
};

// Edge e of window w, and whether it follows the edge in front of it as it should.
static __device__ __forceinline__ Edge read_edge(const InverseParams &p, i64 w, i64 e)
{
    const i64 from = p.starts[w], cell = p.edge_cell[e], at = from + cell;
    const i64 width = (i64)p.starts[w + 1] - from;
    const int row = p.edge_row[e];
    Edge edge = {-1, -1, w};
    if (row >= p.window || w * p.window + row >= p.rows || cell < 0 || cell >= width || at < 0 || at >= p.cell_count)
        return edge;
    if (e > p.edges[w]) {
        const i64 cell_before = p.edge_cell[e - 1];
        if (cell == cell_before ? row <= (int)p.edge_row[e - 1] : cell != cell_before + 1)
            return edge;
    } else if (cell != 0) {
        return edge;
    }
    if (e + 1 == p.edges[w + 1] && cell != width - 1)
        return edge;
    edge.row = w * p.window + row;
    edge.col = p.cells[at];
    return edge;
}

static __device__ __forceinline__ void report(const InverseParams &p, int what, i64 w)
{
    atomicMax(&p.found[what], BS_FROM_END - (u64)w);
}

// The entries of each row.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_edges(const InverseParams p)
{
    __shared__ i64 ends[2];
    const i64 from = (i64)blockIdx.x * BS_CHUNK, to = from + BS_CHUNK < p.nnz ? from + BS_CHUNK : p.nnz;
    rows_of_chunk(p.edges, p.windows, from, to, ends);
    const i64 low = ends[0], high = ends[1];
    for (i64 e = from + threadIdx.x; e < to; e += BS_THREADS) {
        const Edge edge = read_edge(p, last_start(p.edges, low, high, e), e);
        if (edge.row < 0)
            report(p, BS_BAD_EDGES, edge.window);
        else
            add_index(p.indptr + edge.row + 1, 1);
    }
}

// Windows without edges have no columns: the others were looked at by their last edge.
extern "C" __global__ void __launch_bounds__(BS_THREADS) check_windows(const InverseParams p)
{
    const i64 w = (i64)blockIdx.x * BS_THREADS + threadIdx.x;
    if (w < p.windows && p.edges[w] == p.edges[w + 1] && p.starts[w] != p.starts[w + 1])
        report(p, BS_BAD_EDGES, w);
}

// Columns in row order. Entries that no edge fills stay negative, which the check of the result notices.
extern "C" __global__ void __launch_bounds__(BS_THREADS) fill_edges(const InverseParams p)
{
    __shared__ i64 ends[2];
    const i64 from = (i64)blockIdx.x * BS_CHUNK, to = from + BS_CHUNK < p.nnz ? from + BS_CHUNK : p.nnz;
    rows_of_chunk(p.edges, p.windows, from, to, ends);
    const i64 low = ends[0], high = ends[1];
    for (i64 e = from + threadIdx.x; e < to; e += BS_THREADS) {
        const Edge edge = read_edge(p, last_start(p.edges, low, high, e), e);
        if (edge.row < 0)
            continue;
        const i64 at = p.perm[e];
        if (at < p.indptr[edge.row] || at >= p.indptr[edge.row + 1] || at >= p.nnz)
            report(p, BS_BAD_PERM, edge.window);
        else
            p.indices[at] = (Index)edge.col;
    }
}

// -- 4 x 4 blocks: a warp a block row ------------------------------------------------------------------------------------------------
// Entries of each row. The block columns are right already.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_tiles(const InverseParams p)
{
    const int lane = threadIdx.x & 31;
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 w = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); w < p.windows; w += step) {
        i64 counts[4] = {0, 0, 0, 0};
        const int rows = (int)(p.rows - 4 * w < 4 ? p.rows - 4 * w : 4);
        bool bad = false;
        for (i64 at = p.starts[w] + lane; at < p.starts[w + 1]; at += 32) {
            const u32 tile = p.tiles[at];
            const i64 left = p.cols - 4 * (i64)p.cells[at];
            const u32 columns = left >= 4 ? 0xffffu : ((1u << left) - 1u) * 0x1111u;
            const u32 allowed = columns & ((1u << (4 * rows)) - 1u);
            bad = bad || tile == 0 || (tile & ~allowed);
#pragma unroll
            for (int r = 0; r < 4; r++)
                counts[r] += __popc((tile >> (4 * r)) & 15u);
        }
        if (bad)
            report(p, BS_BAD_TILE, w);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            for (int offset = 16; offset > 0; offset >>= 1)
                counts[r] += __shfl_xor_sync(~0u, counts[r], offset);
            if (lane == 0 && r < rows)
                p.indptr[4 * w + r + 1] = (Index)counts[r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) fill_tiles(const InverseParams p)
{
    const int lane = threadIdx.x & 31;
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 w = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); w < p.windows; w += step) {
        const int rows = (int)(p.rows - 4 * w < 4 ? p.rows - 4 * w : 4);
        i64 to[4];
        for (int r = 0; r < 4; r++)
            to[r] = r < rows ? p.indptr[4 * w + r] : 0;
        for (i64 first = p.starts[w]; first < p.starts[w + 1]; first += 32) {
            const bool inside = first + lane < p.starts[w + 1];
            const u32 tile = inside ? p.tiles[first + lane] : 0;
            const i64 block = inside ? p.cells[first + lane] : 0;
            u32 counts = 0; // of each row in a byte: 32 tiles have at most 128 entries of one
#pragma unroll
            for (int r = 0; r < 4; r++)
                counts |= (u32)__popc((tile >> (4 * r)) & 15u) << (8 * r);
            u32 sum = counts;
#pragma unroll
            for (int offset = 1; offset < 32; offset <<= 1) {
                const u32 other = __shfl_up_sync(~0u, sum, offset);
                sum += lane >= offset ? other : 0;
            }
            const u32 all = __shfl_sync(~0u, sum, 31), before = sum - counts;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                i64 at = to[r] + ((before >> (8 * r)) & 255u);
                for (u32 bits = (tile >> (4 * r)) & 15u; bits; bits &= bits - 1)
                    p.indices[at++] = (Index)(4 * block + __ffs(bits) - 1);
                to[r] += (all >> (8 * r)) & 255u;
            }
        }
    }
}
