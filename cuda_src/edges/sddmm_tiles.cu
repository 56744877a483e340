// Dot products per edge on the matrix units of a warp: out[e, h] = sum over d of x[row of e, h, d] y[column of e, h, d], over the condensed
// windows of spmm/tiles.cuh (TC-GNN, algorithm 3). Each row of y is read once for all 16 BS_M rows of a window that it is a neighbour of.
//
// A block takes one piece of a window. Its BS_TEAM warps share the window's rows of x in shared memory, which arrive while the first
// columns are gathered. Each warp has a run of the piece's tiles and multiplies BS_JOIN of them per read of x. A tile's columns are the
// second operand as they are gathered: a lane holds vector t of every four vectors of column g. Elements may be paired in any order as long
// as both operands agree. A lane ends up with exactly the sums of the edges whose bits it holds, and stores them at the edges' places in
// the pattern.
//
// Floor: the rows of all windows' columns from the L2; x, the tiles and the results from or to memory once. COLLAB on an H100, 128 / 256
// columns: 335 / 537 us (docs/kernels/edges.md).
//
// BS_STEPS: vectors of a column that a lane takes at a time; BS_FULL: the vectors of a column are a multiple of those that all lanes take;
// BS_AHEAD: rounds of gathers that a warp has in flight.
#define BS_WIDTH 8 // not used here, like the next two
#define BS_VEC 4
#define BS_WEIGHTS 3
#include "spmm/tiles_steps.cuh"

#define EACH (BS_K / 8) // columns of a tile that a lane gathers
#define NEIGHBOURS (BS_JOIN * EACH)
#define HALVES (2 * BS_M) // halves of 16 rows; a lane has one row of each

struct DotTilesParams {
    const char *x, *y; // rows of row_bytes, a multiple of 16, at 16-byte aligned addresses
    void *out; // (edges, heads)
    const u32 *cols, *bits, *row_offsets; // see TilesParams
    const Piece *pieces;
    i64 rows, piece_count;
    u32 row_bytes;
    int vectors, rounds, heads; // 16-byte vectors of a head's part of a row; rounds in which all lanes take BS_STEPS of them; heads
};

struct Round {
    uint4 y[NEIGHBOURS][BS_STEPS];
};

// Loads the columns of BS_JOIN tiles, counted from the first tile of the piece. Past the warp's last tile its columns are repeated, without
// edges.
BS_INLINE void load_columns(u32 (&col)[NEIGHBOURS], const u32 *cols, int tile, int last, const Lane &l)
{
#pragma unroll
    for (int j = 0; j < BS_JOIN; j++)
#pragma unroll
        for (int n = 0; n < EACH; n++) // column 2 t + e of product n is column BS_ROWS t + 2 n + e of the tile
            col[j * EACH + n] = __ldg(cols + min(tile + j, last) * BS_K + (l.g / 2) * BS_ROWS + 2 * n + l.g % 2);
}

// Loads the bits of BS_JOIN tiles; tiles past the warp's last one have none.
BS_INLINE void load_bits(u32 (&word)[BS_JOIN][BS_M], const u32 *bits, int tile, int last, const Lane &l)
{
#pragma unroll
    for (int j = 0; j < BS_JOIN; j++)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            word[j][m] = 0;
            if (tile + j <= last)
                word[j][m] = __ldg(bits + ((tile + j) * BS_WORDS + l.q) * BS_M + m);
        }
}

// Starts loading the vectors of round `round` of the columns.
BS_INLINE void gather_round(Round &to, const u32 (&col)[NEIGHBOURS], const char *y, int round, const Lane &l, const DotTilesParams &p)
{
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; n++) {
        const uint4 *row = (const uint4 *)(y + (u64)col[n] * p.row_bytes) + round * (4 * BS_STEPS);
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
}

// Multiplies half a vector of rows g and g + 8 of x by the same half of a column of y.
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

// Multiplies the vectors of a round by those of all rows of x.
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

// Rounding to fewer digits may overflow float32, and splitting cannot handle infinities and NaN: such products are computed again.
BS_INLINE float dot_again(const char *x, const char *y, int vectors)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 4 * vectors; i++)
        sum = fmaf(((const float *)x)[i], ((const float *)y)[i], sum);
    return sum;
}

// The sum of row g or g + 8 for column i of the two or four columns that a lane has of a tile.
BS_INLINE float sum_of(const float (&sum)[BS_M][NEIGHBOURS][4], int j, int m, int upper, int i)
{
    return sum[m][j * EACH + i / 2][2 * upper + i % 2];
}

// Stores the sums of BS_JOIN tiles at their edges.
BS_INLINE void store_tiles(const float (&sum)[BS_M][NEIGHBOURS][4], const u32 (&word)[BS_JOIN][BS_M], Element *out, Lane &l,
                           const DotTilesParams &p)
{
#pragma unroll
    for (int j = 0; j < BS_JOIN; j++)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const u32 bits = bits_of(word[j][m], l);
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                u32 at = passed(l, word[j][m], m, upper);
#pragma unroll
                for (int i = 0; i < BS_ROWS; i++) {
                    const u32 there = bits >> (BS_ROWS * upper + i) & 1;
                    if (there)
                        out[(u64)at * (unsigned)p.heads] = element_of(sum_of(sum, j, m, upper, i));
                    at += there;
                }
            }
        }
}

// Recomputes those sums just stored that are not finite.
BS_INLINE void mend_tiles(const u32 (&word)[BS_JOIN][BS_M], Element *out, const char *x, const char *y, const u32 *cols, const Lane &l,
                          const DotTilesParams &p)
{
    u32 behind[BS_M][2];
#pragma unroll
    for (int m = 0; m < BS_M; m++)
        behind[m][0] = l.next[m][0], behind[m][1] = l.next[m][1];
#pragma unroll
    for (int j = BS_JOIN - 1; j >= 0; j--)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const u32 bits = bits_of(word[j][m], l);
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                behind[m][upper] -= __popc(word[j][m] & l.row[upper]);
                u32 at = behind[m][upper] + __popc(word[j][m] & l.row_below[upper]);
#pragma unroll 1
                for (int i = 0; i < BS_ROWS; i++) {
                    if (!(bits >> (BS_ROWS * upper + i) & 1))
                        continue;
                    Element *const to = out + (u64)at++ * (unsigned)p.heads;
                    if (!(fabsf(float_of(*to)) <= 3.402823466e38f))
                        *to = element_of(dot_again(x + (u64)(unsigned)(16 * m + 8 * upper + l.g) * p.row_bytes,
                                                   y + (u64)__ldg(cols + j * BS_K + BS_ROWS * l.t + i) * p.row_bytes, p.vectors));
                }
            }
        }
}

// The rows of x of a window; every vector lies where the lanes that multiply it read it.
BS_INLINE uint4 *place_of(uint4 *rows, int row, int vector)
{
    return rows + ((vector / 4) * HALVES + row / 8) * 32 + 4 * (row % 8) + vector % 4;
}

#define TEAM_ROWS (4 * BS_TEAM) // of x that a block begins to copy at a time, eight vectors of each

BS_INLINE void begin_copies(uint4 *rows, const char *x, i64 left, const DotTilesParams &p)
{
    const int each = 4 * BS_STEPS * p.rounds;
#pragma unroll
    for (int row = threadIdx.x / 8; row < 16 * BS_M; row += TEAM_ROWS)
#pragma unroll 2
        for (int vector = threadIdx.x % 8; vector < each; vector += 8) {
            const bool valid = row < left && vector < p.vectors;
            const char *from = valid ? x + (u64)(unsigned)row * p.row_bytes + 16 * vector : x;
            copy_async(shared_address(place_of(rows, row, vector)), from, valid);
        }
}

// Each thread rounds what it has copied.
BS_INLINE void finish_copies(uint4 *rows, const DotTilesParams &p)
{
    copy_wait_all();
#if BS_TYPE == BS_FLOAT && !BS_SPLIT
    const int each = 4 * BS_STEPS * p.rounds;
#pragma unroll
    for (int row = threadIdx.x / 8; row < 16 * BS_M; row += TEAM_ROWS)
#pragma unroll 2
        for (int vector = threadIdx.x % 8; vector < each; vector += 8) {
            uint4 *const at = place_of(rows, row, vector);
            uint4 v = *at;
            v.x = tf32_of(__uint_as_float(v.x)), v.y = tf32_of(__uint_as_float(v.y));
            v.z = tf32_of(__uint_as_float(v.z)), v.w = tf32_of(__uint_as_float(v.w));
            *at = v;
        }
#endif
    __syncthreads();
}

// Advances the rows' places past the edges in the tiles of the previous warps.
BS_INLINE void pass_tiles(Lane &l, const u32 *bits, int tiles)
{
    u32 count[BS_M][2] = {};
#pragma unroll 2
    for (int i = l.t; i < tiles; i += 4)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const u32 word = __ldg(bits + (i * BS_WORDS + l.q) * BS_M + m);
            count[m][0] += __popc(word & l.row[0]), count[m][1] += __popc(word & l.row[1]);
        }
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            count[m][upper] += __shfl_xor_sync(~0u, count[m][upper], 1);
            l.next[m][upper] += count[m][upper] + __shfl_xor_sync(~0u, count[m][upper], 2);
        }
}

extern "C" __global__ void __launch_bounds__(32 * BS_TEAM, BS_BLOCKS) sddmm_tiles(const DotTilesParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = (int)blockIdx.y;
    const i64 at = blockIdx.x;
    const Piece piece = load_piece(p.pieces + at);
    if (piece.tiles == 0)
        return;
    Lane l;
    l.g = lane / 4, l.t = lane % 4, l.q = lane * BS_BITS / 32;

    // The warps divide the tiles of the piece, BS_JOIN at a time.
    const int joined = (piece.tiles + BS_JOIN - 1) / BS_JOIN, begin = joined * warp / BS_TEAM * BS_JOIN;
    const int end = min(piece.tiles, joined * (warp + 1) / BS_TEAM * BS_JOIN), last = end - 1;
    const u32 *cols = p.cols + piece.tile * BS_K, *bits = p.bits + piece.tile * (BS_WORDS * BS_M);
    u32 now[NEIGHBOURS], next[NEIGHBOURS], word[BS_JOIN][BS_M];
    load_columns(now, cols, begin, last, l);
    load_columns(next, cols, begin + BS_JOIN, last, l);

    const i64 first = (i64)piece.window * (16 * BS_M);
    const u64 part = (u64)(unsigned)head * (unsigned)p.vectors * 16u;
    begin_copies(shared, p.x + (u64)first * p.row_bytes + part, p.rows - first, p);
    load_bits(word, bits, begin, last, l);
    follow_rows(l, p.row_offsets + at * (16 * BS_M));
    pass_tiles(l, bits, begin);

    // BS_AHEAD rounds are in flight, and so are the columns of the tiles after them.
    const char *y = p.y + part + 16 * l.t;
    int tile = begin, coming = begin, round = 0; // tile being multiplied, tile being gathered, round of its gathering
    Round rounds[BS_AHEAD];
    auto gather_next = [&](Round &to) {
        // This comes before the gathering: using the columns waits for all loads on the same scoreboard, also for those just begun.
        if (round == p.rounds) {
            round = 0, coming += BS_JOIN;
#pragma unroll
            for (int n = 0; n < NEIGHBOURS; n++)
                now[n] = next[n];
            load_columns(next, cols, coming + BS_JOIN, last, l);
        }
        gather_round(to, now, y, round++, l, p);
    };
    int left = (end - begin + BS_JOIN - 1) / BS_JOIN * p.rounds; // rounds to multiply
#pragma unroll
    for (int s = 0; s < BS_AHEAD; s++)
        if (s < left)
            gather_next(rounds[s]);
    finish_copies(shared, p);

    Element *out = (Element *)p.out + piece.edge * p.heads + head;
    float sum[BS_M][NEIGHBOURS][4] = {};
    const uint4 *rows = shared + lane;
    int done = 0; // rounds finished of the tiles being multiplied
#pragma unroll 1
    for (; left > 0; left -= BS_AHEAD)
#pragma unroll
        for (int s = 0; s < BS_AHEAD; s++) {
            if (s >= left)
                break;
            multiply_round(sum, rounds[s], rows + done * (BS_STEPS * HALVES * 32));
            if (s + BS_AHEAD < left)
                gather_next(rounds[s]);
            if (++done < p.rounds)
                continue;
            store_tiles(sum, word, out, l, p);
            bool odd = false;
#pragma unroll
            for (int m = 0; m < BS_M; m++)
#pragma unroll
                for (int n = 0; n < NEIGHBOURS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        odd |= BS_TYPE == BS_FLOAT && !(fabsf(sum[m][n][i]) <= 3.402823466e38f);
                        sum[m][n][i] = 0.0f;
                    }
            if (BS_TYPE == BS_FLOAT && odd)
                mend_tiles(word, out, p.x + (u64)first * p.row_bytes + part, p.y + part, cols + tile * BS_K, l, p);
            done = 0, tile += BS_JOIN;
            load_bits(word, bits, tile, last, l);
        }
}
