// Sums, means and maxima of gathered rows over the edges of a CSR pattern, on the CUDA cores: y[i] = reduce over edges (i, j) of w x[j].
//
// A group of 2^shift lanes walks a stretch of rows (csr_streams.cuh); lane l holds vectors l, l + lanes, ... (BS_V of them) of a slice of
// the columns, BS_U edges in flight. Slices of the columns run one after another (grid y), so that a slice of x may stay in the L2.
// Rows in pieces: every piece stores its sums, and whichever piece is the last to arrive adds them up in order; no float is added atomically.
//
// Floor: edges * row bytes at 9 TB/s (rows of 64 bytes and more, x in the L2), edges at 150 G/s below that, and the compulsory bytes.
//
// BS_WEIGHTS: 0 none, 1 a value to an edge, 2 values per head, scales of columns and (for maxima) of rows, each if there.
#include "spmm_csr.cuh"

// BS_BLANKS: edges that a batch lacks are added as zeros. Not where the compiler would take registers for it, nor in a maximum.
#ifndef BS_BLANKS
#define BS_BLANKS (BS_KIND == BS_FLOAT32 && BS_ACC == 0 && BS_WEIGHTS == 0 && BS_REDUCE == BS_SUM)
#endif

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
#define BS_HALVES (BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16 ? 2 : 1)
// Blocks of a multiprocessor: what the registers suffice for, so that nothing is spilled.
#ifndef BS_BLOCKS
#define BS_HAS_MEAN (BS_REDUCE == BS_MEAN)
#if BS_FINISH
#define BS_BLOCKS_FITTING (BS_WEIGHTS == 2 ? 4 : BS_WEIGHTS || BS_BYTES > 16 / BS_HALVES || BS_HAS_TANH ? 5 : BS_FINISH == 2 ? 7 - BS_HAS_MEAN : 6 - BS_HAS_MEAN)
#elif BS_V > 1
#define BS_BLOCKS_FITTING 4
#elif BS_KIND < BS_FLOAT16
#define BS_BLOCKS_FITTING 5
#elif BS_KIND == BS_FLOAT64
#define BS_BLOCKS_FITTING (BS_WEIGHTS ? 5 - BS_HAS_MEAN : 7 - 2 * BS_HAS_MEAN)
#elif BS_WEIGHTS == 0 || (BS_WEIGHTS == 1 && BS_KIND == BS_FLOAT32 && BS_REDUCE == BS_SUM)
#define BS_BLOCKS_FITTING (7 - BS_HAS_MEAN)
#else
#define BS_BLOCKS_FITTING (6 - BS_HAS_MEAN)
#endif
#ifdef BS_LARGE
#define BS_BLOCKS (BS_BLOCKS_FITTING - 2)
#elif __CUDA_ARCH__ != 900
#define BS_BLOCKS (BS_BLOCKS_FITTING - 1)
#else
#define BS_BLOCKS BS_BLOCKS_FITTING
#endif
#endif
#if BS_WEIGHTS == 2 && BS_V != 1
#error "values per head go with one vector a lane"
#endif

struct Aggregate {
    const SpmmParams &p;
    const Stretch &at;
    const char *x; // row 0, this lane's first vector
    unsigned first; // the lane's first vector, of a row
    int lane, lanes, slice, head;
    Gathered v[BS_U][BS_V];
    Acc w[BS_U];
    Sums sums[BS_V];
#if BS_SIGNS
    Limits<BS_EACH> limits[BS_V];
#endif

    __device__ __forceinline__ Aggregate(const SpmmParams &params, const Stretch &stretch) : p(params), at(stretch)
    {
        lanes = 1 << p.streams.shift;
        lane = group_lane(p.streams);
        slice = (int)(blockIdx.z * gridDim.y + blockIdx.y);
        first = (unsigned)slice * (unsigned)(BS_V * lanes) + (unsigned)lane;
        // Lanes beyond the row do with its last vector what the last lane does.
        first = __shfl_sync(~0u, min(first, p.vectors - 1), (int)threadIdx.x & 31);
        x = kept((const char *)p.x + (bs_u64)first * BS_BYTES);
#if BS_WEIGHTS == 2
        head = p.heads > 1 ? (int)(first * BS_EACH / (unsigned)p.width) : 0;
#endif
        clear();
#if BS_SIGNS
#pragma unroll
        for (int k = 0; k < BS_V; k++)
            limits[k].load(p.finish, (int)min(first + (unsigned)(k * lanes), p.vectors - 1) * BS_EACH);
#endif
    }

    // Whether the row has this lane's vector k.
    __device__ __forceinline__ bool is_there(int k) const { return first + (unsigned)(k * lanes) < p.vectors; }

    __device__ __forceinline__ char *result_of(Index row, int k) const
    {
        char *const out = (char *)p.out + (bs_u64)(first + (unsigned)(k * lanes)) * (unsigned)sizeof(Vector<BS_EACH, Out>);
        return (char *)row_address(out, row, p.out_bytes);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int k = 0; k < BS_V; k++)
#pragma unroll
            for (int j = 0; j < BS_EACH; j++)
                sums[k].of[j] = nothing_yet();
    }

    __device__ __forceinline__ void batch(Index base, int left)
    {
#if BS_WEIGHTS == 1
        load_run(w, p.values + base, left);
#endif
    }

    __device__ __forceinline__ void gather(int u, Index column, Index edge)
    {
        const char *from = row_address(x, column, p.row_bytes);
#pragma unroll
        for (int k = 0; k < BS_V; k++)
            if (k == 0 || is_there(k))
                load_vector(v[u][k], from + (bs_u64)(unsigned)(k * lanes) * BS_BYTES);
#if BS_WEIGHTS == 2
        Acc weight = p.values ? __ldg(p.values + (bs_u64)edge * (unsigned)p.heads + (unsigned)head) : (Acc)1;
        if (BS_ACC < 2 && p.col_scale)
            weight = times(weight, (Acc)__ldg(p.col_scale + column));
        w[u] = weight;
#endif
    }

    __device__ __forceinline__ void blank(int u)
    {
        w[u] = 0;
#pragma unroll
        for (int k = 0; k < BS_V; k++)
            v[u][k] = Gathered{};
    }

    __device__ __forceinline__ void add(int u, Index row)
    {
#if BS_WEIGHTS == 2 && BS_REDUCE == BS_MAX && BS_ACC < 2
        const Acc weight = p.row_scale ? times(w[u], (Acc)__ldg(p.row_scale + row)) : w[u];
#elif BS_WEIGHTS
        const Acc weight = w[u];
#endif
#pragma unroll
        for (int k = 0; k < BS_V; k++)
#pragma unroll
            for (int j = 0; j < BS_EACH; j++) {
                const Acc term = widened(v[u][k], j, p.is_signed != 0);
#if BS_WEIGHTS == 0
                sums[k].of[j] = joined(sums[k].of[j], term);
#elif BS_REDUCE == BS_MAX
                sums[k].of[j] = joined(sums[k].of[j], times(term, weight));
#else
                sums[k].of[j] += weight * term;
#endif
            }
    }

    // Vector k of the row's sums goes where it belongs.
    __device__ __forceinline__ void finish(Index row, Index count, const Sums &total, int k)
    {
#if BS_FINISH
        const unsigned start = (unsigned)(slice * BS_V + k) * (unsigned)lanes;
        char *const out = BS_SIGNS ? (char *)row_address((char *)p.out, row, p.out_bytes) : result_of(row, k);
#if BS_SIGNS
        const Limits<BS_EACH> &limit = limits[k];
#else
        const Limits<BS_EACH> limit = {};
#endif
        finish_vector(p, row, count, total, limit, out, start, lane, lanes, slice == p.slices - 1 && k == BS_V - 1);
#else
        if (k == 0 || is_there(k))
            finish_row(p, row, count, total, result_of(row, k));
#endif
    }

    __device__ __forceinline__ void flush(Index row, Index begin, Index end)
    {
#pragma unroll
        for (int k = 0; k < BS_V; k++)
            finish(row, end - begin, sums[k], k);
        clear();
    }

    __device__ __forceinline__ void done(Index, int, int) {}

    // The sums of a piece wait in its slot; the last to come takes all of them, in order.
    __device__ __forceinline__ void piece(Index row)
    {
        int from, count;
        pieces_of_row(p.streams, at, from, count);
        const bs_u64 step = (bs_u64)p.slices * (unsigned)(BS_V * lanes); // vectors of a slot
        Sums *slots = (Sums *)p.partial + (bs_u64)(unsigned)slice * (unsigned)(BS_V * lanes) + (unsigned)lane;
#pragma unroll
        for (int k = 0; k < BS_V; k++)
            store_vector(slots + (bs_u64)(unsigned)at.piece * step + (unsigned)(k * lanes), sums[k]);
        __threadfence();
        int *counter = p.arrived + ((bs_u64)(unsigned)from * (unsigned)p.slices + (unsigned)slice) * (unsigned)lanes + (unsigned)lane;
#if BS_SIGNS
        if (!last_of_groups(counter - lane, count, lane, lanes)) // the lanes of a byte have to come together
            return;
#else
        if (atomicAdd(counter, 1) != count - 1)
            return;
        __threadfence();
        *counter = 0; // for the next launch
#endif
#pragma unroll
        for (int k = 0; k < BS_V; k++) {
            const Sums *slot = slots + (bs_u64)(unsigned)from * step + (unsigned)(k * lanes);
            Sums total, one;
            load_fresh(total, slot);
#pragma unroll 4
            for (int i = 1; i < count; i++) {
                load_fresh(one, slot + (bs_u64)(unsigned)i * step);
#pragma unroll
                for (int j = 0; j < BS_EACH; j++)
                    total.of[j] = joined(total.of[j], one.of[j]);
            }
            finish(row, p.streams.indptr[row + 1] - p.streams.indptr[row], total, k);
        }
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) spmm_csr(const SpmmParams p)
{
    Stretch at;
    Aggregate sums(p, at);
    if (sums.slice >= p.slices || !this_stretch(p.streams, at))
        return;
    walk<BS_U, BS_BLANKS>(p.streams, at, sums);
}
