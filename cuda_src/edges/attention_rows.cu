// The further kernels of attention: joining the pieces of long rows, norms of rows, and dot products of rows for its gradient.
#include "edges/second.cuh"

struct AttentionRowsParams {
    Streams s;
    const char *x;
    void *out;
    void *lse;           // as in edges/attention.cu
    const void *partial;
    i64 rows;
    int heads, vectors, head_elements;
    int head_columns;    // columns of a head in the results; any further ones in `partial` are zeros
    int parts;           // threads of a column that share its pieces
    void *share, *above; // as in edges/attention.cu, and so are the others
    const void *bias;
    const char *features;
    const void *by_target, *first, *second;
};

// Sums over some pieces of a row, for one column: the largest score, and the sums with weights relative to it.
struct Joined {
    Sum most, total, sum;
#ifdef BS_ABOVE
    Sum share, above;
#endif
};

// Joins `a` and `b`, with a's terms first.
BS_INLINE Joined join(const Joined &a, const Joined &b)
{
    Joined c;
    c.most = larger(a.most, b.most);
    const Sum left = quick_exp(a.most - c.most), right = quick_exp(b.most - c.most);
    c.total = fused(b.total, right, a.total * left);
    c.sum = fused(b.sum, right, a.sum * left);
#ifdef BS_ABOVE
    c.share = fused(b.share, right, a.share * left);
    c.above = fused(b.above, right, a.above * left);
#endif
    return c;
}

#if BS_TYPE == 3
#define BS_JOIN_THREADS 512 // of a block at most
#else
#define BS_JOIN_THREADS 1024
#endif
#define BS_AT_ONCE 4         // pieces loaded together

// A block for each piece; the block of a row's first piece joins the whole row, the others do nothing. A thread takes one column of some of
// the pieces: `parts` threads of a column share the pieces in consecutive stretches, whose results are then joined in order.
extern "C" __global__ void __launch_bounds__(BS_JOIN_THREADS, 1) join_pieces(const AttentionRowsParams p)
{
    __shared__ Joined joined[BS_JOIN_THREADS];
    Stretch at;
    int first, count;
    stretch_of(p.s, blockIdx.x, at);
    pieces_of_row(p.s, at, first, count);
    if (first != at.piece)
        return;
    const int cols = p.vectors * BS_ELEMENTS, own = 2 * p.heads + cols, stride = BS_SUMS * own;
    const int width = (int)blockDim.x / p.parts, part = (int)threadIdx.x / width, c = (int)threadIdx.x - part * width;
    const int begin = (int)((i64)count * part / p.parts), end = (int)((i64)count * (part + 1) / p.parts);
    const Sum *partial = (const Sum *)p.partial + (i64)first * stride;
    for (int base = 0; base < cols; base += width) {
        const int col = min(base + c, cols - 1), head = col / p.head_elements;
        Joined all = {}; // joins nothing: with a total of 0 it has no effect, unless its largest score is larger
        all.most = partial[head];
        for (int i = begin; i < end; i += BS_AT_ONCE) {
            Joined some[BS_AT_ONCE];
#pragma unroll
            for (int k = 0; k < BS_AT_ONCE; k++) {
                const Sum *piece = partial + (i64)min(i + k, end - 1) * stride;
                some[k].most = piece[head], some[k].total = piece[p.heads + head], some[k].sum = piece[2 * p.heads + col];
#ifdef BS_ABOVE
                some[k].share = piece[own + p.heads + head], some[k].above = piece[own + 2 * p.heads + col];
#endif
            }
#pragma unroll
            for (int k = 0; k < BS_AT_ONCE; k++)
                if (i + k < end)
                    all = join(all, some[k]);
        }
        joined[threadIdx.x] = all;
        __syncthreads();
        const bool own_column = part == 0 && base + c < cols;
        const int column = col - head * p.head_elements;
        const i64 at_head = (i64)at.row * p.heads + head, at_result = at_head * p.head_columns + column;
        if (own_column) {
            for (int i = 1; i < p.parts; i++)
                all = join(all, joined[i * width + c]);
#ifdef BS_TURNED
            all.total = 1;
#endif
        }
#ifdef BS_COMPLETED
        // The block takes all columns of a row at once. Only the first part's places of the table are written, which nobody else reads before.
        if (own_column) {
            Vector features = zero_vector();
            if (column < p.head_columns)
                features.at[0] = ((const Element *)p.features)[at_result];
            joined[threadIdx.x].above = widen(features, 0) * all.above;
        }
        __syncthreads();
        Sum product = 0;
        for (int i = 0; i < p.head_elements; i++)
            product += joined[head * p.head_elements + i].above;
        all.share = product - all.share;
#endif
        if (own_column) {
            Sum sum = all.sum / all.total;
            if (p.bias && column < p.head_columns)
                sum = added(sum, ((const Sum *)p.bias)[head * p.head_columns + column]);
#ifdef BS_COMPLETED
            if (p.first && column < p.head_columns)
                sum = fused(all.share, ((const Sum *)p.first)[head * p.head_columns + column],
                            fused(((const Sum *)p.by_target)[at_head], ((const Sum *)p.second)[head * p.head_columns + column], sum));
#endif
            if (column < p.head_columns)
                ((Element *)p.out)[at_result] = narrow(sum);
#ifdef BS_ABOVE
#ifndef BS_COMPLETED
            if (column < p.head_columns)
                ((Second *)p.above)[at_result] = second_of(all.above / all.total);
#endif
            if (column == 0)
                ((Sum *)p.share)[at_head] = all.share / all.total;
#endif
            if (p.lse && column == 0)
                ((Sum *)p.lse)[at_head] = all.most + logarithm(all.total);
        }
        __syncthreads(); // before the table is written again
    }
}

// What a lane adds to the sum of squares of a row, with each element times `power`.
BS_INLINE Sum squares(const char *x, int vectors, int t, Sum power)
{
    Sum sum = 0;
    for (int v = t; v < vectors; v += BS_LANES) {
        const Vector a = load_vector(x + v * BS_VECTOR);
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            sum = fused(widen(a, i) * power, widen(a, i) * power, sum);
    }
    __syncwarp();
#pragma unroll
    for (int lanes = BS_LANES / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(~0u, sum, lanes);
    return sum;
}

// The inverse of the Euclidean norm of a row, or 0 for a row of zeros. Called by whole warps, BS_LANES lanes for a row. Where squares
// overflow or vanish, the row is read again, first for its largest element and then scaled by a power of two that brings this element near
// 1.
BS_INLINE Sum inverse_norm(const char *x, int vectors, int t)
{
    Sum power = 1, sum = squares(x, vectors, t, power);
    if (__any_sync(~0u, !(sum > BS_SMALL_SQUARES && sum < BS_LARGE_SQUARES))) {
        Sum most = 0;
        for (int v = t; v < vectors; v += BS_LANES) {
            const Vector a = load_vector(x + v * BS_VECTOR);
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                most = larger(most, magnitude(widen(a, i)));
        }
        __syncwarp();
#pragma unroll
        for (int lanes = BS_LANES / 2; lanes > 0; lanes /= 2)
            most = larger(most, __shfl_xor_sync(~0u, most, lanes));
        power = inverse_power(power_near(most));
        sum = squares(x, vectors, t, power);
    }
    return sum == 0 ? (Sum)0 : power / sqrt(sum);
}

extern "C" __global__ void __launch_bounds__(256) inverse_norms(const AttentionRowsParams p)
{
    const int t = threadIdx.x % BS_LANES;
    const i64 row = (i64)blockIdx.x * (256 / BS_LANES) + threadIdx.x / BS_LANES;
    const Sum inverse = inverse_norm(p.x + min(row, p.rows - 1) * p.vectors * BS_VECTOR, p.vectors, t);
    if (t == 0 && row < p.rows)
        ((Sum *)p.out)[row] = inverse;
}

struct AttentionEndsParams {
    const char *x, *y; // (rows, heads, width)
    const void *above; // Second, or null
    const void *share; // Sum (rows, heads)
    const void *lse, *target; // Sum (rows, heads)
    const char *normed; // BS_NORMS: rows like x; the inverses of their norms replace `target`
    void *ends; // Ends (rows, heads), or null
    void *out; // Sum (rows, heads), or null
    double slope;
    i64 items; // rows * heads
    int vectors; // of a head
};

// Dot products of the heads of rows, BS_LANES lanes a head. BS_TURNED: out = <x, above> - share, the gradient by the scores of the nodes
// attended to. Otherwise <x, y> goes into `ends`, and out = (1 - slope) (<x, above> - <x, y> share), the gradient by the scores of the
// attending nodes.
extern "C" __global__ void __launch_bounds__(256) head_products(const AttentionEndsParams p)
{
    const int t = threadIdx.x % BS_LANES;
    const i64 item = (i64)blockIdx.x * (256 / BS_LANES) + threadIdx.x / BS_LANES, from = min(item, p.items - 1) * p.vectors;
#ifdef BS_NORMS
    const Sum target = inverse_norm(p.normed + from * BS_VECTOR, p.vectors, t);
#endif
    Sum product = 0, slanted = 0;
    for (int v = t; v < p.vectors; v += BS_LANES) {
        const Vector a = load_vector(p.x + (from + v) * BS_VECTOR);
#ifndef BS_TURNED
        const Vector b = load_vector(p.y + (from + v) * BS_VECTOR);
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            product = fused(widen(a, i), widen(b, i), product);
        if (p.above) {
            const Vector c = load_vector((const char *)p.above + (from + v) * BS_VECTOR);
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                slanted = fused(widen(a, i), widen(c, i), slanted);
        }
#else
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            slanted = fused(widen(a, i), ((const Sum *)p.above)[(from + v) * BS_ELEMENTS + i], slanted);
#endif
    }
    __syncwarp();
#pragma unroll
    for (int lanes = BS_LANES / 2; lanes > 0; lanes /= 2) {
        product += __shfl_xor_sync(~0u, product, lanes);
        slanted += __shfl_xor_sync(~0u, slanted, lanes);
    }
    if (t != 0 || item >= p.items)
        return;
#ifdef BS_TURNED
    ((Sum *)p.out)[item] = slanted - ((const Sum *)p.share)[item];
#else
    if (p.ends) {
#ifndef BS_NORMS
        const Sum target = ((const Sum *)p.target)[item];
#endif
        const Ends ends = {target, ((const Sum *)p.lse)[item], product, 0};
        ((Ends *)p.ends)[item] = ends;
    }
    if (p.out)
        ((Sum *)p.out)[item] = (1 - (Sum)p.slope) * (slanted - product * ((const Sum *)p.share)[item]);
#endif
}
