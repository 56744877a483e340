// Products of two sparse matrices of bits or integers, row by row. The columns of a row of the result are marked in a bitmap in shared
// memory, with one pass for as many columns as it holds. The rows are counted first, and then written to memory of the right size. Marks
// and integer sums do not depend on the order, so every run gives the same bits.
#include "sparse/build.cuh"

struct ProductParams {
    const Index *left, *left_columns;       // the left matrix
    const Index *right, *right_columns;     // the right one
    const void *left_values, *right_values; // int32 or int64; none for bits
    const unsigned char *left_truth, *right_truth; // NULL, or a boolean for each entry of bits
    i64 *untrue;                                   // not zero once one of these is false
    Index *starts;                          // counts, shifted by one place, then where the rows of the result start
    Index *columns;
    void *values; // zero at the start
    i64 rows, cols, left_size, right_size;
    int words, lanes, wide; // words of the bitmap; threads that share a row of the right matrix; whether values are int64
};

// Calls visit(entry of the left row, entry of the right matrix, column in this pass) for every product with columns from `first` on.
template <class Visit> static __device__ __forceinline__ void products(const ProductParams &p, i64 row, i64 first, Visit visit)
{
    const int group = threadIdx.x / p.lanes, lane = threadIdx.x % p.lanes, groups = BS_THREADS / p.lanes;
    const i64 width = 32 * (i64)p.words;
    for (i64 e = p.left[row] + group; e < p.left[row + 1]; e += groups) {
        const i64 k = p.left_columns[e];
        i64 from = p.right[k], to = p.right[k + 1];
        if (width < p.cols) {
            from = first_from(p.right_columns, from, to, first);
            to = first_from(p.right_columns, from, to, first + width);
        }
        for (i64 q = from + lane; q < to; q += p.lanes)
            visit(e, q, (u32)(p.right_columns[q] - first));
    }
}

// Mark the columns of one pass. Called by all threads.
static __device__ __forceinline__ void mark(const ProductParams &p, i64 row, i64 first, u32 *bitmap)
{
    for (int i = threadIdx.x; i < p.words; i += BS_THREADS)
        bitmap[i] = 0;
    __syncthreads();
    products(p, row, first, [&](i64, i64, u32 column) {
        const u32 bit = 1u << (column & 31);
        if (!(*(volatile u32 *)(bitmap + (column >> 5)) & bit))
            atomicOr(bitmap + (column >> 5), bit);
    });
    __syncthreads();
}

// The sum over all threads before this one; `total` becomes the sum over all. `room` holds 9 integers. Called by all threads.
static __device__ __forceinline__ int sum_before(int mine, int *room, int *total)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int sum = sum_up_to_lane(mine);
    __syncthreads(); // earlier values in the room may still be read
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    int before = sum - mine, all = 0;
#pragma unroll
    for (int i = 0; i < BS_THREADS / 32; i++) {
        before += i < warp ? room[i] : 0;
        all += room[i];
    }
    *total = all;
    return before;
}

// Whether all booleans of this thread's share are true.
static __device__ __forceinline__ bool all_true(const unsigned char *truth, i64 size)
{
    bool all = true;
    if (truth)
        for (i64 e = (i64)blockIdx.x * BS_THREADS + threadIdx.x; e < size; e += (i64)gridDim.x * BS_THREADS)
            all = all && truth[e] != 0;
    return all;
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) count_products(const ProductParams p)
{
    extern __shared__ u32 bitmap[];
    __shared__ int room[BS_THREADS / 32];
    if (!all_true(p.left_truth, p.left_size) || !all_true(p.right_truth, p.right_size))
        *p.untrue = 1;
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        i64 found = 0;
        if (p.left[row] < p.left[row + 1])
            for (i64 first = 0; first < p.cols; first += 32 * (i64)p.words) {
                mark(p, row, first, bitmap);
                int mine = 0, total;
                for (int i = threadIdx.x; i < p.words; i += BS_THREADS)
                    mine += __popc(bitmap[i]);
                sum_before(mine, room, &total);
                found += total;
            }
        if (threadIdx.x == 0)
            p.starts[row + 1] = (Index)found;
    }
}

template <class Value>
static __device__ __forceinline__ void add_products(const ProductParams &p, i64 row, i64 first, i64 start, const u32 *bitmap,
                                                    const u32 *before)
{
    const Value *left = (const Value *)p.left_values, *right = (const Value *)p.right_values;
    Value *values = (Value *)p.values + start;
    products(p, row, first, [&](i64 e, i64 q, u32 column) {
        const u32 place = before[column >> 5] + __popc(bitmap[column >> 5] & ((1u << (column & 31)) - 1u));
        if constexpr (sizeof(Value) == 8)
            atomicAdd((u64 *)values + place, (u64)left[e] * (u64)right[q]);
        else
            atomicAdd((u32 *)values + place, (u32)left[e] * (u32)right[q]);
    });
}

extern "C" __global__ void __launch_bounds__(BS_THREADS, 4) fill_products(const ProductParams p)
{
    extern __shared__ u32 bitmap[];
    __shared__ int room[BS_THREADS / 32];
    u32 *before = bitmap + p.words; // columns of the row before each word, if there are values
    const int share = (p.words + BS_THREADS - 1) / BS_THREADS;
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        i64 start = p.starts[row];
        if (start == p.starts[row + 1])
            continue;
        for (i64 first = 0; first < p.cols; first += 32 * (i64)p.words) {
            mark(p, row, first, bitmap);
            const int from = min((int)threadIdx.x * share, p.words), to = min(from + share, p.words);
            int mine = 0, total;
            for (int i = from; i < to; i++)
                mine += __popc(bitmap[i]);
            int at = sum_before(mine, room, &total);
            for (int i = from; i < to; i++) {
                if (p.values)
                    before[i] = at;
                for (u32 left = bitmap[i]; left; left &= left - 1)
                    p.columns[start + at++] = (Index)(first + 32 * (i64)i + __ffs(left) - 1);
            }
            __syncthreads();
            if (p.values && p.wide)
                add_products<i64>(p, row, first, start, bitmap, before);
            else if (p.values)
                add_products<int>(p, row, first, start, bitmap, before);
            __syncthreads(); // the bitmap is cleared
            start += total;
        }
    }
}
