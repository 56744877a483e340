// Sums of rows: floats in their own type, in eight interleaved sums as on the CPU, so that the bits are the same; integers in 64 bits.
// Floor: reading the values once.
#include "sparse/build.cuh"

struct RowSumParams {
    const Index *indptr;
    const void *values;
    void *out;
    i64 rows;
    int kind; // see below
};

// Integers by size, each unsigned type followed by the signed one; then float32 and float64.
enum { BS_U8, BS_I8, BS_U16, BS_I16, BS_U32, BS_I32, BS_I64, BS_F32, BS_F64 };

// BS_SUMS: lanes of a row, one for each interleaved sum. BS_ROWS: rows of a block. From BS_LONG entries on, the whole block loads a row
// together.
#define BS_SUMS 8
#define BS_ROWS (BS_THREADS / BS_SUMS)
#define BS_LONG 512

// Joins the eight sums in the first lane of each group; `rest` holds the entries after the last full eight. Called by all lanes of the
// warp.
template <class Sum> static __device__ __forceinline__ Sum joined(Sum mine, Sum rest)
{
#pragma unroll
    for (int step = BS_SUMS / 2; step; step >>= 1)
        mine += __shfl_xor_sync(~0u, mine, step);
    Sum others = 0;
#pragma unroll
    for (int i = 0; i < BS_SUMS - 1; i++)
        others += __shfl_sync(~0u, rest, i, BS_SUMS); // zero past the end
    return mine + others;
}

// Eight lanes sum one row, unless it is long.
template <class Value, class Sum>
static __device__ __forceinline__ void short_rows(const RowSumParams &p, const Value *values, Sum *out, i64 row, int lane)
{
    const i64 from = row < p.rows ? p.indptr[row] : 0, to = row < p.rows ? p.indptr[row + 1] : 0;
    const bool mine = to - from <= BS_LONG;
    const i64 end = mine ? to : from, whole = from + (end - from) / BS_SUMS * BS_SUMS;
    Sum sum = 0;
#pragma unroll 8
    for (i64 e = from + lane; e < whole; e += BS_SUMS)
        sum += (Sum)values[e];
    const Sum all = joined<Sum>(sum, whole + lane < end ? (Sum)values[whole + lane] : (Sum)0);
    if (lane == 0 && row < p.rows && mine)
        out[row] = all;
}

// A long row: the block loads a chunk while the first eight lanes add the previous one.
template <class Value, class Sum>
static __device__ __forceinline__ void long_row(const RowSumParams &p, const Value *values, Sum *out, i64 row, Sum *room)
{
    const i64 from = p.indptr[row], to = p.indptr[row + 1], whole = from + (to - from) / BS_SUMS * BS_SUMS;
    Sum ahead[BS_EACH], sum = 0;
    auto load = [&](i64 chunk) {
#pragma unroll
        for (int i = 0; i < BS_EACH; i++) {
            const i64 e = chunk + i * BS_THREADS + threadIdx.x;
            ahead[i] = e < whole ? (Sum)values[e] : (Sum)0;
        }
    };
    load(from);
    for (i64 chunk = from; chunk < whole; chunk += BS_CHUNK) {
#pragma unroll
        for (int i = 0; i < BS_EACH; i++)
            room[i * BS_THREADS + threadIdx.x] = ahead[i];
        __syncthreads();
        load(chunk + BS_CHUNK);
        const int size = (int)(whole - chunk < BS_CHUNK ? whole - chunk : BS_CHUNK);
        if (threadIdx.x < BS_SUMS)
#pragma unroll 8
            for (int i = threadIdx.x; i < size; i += BS_SUMS)
                sum += room[i];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        const Sum all = joined<Sum>(sum, whole + threadIdx.x < to ? (Sum)values[whole + threadIdx.x] : (Sum)0);
        if (threadIdx.x == 0)
            out[row] = all;
    }
}

template <class Value, class Sum> static __device__ __forceinline__ void sums(const RowSumParams &p, void *room, u32 *longs)
{
    const Value *values = (const Value *)p.values;
    for (i64 first = (i64)blockIdx.x * BS_ROWS; first < p.rows; first += (i64)gridDim.x * BS_ROWS) {
        short_rows<Value, Sum>(p, values, (Sum *)p.out, first + threadIdx.x / BS_SUMS, threadIdx.x % BS_SUMS);
        if (threadIdx.x < 32) {
            const i64 row = first + threadIdx.x;
            const u32 votes = __ballot_sync(~0u, row < p.rows && p.indptr[row + 1] - p.indptr[row] > BS_LONG);
            if (threadIdx.x == 0)
                *longs = votes;
        }
        __syncthreads();
        for (u32 left = *longs; left; left &= left - 1)
            long_row<Value, Sum>(p, values, (Sum *)p.out, first + __ffs(left) - 1, (Sum *)room);
        __syncthreads(); // before the long rows of the next round
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) sum_rows(const RowSumParams p)
{
    __shared__ u64 room[BS_CHUNK];
    __shared__ u32 longs;
    switch (p.kind) {
    case BS_U8: sums<unsigned char, u64>(p, room, &longs); break;
    case BS_I8: sums<signed char, i64>(p, room, &longs); break;
    case BS_U16: sums<u16, u64>(p, room, &longs); break;
    case BS_I16: sums<short, i64>(p, room, &longs); break;
    case BS_U32: sums<u32, u64>(p, room, &longs); break;
    case BS_I32: sums<int, i64>(p, room, &longs); break;
    case BS_I64: sums<i64, i64>(p, room, &longs); break;
    case BS_F32: sums<float, float>(p, room, &longs); break;
    default: sums<double, double>(p, room, &longs);
    }
}
