// Exact sums of gathered rows of packed integers over the edges of a CSR pattern: y[i] = sum over edges (i, j) of q[j], as int32, as means,
// or through the chain of an epilogue.
//
// Features are adjacent integers of BS_BITS bits (2, 4, 8 or 16) along their axis, the "rows" layout. A group of 2^shift lanes walks a
// stretch of rows (csr/streams.cuh), or the groups of a warp share a row of many edges (csr/units.cuh). A lane gathers BS_WORDS words of a
// neighbour at once, with BS_U edges in flight, and sums their integers while they are packed, many to a register (spmm/codes.cuh). Only
// the sums of a row, or of a piece of one, are unpacked to one integer a register. Signed integers are gathered as unsigned ones, larger by
// 2^(BS_BITS - 1), which is subtracted once for all edges of the row.
//
// Floor: edges * row bytes at 9 TB/s from rows of 64 bytes on, edges at 155 G/s below, x in the L2; and the compulsory bytes.
//
// BS_OUT: 0 int32, 1 float32, 2 the chain of an epilogue; BS_MEAN: results are means, which float32 results of integers always are.
// BS_WEIGHTS: 1 edges have int32 values; 2 they have float32 values, and the sums are float32, with one rounding for each edge and the
// pieces of long rows added in order. BS_PER_HEAD: edges have a value for each head. BS_NODES: the value of an edge is that of its column:
// a byte of a table that is gathered along with the row, which costs 32 more bytes of the L2 for each edge, or the float32 at the end of the
// row. BS_SCALED: float32 sums or means times factors, plus a multiple of the row itself.
#define BS_KIND 2
#define BS_ACC 2
#define BS_BYTES (4 * BS_WORDS)
#include "csr/elements.cuh"
#include "csr/groups.cuh"
#include "csr/segments.cuh"
#include "csr/units.cuh"
#include "spmm/codes_finish.cuh"

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers. BS_SEVERAL: a warp takes several long rows or pieces.

struct CodeSum {
    const CodeParams &p;
    const Stretch &at;
    const char *x; // row 0, at this lane's words
    int lane, lanes, slice;
    bool there; // the row has integers for this lane, or padding of the result
    Gathered codes[BS_U];
    CodeSums sums;
#if BS_WEIGHTS
    Total w[BS_U];
#endif
#ifdef BS_PER_HEAD
    int head; // of this lane's integers
#endif

    __device__ __forceinline__ CodeSum(const CodeParams &params, const Stretch &stretch) : p(params), at(stretch)
    {
        lanes = 1 << p.streams.shift;
        lane = group_lane(p.streams);
        slice = (int)(blockIdx.z * gridDim.y + blockIdx.y);
        const int vector = slice * lanes + lane;
        there = vector < p.vectors;
        // Lanes past the end of the row read the row's last words too.
        x = kept(p.x + (bs_u64)(unsigned)min(vector, p.gathered - 1) * BS_BYTES);
#ifdef BS_PER_HEAD
        head = min(vector * kCodes / p.padded, p.heads - 1);
#endif
        sums.clear();
    }

    __device__ __forceinline__ void batch(Index base, int left)
    {
#ifdef BS_PER_HEAD
        const Total *from = (const Total *)p.values + ((bs_u64)base * (unsigned)p.heads + (unsigned)head);
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            w[u] = u < left ? __ldg(from + u * p.heads) : (Total)0;
#elif BS_WEIGHTS && !BS_NODES
        load_run(w, (const Total *)p.values + base, left);
#endif
    }

    __device__ __forceinline__ void gather(int u, Index column, Index)
    {
        load_vector(codes[u], row_address(x, column, p.row_bytes));
#if BS_NODES && BS_FLOATS
        w[u] = __ldg((const float *)(row_address(p.x, column, p.row_bytes) + p.row_bytes) - 1);
#elif BS_NODES
        w[u] = __ldg((const unsigned char *)p.values + column);
#endif
    }

    // Integers that are zero once their signs are flipped.
    __device__ __forceinline__ void blank(int u)
    {
#pragma unroll
        for (int i = 0; i < BS_WORDS; i++)
            codes[u].of[i] = p.flip;
    }

    __device__ __forceinline__ void add_all()
    {
#if BS_WEIGHTS
        sums.add_products(codes, w, p.flip, p.base, 0, BS_U);
#else
        sums.add_batch(codes, p.flip);
#endif
    }

    __device__ __forceinline__ void add_some(int from, int to)
    {
#if BS_WEIGHTS
        sums.add_products(codes, w, p.flip, p.base, from, to);
#else
        sums.add_some(codes, p.flip, from, to);
#endif
    }

    // Whether the row or piece, which the groups of a warp share, has more edges than lanes of 16 bits hold for sure.
    __device__ __forceinline__ bool tall() const { return BS_TALL && at.stop - at.start > 240; }

    // A group carries behind one in kLow of its batches: those whose numbers end alike.
    __device__ __forceinline__ void done(Index base, int, int)
    {
        if (tall() && !((int)base & (kLow - 1) * (32 / lanes) * BS_U))
            sums.carry();
    }

    // Finishes a complete row, whose sums are too large by `excess` each.
    __device__ __forceinline__ void finish(Index row, Index edges, Total (&v)[kCodes], Total excess) const
    {
#pragma unroll
        for (int j = 0; j < kCodes && !BS_FLOATS; j++)
            v[j] -= excess;
        if (there)
            finish_row(p, row, edges, slice * lanes + lane, v);
    }

    __device__ __forceinline__ void flush(Index row, Index begin, Index end)
    {
        sums.settle(p.flip, p.base, false);
        complete(row, end - begin, 0);
        sums.clear();
    }

    __device__ __forceinline__ void complete(Index row, Index edges, int surplus)
    {
        Total v[kCodes];
        const Total excess = sums.excess(p.base, (int)edges) + surplus;
        sums.widen(v);
        finish(row, edges, v, excess);
    }

    // The warp takes this row or piece next: what its end adds is fetched into the L2 meanwhile.
    __device__ __forceinline__ void coming(const Stretch &next) const
    {
#if BS_SCALED
        const int column = min((slice * lanes + lane) * kCodes, p.columns - 1);
        if (p.own && there && ((int)threadIdx.x & 31) < lanes)
            prefetch_l2(p.own + (bs_u64)next.row * (unsigned)p.columns + column);
#endif
    }

    // Finishes a row, or a piece of one, that the groups of a warp have shared. Called by all lanes.
    __device__ __forceinline__ void shared()
    {
        sums.settle(p.flip, p.base, tall());
        const int surplus = tall() ? 7 * p.base * (32 / lanes) : 0;
        if (tall())
            sums.carry();
        for (int o = lanes; o < 32; o <<= 1)
            sums.join(o, tall());
        if (((int)threadIdx.x & 31) < lanes) {
            if (at.piece < 0)
                complete(at.row, at.stop - at.start, surplus);
            else
                piece(at.row, surplus);
        }
        sums.clear();
    }

    // The sums of a piece wait in its slot; the last piece to arrive adds up all of them.
    __device__ __forceinline__ void piece(Index row, int surplus)
    {
        int from, count;
        pieces_of_row(p.streams, at, from, count);
        const bs_u64 step = (bs_u64)(unsigned)p.slices * (unsigned)lanes;
        PackedSum *const slots = p.partial + (unsigned)(slice * lanes + lane);
        sums.leave(slots[(bs_u64)(unsigned)at.piece * step], p.base, surplus);
        if (!last_of_groups(p.arrived + (bs_u64)(unsigned)from * (unsigned)p.slices + (unsigned)slice, count, lane, lanes))
            return;
        Total v[kCodes];
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            v[j] = 0;
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            PackedSum one;
            load_fresh(one, slots + (bs_u64)(unsigned)(from + i) * step);
            sums.add_to(v, one);
        }
        const Index edges = __ldg(p.streams.indptr + row + 1) - __ldg(p.streams.indptr + row);
        finish(row, edges, v, sums.excess_of_pieces(p.base, (int)edges));
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) spmm_codes(const __grid_constant__ CodeParams p)
{
    Stretch at;
    CodeSum sums(p, at);
    if (sums.slice >= p.slices)
        return;
    const auto walk = [&] { walk_segments<BS_U, true>(p.streams, at, sums); };
#ifdef BS_SEVERAL
    take_units<BS_U, !BS_WEIGHTS, true>(p.units, p.streams, at, sums, walk);
#else
    take_unit<BS_U, !BS_WEIGHTS, true>(p.units, p.streams, at, sums, walk);
#endif
}
