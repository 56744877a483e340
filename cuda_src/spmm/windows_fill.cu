// Fills the entries of windows of eight rows and the values of their edges, from the translated pattern; once per pattern, or per set of
// values.
#include "spmm/windows.cuh"

struct FillParams {
    const Index *starts;  // windows + 1: cells
    const Index *cells;   // columns
    const Index *edges;   // windows + 1
    const Index *perm;    // of each edge: its place in the CSR array,
    const unsigned char *edge_row; // its row in the window,
    const int *edge_cell; // and its cell among those of the window
    const bs_i64 *first;  // windows + 1: entries
    WindowEntry *entries; // zeros at the start; one batch more than `first` says
    bs_u32 *place;        // of each edge in CSR order: entry * 8 + row; or null
    bs_i64 windows;
};

struct WeighParams {
    const WindowEntry *entries;
    const bs_u32 *place;
    const float *values;    // (edges,) in CSR order; null: only columns have weights
    const float *col_scale; // or null
    float *weights;         // (entries, 8), or (entries,) without values
    bs_i64 count;           // edges, or entries
};

struct PlacesParams {
    const WindowUnit *units;
    const WindowEntry *entries;
    const Index *indptr;
    bs_u32 *places;
    bs_i64 rows;
    int count;
};

// A warp takes a window, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256) fill_windows(const FillParams p)
{
    const int lane = (int)threadIdx.x & 31;
    const bs_i64 warps = (bs_i64)gridDim.x * (blockDim.x / 32);
    for (bs_i64 w = (bs_i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; w < p.windows; w += warps) {
        const bs_i64 entry = p.first[w], stop = p.first[w + 1];
        const Index cell = p.starts[w];
        const bs_i64 cells = p.starts[w + 1] - cell;
        for (bs_i64 i = lane; i < stop - entry; i += 32)
            p.entries[entry + i].column = (bs_u32)p.cells[cell + min(i, cells - 1)];
        for (Index e = p.edges[w] + lane; e < p.edges[w + 1]; e += 32) {
            const bs_i64 at = entry + p.edge_cell[e];
            atomicOr(&p.entries[at].rows, 1u << p.edge_row[e]);
            if (p.place)
                p.place[p.perm[e]] = (bs_u32)(at * BS_ROWS + p.edge_row[e]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) weigh_windows(const WeighParams p)
{
    const bs_i64 step = (bs_i64)gridDim.x * blockDim.x;
    for (bs_i64 i = (bs_i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += step)
        if (p.values) {
            const bs_u32 place = p.place[i];
            const float value = p.values[i];
            p.weights[place] = p.col_scale ? bs_mulf(value, p.col_scale[p.entries[place / BS_ROWS].column]) : value;
        } else
            p.weights[i] = p.col_scale[p.entries[i].column];
}

// Where the edges of each row of each unit begin; a warp takes a unit, in a grid-stride loop. Once per pattern.
extern "C" __global__ void __launch_bounds__(256) place_units(const PlacesParams p)
{
    const int lane = threadIdx.x & 31, step = (int)gridDim.x * (256 / 32);
    for (int u = (int)blockIdx.x * (256 / 32) + threadIdx.x / 32; u < p.count; u += step) {
        const WindowUnit unit = p.units[u];
        const bs_u32 start = p.units[u - unit.part].entry;
        bs_u32 before = 0; // of row `lane`
        for (bs_u32 base = start; base < unit.entry; base += 32) {
            const bs_u32 mask = base + lane < unit.entry ? p.entries[base + lane].rows : 0;
#pragma unroll
            for (int r = 0; r < BS_ROWS; r++) {
                const bs_u32 found = __popc(__ballot_sync(~0u, mask >> r & 1));
                before += lane == r ? found : 0;
            }
        }
        if (lane < BS_ROWS)
            p.places[(bs_i64)u * BS_ROWS + lane] = (bs_u32)p.indptr[min((bs_i64)unit.window * BS_ROWS + lane, p.rows)] + before;
    }
}
