// Sums of gathered rows over sampled edges of a CSR pattern: y[i] = sum over i's samples e = (i, j) of w x[j]; no sample is stored.
//
// A group of BS_LANES lanes walks a stretch of rows, or a piece of a row, of the sampled edges (csr_streams.cuh, whose indptr is here where
// each row's samples start). The lanes of a group share a chunk of samples out: each finds the rows of its own, draws their positions
// (sample.cuh) and reads their columns; BS_U at a time they are then handed round, and all lanes gather their part of the rows of x. The
// next chunk is drawn while the last gathers of this one are on their way. So drawing costs a few instructions per edge, and nothing is
// kept in shared memory. Rows in pieces are added up as in spmm_csr.cu: no float is added atomically.
//
// Floor: that of spmm_csr.cu for the sampled edges.
//
// BS_WEIGHTS: 0 none, 1 values of edges and scales of columns, each if there.
#include "csr_elements.cuh"
#include "sample.cuh"

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
// Blocks of a multiprocessor: what the registers suffice for, so that nothing is spilled.
#ifndef BS_BLOCKS
#define BS_BLOCKS 4
#endif

struct SampleSpmmParams {
    Streams streams; // of the samples
    Sampler sampler;
    const Index *indptr, *indices; // of the pattern; indices may be null: edge e lies in column e
    const void *x;                 // (columns of the pattern, vectors * BS_EACH), rows contiguous
    void *out;                     // (rows, vectors * BS_EACH) Out
    const Acc *values, *col_scale; // of the pattern's edges, of its columns, or null
    const Acc *factors, *row_scale; // what the sum of a row is multiplied by, or null
    Acc *partial;                  // (pieces, slices, BS_LANES, BS_EACH)
    int *arrived;                  // (pieces, slices, BS_LANES), as in spmm_csr.cu
    unsigned vectors, row_bytes, out_bytes;
    int slices;
};

// Sums of 16-bit floats are rounded back.
#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
typedef unsigned short Out;
#else
typedef Acc Out;
#endif

typedef Vector<BS_EACH, Acc> Sums;

#define BS_CHUNK (BS_LANES > BS_U ? BS_LANES : BS_U) // samples that a group draws at once
#define BS_OWN (BS_CHUNK / BS_LANES)                 // of them each lane's: own, own + lanes, ...

#if BS_ACC == 1
#define BS_TIMES bs_muld
#else
#define BS_TIMES bs_mulf
#endif

// The assembler moves ordinary loads down to their uses, behind what is drawn in between.
template <int n, class T> BS_INLINE void load_now(Vector<n, T> &to, const void *at)
{
#if BS_BYTES == 16
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.moved[0].x), "=r"(to.moved[0].y), "=r"(to.moved[0].z), "=r"(to.moved[0].w)
                 : "l"(at)
                 : "memory");
#elif BS_BYTES == 8
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to.moved[0].x), "=r"(to.moved[0].y) : "l"(at) : "memory");
#else
    load_vector(to, at);
#endif
}

// The samples that a lane has drawn of a chunk, and which of all of the group's samples are the last of their row.
struct Chunk {
    Index column[BS_OWN], row[BS_OWN];
    unsigned last[BS_OWN];
#if BS_WEIGHTS
    Acc weight[BS_OWN];
#endif
};

struct Group {
    const SampleSpmmParams &p;
    const char *x; // row 0, this lane's vector
    char *out;
    unsigned first; // the lane's vector, of a row
    int lane, at_lane, slice; // `at_lane`: of the warp, the first lane of the group
    bool there;               // the row has this vector
    Sums sum;

    __device__ __forceinline__ explicit Group(const SampleSpmmParams &params) : p(params)
    {
        lane = (int)threadIdx.x % BS_LANES;
        at_lane = (int)(threadIdx.x & 31) - lane;
        slice = (int)(blockIdx.z * gridDim.y + blockIdx.y);
        first = (unsigned)(slice * BS_LANES + lane);
        there = first < p.vectors;
        first = __shfl_sync(~0u, min(first, p.vectors - 1), (int)threadIdx.x & 31);
        x = kept((const char *)p.x + (bs_u64)first * BS_BYTES);
        out = (char *)p.out + (bs_u64)first * (unsigned)sizeof(Vector<BS_EACH, Out>);
        clear();
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < BS_EACH; j++)
            sum.of[j] = 0;
    }

    // Draws samples base .. base + BS_CHUNK - 1 of those before `stop`, in rows from c.row on.
    __device__ __forceinline__ void draw(Chunk &c, Index base, Index stop, Index row, Index end) const
    {
#pragma unroll
        for (int i = 0; i < BS_OWN; i++) {
            const Index e = base + i * BS_LANES + lane;
            bool last = false;
            c.column[i] = 0;
            c.row[i] = row;
            if (e < stop) {
                row = row_of(p.streams.indptr, row, end, e);
                const Index start = __ldg(p.streams.indptr + row), next = __ldg(p.streams.indptr + row + 1);
                const Index begin = __ldg(p.indptr + row);
                const Index edge =
                    begin + position_of(p.sampler, row, __ldg(p.indptr + row + 1) - begin, next - start, e - start);
                const Index column = p.indices ? __ldg(p.indices + edge) : edge;
                last = e + 1 == next;
#if BS_WEIGHTS
                Acc weight = p.values ? __ldg(p.values + edge) : (Acc)1;
                if (p.col_scale)
                    weight = BS_TIMES(weight, __ldg(p.col_scale + column));
                c.weight[i] = weight;
#endif
                c.column[i] = column;
                c.row[i] = row;
            }
            c.last[i] = __ballot_sync(~0u, last) >> at_lane;
        }
    }

    __device__ __forceinline__ void store(Index row)
    {
        if (there) {
            if (p.factors) {
                const Acc factor = __ldg(p.factors + row);
#pragma unroll
                for (int j = 0; j < BS_EACH; j++)
                    sum.of[j] = BS_TIMES(sum.of[j], factor);
            }
            if (p.row_scale) {
                const Acc scale = __ldg(p.row_scale + row);
#pragma unroll
                for (int j = 0; j < BS_EACH; j++)
                    sum.of[j] = BS_TIMES(sum.of[j], scale);
            }
            Vector<BS_EACH, Out> v;
#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
#pragma unroll
            for (int j = 0; j < BS_EACH; j += 2) {
                const float high = j + 1 < BS_EACH ? sum.of[j + 1 < BS_EACH ? j + 1 : j] : 0.0f;
                const unsigned both = BS_KIND == BS_FLOAT16 ? halves_of(sum.of[j], high) : bfloats_of(sum.of[j], high);
                v.of[j] = (unsigned short)both;
                if (j + 1 < BS_EACH)
                    v.of[j + 1 < BS_EACH ? j + 1 : j] = (unsigned short)(both >> 16);
            }
#else
#pragma unroll
            for (int j = 0; j < BS_EACH; j++)
                v.of[j] = sum.of[j];
#endif
            store_vector((char *)row_address(out, row, p.out_bytes), v);
        }
        clear();
    }

    // Rows [next, row) have no edges: zeros, whatever their scales.
    __device__ __forceinline__ void empty(Index next, Index row) const
    {
        Vector<BS_EACH, Out> v = {};
        for (; next < row; next++)
            if (there)
                store_vector((char *)row_address(out, next, p.out_bytes), v);
    }

    // The sums of a piece wait in its slot; the last to come takes all of them, in order.
    __device__ __forceinline__ void piece(const Stretch &at)
    {
        int from, count;
        pieces_of_row(p.streams, at, from, count);
        const bs_u64 step = (bs_u64)p.slices * BS_LANES;
        const unsigned place = (unsigned)(slice * BS_LANES + lane);
        Sums *slots = (Sums *)p.partial + place;
        store_vector(slots + (bs_u64)(unsigned)at.piece * step, sum);
        __threadfence();
        int *counter = p.arrived + (bs_u64)(unsigned)from * step + place;
        if (atomicAdd(counter, 1) != count - 1)
            return;
        __threadfence();
        *counter = 0; // for the next launch
        slots += (bs_u64)(unsigned)from * step;
        load_fresh(sum, slots);
        Sums one;
#pragma unroll 4
        for (int i = 1; i < count; i++) {
            load_fresh(one, slots + (bs_u64)(unsigned)i * step);
#pragma unroll
            for (int j = 0; j < BS_EACH; j++)
                sum.of[j] += one.of[j];
        }
        store(at.row);
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) sample_spmm(const SampleSpmmParams p)
{
    Stretch at;
    Group group(p);
    if (group.slice >= p.slices)
        return;
    if (!stretch_of(p.streams, (int)(blockIdx.x * (BS_THREADS / BS_LANES) + threadIdx.x / BS_LANES), at))
        at = {0, 0, 0, 0, -1};
    // Whole warps go on together: their groups have about the same number of samples.
    Chunk now, next;
    Index base = at.start, row = at.row;
    group.draw(now, base, at.stop, row, at.last);
    while (__any_sync(~0u, base < at.stop)) {
#pragma unroll
        for (int b = 0; b < BS_CHUNK; b += BS_U) {
            Gathered v[BS_U];
#pragma unroll
            for (int u = 0; u < BS_U; u++) {
                const int own = (b + u) / BS_LANES, of = (b + u) % BS_LANES;
                const Index column = __shfl_sync(~0u, now.column[own], of, BS_LANES);
                if (base + (b + u) < at.stop)
                    load_now(v[u], row_address(group.x, column, p.row_bytes));
            }
            if (b + BS_U == BS_CHUNK) {
                // The row of this chunk's last sample, which lane BS_LANES - 1 has.
                Index behind = __shfl_sync(~0u, now.row[BS_OWN - 1], BS_LANES - 1, BS_LANES);
                group.draw(next, base + BS_CHUNK, at.stop, behind, at.last);
            }
#pragma unroll
            for (int u = 0; u < BS_U; u++) {
                const int own = (b + u) / BS_LANES, of = (b + u) % BS_LANES;
#if BS_WEIGHTS
                const Acc weight = __shfl_sync(~0u, now.weight[own], of, BS_LANES);
#endif
                const Index its = __shfl_sync(~0u, now.row[own], of, BS_LANES);
                if (base + (b + u) < at.stop) {
#pragma unroll
                    for (int j = 0; j < BS_EACH; j++) {
                        const Acc term = widened(v[u], j, false);
#if BS_WEIGHTS
                        group.sum.of[j] += weight * term;
#else
                        group.sum.of[j] += term;
#endif
                    }
                    if ((now.last[own] >> of & 1) && at.piece < 0) {
                        group.empty(row, its);
                        group.store(its);
                        row = its + 1;
                    }
                }
            }
        }
        now = next;
        base += BS_CHUNK;
    }
    if (at.piece >= 0)
        group.piece(at);
    else
        group.empty(row, at.last);
}
