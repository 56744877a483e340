// What comes before a product of float32 (matmul/floats.cu) and after one over rows (matmul/floats_over_rows.cu).
#include "matmul/split_floats.cuh"

#define THREADS 256

struct SplitWeightsParams {
    SmallMatrix first, second; // of both products of a sum
    char *parts; // (tiles of columns, stages, 2, width, DEPTH) words
    int second_at; // column of a tile's stages at which `second` begins
    int columns, stages, width, count; // width: columns of a tile; count: of vectors of high parts
};

BS_INLINE u32 weight_at(int n, int k, const SmallMatrix &of)
{
    return k < of.depth ? __float_as_uint(of.w[n * of.across + k * of.along]) : 0u;
}

// A thread makes the parts of four words of a column in a stage, in the place of the swizzle. Of every eight k, word w is
// 2 (w % 4) + w / 4, as in `take_fragments` of matmul/floats.cu.
extern "C" __global__ void __launch_bounds__(THREADS) split_weights(const SplitWeightsParams p)
{
    const int item = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (item >= p.count)
        return;
    const int vector = item % (DEPTH / 4), upper = item / (DEPTH / 4), c = upper % p.width, place = upper / p.width;
    const int stage = place % p.stages, n = place / p.stages * p.width + c, k0 = stage * DEPTH + 8 * (vector / 2) + vector % 2;
    u32 high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = k0 + 2 * i;
        const u32 word = n >= p.columns ? 0u : k < p.second_at ? weight_at(n, k, p.first) : weight_at(n, k - p.second_at, p.second);
        split_float(word, high[i], low[i]);
    }
    const i64 tile = (i64)p.width * DEPTH * 4;
    char *const to = p.parts + place * 2 * tile + c * 128 + ((vector ^ (c & 7)) * 16);
    *(uint4 *)to = make_uint4(high[0], high[1], high[2], high[3]);
    *(uint4 *)(to + tile) = make_uint4(low[0], low[1], low[2], low[3]);
}

struct AddPiecesParams {
    const float *pieces; // (count, rows, columns), with one more column if there are sums
    float *out, *sums; // (rows, columns) and (rows,), or null
    int rows, columns, count;
};

// Adds up the sums of pieces, in an order that depends on their number alone. A block takes 32 sums, and its warps share the pieces.
extern "C" __global__ void __launch_bounds__(THREADS) add_pieces(const AddPiecesParams p)
{
    constexpr int warps = THREADS / 32;
    __shared__ float stage[warps][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, pitch = p.columns + (p.sums ? 1 : 0), all = p.rows * pitch;
    const int i = (int)blockIdx.x * 32 + lane, row = i / pitch, column = i - row * pitch;
    float sum = 0.0f;
    if (i < all)
#pragma unroll 8
        for (int piece = warp; piece < p.count; piece += warps)
            sum += p.pieces[(i64)piece * all + i];
    stage[warp][lane] = sum;
    __syncthreads();
    if (warp || i >= all)
        return;
#pragma unroll
    for (int other = 1; other < warps; other++)
        sum += stage[other][lane];
    if (column < p.columns)
        p.out[row * p.columns + column] = sum;
    else
        p.sums[row] = sum;
}
