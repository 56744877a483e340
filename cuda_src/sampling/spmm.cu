// Sums of gathered rows over sampled edges of a CSR pattern: y[i] = sum over i's samples e = (i, j) of w x[j]; no sample is stored.
//
// A group of BS_LANES lanes walks a stretch of rows of the sampled edges (csr/streams.cuh, where indptr here says where each row's samples
// start), or the groups of a warp share a row with many samples (csr/units.cuh) and add up in a tree. The lanes of a group divide a chunk
// of samples: each finds the rows of its own samples, draws their positions (sampling/draw.cuh) and reads their columns. Then BS_U samples
// at a time are shuffled to all lanes, which gather their parts of the rows of x. The next chunk is drawn while the last gathers of this
// one are in flight. So drawing costs a few instructions per edge, and shared memory holds nothing. Rows in pieces are added up as in
// spmm/csr.cu: no float is added atomically. Each slice of 32 vectors of the columns draws for itself, which costs little.
//
// Floor: that of spmm/csr.cu for the sampled edges. Reached: 80 to 95 % of it for 128 and 256 float32 columns, half of it for 16.
//
// The elements, their sums and BS_WEIGHTS: sampling/sums.cuh.
#include "sampling/spmm.cuh"

struct Group {
    const SampleSpmmParams &p;
    const char *x; // row 0, this lane's vector
    char *out;
    unsigned first; // this lane's vector of a row
    int lane, at_lane, slice; // `at_lane`: number in the warp of the group's first lane
    bool there; // whether the row has this vector
    RowSum sum;

    __device__ __forceinline__ explicit Group(const SampleSpmmParams &params) : p(params)
    {
        lane = (int)threadIdx.x % BS_LANES;
        at_lane = (int)(threadIdx.x & 31) - lane;
        slice = (int)(blockIdx.z * gridDim.y + blockIdx.y);
        first = (unsigned)(slice * BS_LANES + lane);
        there = first < p.vectors;
        first = __shfl_sync(~0u, min(first, p.vectors - 1), (int)threadIdx.x & 31);
        x = kept((const char *)p.x + (bs_u64)first * BS_BYTES);
        out = (char *)p.out + (bs_u64)first * (unsigned)(BS_OUTS * sizeof(Out));
        sum.clear();
    }

    // Draws the first BS_CHUNK of the `left` samples from `base` on (there may be none), which are in rows [row, end).
    __device__ __forceinline__ void draw(Chunk &c, Index base, int left, Index row, Index end) const
    {
        c.ends = 0;
#pragma unroll
        for (int i = 0; i < BS_OWN; i++) {
            const int at = i * BS_LANES + lane;
            bool last = false;
            c.column[i] = 0;
            c.row[i] = row;
            if (at < left) {
                const Index e = base + at;
                row = row_of(p.streams.indptr, row, end, e);
                const Index start = __ldg(p.streams.indptr + row), next = __ldg(p.streams.indptr + row + 1);
                const Index begin = __ldg(p.indptr + row);
                const Index edge = begin + position_of(p.sampler, row, __ldg(p.indptr + row + 1) - begin, next - start, e - start);
                const Index column = p.indices ? __ldg(p.indices + edge) : edge;
                last = e + 1 == next;
#if BS_WEIGHTS
                Real weight = p.values ? __ldg(p.values + edge) : (Real)1;
                if (p.col_scale)
                    weight = BS_TIMES(weight, __ldg(p.col_scale + column));
                c.weight[i] = weight;
#endif
#if BS_WEIGHTS == 2
                c.offset[i] = p.codes.offset && p.codes.offset_step < 0 ? bs_mulf(weight, __ldg(p.codes.offset + column)) : weight;
                if (p.codes.scale && p.codes.scale_step < 0)
                    c.weight[i] = bs_mulf(weight, __ldg(p.codes.scale + column));
#endif
                c.column[i] = column;
                c.row[i] = row;
            }
            const unsigned lasts = __ballot_sync(~0u, last) >> at_lane;
            c.ends |= BS_LANES == 32 ? lasts : (lasts & ((1u << BS_LANES % 32) - 1u)) << i * BS_LANES;
        }
    }

    __device__ __forceinline__ void put(Index row, const Out (&of)[BS_OUTS]) const
    {
        char *const at = (char *)row_address(out, row, p.out_bytes);
#ifdef BS_CODES
        if (!p.whole) {
#pragma unroll
            for (int j = 0; j < BS_OUTS; j++)
                if ((int)first * BS_OUTS + j < p.features)
                    ((Out *)at)[j] = of[j];
            return;
        }
#endif
        Vector<BS_OUTS, Out> v;
#pragma unroll
        for (int j = 0; j < BS_OUTS; j++)
            v.of[j] = of[j];
        store_vector(at, v);
    }

    __device__ __forceinline__ void store(Index row)
    {
        if (there) {
            Real r[BS_OUTS];
            int samples = 0;
#if defined(BS_CODES) && !BS_WEIGHTS
            samples = (int)(__ldg(p.streams.indptr + row + 1) - __ldg(p.streams.indptr + row));
#endif
            real_sums(r, sum, p.codes, (int)first * BS_OUTS, p.features, samples);
            if (p.factors) {
                const Real factor = __ldg(p.factors + row);
#pragma unroll
                for (int j = 0; j < BS_OUTS; j++)
                    r[j] = BS_TIMES(r[j], factor);
            }
            if (p.row_scale) {
                const Real scale = __ldg(p.row_scale + row);
#pragma unroll
                for (int j = 0; j < BS_OUTS; j++)
                    r[j] = BS_TIMES(r[j], scale);
            }
#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
            unsigned short rounded[BS_OUTS];
#pragma unroll
            for (int j = 0; j < BS_OUTS; j += 2) {
                const float high = j + 1 < BS_OUTS ? r[j + 1 < BS_OUTS ? j + 1 : j] : 0.0f;
                const unsigned both = BS_KIND == BS_FLOAT16 ? f16x2_of(r[j], high) : bf16x2_of(r[j], high);
                rounded[j] = (unsigned short)both;
                if (j + 1 < BS_OUTS)
                    rounded[j + 1 < BS_OUTS ? j + 1 : j] = (unsigned short)(both >> 16);
            }
            put(row, rounded);
#else
            put(row, r);
#endif
        }
        sum.clear();
    }

    // Rows [next, row) have no edges: stores zeros, whatever their scales.
    __device__ __forceinline__ void empty(Index next, Index row) const
    {
        const Out zeros[BS_OUTS] = {};
#pragma unroll 1
        for (; next < row; next++)
            if (there)
                put(next, zeros);
    }

    // Finishes a row or a piece of one. The sums of a piece wait in its slot; the last piece to arrive adds up all of them, in order.
    __device__ __forceinline__ void complete(const Stretch &at)
    {
        if (at.piece < 0) {
            store(at.row);
            return;
        }
        int from, count;
        pieces_of_row(p.streams, at, from, count);
        const bs_u64 step = (bs_u64)p.slices * BS_LANES;
        const unsigned place = (unsigned)(slice * BS_LANES + lane);
        RowSum *slots = p.partial + place;
        slots[(bs_u64)(unsigned)at.piece * step] = sum;
        __threadfence();
        int *counter = p.arrived + (bs_u64)(unsigned)from * step + place;
        if (atomicAdd(counter, 1) != count - 1)
            return;
        __threadfence();
        *counter = 0; // for the next launch
        slots += (bs_u64)(unsigned)from * step;
        sum.fetch(slots);
        RowSum one;
#pragma unroll 4
        for (int i = 1; i < count; i++) {
            one.fetch(slots + (bs_u64)(unsigned)i * step);
            sum.join(one);
        }
        store(at.row);
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) sample_spmm(const SampleSpmmParams p)
{
    Group group(p);
    if (group.slice >= p.slices)
        return;
    // Rows of many samples are walked by whole warps, whose groups take turns.
    const int warp = (int)((blockIdx.x * BS_THREADS + threadIdx.x) / 32), of_warp = (int)(threadIdx.x & 31) / BS_LANES;
    const int shared = p.units.pieces + p.units.whole, unit = (warp - shared) * (32 / BS_LANES) + of_warp;
    const bool together = warp < shared;
    Stretch at = {0, 0, 0, 0, -1};
    if (together || unit < p.units.streams)
        read_unit(p.units.table + (together ? warp : shared + unit), at);
    if (together) {
        at.last = at.row + 1;
        at.piece = warp < p.units.pieces ? warp : -1;
    }
    // All groups of a warp go on together; they have about the same number of samples.
    Chunk now, next;
    Index row = at.row, base = at.start + (together ? of_warp * BS_CHUNK : 0);
    const int step = together ? 32 / BS_LANES * BS_CHUNK : BS_CHUNK;
    int left = (int)(at.stop - base);
    group.draw(now, base, left, row, at.last);
    while (__any_sync(~0u, left > 0)) {
        // Batches are not unrolled, and rows end in one place: longer code would not stay in the instruction cache.
#pragma unroll BS_OWN> 1 ? BS_CHUNK / BS_U : 1
        for (int b = 0; b < BS_CHUNK; b += BS_U) {
            Gathered v[BS_U];
#if BS_WEIGHTS
            Real weight[BS_U];
#endif
#if BS_WEIGHTS == 2
            float offset[BS_U];
#endif
#pragma unroll
            for (int u = 0; u < BS_U; u++) {
                const int own = BS_OWN > 1 ? (b + u) / BS_LANES : 0, of = (b + u) % BS_LANES;
                const Index column = __shfl_sync(~0u, now.column[own], of, BS_LANES);
                if (b + u < left)
                    load_now(v[u], row_address(group.x, column, p.row_bytes));
#if BS_WEIGHTS
                weight[u] = __shfl_sync(~0u, now.weight[own], of, BS_LANES);
#endif
#if BS_WEIGHTS == 2
                offset[u] = __shfl_sync(~0u, now.offset[own], of, BS_LANES);
#endif
            }
            if (b + BS_U == BS_CHUNK) {
                // The row of this chunk's last sample, which lane BS_LANES - 1 holds.
                const Index behind = __shfl_sync(~0u, now.row[BS_OWN - 1], BS_LANES - 1, BS_LANES);
                group.draw(next, base + step, left - step, behind, at.last);
            }
            // Samples of the batch that are left, up to the next end of a row. All groups loop together, so that rows end together.
            unsigned todo = b + BS_U <= left ? (1u << BS_U) - 1u : b < left ? (1u << (left - b)) - 1u : 0u;
            const unsigned ends = together ? 0u : now.ends >> b;
            do {
                const unsigned end = ends & todo, upto = end ? end ^ (end - 1u) : ~0u, these = todo & upto;
#pragma unroll
                for (int u = 0; u < BS_U; u++)
#if BS_WEIGHTS == 2
                    group.sum.add(v[u], p.codes, these >> u & 1u, weight[u], offset[u]);
#elif BS_WEIGHTS
                    group.sum.add(v[u], p.codes, these >> u & 1u, weight[u], (float)weight[u]);
#else
                    group.sum.add(v[u], p.codes, these >> u & 1u, 1, 1);
#endif
                todo &= ~upto;
                const int last = b + __ffs((int)end) - 1;
                Index its = __shfl_sync(~0u, now.row[0], last % BS_LANES, BS_LANES);
#pragma unroll
                for (int i = 1; i < BS_OWN; i++) {
                    const Index other = __shfl_sync(~0u, now.row[i], last % BS_LANES, BS_LANES);
                    its = last / BS_LANES == i ? other : its;
                }
                if (end) {
                    group.empty(row, its);
                    group.store(its);
                    row = its + 1;
                }
            } while (__any_sync(~0u, todo != 0));
        }
        now = next;
        base += step;
        left -= step;
    }
    if (!together) {
        group.empty(row, at.last);
        return;
    }
#pragma unroll
    for (int o = BS_LANES; o < 32; o <<= 1)
        group.sum.join(o);
    if (of_warp == 0)
        group.complete(at);
}
