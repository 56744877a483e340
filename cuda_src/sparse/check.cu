// Checks what a CSR pattern is like, without trusting any of it. Floor: reading the indices once.
#include "sparse/build.cuh"

struct CheckParams {
    const Index *indptr, *indices; // without indices only indptr is checked
    u64 *found;                    // see below; zero at the start
    Index *row_of;                 // the row of every entry
    i64 rows, cols, nnz;
};

// Positions are counted from the end, so that the largest number is the first position.
#define BS_FROM_END (1ull << 62)

enum {
    BS_BAD_START, // the first entry of indptr that is smaller than the previous one, or a wrong end
    BS_BAD_INDEX, // the first index outside of the shape
    BS_FALLS,     // number of descending neighbours within a row
    BS_REPEATS,   // number of equal neighbours within a row
};

// All neighbouring indices are compared, and pairs across a row boundary are subtracted again, so no entry has to look for its row.
extern "C" __global__ void __launch_bounds__(BS_THREADS) check_csr(const CheckParams p)
{
    __shared__ int sums[2];
    if (threadIdx.x < 2)
        sums[threadIdx.x] = 0;
    __syncthreads();
    const i64 step = (i64)gridDim.x * BS_THREADS, first = (i64)blockIdx.x * BS_THREADS + threadIdx.x;
    const i64 entries = p.indices ? p.nnz : 0;
    u64 bad_start = 0, bad_index = 0;
    int falls = 0, repeats = 0;
#pragma unroll 4
    for (i64 e = first; e < entries; e += step) {
        const Index here = p.indices[e], before = e ? p.indices[e - 1] : -1;
        if (here < 0 || here >= p.cols)
            bad_index = max(bad_index, BS_FROM_END - (u64)e);
        falls += here < before;
        repeats += here == before;
    }
#pragma unroll 1
    for (i64 r = first; r <= p.rows; r += step) {
        const i64 here = p.indptr[r], before = r ? p.indptr[r - 1] : 0;
        if (here < before || (r == 0 && here) || (r == p.rows && here != p.nnz))
            bad_start = max(bad_start, BS_FROM_END - (u64)r);
        if (r && here > before && before > 0 && before < entries) { // row r - 1 has entries, and so has an earlier row
            const Index one = p.indices[before - 1], other = p.indices[before];
            falls -= other < one;
            repeats -= other == one;
        }
    }
    if (falls)
        atomicAdd(&sums[0], falls);
    if (repeats)
        atomicAdd(&sums[1], repeats);
    if (bad_start)
        atomicMax(&p.found[BS_BAD_START], bad_start);
    if (bad_index)
        atomicMax(&p.found[BS_BAD_INDEX], bad_index);
    __syncthreads();
    if (threadIdx.x < 2 && sums[threadIdx.x])
        atomicAdd(&p.found[BS_FALLS + threadIdx.x], (u64)(i64)sums[threadIdx.x]);
}

// The row of every entry, for a valid indptr.
extern "C" __global__ void __launch_bounds__(BS_THREADS) rows_of(const CheckParams p)
{
    __shared__ i64 ends[2];
    const i64 from = (i64)blockIdx.x * BS_CHUNK, to = from + BS_CHUNK < p.nnz ? from + BS_CHUNK : p.nnz;
    rows_of_chunk(p.indptr, p.rows, from, to, ends);
    const i64 low = ends[0], high = ends[1];
    for (i64 e = from + threadIdx.x; e < to; e += BS_THREADS)
        p.row_of[e] = (Index)last_start(p.indptr, low, high, e);
}
