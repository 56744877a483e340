// Softmax over the edges of each row, head by head. Bound by reading the scores and writing the weights once.
//
// A group of 2^shift lanes walks a stretch of rows (csr_streams.cuh), a row at a time: 2^across lanes lie along the heads, the others along
// the edges. A row of up to BS_KEEP edges to a lane is read once, a longer one three times (it is in L1 then). Pieces of long rows leave
// their maximum and sum, and softmax_pieces weighs their edges.
#include "edge_vectors.cuh"

struct SoftmaxParams {
    Streams s;
    const Element *scores;
    Element *out;
    void *partial; // Sum (pieces, 2, heads): maxima and sums of exp(score - maximum)
    int heads, across;
};

BS_INLINE Sum score_at(const Element *at)
{
    Vector v;
    v.at[0] = *at;
    return widen(v, 0);
}


extern "C" __global__ void __launch_bounds__(256, 4) edge_softmax(const SoftmaxParams p)
{
    const int lanes = 1 << p.s.shift, t = group_lane(p.s), along = t >> p.across, step = lanes >> p.across;
    Stretch at;
    if (!this_stretch(p.s, at))
        at.row = at.last = 0, at.start = at.stop = 0, at.piece = -1;
    Index row = at.row, begin = at.start;
    while (__any_sync(~0u, row < at.last)) {
        const bool busy = row < at.last;
        const Index end = !busy ? begin : at.piece >= 0 ? at.stop : __ldg(p.s.indptr + row + 1);
        const int edges = (int)(end - begin);
        const bool kept = !__any_sync(~0u, edges > BS_KEEP * step);
        for (int head = t & ((1 << p.across) - 1); __any_sync(~0u, head < p.heads); head += 1 << p.across) {
            const bool some = head < p.heads;
            const i64 offset = (i64)begin * p.heads + head;
            const Element *scores = p.scores + offset;
            Sum keep[BS_KEEP], most = BS_LOWEST, total = 0;
            for (int base = 0; __any_sync(~0u, base < edges); base += BS_KEEP * step) {
#pragma unroll
                for (int i = 0; i < BS_KEEP; i++) {
                    const int edge = base + i * step + along;
                    keep[i] = some && edge < edges ? score_at(scores + (i64)edge * p.heads) : (Sum)BS_LOWEST;
                }
#pragma unroll
                for (int i = 0; i < BS_KEEP; i++)
                    most = larger(most, keep[i]);
            }
            for (int over = 1 << p.across; over < lanes; over *= 2)
                most = larger(most, __shfl_xor_sync(~0u, most, over));
            for (int base = 0; __any_sync(~0u, base < edges); base += BS_KEEP * step) {
#pragma unroll
                for (int i = 0; i < BS_KEEP; i++) {
                    const int edge = base + i * step + along;
                    const bool here = some && edge < edges;
                    if (!kept && here)
                        keep[i] = score_at(scores + (i64)edge * p.heads);
                    keep[i] = here ? exact_exp(keep[i] - most) : (Sum)0;
                    total += keep[i];
                }
            }
            for (int over = 1 << p.across; over < lanes; over *= 2)
                total += __shfl_xor_sync(~0u, total, over);
            if (at.piece >= 0) {
                Sum *part = (Sum *)p.partial + (i64)at.piece * 2 * p.heads + head;
                if (some && busy && along == 0)
                    part[0] = most, part[p.heads] = total;
            }
            const Sum inverse = 1 / total;
            const int weighed = at.piece >= 0 ? 0 : edges;
            for (int base = 0; __any_sync(~0u, base < weighed); base += BS_KEEP * step) {
#pragma unroll
                for (int i = 0; i < BS_KEEP; i++) {
                    const int edge = base + i * step + along;
                    if (some && edge < weighed) {
                        const Sum e = kept ? keep[i] : exact_exp(score_at(scores + (i64)edge * p.heads) - most);
                        p.out[offset + (i64)edge * p.heads] = narrow(e * inverse);
                    }
                }
            }
        }
        begin = end;
        row += busy;
    }
}

// A block for each piece: what its row has in common, from all pieces in order, then its edges.
extern "C" __global__ void __launch_bounds__(256, 2) softmax_pieces(const SoftmaxParams p)
{
    __shared__ Sum common[2][256];
    Stretch at;
    int first, count;
    stretch_of(p.s, blockIdx.x, at);
    pieces_of_row(p.s, at, first, count);
    const Sum *partial = (const Sum *)p.partial + (i64)first * 2 * p.heads;
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
        const int all = (int)(at.stop - at.start) * some;
        for (int i = threadIdx.x; i < all; i += blockDim.x) {
            const int edge = i / some, head = i - edge * some;
            const i64 where = ((i64)at.start + edge) * p.heads + head0 + head;
            p.out[where] = narrow(exact_exp(score_at(p.scores + where) - common[0][head]) * common[1][head]);
        }
        __syncthreads();
    }
}
