// Which edges of a CSR pattern fetch a row that has a number other than 0. Sums need not fetch the others.
//
// Marks of rows, which are made while rows are copied (csr/rows.cu), are compared with those of the last call, which are kept beside the
// bits of edges made from them: gradients of a loss over the same nodes have the same rows of zeros in every step, so that edges are seldom
// looked at again.
//
// Floor of mark_edges: the bytes of the indices, and an L1 or L2 access of 4 bytes for each edge.
#include "csr/fetched.cuh"

struct FetchedParams {
    const unsigned *marks; // (words,), of the rows of this call
    unsigned *kept; // (words,), those from which `edges` were made
    unsigned *edges; // whether an edge is fetched (csr/fetched.cuh)
    Fetching *fetching;
    const Index *indices;
    bs_i64 rows, words, nnz;
};

// One block of 1024 threads. Edges are left out if at most three quarters of the rows have a number.
extern "C" __global__ void __launch_bounds__(1024) compare_marks(const FetchedParams p)
{
    __shared__ bs_u64 marked;
    __shared__ int zero_word;
    unsigned own = 0;
    int zero = 0x7fffffff;
    if (threadIdx.x == 0)
        marked = 0, zero_word = zero;
    __syncthreads();
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < (int)p.words; i += 1024) {
        const unsigned word = p.marks[i];
        own += (unsigned)__popc(word);
        const int rows = (int)min((bs_i64)32, p.rows - (bs_i64)i * 32);
        if (__popc(word) < rows)
            zero = min(zero, i);
    }
    atomicAdd(&marked, (bs_u64)own);
    atomicMin(&zero_word, zero);
    __syncthreads();
    const bool few = 4 * marked <= 3 * (bs_u64)p.rows;
    int differs = 0;
    if (few) {
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < (int)p.words; i += 1024) {
            const unsigned word = p.marks[i];
            differs |= p.kept[i] != word;
            p.kept[i] = word;
        }
    }
    const int changed = __syncthreads_or(differs);
    if (threadIdx.x == 0) {
        p.fetching->few = few;
        p.fetching->changed = changed;
        p.fetching->zero_row = few ? (bs_i64)zero_word * 32 + __ffs((int)~p.marks[zero_word]) - 1 : 0;
    }
}

#define EACH 8 // words of a warp at a time, so many indices are on their way to each lane

extern "C" __global__ void __launch_bounds__(256) mark_edges(const FetchedParams p)
{
    if (!p.fetching->changed)
        return;
    const int lane = (int)threadIdx.x & 31;
    const bs_i64 warps = (bs_i64)gridDim.x * 8, words = (p.nnz + 31) / 32;
    for (bs_i64 word = ((bs_i64)blockIdx.x * 8 + (int)threadIdx.x / 32) * EACH; word < words; word += warps * EACH) {
        Index columns[EACH];
        unsigned found = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bs_i64 edge = (word + i) * 32 + lane;
            columns[i] = edge < p.nnz ? __ldcs(p.indices + edge) : 0;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool is_fetched = __ldg(p.marks + (columns[i] >> 5)) >> ((unsigned)columns[i] & 31u) & 1u;
            const unsigned all = __ballot_sync(~0u, is_fetched);
            if (lane == i)
                found = all;
        }
        if (lane < EACH && word + lane < words)
            p.edges[word + lane] = found;
    }
}
