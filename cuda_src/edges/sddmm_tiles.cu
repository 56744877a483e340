// Dot products per edge on the matrix units of a warp: out[e, h] = sum over d of x[row of e, h, d] y[column of e, h, d], over the condensed
// windows of spmm/tiles.cuh (TC-GNN, algorithm 3). Each row of y is read once for all 16 BS_M rows of a window that it is a neighbour of.
//
// A block takes one piece of a window. Its BS_TEAM warps share the window's rows of x in shared memory, which arrive while the first
// columns are gathered. Each warp has a run of the piece's tiles and multiplies BS_JOIN of them per read of x. A tile's columns are the
// second operand as they are gathered: a lane holds vector t of every four vectors of column g. Elements may be paired in any order as long
// as both operands agree. A lane ends up with exactly the sums of the edges whose bits it holds.
//
// Results go to shared memory first, in the order of the pattern, and from there to memory in whole runs. If the edges of the piece have
// room there, all of them are copied when the last warp is done: they are one run if the piece is a whole window. Otherwise each warp copies
// what it has after every BS_HELD tiles, one run per row: only windows with many edges per row do not fit, so these runs are long.
//
// Floor: the rows of all windows' columns from the L2; x, the tiles and the results from or to memory once (docs/kernels/edges.md).
//
// BS_STEPS: vectors of a column that a lane takes at a time; BS_FULL: the vectors of a column are a multiple of those that all lanes take.
#define BS_WIDTH 8 // not used here, like the next two
#define BS_VEC 4
#define BS_WEIGHTS 3
#include "common/warps.cuh"
#include "spmm/tiles_steps.cuh"

#define EACH (BS_K / 8) // columns of a tile that a lane gathers
#define NEIGHBOURS (BS_JOIN * EACH)
#define HALVES (2 * BS_M) // halves of 16 rows; a lane has one row of each
#define HEIGHT (16 * BS_M)
#define THREADS (32 * BS_TEAM)

#define COPIES 4 // pairs of vectors of x that a thread has in flight

struct DotTilesParams {
    const char *x, *y; // rows of row_bytes, a multiple of 16, at 16-byte aligned addresses
    void *out; // (edges, heads)
    const u32 *cols, *bits, *row_offsets; // see TilesParams
    const Piece *pieces;
    i64 rows, piece_count;
    u32 row_bytes;
    int vectors, rounds, heads; // 16-byte vectors of a head's part of a row; rounds in which all lanes take BS_STEPS of them; heads
};

#include "edges/dot_results.cuh"

struct Round {
    uint4 y[NEIGHBOURS][BS_STEPS];
};

// Loads if `wanted`. These are not conditional loads in C++, for which the compiler computes each address anew, and which it lets go through
// another register and thus waits for at once.
BS_INLINE void load_if(bool wanted, uint4 &to, const uint4 *from)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
                 : "l"(from), "r"((u32)wanted)
                 : "memory");
}

BS_INLINE void load_if(bool wanted, u32 &to, const u32 *from)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.u32 %0, [%1];\n}"
                 : "+r"(to)
                 : "l"(from), "r"((u32)wanted)
                 : "memory");
}

// Loads the columns of BS_JOIN tiles, counted from the first tile of the piece, if `wanted`. Past the warp's last tile its columns are
// repeated, without edges.
BS_INLINE void load_columns(bool wanted, u32 (&col)[NEIGHBOURS], const u32 *cols, int tile, int last, const Lane &l)
{
    const u32 *const own = cols + (l.g / 2 * BS_ROWS + l.g % 2);
#pragma unroll
    for (int j = 0; j < BS_JOIN; j++)
#pragma unroll
        for (int n = 0; n < EACH; n++) // column 2 t + e of product n is column BS_ROWS t + 2 n + e of the tile
            load_if(wanted, col[j * EACH + n], own + (unsigned)min(tile + j, last) * BS_K + 2 * n);
}

// Loads the bits of BS_JOIN tiles; tiles past the warp's last one have none.
BS_INLINE void load_bits(u32 (&word)[BS_JOIN][BS_M], const u32 *bits, int tile, int last, const Lane &l)
{
#pragma unroll
    for (int j = 0; j < BS_JOIN; j++) {
#pragma unroll
        for (int m = 0; m < BS_M; m++)
            word[j][m] = 0;
        if (tile + j <= last)
            load_words(word[j], bits + ((tile + j) * BS_WORDS + l.q) * BS_M);
    }
}

// What a lane gathers next: vectors of its columns, the first of which has number `vector`.
struct Gather {
    const uint4 *row[NEIGHBOURS];
    int vector;
};

BS_INLINE void aim(Gather &at, const u32 (&col)[NEIGHBOURS], const char *y, const Lane &l, const DotTilesParams &p)
{
    at.vector = l.t;
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; n++)
        at.row[n] = (const uint4 *)(y + (u64)col[n] * p.row_bytes);
}

BS_INLINE void advance(Gather &at)
{
    at.vector += 4 * BS_STEPS;
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; n++)
        at.row[n] += 4 * BS_STEPS;
}

// Starts loading vector s of each column.
BS_INLINE void gather_step(Round &to, const Gather &at, int s, bool wanted, const DotTilesParams &p)
{
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; n++) {
#ifndef BS_FULL
        to.y[n][s] = make_uint4(0, 0, 0, 0);
        wanted = wanted && at.vector + 4 * s < p.vectors;
#endif
        load_if(wanted, to.y[n][s], at.row[n] + 4 * s);
    }
}

// Multiplies half a vector of rows g and g + 8 of x by the same half of a column of y.
BS_INLINE void multiply_half(float (&sum)[4], const uint4 &x, u32 b0, u32 b1)
{
    const u32 given[6] = {x.x, x.y, x.z, x.w, b0, b1};
#if BS_TYPE == BS_FLOAT && BS_SPLIT
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
    const u32 a[4] = {given[0], given[1], given[2], given[3]};
#if BS_TYPE == BS_FLOAT
    product(sum, a, narrowed(__uint_as_float(b0)), narrowed(__uint_as_float(b1)));
#else
    product(sum, a, b0, b1);
#endif
#endif
}

// Multiplies vector s of the columns by those of all rows of x.
BS_INLINE void multiply_step(float (&sum)[BS_M][NEIGHBOURS][4], const Round &from, int s, const uint4 *rows)
{
#pragma unroll
    for (int m = 0; m < BS_M; m++) {
        const uint4 first = rows[(s * HALVES + 2 * m) * 32], second = rows[(s * HALVES + 2 * m + 1) * 32];
#pragma unroll
        for (int n = 0; n < NEIGHBOURS; n++) {
            const uint4 &y = from.y[n][s];
            multiply_half(sum[m][n], first, y.x, y.y);
            multiply_half(sum[m][n], second, y.z, y.w);
        }
    }
}

// The rows of x of a window lie in shared memory as the products take them. For every four vectors and 16 rows there are two groups of a
// vector per lane: first the first halves of vector t of rows g and g + 8, word by word in turn, then their second halves. Warp w of the
// block fills the pairs of groups w, w + BS_TEAM, ... Starts loading COPIES pairs of them.
BS_INLINE void load_rows(uint4 (&v)[COPIES][2], const char *x, unsigned pair, unsigned left, const Lane &l, const DotTilesParams &p)
{
#pragma unroll
    for (int i = 0; i < COPIES; i++, pair += BS_TEAM) {
        const unsigned row = 16 * (pair % BS_M) + l.g, vector = 4 * (pair / BS_M) + l.t;
        const char *const from = x + (u64)row * p.row_bytes + 16 * vector;
        v[i][0] = v[i][1] = make_uint4(0, 0, 0, 0);
        if (row < left && vector < p.vectors)
            v[i][0] = __ldg((const uint4 *)from);
        if (row + 8 < left && vector < p.vectors)
            v[i][1] = __ldg((const uint4 *)(from + (u64)8 * p.row_bytes));
    }
}

BS_INLINE u32 rounded_word(u32 word) { return BS_TYPE == BS_FLOAT && !BS_SPLIT ? tf32_of(__uint_as_float(word)) : word; }

BS_INLINE void place_rows(uint4 *rows, const uint4 (&v)[COPIES][2], unsigned pair, unsigned pairs)
{
#pragma unroll
    for (int i = 0; i < COPIES; i++, pair += BS_TEAM) {
        const uint4 &up = v[i][0], &down = v[i][1];
        if (pair >= pairs)
            continue;
        rows[64 * pair] = make_uint4(rounded_word(up.x), rounded_word(down.x), rounded_word(up.y), rounded_word(down.y));
        rows[64 * pair + 32] = make_uint4(rounded_word(up.z), rounded_word(down.z), rounded_word(up.w), rounded_word(down.w));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BS_BLOCKS) sddmm_tiles(const DotTilesParams p)
{
    extern __shared__ uint4 shared[]; // the rows of x
    __shared__ Element held[ROOM];
    __shared__ u32 counts[BS_TEAM][HEIGHT];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = (int)blockIdx.y;
    const i64 at = blockIdx.x;
    const Piece piece = load_piece(p.pieces + at);
    if (piece.tiles == 0)
        return;
    Lane l;
    l.g = lane / 4, l.t = lane % 4, l.q = lane * BS_BITS / 32;

    // The warps divide the tiles of the piece, BS_JOIN at a time.
    const int joined = (piece.tiles + BS_JOIN - 1) / BS_JOIN, begin = joined * warp / BS_TEAM * BS_JOIN;
    const int end = min(piece.tiles, joined * (warp + 1) / BS_TEAM * BS_JOIN), last = max(end - 1, 0);
    const u32 *cols = p.cols + piece.tile * BS_K, *bits = p.bits + piece.tile * (BS_WORDS * BS_M);
    u32 now[NEIGHBOURS] = {}, next[NEIGHBOURS] = {}, word[BS_JOIN][BS_M];
    load_columns(true, now, cols, begin, last, l);
    load_columns(true, next, cols, begin + BS_JOIN, last, l);

    const i64 first = (i64)piece.window * HEIGHT;
    const u64 part = (u64)(unsigned)head * (unsigned)p.vectors * 16u;
    const char *const x = p.x + (u64)first * p.row_bytes + part;
    const unsigned own = (unsigned)min(p.rows - first, (i64)HEIGHT); // rows of x
    uint4 copies[COPIES][2];
    load_rows(copies, x, warp, own, l, p);
    load_bits(word, bits, begin, last, l);
    follow_rows(l);

    // One round is in flight, and so are the columns of the tiles after it.
    const char *const y = p.y + part + 16 * l.t;
    int tile = begin, coming = begin, round = 1; // tile being multiplied; tile being gathered, rounds of it that have begun
    int left = (end - begin + BS_JOIN - 1) / BS_JOIN * p.rounds; // rounds to multiply
    Round gathered = {};
    Gather gather;
    if (left) {
        aim(gather, now, y, l, p);
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++)
            gather_step(gathered, gather, s, true, p);
    }
    count_edges(counts[warp], bits, begin, end, l);
    uint4 *const rows = shared + lane;
    const unsigned pairs = BS_STEPS * p.rounds * BS_M;
    place_rows(rows, copies, warp, pairs);
#pragma unroll 1
    for (unsigned pair = warp + COPIES * BS_TEAM; pair < pairs; pair += COPIES * BS_TEAM) {
        load_rows(copies, x, pair, own, l, p);
        place_rows(rows, copies, pair, pairs);
    }
    __syncthreads();

    // `together`: all results of the piece have room. `start`: address of the warp's next results of row `lane`; `place`: where they belong.
    Element *const out = (Element *)p.out + piece.edge * p.heads + head;
    const RowEdges edges = edges_of_row(counts, warp, lane);
    const bool together = __shfl_sync(~0u, edges.above + edges.own, 31) <= ROOM;
    const u32 start = shared_address(held) + (together ? edges.above + edges.before : (warp * HEIGHT + lane) * ROW_ROOM) * SIZE;
    Element *place = out;
    if (!together && lane < HEIGHT)
        place += (u64)(__ldg(p.row_offsets + at * HEIGHT + lane) + edges.before) * (unsigned)p.heads;
    follow(l, start);

    float sum[BS_M][NEIGHBOURS][4] = {};
    int done = 0, steps = 0; // rounds finished of the tiles being multiplied; steps whose results the warp holds
#pragma unroll 1
    for (; left > 0; left--) {
        // The columns come first: using them waits for all loads on the same scoreboard, also for those just begun.
        const bool turn = round == p.rounds;
        if (turn)
            aim(gather, next, y, l, p);
        else
            advance(gather);
        round = turn ? 1 : round + 1, coming += turn ? BS_JOIN : 0;
        load_columns(turn, next, cols, coming + BS_JOIN, last, l);
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
            multiply_step(sum, gathered, s, rows + done * (BS_STEPS * HALVES * 32));
            gather_step(gathered, gather, s, left > 1, p);
        }
        if (++done < p.rounds)
            continue;
        hold_tiles(sum, word, l);
        float odd = 0.0f; // becomes NaN if a sum is not finite
#pragma unroll
        for (int m = 0; m < BS_M; m++)
#pragma unroll
            for (int n = 0; n < NEIGHBOURS; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    odd = fmaf(sum[m][n][i], 0.0f, odd);
                    sum[m][n][i] = 0.0f;
                }
        if (BS_TYPE == BS_FLOAT && odd != 0.0f)
            mend_tiles(word, x, p.y + part, cols + tile * BS_K, l, p);
        done = 0, tile += BS_JOIN;
        if (!together && (++steps == HELD_STEPS || tile >= end)) {
            copy_held(held + warp * HEIGHT * ROW_ROOM, start, place, l, p);
            steps = 0;
        }
        load_bits(word, bits, tile, last, l);
    }
    if (!together)
        return;
    __syncthreads();
    copy_piece(out, held, edges_of_row(counts, warp, lane), piece.slot < 0, p.row_offsets + at * HEIGHT, p);
}
