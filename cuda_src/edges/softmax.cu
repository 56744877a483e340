// Softmax over the edges of each row, head by head. Bound by reading the scores and writing the weights once.
//
// A block copies the scores of a stretch of rows (csr/streams.cuh) to shared memory, where they are adjacent whatever rows they belong to,
// and copies the weights back the same way. In between, a group of 2^shift lanes takes a row. 2^across of these lanes lie along the heads,
// the others along the edges. Each keeps up to BS_KEEP edges in registers; a longer row is taken by a whole warp. Pieces of rows that are
// too long for a block store their maximum and sum, and softmax_pieces computes the weights of their edges. BS_VECTOR: bytes moved at once.
#include "edges/vectors.cuh"

struct SoftmaxParams {
    Streams s;
    const Element *scores;
    Element *out;
    void *partial; // Sum (pieces, 2, heads): maxima and sums of exp(score - maximum)
    int heads;
    int slice; // heads of a block; further slices are blocks along y
    int across; // log2 of the lanes along heads
    int room; // how many scores of a block fit into shared memory
};

#define BS_MOVES 4 // vectors of a thread in flight

BS_INLINE Sum score_at(const Element *at)
{
    Vector v;
    v.at[0] = *at;
    return widen(v, 0);
}

// The elements of a vector, as they are in shared memory.
struct __align__(BS_ELEMENTS *(int)sizeof(Sum) < 16 ? BS_ELEMENTS * (int)sizeof(Sum) : 16) Parcel {
    Sum at[BS_ELEMENTS];
};

// The scores of a block: `count` of them, `heads` for each edge. The first is number `first` in memory; `lead` elements of its vector
// precede it.
struct Run {
    i64 first;
    int count, heads, lead;
};

// Where element i of the run is in memory.
BS_INLINE i64 element_of(const Run &r, const SoftmaxParams &p, int i)
{
    return r.heads == p.heads ? r.first + i : r.first + (i64)(i / r.heads) * p.heads + i % r.heads;
}

// Copies the scores of the run to shared memory.
BS_INLINE void bring_scores(const Run &r, const SoftmaxParams &p, Sum *to)
{
    const int vectors = (r.lead + r.count + BS_ELEMENTS - 1) / BS_ELEMENTS;
    for (int base = threadIdx.x; base < vectors; base += BS_MOVES * blockDim.x) {
        Vector v[BS_MOVES];
#pragma unroll
        for (int m = 0; m < BS_MOVES; m++) {
            const int at = base + m * blockDim.x;
            v[m] = zero_vector();
            load_if(at < vectors, (const char *)(p.scores + element_of(r, p, at * BS_ELEMENTS - r.lead)), v[m]);
        }
#pragma unroll
        for (int m = 0; m < BS_MOVES; m++) {
            const int at = base + m * blockDim.x;
            if (at < vectors) {
                Parcel parcel;
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    parcel.at[i] = widen(v[m], i);
                *(Parcel *)(to + at * BS_ELEMENTS) = parcel;
            }
        }
    }
}

// Copies the weights of the run from shared memory to the result.
BS_INLINE void take_weights(const Run &r, const SoftmaxParams &p, const Sum *from)
{
    const int vectors = (r.lead + r.count + BS_ELEMENTS - 1) / BS_ELEMENTS;
    for (int v = threadIdx.x; v < vectors; v += blockDim.x) {
        const int i0 = v * BS_ELEMENTS - r.lead;
        const Parcel parcel = *(const Parcel *)(from + v * BS_ELEMENTS);
        Vector made;
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            made.at[i] = narrow(parcel.at[i]);
        if (i0 >= 0 && i0 + BS_ELEMENTS <= r.count)
            store_vector((char *)(p.out + element_of(r, p, i0)), made);
        else // other blocks have the rest of this vector
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                if (i0 + i >= 0 && i0 + i < r.count)
                    p.out[r.first + i0 + i] = made.at[i];
    }
}

// How lanes share a row: this lane has edges along, along + step, ... of it; lanes with the same head are `from` apart.
struct Share {
    int along, step, from, lanes;
};

BS_INLINE Share share_of(int lanes, int across)
{
    const int t = threadIdx.x & (lanes - 1);
    return {t >> across, lanes >> across, 1 << across, lanes};
}

// Turns the `edges` scores at `score`, `heads` apart, into weights. A piece leaves its maximum and sum in `part`, `apart` from each other.
// `fits`: a lane has at most BS_KEEP edges.
template <bool fits> BS_INLINE void soften(Sum *score, int edges, int heads, const Share &share, Sum *part, int apart)
{
    const int stride = share.step * heads;
    Sum most = BS_LOWEST, total = 0, keep[BS_KEEP];
    score += share.along * heads;
    edges -= share.along; // edges from this lane's first on
    for (int base = 0; fits ? base == 0 : base < edges; base += BS_KEEP * share.step)
#pragma unroll
        for (int i = 0; i < BS_KEEP; i++) {
            const int edge = base + i * share.step;
            keep[i] = edge < edges ? score[(fits ? 0 : base * heads) + i * stride] : (Sum)BS_LOWEST;
            most = larger(most, keep[i]);
        }
    __syncwarp();
    for (int over = share.from; over < share.lanes; over *= 2)
        most = larger(most, __shfl_xor_sync(~0u, most, over));
    for (int base = 0; fits ? base == 0 : base < edges; base += BS_KEEP * share.step) {
        if (!fits)
#pragma unroll
            for (int i = 0; i < BS_KEEP; i++)
                keep[i] = base + i * share.step < edges ? score[base * heads + i * stride] : (Sum)BS_LOWEST;
#pragma unroll
        for (int i = 0; i < BS_KEEP; i++) {
            const int edge = base + i * share.step;
            keep[i] = edge < edges ? exact_exp(keep[i] - most) : (Sum)0;
            total += keep[i];
            if (!fits && edge < edges)
                score[base * heads + i * stride] = keep[i];
        }
    }
    __syncwarp();
    for (int over = share.from; over < share.lanes; over *= 2)
        total += __shfl_xor_sync(~0u, total, over);
    if (part && share.along == 0 && edges > 0)
        part[0] = most, part[apart] = total;
    const Sum inverse = 1 / total;
    for (int base = 0; fits ? base == 0 : base < edges; base += BS_KEEP * share.step)
#pragma unroll
        for (int i = 0; i < BS_KEEP; i++)
            if (base + i * share.step < edges) {
                Sum &weight = score[(fits ? 0 : base * heads) + i * stride];
                weight = (fits ? keep[i] : weight) * inverse;
            }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(256, 4) edge_softmax(const SoftmaxParams p)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Stretch at;
    if (!stretch_of(p.s, blockIdx.x, at))
        return;
    const int head0 = blockIdx.y * p.slice, heads = min(p.slice, p.heads - head0);
    const int rows = (int)(at.last - at.row), edges = (int)(at.stop - at.start);
    Run run = {(i64)at.start * p.heads + head0, edges * heads, heads, 0};
    run.lead = (int)(run.first % BS_ELEMENTS);
    Sum *score = (Sum *)shared + run.lead;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int turns = (heads + (1 << p.across) - 1) >> p.across, column = lane & ((1 << p.across) - 1);
    const Share group = share_of(1 << p.s.shift, p.across), all = share_of(32, p.across);
    int *ends = (int *)((Sum *)shared + p.room); // starts too: row r has edges ends[r] .. ends[r + 1] - 1 of the stretch
    u32 *wide = (u32 *)ends + rows + 1; // bits: rows that are too long for a group
    u32 some_wide = 0;
    for (int row0 = warp * 32; row0 < rows; row0 += blockDim.x) {
        const int row = min(row0 + lane, rows - 1);
        const int begin = row == 0 ? 0 : (int)(__ldg(p.s.indptr + at.row + row) - at.start);
        const int end = row + 1 == rows ? edges : (int)(__ldg(p.s.indptr + at.row + row + 1) - at.start);
        const u32 bits = __ballot_sync(~0u, row0 + lane < rows && end - begin > BS_KEEP * group.step);
        ends[row + 1] = end;
        ends[0] = 0;
        wide[row0 / 32] = bits;
        some_wide |= bits;
    }
    bring_scores(run, p, (Sum *)shared);
    some_wide = __syncthreads_or(some_wide);
    // ---- rows that are too long for a group, a warp each
    int found = 0;
    for (int row0 = 0; some_wide && row0 < rows; row0 += 32)
        for (u32 many = wide[row0 / 32]; many; many &= many - 1) {
            const int row = row0 + __ffs(many) - 1, begin = ends[row], end = ends[row + 1];
            for (int turn = 0; turn < turns; turn++) {
                if (found++ % warps != warp)
                    continue;
                const int head = (turn << p.across) + column, some = head < heads ? end - begin : 0;
                Sum *part = at.piece < 0 ? nullptr : (Sum *)p.partial + (i64)at.piece * 2 * p.heads + head0 + head;
                if (end - begin <= BS_KEEP * all.step)
                    soften<true>(score + begin * heads + head, some, heads, all, part, p.heads);
                else
                    soften<false>(score + begin * heads + head, some, heads, all, part, p.heads);
            }
        }
    // ---- the other rows
    const int groups = blockDim.x >> p.s.shift, tasks = rows * turns;
    for (int base = 0; base < tasks; base += groups) {
        const int task = base + (threadIdx.x >> p.s.shift), row = turns == 1 ? task : task / turns;
        const int head = turns == 1 ? column : ((task - row * turns) << p.across) + column;
        const bool busy = task < tasks && head < heads;
        const int begin = busy ? ends[row] : 0, mine = busy ? ends[row + 1] - begin : 0;
        Sum *part = at.piece < 0 ? nullptr : (Sum *)p.partial + (i64)at.piece * 2 * p.heads + head0 + head;
        const bool small = mine <= BS_KEEP * group.step;
        soften<true>(score + begin * heads + head, small ? mine : 0, heads, group, part, p.heads);
    }
    if (at.piece >= 0)
        return;
    __syncthreads();
    take_weights(run, p, (Sum *)shared);
}

// A block for each piece: it joins the maxima and sums of all pieces of the row in order, then computes the weights of its edges.
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
