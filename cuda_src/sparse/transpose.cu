// The transpose of a canonical CSR pattern. Where the pattern may equal its transpose, every entry looks for its mirror image. Otherwise
// entries are sorted by column, eight bits at a time, and each block keeps the order of its entries: no step depends on the order of
// atomics.
// Floor: reading the columns, and writing the order and the rows.
#include "sparse/build.cuh"

struct TransposeParams {
    const Index *indptr, *indices;
    Index *order;
    const void *values; // a number of `unit` bytes for each entry, or NULL
    void *out;          // these values in the order of the transpose
    i64 *unlike;            // not zero once an entry has no mirror image; how many more entries are above the diagonal than below
    const Index *keys;      // columns in the order so far
    const Index *ids;       // the entries that they belong to; NULL: 0, 1, 2 and so on
    Index *keys_out, *ids_out;
    Index *counts;          // of each digit in each block, shifted by one place, digit by digit
    const Index *before;    // the sums of these counts
    Index *starts;          // where columns start
    i64 rows, cols, nnz, blocks;
    int shift, unit;
};

// Keys of a block, in rounds of a warp; the keys of a warp are adjacent.
#define BS_DIGITS 256
#define BS_ROUNDS 16
#define BS_TILE (BS_THREADS * BS_ROUNDS)
#define BS_WARPS (BS_THREADS / 32)

// order[e] = the position of (j, i), if e is entry (i, j). Entries above the diagonal look for their mirror images and write their own
// positions there. If each has one, and as many entries are above as below, then every entry has one.
extern "C" __global__ void __launch_bounds__(BS_THREADS) find_mirrors(const TransposeParams p)
{
    __shared__ i64 ends[2];
    __shared__ int known, surplus;
    if (threadIdx.x == 0) {
        known = *(volatile i64 *)p.unlike != 0;
        surplus = 0;
    }
    const i64 from = (i64)blockIdx.x * BS_CHUNK, to = from + BS_CHUNK < p.nnz ? from + BS_CHUNK : p.nnz;
    rows_of_chunk(p.indptr, p.rows, from, to, ends);
    if (known)
        return;
    const i64 low = ends[0], high = ends[1];
    bool unlike = false;
    int above = 0;
    constexpr int kAtOnce = sizeof(Index) == 4 ? 2 : 1; // with two of int64, sm_100 would spill registers
#pragma unroll kAtOnce
    for (i64 e = from + threadIdx.x; e < to; e += BS_THREADS) {
        const i64 row = last_start(p.indptr, low, high, e), col = p.indices[e];
        above += (col > row) - (col < row);
        if (col < row)
            continue;
        i64 at = e;
        if (col > row) {
            const i64 end = p.indptr[col + 1];
            at = first_from(p.indices, p.indptr[col], end, row);
            if (at == end || p.indices[at] != row) {
                unlike = true;
                continue;
            }
            p.order[at] = (Index)e;
        }
        p.order[e] = (Index)at;
        if (p.values)
            by_unit(p.unit, [&](auto word) {
                typedef decltype(word) Word;
                const Word *values = (const Word *)p.values;
                Word *out = (Word *)p.out;
                out[e] = values[at];
                out[at] = values[e];
            });
    }
    if (unlike)
        p.unlike[0] = 1;
    above = __reduce_add_sync(~0u, above);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(&surplus, above);
    __syncthreads();
    if (threadIdx.x == 0 && surplus)
        atomicAdd((u64 *)p.unlike + 1, (u64)(i64)surplus);
}

// The digit of a key; past the end there is none.
static __device__ __forceinline__ int digit_of(const TransposeParams &p, i64 e)
{
    return e < p.nnz ? (int)(p.keys[e] >> p.shift) & (BS_DIGITS - 1) : BS_DIGITS;
}

// One pass of the sort, first step: counts each digit in each block.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_digits(const TransposeParams p)
{
    __shared__ int counts[BS_DIGITS];
    counts[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < BS_ROUNDS; i++) {
        const int digit = digit_of(p, (i64)blockIdx.x * BS_TILE + i * BS_THREADS + threadIdx.x);
        if (digit < BS_DIGITS)
            atomicAdd(counts + digit, 1);
    }
    __syncthreads();
    p.counts[threadIdx.x * p.blocks + blockIdx.x + 1] = counts[threadIdx.x];
    if (blockIdx.x == 0 && threadIdx.x == 0)
        p.counts[0] = 0;
}

// Second step: moves keys to their places, in their present order within each digit.
extern "C" __global__ void __launch_bounds__(BS_THREADS) move_digits(const TransposeParams p)
{
    __shared__ int seen[BS_WARPS][BS_DIGITS];
    __shared__ Index places[BS_WARPS][BS_DIGITS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int w = 0; w < BS_WARPS; w++)
        seen[w][threadIdx.x] = 0;
    __syncthreads();
    const i64 first = (i64)blockIdx.x * BS_TILE + warp * (BS_TILE / BS_WARPS) + lane;
    int rank[BS_ROUNDS];
#pragma unroll
    for (int i = 0; i < BS_ROUNDS; i++) {
        const int digit = digit_of(p, first + 32 * i);
        const u32 alike = __match_any_sync(~0u, digit);
        rank[i] = __popc(alike & ((1u << lane) - 1u));
        if (digit < BS_DIGITS)
            rank[i] += seen[warp][digit];
        __syncwarp();
        if (digit < BS_DIGITS && (alike >> lane) == 1u) // the last lane with this digit
            seen[warp][digit] = rank[i] + 1;
        __syncwarp();
    }
    __syncthreads();
    Index place = p.before[threadIdx.x * p.blocks + blockIdx.x];
#pragma unroll
    for (int w = 0; w < BS_WARPS; w++) {
        places[w][threadIdx.x] = place;
        place += seen[w][threadIdx.x];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BS_ROUNDS; i++) {
        const i64 e = first + 32 * i;
        const int digit = digit_of(p, e);
        if (digit < BS_DIGITS) {
            const Index to = places[warp][digit] + rank[i];
            p.keys_out[to] = p.keys[e];
            p.ids_out[to] = p.ids ? p.ids[e] : (Index)e;
        }
    }
}

// Where each column starts among the sorted entries.
extern "C" __global__ void __launch_bounds__(BS_THREADS) start_columns(const TransposeParams p)
{
    for (i64 c = (i64)blockIdx.x * BS_THREADS + threadIdx.x; c <= p.cols; c += (i64)gridDim.x * BS_THREADS)
        p.starts[c] = (Index)first_from(p.keys, 0, p.nnz, c);
}
