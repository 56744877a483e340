// What attention needs beside its kernel over edges: the pieces of long rows joined, norms of rows, dot products of rows for its gradient.
#include "edges/second.cuh"

struct AttentionRowsParams {
    Streams s;
    const char *x;
    void *out;
    void *lse;           // as in edges/attention.cu
    const void *partial;
    i64 rows;
    int heads, vectors, head_elements;
    void *share, *above; // as in edges/attention.cu
};

// A block for each piece, of which the first of a row joins all of the row, in order; a thread for each column.
extern "C" __global__ void __launch_bounds__(256, 2) join_pieces(const AttentionRowsParams p)
{
    Stretch at;
    int first, count;
    stretch_of(p.s, blockIdx.x, at);
    pieces_of_row(p.s, at, first, count);
    if (first != at.piece)
        return;
    const int cols = p.vectors * BS_ELEMENTS, own = 2 * p.heads + cols, stride = BS_SUMS * own;
    const Sum *partial = (const Sum *)p.partial + (i64)first * stride;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const int head = col / p.head_elements;
        Sum most = partial[head];
#pragma unroll 8
        for (int i = 1; i < count; i++)
            most = larger(most, partial[(i64)i * stride + head]);
        Sum total = 0, sum = 0, share = 0, above = 0;
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const Sum *part = partial + (i64)i * stride;
            const Sum shrink = quick_exp(part[head] - most);
            total = fused(part[p.heads + head], shrink, total);
            sum = fused(part[2 * p.heads + col], shrink, sum);
#ifdef BS_ABOVE
            share = fused(part[own + p.heads + head], shrink, share);
            above = fused(part[own + 2 * p.heads + col], shrink, above);
#endif
        }
#ifdef BS_TURNED
        total = 1;
#endif
        ((Element *)p.out)[(i64)at.row * cols + col] = narrow(sum / total);
#ifdef BS_ABOVE
        ((Second *)p.above)[(i64)at.row * cols + col] = second_of(above / total);
        if (col % p.head_elements == 0)
            ((Sum *)p.share)[(i64)at.row * p.heads + head] = share / total;
#endif
        if (p.lse && col % p.head_elements == 0)
            ((Sum *)p.lse)[(i64)at.row * p.heads + head] = most + logarithm(total);
    }
}

// What a lane adds to the sum of the squares of a row, each element times `power`.
BS_INLINE Sum squares(const AttentionRowsParams &p, const char *x, int t, Sum power)
{
    Sum sum = 0;
    for (int v = t; v < p.vectors; v += BS_LANES) {
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

// Inverses of the Euclidean norms of rows, 0 for a row of zeros; BS_LANES lanes a row. Where squares overflow or vanish, the row is read
// again, for its largest element and then with that brought near 1 by a power of two.
extern "C" __global__ void __launch_bounds__(256) inverse_norms(const AttentionRowsParams p)
{
    const int t = threadIdx.x % BS_LANES;
    const i64 row = (i64)blockIdx.x * (256 / BS_LANES) + threadIdx.x / BS_LANES;
    const char *x = p.x + min(row, p.rows - 1) * p.vectors * BS_VECTOR;
    Sum power = 1, sum = squares(p, x, t, power);
    if (__any_sync(~0u, !(sum > BS_SMALL_SQUARES && sum < BS_LARGE_SQUARES))) {
        Sum most = 0;
        for (int v = t; v < p.vectors; v += BS_LANES) {
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
        sum = squares(p, x, t, power);
    }
    if (t == 0 && row < p.rows)
        ((Sum *)p.out)[row] = sum == 0 ? (Sum)0 : power / sqrt(sum);
}

struct AttentionEndsParams {
    const char *x, *y;   // (rows, heads, width)
    const void *above;   // Second, or null
    const void *share;   // Sum (rows, heads)
    const void *lse, *target; // Sum (rows, heads)
    void *ends;          // Ends (rows, heads), or null
    void *out;           // Sum (rows, heads), or null
    double slope;
    i64 items;           // rows * heads
    int vectors;         // of a head
};

// Dot products of the heads of rows, BS_LANES lanes a head. BS_TURNED: out = <x, above> - share, the gradient by the scores of the nodes
// attended to; else <x, y> goes into `ends`, and out = (1 - slope) (<x, above> - <x, y> share), that by the scores of those that attend.
extern "C" __global__ void __launch_bounds__(256) head_products(const AttentionEndsParams p)
{
    const int t = threadIdx.x % BS_LANES;
    const i64 item = (i64)blockIdx.x * (256 / BS_LANES) + threadIdx.x / BS_LANES, from = min(item, p.items - 1) * p.vectors;
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
        const Ends ends = {((const Sum *)p.target)[item], ((const Sum *)p.lse)[item], product, 0};
        ((Ends *)p.ends)[item] = ends;
    }
    if (p.out)
        ((Sum *)p.out)[item] = (1 - (Sum)p.slope) * (slanted - product * ((const Sum *)p.share)[item]);
#endif
}
