// What attention needs beside its kernel over edges: the pieces of long rows joined, and norms of rows.
#include "edges/vectors.cuh"

struct AttentionRowsParams {
    Streams s;
    const char *x;
    void *out;
    void *lse;           // as in edges/attention.cu
    const void *partial;
    i64 rows;
    int heads, vectors, head_elements;
};

// A block for each piece, of which the first of a row joins all of the row, in order; a thread for each column.
extern "C" __global__ void __launch_bounds__(256) join_pieces(const AttentionRowsParams p)
{
    Stretch at;
    int first, count;
    stretch_of(p.s, blockIdx.x, at);
    pieces_of_row(p.s, at, first, count);
    if (first != at.piece)
        return;
    const int cols = p.vectors * BS_ELEMENTS, stride = 2 * p.heads + cols;
    const Sum *partial = (const Sum *)p.partial + (i64)first * stride;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        const int head = col / p.head_elements;
        Sum most = partial[head];
#pragma unroll 8
        for (int i = 1; i < count; i++)
            most = larger(most, partial[(i64)i * stride + head]);
        Sum total = 0, sum = 0;
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const Sum *part = partial + (i64)i * stride;
            const Sum shrink = quick_exp(part[head] - most);
            total = fused(part[p.heads + head], shrink, total);
            sum = fused(part[2 * p.heads + col], shrink, sum);
        }
        ((Element *)p.out)[(i64)at.row * cols + col] = narrow(sum / total);
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
