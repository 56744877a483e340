// How many edges of each row are sampled, and which ones: the explicit sample, for callers that keep it.
#include "sampling/draw.cuh"

#define BS_THREADS 256

struct SampleEdgesParams {
    Sampler sampler;
    const Index *indptr;  // of the pattern
    const Index *indices; // its columns, or null
    const Index *starts;  // rows + 1: where each row's samples start
    Index *counts;        // samples of each row
    bs_i64 *edges;        // of each sample, or null
    Index *columns;       // the same, or null
    bs_i64 rows, total;
};

extern "C" __global__ void __launch_bounds__(BS_THREADS) sample_counts(const SampleEdgesParams p)
{
    const bs_i64 row = (bs_i64)blockIdx.x * BS_THREADS + threadIdx.x;
    if (row < p.rows)
        p.counts[row] = samples_of(p.sampler, p.indptr[row + 1] - p.indptr[row]);
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) sample_edges(const SampleEdgesParams p)
{
    // A block looks up the rows of its first and its last sample; its threads search only between these.
    __shared__ Index ends[2];
    const bs_i64 first = (bs_i64)blockIdx.x * BS_THREADS, e = first + threadIdx.x;
    if (threadIdx.x < 2)
        ends[threadIdx.x] = row_of(p.starts, 0, (Index)p.rows, (Index)(threadIdx.x ? min(first + BS_THREADS, p.total) - 1 : first));
    __syncthreads();
    if (e >= p.total)
        return;
    const Index row = row_of(p.starts, ends[0], ends[1] + 1, (Index)e);
    const Index start = p.starts[row], begin = p.indptr[row];
    const Index edge = begin + position_of(p.sampler, row, p.indptr[row + 1] - begin, p.starts[row + 1] - start, (Index)e - start);
    if (p.edges)
        p.edges[e] = edge;
    if (p.columns)
        p.columns[e] = p.indices ? p.indices[edge] : edge;
}
