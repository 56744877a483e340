// An operation of two canonical CSR arrays, element by element: entries of either, without those that come to zero. A group of lanes has a
// row. It goes along the merged row in tiles; each lane finds by bisection where its part of a tile begins (merge path), and what it keeps
// is laid side by side in shared memory and stored together. The entries are counted first, with their values, then written in memory of
// the right size. Floor: reading both arrays twice and writing the result.
#include "csr/groups.cuh"
#include "sparse/build.cuh"

// BS_KIND: integers of 1, 2, 4 or 8 bytes, not signed (even) or signed (odd), float32, float64. Booleans are bytes of 0 and 1.
#if BS_KIND == 0
typedef unsigned char Value;
#elif BS_KIND == 1
typedef signed char Value;
#elif BS_KIND == 2
typedef u16 Value;
#elif BS_KIND == 3
typedef short Value;
#elif BS_KIND == 4
typedef u32 Value;
#elif BS_KIND == 5
typedef int Value;
#elif BS_KIND == 6
typedef u64 Value;
#elif BS_KIND == 7
typedef i64 Value;
#elif BS_KIND == 8
typedef float Value;
#else
typedef double Value;
#endif

struct MergeParams {
    const Index *left, *left_columns, *right, *right_columns;
    const void *left_values, *right_values; // NULL: every entry is 1
    i64 *counts;                            // of each row one place on, and zero in front
    const i64 *starts;                      // the sums of these counts
    Index *row_starts, *columns;            // the result
    void *values;                           // of comparisons booleans
    i64 rows;
    int lanes, operation;
};

enum { BS_ADD, BS_SUBTRACT, BS_MULTIPLY, BS_MAXIMUM, BS_MINIMUM, BS_LESS, BS_GREATER, BS_NOT_EQUAL };

// Merged entries of a lane in a tile.
#define BS_PART 4

// As SciPy computes it: NaN goes through a maximum only from the left. Integers wrap.
BS_INLINE Value combined(int operation, Value a, Value b)
{
    switch (operation) {
    case BS_ADD: return (Value)(a + b);
    case BS_SUBTRACT: return (Value)(a - b);
    case BS_MULTIPLY: return (Value)(a * b);
    case BS_MAXIMUM: return a < b ? b : a;
    case BS_MINIMUM: return b < a ? b : a;
    case BS_LESS: return a < b;
    case BS_GREATER: return b < a;
    default: return a != b;
    }
}

struct Row {
    const Index *left, *right;
    const Value *left_values, *right_values;
    i64 left_size, right_size;
};

BS_INLINE Row row_at(const MergeParams &p, i64 row)
{
    const i64 a = p.left[row], b = p.right[row];
    return {p.left_columns + a,
            p.right_columns + b,
            p.left_values ? (const Value *)p.left_values + a : nullptr,
            p.right_values ? (const Value *)p.right_values + b : nullptr,
            p.left[row + 1] - a,
            p.right[row + 1] - b};
}

// How many of the first `place` merged entries are the left row's, if that is between `low` and `high`; of equal columns the left comes first.
BS_INLINE i64 split(const Row &r, i64 place, i64 low, i64 high)
{
    low = max(low, place - r.right_size);
    high = min(high, min(place, r.left_size));
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (r.left[middle] <= r.right[place - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The kept ones of the merged entries from `place` to `end`, of which `i` before are the left row's; the number for `end` is the result.
template <class Keep> BS_INLINE i64 walk(const Row &r, int operation, i64 place, i64 end, i64 i, Keep keep)
{
    i64 j = place - i;
#pragma unroll
    for (int step = 0; step < BS_PART; step++) {
        if (place + step >= end)
            break;
        const bool more_left = i < r.left_size, more_right = j < r.right_size;
        const Index left = more_left ? r.left[i] : 0, right = more_right ? r.right[j] : 0;
        const bool from_left = more_left && (!more_right || left <= right);
        Value a = 0, b = 0;
        bool skipped = false;
        if (from_left) {
            a = r.left_values ? r.left_values[i] : (Value)1;
            if (more_right && left == right)
                b = r.right_values ? r.right_values[j] : (Value)1;
            i++;
        } else {
            skipped = i > 0 && r.left[i - 1] == right; // it went with the left row's
            b = r.right_values ? r.right_values[j] : (Value)1;
            j++;
        }
        const Value made = combined(operation, a, b);
        if (!skipped && made != (Value)0)
            keep(from_left ? left : right, made);
    }
    return i;
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) count_merged(const MergeParams p)
{
    const int lane = threadIdx.x & (p.lanes - 1);
    const u32 mask = group_mask(p.lanes);
    const int shift = 31 - __clz(p.lanes);
    const i64 first = ((i64)blockIdx.x * BS_THREADS + threadIdx.x) >> shift, step = ((i64)gridDim.x * BS_THREADS) >> shift;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        p.counts[0] = 0;
    for (i64 row = first; row < p.rows; row += step) {
        const Row r = row_at(p, row);
        const i64 total = r.left_size + r.right_size;
        i64 kept = 0, low = 0;
        for (i64 tile = 0; tile < total; tile += BS_PART * p.lanes) {
            const i64 place = min(tile + lane * BS_PART, total);
            const i64 i = split(r, place, low, low + lane * BS_PART);
            const i64 end = walk(r, p.operation, place, total, i, [&](Index, Value) { kept++; });
            low = __shfl_sync(mask, end, p.lanes - 1, p.lanes);
        }
        for (int offset = p.lanes / 2; offset; offset >>= 1)
            kept += __shfl_xor_sync(mask, kept, offset);
        if (lane == 0)
            p.counts[row + 1] = kept;
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS, 4) fill_merged(const MergeParams p)
{
    __shared__ Index columns[BS_THREADS * BS_PART];
    __shared__ Value values[BS_THREADS * BS_PART];
    const int lane = threadIdx.x & (p.lanes - 1);
    const u32 mask = group_mask(p.lanes);
    const int shift = 31 - __clz(p.lanes);
    const i64 first = ((i64)blockIdx.x * BS_THREADS + threadIdx.x) >> shift, step = ((i64)gridDim.x * BS_THREADS) >> shift;
    Index *const my_columns = columns + (threadIdx.x - lane) * BS_PART;
    Value *const my_values = values + (threadIdx.x - lane) * BS_PART;
    for (i64 row = first; row < p.rows; row += step) {
        const Row r = row_at(p, row);
        const i64 total = r.left_size + r.right_size;
        i64 to = p.starts[row], low = 0;
        if (lane == 0) {
            p.row_starts[row + 1] = (Index)p.starts[row + 1];
            if (row == 0)
                p.row_starts[0] = 0;
        }
        for (i64 tile = 0; tile < total; tile += BS_PART * p.lanes) {
            const i64 place = min(tile + lane * BS_PART, total);
            const i64 i = split(r, place, low, low + lane * BS_PART);
            int kept = 0;
            const i64 end = walk(r, p.operation, place, total, i, [&](Index column, Value value) {
                my_columns[lane * BS_PART + kept] = column;
                my_values[lane * BS_PART + kept++] = value;
            });
            low = __shfl_sync(mask, end, p.lanes - 1, p.lanes);
            int before = kept;
            for (int offset = 1; offset < p.lanes; offset <<= 1) {
                const int other = __shfl_up_sync(mask, before, offset, p.lanes);
                before += lane >= offset ? other : 0;
            }
            const int all = __shfl_sync(mask, before, p.lanes - 1, p.lanes);
            before -= kept;
            Index found[BS_PART];
            Value made[BS_PART];
#pragma unroll
            for (int k = 0; k < BS_PART; k++) {
                found[k] = my_columns[lane * BS_PART + k]; // beyond what is kept, anything
                made[k] = my_values[lane * BS_PART + k];
            }
            __syncwarp(mask);
#pragma unroll
            for (int k = 0; k < BS_PART; k++)
                if (k < kept) {
                    my_columns[before + k] = found[k];
                    my_values[before + k] = made[k];
                }
            __syncwarp(mask);
            for (int k = lane; k < all; k += p.lanes) {
                p.columns[to + k] = my_columns[k];
                if (p.operation >= BS_LESS)
                    ((unsigned char *)p.values)[to + k] = 1;
                else
                    ((Value *)p.values)[to + k] = my_values[k];
            }
            __syncwarp(mask); // the tile is written again
            to += all;
        }
    }
}
