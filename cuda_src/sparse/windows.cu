// Sorts the entries of windows of rows by column and row, and numbers their cells: columns, or blocks of 2^shift columns.
//
// The rows of a window are sorted lists, so merging them in pairs, then pairs of pairs and so on sorts the window. At each level an entry
// finds its place by one search of the other list, all in shared memory: global memory is read once and written once. In windows that are
// too full for shared memory, entries are ranked by a search of every other row.
#include "sparse/build.cuh"

struct WindowParams {
    const Index *indptr, *indices;
    u64 *found;     // see below; zero at the start
    Index *edges;   // where each window's entries start
    Index *lists;   // numbers of windows, with room for all in every class; the last list has those too full for shared memory
    Index *perm;    // results, any of which may be NULL: position in the CSR array,
    u8 *edge_row;   // row in the window,
    int *edge_cell; // cell in the window;
    u8 *edge_byte;  // the same cell, at the entry's place in the CSR array, in every width that may hold them all;
    u16 *edge_short;
    int *edge_int;
    Index *cells;  // cells of a window, written from where its entries start,
    u16 *tiles;    // the bits of 4 x 4 blocks, likewise,
    Index *counts; // how many cells there are,
    Index *starts; // where they start once they are packed,
    Index *packed; // and cells and tiles without gaps, window by window
    u16 *packed_tiles;
    u64 *sums; // cells of every `part` windows; zero at the start
    i64 rows, windows, part;
    int window, shift;
    int classes, list, capacity; // a launch takes the windows of one list, which have at most `capacity` entries
    int capacities[5];
};

// Indices of `found`, after those of the check of the pattern.
enum {
    BS_TALLEST = 4, // entries of the fullest window
    BS_MOST,        // cells of the window that has the most,
    BS_TOTAL,       // and of all windows
    BS_LISTED,      // windows of each class
};

#define BS_MOST_ROWS 256
#define BS_MOST_LISTS 6 // a list for each class, and one for windows that are too full

// How many of the sorted keys [from, to) come before `key`: those that are smaller and, with equal_too, those that are equal.
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

// Where the rows of a window start, counted from its first entry. Called by all threads.
static __device__ __forceinline__ void load_bounds(const WindowParams &p, i64 w, i64 begin, int *bounds)
{
    for (int r = threadIdx.x; r <= p.window; r += blockDim.x) {
        const i64 row = w * p.window + r;
        bounds[r] = (int)(p.indptr[row < p.rows ? row : p.rows] - begin);
    }
    __syncthreads();
}

// The row of entry i of a window: the last one that starts at i or before.
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

// Finds where windows start, and which class they belong to. Windows without entries belong to none.
extern "C" __global__ void __launch_bounds__(BS_THREADS) list_windows(const WindowParams p)
{
    __shared__ int sizes[BS_MOST_LISTS];
    __shared__ i64 places[BS_MOST_LISTS];
    i64 tallest = 0;
    for (i64 start = (i64)blockIdx.x * BS_THREADS; start < p.windows; start += (i64)gridDim.x * BS_THREADS) {
        if (threadIdx.x < BS_MOST_LISTS)
            sizes[threadIdx.x] = 0;
        __syncthreads();
        const i64 w = start + threadIdx.x, row = w * p.window, next = row + p.window;
        int list = -1, place = 0;
        if (w < p.windows) {
            const Index begin = p.indptr[row], end = p.indptr[next < p.rows ? next : p.rows];
            const i64 entries = (i64)end - begin;
            p.edges[w] = begin;
            if (w + 1 == p.windows)
                p.edges[w + 1] = end;
            tallest = entries > tallest ? entries : tallest;
            if (entries > 0) {
                for (list = 0; list < p.classes && entries > p.capacities[list]; list++)
                    ;
                place = atomicAdd(&sizes[list], 1);
            } else
                p.counts[w] = 0;
        }
        __syncthreads();
        if (threadIdx.x <= p.classes && sizes[threadIdx.x])
            places[threadIdx.x] = (i64)atomicAdd(&p.found[BS_LISTED + threadIdx.x], (u64)sizes[threadIdx.x]);
        __syncthreads();
        if (list >= 0)
            p.lists[list * p.windows + places[list] + place] = (Index)w;
    }
    if (tallest)
        atomicMax(&p.found[BS_TALLEST], (u64)tallest);
}

// The windows that a launch takes, one after another.
static __device__ __forceinline__ i64 listed(const WindowParams &p) { return (i64)p.found[BS_LISTED + p.list]; }

static __device__ __forceinline__ i64 window_at(const WindowParams &p, i64 k) { return p.lists[p.list * p.windows + k]; }

static __device__ __forceinline__ void store_position(const WindowParams &p, i64 entry, int cell)
{
    if (p.edge_byte)
        p.edge_byte[entry] = (u8)cell;
    if (p.edge_short)
        p.edge_short[entry] = (u16)cell;
    if (p.edge_int)
        p.edge_int[entry] = cell;
}

// Stores how many cells a window has. Called by one thread.
static __device__ __forceinline__ void count_cells(const WindowParams &p, i64 w, int cells)
{
    p.counts[w] = cells;
    atomicAdd(&p.sums[w / p.part], (u64)cells);
}

// Reports how many cells a block has counted: the most in one window, and the total.
static __device__ __forceinline__ void add_cells(const WindowParams &p, int most, i64 total)
{
    if (threadIdx.x == 0 && total) {
        atomicMax(&p.found[BS_MOST], (u64)most);
        atomicAdd(&p.found[BS_TOTAL], (u64)total);
    }
}

// Sorts a window and returns the number of its cells. Called by all threads.
static __device__ __forceinline__ int order_window(const WindowParams &p, i64 w, char *shared, int *bounds, int *room)
{
    const i64 begin = p.edges[w];
    const int n = (int)(p.edges[w + 1] - begin);
    Index *keys = (Index *)shared, *other_keys = keys + p.capacity;
    u32 *places = (u32 *)(other_keys + p.capacity), *other_places = places + p.capacity; // the row, above 20 bits of position
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
            const int first = (int)(place >> 20) & -(2 * height); // first row of the pair of lists
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
        const int at = done + count_before(first, room, &total) + first - 1; // the number of the cell
        done += total;
        if (!inside)
            continue;
        if (p.perm) {
            p.perm[begin + i] = (Index)(begin + (places[i] & 0xfffffu));
            p.edge_row[begin + i] = (u8)(places[i] >> 20);
            p.edge_cell[begin + i] = at;
        }
        if (p.edge_byte)
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
        count_cells(p, w, done);
    if (p.edge_byte) {
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            store_position(p, begin + i, (int)other_places[i]);
    }
    return done;
}

extern "C" __global__ void order_windows(const WindowParams p)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ int bounds[BS_MOST_ROWS + 1], room[33];
    const i64 count = listed(p);
    int most = 0;
    i64 total = 0;
    for (i64 k = blockIdx.x; k < count; k += gridDim.x) {
        const int cells = order_window(p, window_at(p, k), shared, bounds, room);
        __syncthreads(); // shared memory may still be read
        most = max(most, cells);
        total += cells;
    }
    add_cells(p, most, total);
}

// Full windows: the place of an entry is the number of entries before it, counted row by row.
extern "C" __global__ void __launch_bounds__(BS_THREADS) rank_windows(const WindowParams p)
{
    __shared__ int bounds[BS_MOST_ROWS + 1];
    for (i64 k = blockIdx.y; k < listed(p); k += gridDim.y) {
        const i64 w = window_at(p, k), begin = p.edges[w];
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

// Full windows after sorting: one block numbers the cells of a window.
extern "C" __global__ void number_cells(const WindowParams p)
{
    __shared__ int room[33];
    int most = 0;
    i64 total = 0;
    for (i64 k = blockIdx.x; k < listed(p); k += gridDim.x) {
        const i64 w = window_at(p, k), begin = p.edges[w];
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
            if (inside)
                store_position(p, p.perm[begin + i], at);
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
            count_cells(p, w, done);
        most = max(most, done);
        total += done;
    }
    add_cells(p, most, total);
}

// The sum over all threads before this one; `total` becomes the sum over all. `room` holds one number for each warp. Called by all threads.
static __device__ __forceinline__ i64 sum_before(i64 value, i64 *room, i64 *total)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 sum = sum_up_to_lane(value);
    __syncthreads(); // earlier values in the room may still be read
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    i64 all = 0;
    for (int other = 0; other < BS_THREADS / 32; other++) {
        sum += other < warp ? room[other] : 0;
        all += room[other];
    }
    *total = all;
    return sum - value;
}

// Finds where the cells of each window start, and moves the cells and their tiles there. A block takes a part of the windows, a warp a
// window.
extern "C" __global__ void __launch_bounds__(BS_THREADS) pack_cells(const WindowParams p)
{
    __shared__ i64 room[BS_THREADS / 32];
    const i64 from = blockIdx.x * p.part, to = from + p.part < p.windows ? from + p.part : p.windows;
    i64 before = 0, all;
    for (int part = threadIdx.x; part < blockIdx.x; part += BS_THREADS)
        before += (i64)p.sums[part];
    sum_before(before, room, &all);
    before = all;
    for (i64 first = from; first < to; first += BS_THREADS) {
        const i64 mine = first + threadIdx.x, size = mine < to ? p.counts[mine] : 0;
        const i64 start = before + sum_before(size, room, &all);
        if (mine < to) {
            p.starts[mine] = (Index)start;
            if (mine + 1 == p.windows)
                p.starts[mine + 1] = (Index)(start + size);
        }
        before += all;
    }
    __syncthreads();
    for (i64 w = from + (threadIdx.x >> 5); w < to && p.cells; w += BS_THREADS / 32) {
        const i64 source = p.edges[w], target = p.starts[w];
        const int n = (int)p.counts[w];
        for (int i = threadIdx.x & 31; i < n; i += 32) {
            p.packed[target + i] = p.cells[source + i];
            if (p.tiles)
                p.packed_tiles[target + i] = p.tiles[source + i];
        }
    }
}
