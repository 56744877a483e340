// Dot products per edge on the matrix units of a warp: out[e, h] = sum over d of x[row of e, h, d] y[column of e, h, d], over the condensed
// windows of spmm/tiles.cuh (TC-GNN, algorithm 3): each row of y is read once for all 16 BS_M rows of a window that it is a neighbour of.
//
// A warp takes one piece of a window. It keeps the window's rows of x in shared memory, every lane what it multiplies itself, so that no
// lane waits for another. A tile's columns are the second operand as they are gathered: a lane holds vector t of every four of column g.
// Which elements a product pairs is free as long as both operands agree. A lane is left with just the sums of those edges whose bits it
// has, and stores them where the rows of the pattern have them.
//
// Floor: the rows of all windows' columns from the L2; x, the tiles and the results from memory once. COLLAB on an H100, 128 / 256 columns:
// 466 / 738 us (docs/kernels/edges.md).
//
// BS_STEPS: vectors of a column to a lane at a time; BS_FULL: columns have as many as the lanes, or a multiple.
#define BS_WIDTH 8 // of no account here, as the next two
#define BS_VEC 4
#define BS_WEIGHTS 3
#include "spmm/tiles_steps.cuh"

#define NEIGHBOURS (BS_K / 8) // columns of a tile that a lane gathers
#define HALVES (2 * BS_M) // of 16 rows, whose rows a lane has one of each

struct DotTilesParams {
    const char *x, *y; // rows of row_bytes, a multiple of 16, as their addresses
    void *out; // (edges, heads)
    const u32 *cols, *bits, *row_offsets; // see TilesParams
    const Piece *pieces;
    i64 rows, piece_count;
    u32 row_bytes;
    int vectors, rounds, heads; // of 16 bytes in a head's part of a row; times that all lanes take BS_STEPS of them; heads
};

// A tile's columns on their way: those of a lane, and the bits.
struct Ahead {
    u32 col[NEIGHBOURS], word[BS_M];
};

struct Round {
    uint4 y[NEIGHBOURS][BS_STEPS];
    u32 word[BS_M];
};

BS_INLINE void load_ahead(Ahead &to, i64 tile, const Lane &l, const DotTilesParams &p)
{
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; n++) // column 2 t + e of product n is column BS_ROWS t + 2 n + e of the tile
        to.col[n] = __ldg(p.cols + tile * BS_K + (l.g / 2) * BS_ROWS + 2 * n + l.g % 2);
#pragma unroll
    for (int m = 0; m < BS_M; m++)
        to.word[m] = __ldg(p.bits + (tile * BS_WORDS + l.q) * BS_M + m);
}

BS_INLINE void gather_round(Round &to, const Ahead &from, const char *y, int round, const Lane &l, const DotTilesParams &p)
{
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; n++) {
        const uint4 *row = (const uint4 *)(y + (u64)from.col[n] * p.row_bytes) + round * (4 * BS_STEPS);
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
#ifdef BS_FULL
            to.y[n][s] = __ldg(row + 4 * s);
#else
            to.y[n][s] = make_uint4(0, 0, 0, 0);
            if (4 * (round * BS_STEPS + s) + l.t < p.vectors)
                to.y[n][s] = __ldg(row + 4 * s);
#endif
        }
    }
#pragma unroll
    for (int m = 0; m < BS_M; m++)
        to.word[m] = from.word[m];
}

// Half a vector of rows g and g + 8 of x times that of a column of y.
BS_INLINE void multiply_half(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
#if BS_TYPE == BS_FLOAT && BS_SPLIT
    const u32 given[6] = {a0, a1, a2, a3, b0, b1};
    u32 high[6], low[6];
#pragma unroll
    for (int i = 0; i < 6; i++) {
        high[i] = tf32_of(__uint_as_float(given[i]));
        low[i] = tf32_of(__uint_as_float(given[i]) - __uint_as_float(high[i]));
    }
    const u32 a[4] = {high[0], high[1], high[2], high[3]}, rest[4] = {low[0], low[1], low[2], low[3]};
    product(sum, a, low[4], low[5]); // the small products first
    product(sum, rest, high[4], high[5]);
    product(sum, a, high[4], high[5]);
#else
    const u32 a[4] = {a0, a1, a2, a3};
#if BS_TYPE == BS_FLOAT
    product(sum, a, narrowed(__uint_as_float(b0)), narrowed(__uint_as_float(b1)));
#else
    product(sum, a, b0, b1);
#endif
#endif
}

BS_INLINE void multiply_round(float (&sum)[BS_M][NEIGHBOURS][4], const Round &from, const uint4 *own)
{
#pragma unroll
    for (int s = 0; s < BS_STEPS; s++)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const uint4 x = own[(s * HALVES + 2 * m) * 32], below = own[(s * HALVES + 2 * m + 1) * 32];
#pragma unroll
            for (int n = 0; n < NEIGHBOURS; n++) {
                const uint4 &y = from.y[n][s];
                multiply_half(sum[m][n], x.x, below.x, x.y, below.y, y.x, y.y);
                multiply_half(sum[m][n], x.z, below.z, x.w, below.w, y.z, y.w);
            }
        }
}

// Rounding to fewer digits may exceed what a float32 holds, and splitting loses what is not finite: such a product is made again.
BS_INLINE float dot_again(const char *x, const char *y, int vectors)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 4 * vectors; i++)
        sum = fmaf(((const float *)x)[i], ((const float *)y)[i], sum);
    return sum;
}

// The sums of a tile to their edges.
BS_INLINE void store_tile(const float (&sum)[BS_M][NEIGHBOURS][4], const u32 (&word)[BS_M], Element *out, const char *x, const char *y,
                          const u32 *cols, Lane &l, const DotTilesParams &p)
{
#pragma unroll
    for (int m = 0; m < BS_M; m++) {
        const u32 bits = bits_of(word[m], l);
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            u32 at = passed(l, word[m], m, upper);
#pragma unroll
            for (int i = 0; i < BS_ROWS; i++) {
                if (!(bits >> (BS_ROWS * upper + i) & 1))
                    continue;
                float found = sum[m][i / 2][2 * upper + i % 2];
                if (BS_TYPE == BS_FLOAT && !(fabsf(found) <= 3.402823466e38f))
                    found = dot_again(x + (u64)(unsigned)(16 * m + 8 * upper + l.g) * p.row_bytes,
                                      y + (u64)cols[BS_ROWS * l.t + i] * p.row_bytes, p.vectors);
                out[(i64)at++ * p.heads] = element_of(found);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * BS_WARPS, BS_BLOCKS) sddmm_tiles(const DotTilesParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = (int)blockIdx.y;
    const i64 at = (i64)blockIdx.x * BS_WARPS + warp;
    if (at >= p.piece_count)
        return;
    const Piece piece = load_piece(p.pieces + at);
    if (piece.tiles == 0)
        return;
    Lane l;
    l.g = lane / 4, l.t = lane % 4, l.q = lane * BS_BITS / 32;
    follow_rows(l, p.row_offsets + at * (16 * BS_M));

    Ahead now, next;
    load_ahead(now, piece.tile, l, p);
    load_ahead(next, piece.tile + min(1, piece.tiles - 1), l, p);

    const i64 first = (i64)piece.window * (16 * BS_M);
    const u64 part = (u64)(unsigned)head * (unsigned)p.vectors * 16u;
    const char *x = p.x + (u64)first * p.row_bytes + part, *y = p.y + part;
    const int each = p.rounds * BS_STEPS;
    uint4 *own = shared + warp * (each * HALVES * 32) + lane;
#pragma unroll 4
    for (int s = 0; s < each; s++)
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            const int row = 8 * half + l.g, vector = 4 * s + l.t;
            if (first + row < p.rows && vector < p.vectors)
                v = __ldg((const uint4 *)(x + (u64)(unsigned)row * p.row_bytes) + vector);
#if BS_TYPE == BS_FLOAT && !BS_SPLIT
            v.x = tf32_of(__uint_as_float(v.x)), v.y = tf32_of(__uint_as_float(v.y));
            v.z = tf32_of(__uint_as_float(v.z)), v.w = tf32_of(__uint_as_float(v.w));
#endif
            own[(s * HALVES + half) * 32] = v;
        }

    // Two rounds are on their way, and the columns of the tile behind them.
    const char *lane_y = y + 16 * l.t;
    i64 coming = piece.tile; // the tile that is gathered
    const i64 last = piece.tile + piece.tiles - 1;
    int round = 0, left = piece.tiles * p.rounds; // rounds of its gathering; rounds to multiply
    Round rounds[2];
    auto gather_next = [&](Round &to) {
        // In front of the gathering: taking over columns waits for all loads that share their scoreboard, those just begun among them.
        if (round == p.rounds) {
            round = 0, coming++, now = next;
            load_ahead(next, min(coming + 1, last), l, p);
        }
        gather_round(to, now, lane_y, round++, l, p);
    };
    gather_next(rounds[0]);
    if (left > 1)
        gather_next(rounds[1]);

    Element *out = (Element *)p.out + piece.edge * p.heads + head;
    float sum[BS_M][NEIGHBOURS][4] = {};
    const u32 *cols = p.cols + piece.tile * BS_K;
    int done = 0; // rounds of the tile that is multiplied
#pragma unroll 1
    for (; left > 0; left -= 2)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            if (s >= left)
                break;
            multiply_round(sum, rounds[s], own + done * (BS_STEPS * HALVES * 32));
            u32 word[BS_M];
#pragma unroll
            for (int m = 0; m < BS_M; m++)
                word[m] = rounds[s].word[m];
            if (s + 2 < left)
                gather_next(rounds[s]);
            if (++done == p.rounds) {
                store_tile(sum, word, out, x, y, cols, l, p);
                done = 0, cols += BS_K;
#pragma unroll
                for (int m = 0; m < BS_M; m++)
#pragma unroll
                    for (int n = 0; n < NEIGHBOURS; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            sum[m][n][i] = 0.0f;
            }
        }
}
