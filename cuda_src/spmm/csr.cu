// Sums, means and maxima of gathered rows over the edges of a CSR pattern, on the CUDA cores: y[i] = reduce over edges (i, j) of w x[j].
//
// A group of 2^shift lanes walks a stretch of rows (csr/streams.cuh), or the groups of a warp share a row of many edges (csr/units.cuh).
// Lane l of a group holds vectors l, l + lanes, ... (BS_V of them) of a slice of the columns, with BS_U edges in flight. Slices of the
// columns run one after another (grid y), so that a slice of x may stay in the L2.
// The sums of a warp's groups are added in a tree. Rows in pieces: every piece stores its sums, which are added up in order, sixteen at a
// time, by whichever piece is the last of the sixteen to arrive; no float is added atomically.
//
// Floor: edges * row bytes at 9 TB/s (rows of 64 bytes and more, x in the L2), edges at 150 G/s below that, and the compulsory bytes.
//
// BS_WEIGHTS: 0 none; 1 a value per edge; 2 values per head, scales of columns and (for maxima) of rows, where given.
#include "spmm/csr.cuh"

// BS_VALUE16: features and values are 16-bit floats of one kind.
#ifndef BS_VALUE16
#define BS_VALUE16 0
#endif

// BS_BLANKS: missing edges of a batch are added as zeros. Not where the compiler would need more registers for it, nor in a maximum.
#ifndef BS_BLANKS
#define BS_BLANKS (BS_KIND == BS_FLOAT32 && BS_ACC == 0 && BS_WEIGHTS == 0 && BS_REDUCE == BS_REDUCE_SUM)
#endif

// BS_SEGMENTS: the code at the end of a row is long and should appear only once.
#ifndef BS_SEGMENTS
#define BS_SEGMENTS ((BS_STEPS & ~(kBias | kRelu)) != 0)
#endif

#ifndef BS_SHARED_BLANKS
#define BS_SHARED_BLANKS (!BS_SELECTS(BS_REDUCE) && (BS_VALUE16 || (BS_WEIGHTS == 0 && (BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16))))
#endif

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.

// Pieces of a row, or sums of equally many pieces, that are added up at a time: a power of two.
#define BS_FAN_LOG 4
#define BS_FAN (1 << BS_FAN_LOG)
#if BS_WEIGHTS == 2 && BS_V != 1
#error "values per head go with one vector a lane"
#endif

struct Aggregate {
    const SpmmParams &p;
    const Stretch &at;
    const char *x; // row 0, at this lane's first vector
    unsigned first; // the lane's first vector of a row
    int lane, lanes, slice, head;
    Gathered v[BS_U][BS_V];
#if BS_VALUE16
    unsigned w[BS_U / 2]; // two to a word
#else
    Acc w[BS_U];
#endif
    Sums sums[BS_V];
#if BS_SIGNS
    Limits<BS_EACH> limits[BS_V];
#endif
    bool strange = false; // a NaN would have become a sign

    __device__ __forceinline__ Aggregate(const SpmmParams &params, const Stretch &stretch) : p(params), at(stretch)
    {
        lanes = 1 << p.streams.shift;
        lane = group_lane(p.streams);
        slice = (int)(blockIdx.z * gridDim.y + blockIdx.y);
        first = (unsigned)slice * (unsigned)(BS_V * lanes) + (unsigned)lane;
        // Lanes past the end of the row repeat the work of the lane that has its last vector.
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
#if BS_VALUE16
        load_halves<BS_U>(w, (const unsigned short *)p.values + base, left);
#else
        load_run(w, (const Acc *)p.values + base, left);
#endif
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
        Acc weight = p.values ? __ldg((const Acc *)p.values + (bs_u64)edge * (unsigned)p.heads + (unsigned)head) : (Acc)1;
        if (BS_ACC < 2 && p.col_scale)
            weight = times(weight, (Acc)__ldg(p.col_scale + column));
        w[u] = weight;
#endif
    }

    __device__ __forceinline__ void blank(int u)
    {
#if BS_VALUE16
        w[u / 2] &= u & 1 ? 0x0000ffffu : 0xffff0000u;
#else
        w[u] = 0;
#endif
#pragma unroll
        for (int k = 0; k < BS_V; k++)
            v[u][k] = Gathered{};
    }

    __device__ __forceinline__ void add(int u, Index row)
    {
#if BS_WEIGHTS == 2 && BS_SELECTS(BS_REDUCE) && BS_ACC < 2
        const Acc weight = p.row_scale ? times(w[u], (Acc)__ldg(p.row_scale + row)) : w[u];
#elif BS_VALUE16
        const Acc weight = half_widened(w[u / 2], u);
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
#elif BS_SELECTS(BS_REDUCE)
                sums[k].of[j] = joined(sums[k].of[j], times(term, weight));
#else
                sums[k].of[j] += weight * term;
#endif
            }
    }

    // Finishes and stores vector k of the row's sums.
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
        finish_vector(p, row, count, total, limit, out, start, lane, lanes, slice == p.slices - 1 && k == BS_V - 1, strange);
#else
        if (k == 0 || is_there(k))
            finish_row(p, row, count, total, first + (unsigned)(k * lanes), result_of(row, k));
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

    // Finishes a row, or a piece of one, that the groups of a warp have shared. Called by all lanes.
    __device__ __forceinline__ void shared()
    {
        for (int o = lanes; o < 32; o <<= 1)
#pragma unroll
            for (int k = 0; k < BS_V; k++)
#pragma unroll
                for (int j = 0; j < BS_EACH; j++)
                    sums[k].of[j] = joined(sums[k].of[j], __shfl_xor_sync(~0u, sums[k].of[j], o));
        if (((int)threadIdx.x & 31) >= lanes)
            return;
        Index begin = at.start, end = at.stop;
        if (at.piece >= 0) {
            if (!piece(at.row))
                return;
            begin = p.streams.indptr[at.row], end = p.streams.indptr[at.row + 1];
        }
        flush(at.row, begin, end);
    }

    // Whether this lane is the last of `count` to reach its `counter`; if so, it sees what the others have stored.
    __device__ __forceinline__ bool is_last(int *counter, int count) const
    {
#if BS_SIGNS
        return last_of_groups(counter - lane, count, lane, lanes); // the lanes that share a byte must arrive together
#else
        if (arrive(counter) != count - 1)
            return false;
        *counter = 0; // for the next launch
        return true;
#endif
    }

    // Adds up the sums of a row's pieces as a tree: the sums of a piece wait in its slot, and of every BS_FAN pieces the last to arrive adds
    // up all of them, in order; then so with every BS_FAN of those sums, and so on. True for the piece that ends up with the whole row,
    // false for all others.
    __device__ __forceinline__ bool piece(Index row)
    {
        int from, count;
        constexpr int kTogether = BS_ACC == 1 || BS_AFTER ? 1
                                  : BS_KIND == BS_FLOAT32 ? 8
                                                          : 4; // slots loaded together: as the registers allow
        pieces_of_row(p.streams, at, from, count);
        const unsigned each = (unsigned)p.slices * (unsigned)lanes; // counters of a piece
        const bs_u64 step = (bs_u64)each * BS_V; // vectors of a slot
        Sums *slots = (Sums *)p.partial + (bs_u64)(unsigned)from * step + (unsigned)slice * (unsigned)(BS_V * lanes) + (unsigned)lane;
        int *counters = p.arrived + (bs_u64)(unsigned)from * each + (unsigned)(slice * lanes + lane);
        int first = at.piece - from; // the first of the pieces whose sums this lane has, numbered within the row
#pragma unroll 1
        for (int level = 0; count > 1 << level * BS_FAN_LOG; level++) {
            const int shift = level * BS_FAN_LOG;
#pragma unroll
            for (int k = 0; k < BS_V; k++)
                store_vector(slots + (bs_u64)(unsigned)first * step + (unsigned)(k * lanes), sums[k]);
            first &= -(BS_FAN << shift);
            const int children = min(BS_FAN, ((count - first - 1) >> shift) + 1);
            if (children == 1)
                continue;
            // The counter lies at the first of these pieces, one piece further for each level. There are enough pieces for that, since
            // there is more than one child.
            if (!is_last(counters + (bs_u64)(unsigned)(first + level) * each, children))
                return false;
#pragma unroll
            for (int k = 0; k < BS_V; k++) {
                const Sums *slot = slots + (bs_u64)(unsigned)first * step + (unsigned)(k * lanes);
                const bs_u64 apart = step << shift;
                Sums total, one;
                load_fresh(total, slot);
#pragma unroll kTogether
                for (int i = 1; i < children; i++) {
                    load_fresh(one, slot += apart);
#pragma unroll
                    for (int j = 0; j < BS_EACH; j++)
                        total.of[j] = joined(total.of[j], one.of[j]);
                }
                sums[k] = total;
            }
        }
        return true;
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) spmm_csr(const SpmmParams p)
{
    Stretch at;
    Aggregate sums(p, at);
    if (sums.slice >= p.slices)
        return;
#if BS_FETCHED
    if (p.fetching->few) {
        __shared__ Queues<BS_THREADS, BS_U> queues;
        const Fetched fetched = {p.fetched, (Index)p.fetching->zero_row};
        take_unit_by(
            p.units, p.streams, at, sums, [&] { share_fetched<BS_U>(queues, fetched, p.streams, at, sums); },
            [&] { walk_fetched<BS_U>(queues, fetched, p.streams, at, sums); });
        return;
    }
#endif
    take_unit<BS_U, BS_SHARED_BLANKS>(p.units, p.streams, at, sums, [&] {
        if constexpr (BS_SEGMENTS)
            walk_segments<BS_U>(p.streams, at, sums);
        else
            walk<BS_U, BS_BLANKS>(p.streams, at, sums);
    });
#if BS_SIGNS
    if (sums.strange)
        *p.finish.nan = 1;
#endif
}
