// Softmax over the edges of each row, head by head. Bound by reading the scores and writing the weights once.
//
// A group of 2^shift lanes has a row, 2^across of them along the heads, the others along the edges, and keeps up to BS_KEEP edges to a
// lane in registers. Rows of more are taken by the whole warp afterwards, BS_WIDE edges to a lane, and read twice if that is not enough.
// Pieces of rows that are too long for a warp leave their maximum and sum, and softmax_pieces weighs their edges.
#include "edge_vectors.cuh"

#ifndef BS_BLOCKS
#define BS_BLOCKS 4
#endif
#ifndef BS_WIDE
#define BS_WIDE 16
#endif

struct SoftmaxParams {
    const Index *indptr, *piece_row, *piece_first;
    const Element *scores;
    Element *out;
    Sum *partial; // (pieces, 2, heads): maxima and sums of exp(score - maximum)
    i64 rows;
    int pieces, longest; // edges of a piece
    int heads, turns;    // turns of 2^across heads
    int across, shift;
};

// How some lanes share a row: this lane has edges along, along + step, ... of it; `from` is the distance of lanes with the same head.
struct Share {
    int along, step, from, lanes;
};

BS_INLINE Share share_of(int lanes, int across)
{
    const int t = threadIdx.x & (lanes - 1);
    return {t >> across, lanes >> across, 1 << across, lanes};
}

BS_INLINE Sum largest_of(Sum x, const Share &s)
{
    for (int over = s.from; over < s.lanes; over *= 2)
        x = larger(x, __shfl_xor_sync(~0u, x, over));
    return x;
}

BS_INLINE Sum total_of(Sum x, const Share &s)
{
    for (int over = s.from; over < s.lanes; over *= 2)
        x += __shfl_xor_sync(~0u, x, over);
    return x;
}

// Scores base + 0, step, 2 step, ... of the lane, below `edges`; those beyond are BS_LOWEST. All loads are in flight together.
template <int keep> BS_INLINE void load_scores(const Element *at, int base, int edges, int heads, int step, Sum (&kept)[keep])
{
    Vector v[keep];
#pragma unroll
    for (int i = 0; i < keep; i++) {
        v[i] = zero_vector();
        load_if(base + i * step < edges, (const char *)(at + (i64)(base + i * step) * heads), v[i]);
    }
#pragma unroll
    for (int i = 0; i < keep; i++)
        kept[i] = base + i * step < edges ? widen(v[i], 0) : (Sum)BS_LOWEST;
}

BS_INLINE Sum score_at(const Element *at)
{
    Vector v;
    v.at[0] = *at;
    return widen(v, 0);
}

BS_INLINE void store_weight(Element *at, Sum weight) { *at = narrow(weight); }

// Weights of the `edges` scores from `at` on, `heads` apart, for the lanes of one share; no more than `keep` edges to a lane. Steps that
// no lane of the warp has edges for are left out.
template <int keep> BS_INLINE void soften(const Element *at, Element *out, int edges, int heads, const Share &s)
{
    const int stride = s.step * heads;
    at += s.along * heads;
    out += s.along * heads;
    edges -= s.along; // those from this lane's first on
    Vector v[keep];
    int slots = 0;
#pragma unroll
    for (int i = 0; i < keep; i++) {
        v[i] = zero_vector();
        if (slots == i && __any_sync(~0u, i * s.step < edges)) {
            load_if(i * s.step < edges, (const char *)(at + i * stride), v[i]);
            slots = i + 1;
        }
    }
    Sum kept[keep], most = BS_LOWEST, total = 0;
#pragma unroll
    for (int i = 0; i < keep; i++)
        if (i < slots) {
            kept[i] = i * s.step < edges ? widen(v[i], 0) : (Sum)BS_LOWEST;
            most = larger(most, kept[i]);
        }
    most = largest_of(most, s);
#pragma unroll
    for (int i = 0; i < keep; i++)
        if (i < slots) {
            kept[i] = i * s.step < edges ? exact_exp(kept[i] - most) : (Sum)0;
            total += kept[i];
        }
    const Sum inverse = 1 / total_of(total, s);
#pragma unroll
    for (int i = 0; i < keep; i++)
        if (i < slots && i * s.step < edges)
            store_weight(out + i * stride, kept[i] * inverse);
    __syncwarp();
}

// The same for more edges, by a warp: once through for the maximum and the sum, once for the weights; a piece leaves the first two.
BS_INLINE void soften_long(const Element *at, Element *out, int edges, int heads, const Share &s, Sum *part)
{
    Sum most = BS_LOWEST, total = 0, kept[BS_WIDE];
    for (int base = 0; base < edges; base += BS_WIDE * s.step) { // the same for all lanes that have a head
        load_scores<BS_WIDE>(at, base + s.along, edges, heads, s.step, kept);
        Sum now = most;
#pragma unroll
        for (int i = 0; i < BS_WIDE; i++)
            now = larger(now, kept[i]);
        total *= exact_exp(most - now); // not a number if a score is not, or all are minus infinity
        most = now;
#pragma unroll
        for (int i = 0; i < BS_WIDE; i++)
            total += base + s.along + i * s.step < edges ? exact_exp(kept[i] - most) : (Sum)0;
    }
    __syncwarp();
    const Sum all = largest_of(most, s);
    total = total_of(total * exact_exp(most - all), s);
    if (part) {
        if (s.along == 0 && edges > 0)
            part[0] = all, part[heads] = total;
        return;
    }
    const Sum inverse = 1 / total;
    for (int base = 0; base < edges; base += BS_WIDE * s.step) {
        load_scores<BS_WIDE>(at, base + s.along, edges, heads, s.step, kept);
#pragma unroll
        for (int i = 0; i < BS_WIDE; i++)
            if (base + s.along + i * s.step < edges)
                store_weight(out + (i64)(base + s.along + i * s.step) * heads, exact_exp(kept[i] - all) * inverse);
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) softmax_rows(const SoftmaxParams p)
{
    const int lane = threadIdx.x & 31, column = lane & ((1 << p.across) - 1);
    const Share group = share_of(1 << p.shift, p.across), all = share_of(32, p.across);
    i64 unit = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit < p.pieces) {
        const Index start = __ldg(p.piece_first + unit), stop = __ldg(p.indptr + __ldg(p.piece_row + unit) + 1);
        const int edges = (int)min(stop - start, (Index)p.longest);
        for (int turn = 0; turn < p.turns; turn++) {
            const int head = (turn << p.across) + column;
            soften_long(p.scores + (i64)start * p.heads + head, nullptr, head < p.heads ? edges : 0, p.heads, all,
                        p.partial + unit * 2 * p.heads + head);
        }
        return;
    }
    unit -= p.pieces;
    const i64 row = (unit << (5 - p.shift)) + (lane >> p.shift);
    const Index begin = row < p.rows ? __ldg(p.indptr + row) : 0, end = row < p.rows ? __ldg(p.indptr + row + 1) : 0;
    const int edges = end - begin > p.longest ? 0 : (int)(end - begin);
    const bool narrow_row = edges <= BS_KEEP * group.step;
    u32 wide = __ballot_sync(~0u, !narrow_row && group.along == 0 && column == 0);
    for (int turn = 0; turn < p.turns; turn++) {
        const int head = (turn << p.across) + column;
        const i64 at = (i64)begin * p.heads + head;
        soften<BS_KEEP>(p.scores + at, p.out + at, narrow_row && head < p.heads ? edges : 0, p.heads, group);
    }
    for (; wide; wide &= wide - 1) {
        const int from = __ffs(wide) - 1, many = __shfl_sync(~0u, edges, from);
        const i64 first = (i64)__shfl_sync(~0u, begin, from) * p.heads;
        for (int turn = 0; turn < p.turns; turn++) {
            const int head = (turn << p.across) + column, some = head < p.heads ? many : 0;
            if (many <= BS_WIDE * all.step)
                soften<BS_WIDE>(p.scores + first + head, p.out + first + head, some, p.heads, all);
            else
                soften_long(p.scores + first + head, p.out + first + head, some, p.heads, all, nullptr);
        }
    }
}

// A block for each piece: what its row has in common, from all pieces in order, then its edges.
extern "C" __global__ void __launch_bounds__(256, 2) softmax_pieces(const SoftmaxParams p)
{
    __shared__ Sum common[2][256];
    const Index row = __ldg(p.piece_row + blockIdx.x), begin = __ldg(p.indptr + row), end = __ldg(p.indptr + row + 1);
    const Index start = __ldg(p.piece_first + blockIdx.x);
    const int before = (int)((start - begin) / p.longest), count = (int)((end - begin + p.longest - 1) / p.longest);
    const Sum *partial = p.partial + ((i64)blockIdx.x - before) * 2 * p.heads;
    for (int head0 = 0; head0 < p.heads; head0 += 256) {
        const int some = min(256, p.heads - head0);
        if (threadIdx.x < some) {
            const Sum *part = partial + head0 + threadIdx.x;
            Sum most = BS_LOWEST, total = 0;
#pragma unroll 8
            for (int i = 0; i < count; i++)
                most = larger(most, part[(i64)i * 2 * p.heads]);
#pragma unroll 4
            for (int i = 0; i < count; i++)
                total = fused(part[(i64)(2 * i + 1) * p.heads], exact_exp(part[(i64)i * 2 * p.heads] - most), total);
            common[0][threadIdx.x] = most, common[1][threadIdx.x] = 1 / total;
        }
        __syncthreads();
        const int all = (int)min(end - start, (Index)p.longest) * some;
        for (int i = threadIdx.x; i < all; i += blockDim.x) {
            const int edge = i / some, head = i - edge * some;
            const i64 where = ((i64)start + edge) * p.heads + head0 + head;
            p.out[where] = narrow(exact_exp(score_at(p.scores + where) - common[0][head]) * common[1][head]);
        }
        __syncthreads();
    }
}
