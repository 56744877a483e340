// Sorting the entries of windows of rows by column and row, and numbering their cells: columns, or blocks of 2^shift of them.
//
// The rows of a window are sorted lists, so that merging them in pairs, pairs of pairs and so on sorts the window. Each entry finds its
// place by one search of the other list a level, all in shared memory: global memory is read once and written once. Windows that are
// too full for that are ranked by a search of every other row.
#include "sparse/build.cuh"

struct WindowParams {
    const Index *indptr, *indices;
    const Index *edges; // where each window's entries start
    const i64 *full;    // windows that are too full for shared memory
    Index *perm;        // results, each of them or NULL: position in the CSR array,
    u8 *edge_row;       // row in the window,
    int *edge_cell;     // cell in the window;
    int *edge_col;      // the same cell, where the entry stands in the CSR array;
    Index *cells;       // cells of a window, written where its entries start,
    u16 *tiles;         // the bits of 4 x 4 blocks, likewise,
    Index *counts;      // and how many cells there are, one place on
    i64 rows, windows, fulls;
    int window, shift;
    int low, capacity; // a launch takes windows of low < entries <= capacity
    Index *packed;     // cells and tiles, those of one window after those of the other
    u16 *packed_tiles;
};

#define BS_MOST_ROWS 256

// How many of the sorted keys [from, to) are in front of `key`: those that are smaller, or also those that are equal.
static __device__ __forceinline__ int rank_in(const Index *keys, int from, int to, Index key, bool equal_too)
{
    int low = from, high = to;
    while (low < high) {
        const int middle = (low + high) >> 1;
        if (equal_too ? keys[middle] <= key : keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low - from;
}

// Where the rows of a window start, counted from its first entry. All threads.
static __device__ __forceinline__ void load_bounds(const WindowParams &p, i64 w, i64 begin, int *bounds)
{
    for (int r = threadIdx.x; r <= p.window; r += blockDim.x) {
        const i64 row = w * p.window + r;
        bounds[r] = (int)(p.indptr[row < p.rows ? row : p.rows] - begin);
    }
    __syncthreads();
}

static __device__ __forceinline__ int row_in_window(const int *bounds, int window, int i)
{
    int low = 0, high = window - 1;
    while (low < high) {
        const int middle = (low + high + 1) >> 1;
        if (bounds[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

extern "C" __global__ void order_windows(const WindowParams p)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ int bounds[BS_MOST_ROWS + 1], room[33];
    const i64 w = blockIdx.x, begin = p.edges[w];
    const i64 entries = p.edges[w + 1] - begin;
    if (w == 0 && p.low < 0 && threadIdx.x == 0)
        p.counts[0] = 0;
    if (entries <= p.low || entries > p.capacity)
        return;
    const int n = (int)entries;
    if (n == 0) {
        if (threadIdx.x == 0)
            p.counts[w + 1] = 0;
        return;
    }
    Index *keys = (Index *)shared, *other_keys = keys + p.capacity;
    u32 *places = (u32 *)(other_keys + p.capacity), *other_places = places + p.capacity; // the row above 20 bits of position
    load_bounds(p, w, begin, bounds);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        keys[i] = p.indices[begin + i];
        places[i] = (u32)row_in_window(bounds, p.window, i) << 20 | (u32)i;
    }
    __syncthreads();
    for (int height = 1; height < p.window; height <<= 1) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const Index key = keys[i];
            const u32 place = places[i];
            const int first = (int)(place >> 20) & -(2 * height); // of the pair of lists
            const int middle = min(first + height, p.window), last = min(first + 2 * height, p.window);
            const bool right = (int)(place >> 20) >= middle; // of equal columns the smaller row comes first
            const int at = i + (right ? rank_in(keys, bounds[first], bounds[middle], key, true) - (bounds[middle] - bounds[first])
                                      : rank_in(keys, bounds[middle], bounds[last], key, false));
            other_keys[at] = key;
            other_places[at] = place;
        }
        __syncthreads();
        Index *const swap = keys;
        keys = other_keys, other_keys = swap;
        u32 *const swap_places = places;
        places = other_places, other_places = swap_places;
    }
    int done = 0;
    for (int start = 0; start < n; start += blockDim.x) {
        const int i = start + threadIdx.x;
        const bool inside = i < n;
        const Index cell = inside ? keys[i] >> p.shift : 0;
        const bool first = inside && (i == 0 || keys[i - 1] >> p.shift != cell);
        int total;
        const int at = done + count_before(first, room, &total) + first - 1; // the cell's number
        done += total;
        if (!inside)
            continue;
        if (p.perm) {
            p.perm[begin + i] = (Index)(begin + (places[i] & 0xfffffu));
            p.edge_row[begin + i] = (u8)(places[i] >> 20);
            p.edge_cell[begin + i] = at;
        }
        if (p.edge_col)
            other_places[places[i] & 0xfffffu] = (u32)at; // through shared memory, so that neighbours are written together
        if (first && p.cells)
            p.cells[begin + at] = cell;
        if (first && p.tiles) {
            u32 bits = 0;
            for (int j = i; j < n && keys[j] >> 2 == cell; j++)
                bits |= 1u << (4 * (places[j] >> 20) + (u32)(keys[j] & 3));
            p.tiles[begin + at] = (u16)bits;
        }
    }
    if (threadIdx.x == 0)
        p.counts[w + 1] = done;
    if (p.edge_col) {
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            p.edge_col[begin + i] = (int)other_places[i];
    }
}

// Full windows: the place of an entry is the number of entries of every row in front of it.
extern "C" __global__ void __launch_bounds__(BS_THREADS) rank_windows(const WindowParams p)
{
    __shared__ int bounds[BS_MOST_ROWS + 1];
    for (i64 k = blockIdx.y; k < p.fulls; k += gridDim.y) {
        const i64 w = p.full[k], begin = p.edges[w];
        const int n = (int)(p.edges[w + 1] - begin);
        const Index *keys = p.indices + begin;
        __syncthreads(); // the bounds may still be read
        load_bounds(p, w, begin, bounds);
        for (int i = blockIdx.x * BS_THREADS + threadIdx.x; i < n; i += gridDim.x * BS_THREADS) {
            const Index key = keys[i];
            const int row = row_in_window(bounds, p.window, i);
            int at = i - bounds[row];
            for (int r = 0; r < p.window; r++)
                at += r == row ? 0 : rank_in(keys, bounds[r], bounds[r + 1], key, r < row);
            p.perm[begin + at] = (Index)(begin + i);
            p.edge_row[begin + at] = (u8)row;
        }
    }
}

// Full windows once they are sorted: one block numbers the cells of a window.
extern "C" __global__ void number_cells(const WindowParams p)
{
    __shared__ int room[33];
    for (i64 k = blockIdx.x; k < p.fulls; k += gridDim.x) {
        const i64 w = p.full[k], begin = p.edges[w];
        const int n = (int)(p.edges[w + 1] - begin);
        int done = 0;
        for (int start = 0; start < n; start += blockDim.x) {
            const int i = start + threadIdx.x;
            const bool inside = i < n;
            const Index cell = inside ? p.indices[p.perm[begin + i]] >> p.shift : 0;
            const bool first = inside && (i == 0 || p.indices[p.perm[begin + i - 1]] >> p.shift != cell);
            int total;
            const int at = done + count_before(first, room, &total) + first - 1;
            done += total;
            if (inside && p.edge_cell)
                p.edge_cell[begin + i] = at;
            if (inside && p.edge_col)
                p.edge_col[p.perm[begin + i]] = at;
            if (first && p.cells)
                p.cells[begin + at] = cell;
            if (first && p.tiles) {
                u32 bits = 0;
                for (int j = i; j < n; j++) {
                    const Index col = p.indices[p.perm[begin + j]];
                    if (col >> 2 != cell)
                        break;
                    bits |= 1u << (4 * p.edge_row[begin + j] + (u32)(col & 3));
                }
                p.tiles[begin + at] = (u16)bits;
            }
        }
        if (threadIdx.x == 0)
            p.counts[w + 1] = done;
    }
}

// The cells of each window, and their tiles, moved behind those of the window in front: a warp a window.
extern "C" __global__ void __launch_bounds__(BS_THREADS) pack_cells(const WindowParams p)
{
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 w = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); w < p.windows; w += step) {
        const i64 from = p.edges[w], to = p.counts[w];
        const int n = (int)(p.counts[w + 1] - to);
        for (int i = threadIdx.x & 31; i < n; i += 32) {
            p.packed[to + i] = p.cells[from + i];
            if (p.tiles)
                p.packed_tiles[to + i] = p.tiles[from + i];
        }
    }
}
