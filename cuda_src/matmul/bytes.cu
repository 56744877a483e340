// Transposes matrices of bytes, and adds up and scales the sums over pieces of the new contraction axis. Floor: the bytes read and written.
#include "common/ptx.cuh"
#include "common/scalar.h"

struct TurnParams {
    const unsigned char *x; // (rows, row_bytes), 16-byte aligned
    unsigned char *out; // (pieces, columns, piece)
    long long rows;
    int row_bytes, columns, piece; // row_bytes and piece are multiples of 16
    int across, down; // tiles along a row, tiles along a piece
};

constexpr int kTile = 128; // rows and columns of a block's tile

// Transposes the four bytes of four words: from one word per row to one word per column.
BS_INLINE void turn_four(u32 a, u32 b, u32 c, u32 d, u32 (&columns)[4])
{
    const u32 low = __byte_perm(a, b, 0x5140), low_too = __byte_perm(c, d, 0x5140);
    const u32 high = __byte_perm(a, b, 0x7362), high_too = __byte_perm(c, d, 0x7362);
    columns[0] = __byte_perm(low, low_too, 0x5410);
    columns[1] = __byte_perm(low, low_too, 0x7632);
    columns[2] = __byte_perm(high, high_too, 0x5410);
    columns[3] = __byte_perm(high, high_too, 0x7632);
}

// A thread reads 16 columns of four rows and transposes them in its registers; in shared memory its words join those of the other rows.
// There the eight runs of 16 rows of a column lie in an order that differs for every 16 columns, so neither reads nor writes conflict in
// banks.
extern "C" __global__ void __launch_bounds__(256) turn_bytes(const TurnParams p)
{
    __shared__ uint4 stage[kTile * kTile / 16];
    const int upper = (int)blockIdx.x / p.across, column0 = ((int)blockIdx.x - upper * p.across) * kTile;
    const int piece = upper / p.down, first = (upper - piece * p.down) * kTile;
    {
        const int sixteen = (int)threadIdx.x & 7, quad = (int)threadIdx.x >> 3, column = column0 + 16 * sixteen;
        const long long row = (long long)piece * p.piece + first + 4 * quad;
        const unsigned char *from = p.x + row * p.row_bytes + column;
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool there = column < p.row_bytes && row + i < p.rows;
            v[i] = there ? __ldcs((const uint4 *)(from + (long long)i * p.row_bytes)) : make_uint4(0, 0, 0, 0);
        }
        u32 turned[4][4];
        turn_four(v[0].x, v[1].x, v[2].x, v[3].x, turned[0]);
        turn_four(v[0].y, v[1].y, v[2].y, v[3].y, turned[1]);
        turn_four(v[0].z, v[1].z, v[2].z, v[3].z, turned[2]);
        turn_four(v[0].w, v[1].w, v[2].w, v[3].w, turned[3]);
        u32 *to = (u32 *)stage + 16 * sixteen * (kTile / 4) + (((quad >> 2) ^ sixteen) << 2 | (quad & 3));
#pragma unroll
        for (int c = 0; c < 16; c++)
            to[c * (kTile / 4)] = turned[c / 4][c % 4];
    }
    __syncthreads();
    const int run = (int)threadIdx.x & 7, at = first + 16 * run;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int own = 32 * step + ((int)threadIdx.x >> 3), column = column0 + own;
        if (column < p.columns && at < p.piece)
            *(uint4 *)(p.out + ((long long)piece * p.columns + column) * p.piece + at) = stage[own * 8 + (run ^ (own >> 4))];
    }
}

struct PiecesParams {
    const int *sums; // (pieces, rows, pitch)
    float *out; // (rows, columns)
    const float *first, *second; // the sums are multiplied by these, one number each
    int pieces, count, columns, pitch; // count: of the result
    long long step; // from piece to piece
};

// Adds up the sums of pieces exactly, then scales them with one rounding for each step. A block takes 32 sums, and its warps share the
// pieces.
extern "C" __global__ void __launch_bounds__(256) scale_sums(const PiecesParams p)
{
    constexpr int warps = 8;
    __shared__ long long stage[warps][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, i = (int)blockIdx.x * 32 + lane;
    long long sum = 0;
    if (i < p.count) {
        const int row = i / p.columns;
        const int *const from = p.sums + (long long)row * p.pitch + (i - row * p.columns);
#pragma unroll 8
        for (int piece = warp; piece < p.pieces; piece += warps)
            sum += from[piece * p.step];
    }
    stage[warp][lane] = sum;
    __syncthreads();
    if (warp || i >= p.count)
        return;
#pragma unroll
    for (int other = 1; other < warps; other++)
        sum += stage[other][lane];
    p.out[i] = bs_mulf(bs_mulf((float)sum, __ldg(p.first)), __ldg(p.second));
}
