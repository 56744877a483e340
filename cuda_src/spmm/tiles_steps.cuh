// The three steps of a tile: its columns and bits, its features and weights, its products. See spmm/tiles.cuh for the layout.
#ifndef BITSPARSE_SPMM_TILES_STEPS_CUH
#define BITSPARSE_SPMM_TILES_STEPS_CUH

#include "spmm/tiles.cuh"

// What a lane needs all the time: its position in the tile and in the features.
struct Lane {
    int g, t, q;          // the lane is 4 g + t; q: the word that holds its bits
    u32 below, row[2], row_below[2]; // masks of that word: the bits of lower lanes, those of its rows, those of its rows in lower lanes
    const u32 *cols, *bits, *offsets;
    const Element *x;
    int run[BS_VECTORS];  // elements from x to its runs
    const float *values;
    u32 step; // bytes from the value of one edge to that of the next
    u32 next[BS_M][2];    // values in the order of rows: where the next edges of the rows begin
};

// Of a tile's 16 rows a lane follows two, g and g + 8. Computes which bits of its word belong to them.
BS_INLINE void follow_rows(Lane &l)
{
    const u32 every = BS_TYPE == BS_FLOAT ? 0x3333u : 0x0f0f0f0fu;
    const int quad = 4 * BS_BITS * l.g & 31;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        l.row[upper] = every << BS_ROWS * upper << quad;
        l.row_below[upper] = l.row[upper] & ((1u << (BS_BITS * (4 * l.g + l.t) & 31)) - 1);
    }
}

// The same, and where these rows' next edges are, counted from the window's first edge.
BS_INLINE void follow_rows(Lane &l, const u32 *row_offsets)
{
    follow_rows(l);
#pragma unroll
    for (int upper = 0; upper < 2; upper++)
#pragma unroll
        for (int m = 0; m < BS_M; m++)
            l.next[m][upper] = __ldg(row_offsets + 16 * m + l.g + 8 * upper);
}

// Returns the position of the first of this lane's edges in row g + 8 upper, for a tile with these bits, and moves on past the tile's
// edges.
BS_INLINE u32 passed(Lane &l, u32 word, int m, int upper)
{
    const u32 at = l.next[m][upper] + __popc(word & l.row_below[upper]);
    l.next[m][upper] += __popc(word & l.row[upper]);
    return at;
}

// Loads columns and bits of the tile that is `ahead` tiles further on.
BS_INLINE void load_index(Index &to, const Lane &l, int ahead)
{
    load_words(to.col, l.cols + ahead * BS_K);
    load_words(to.word, l.bits + ahead * (BS_WORDS * BS_M));
#if BS_WEIGHTS == BS_TILED
    load_words(to.offset, l.offsets + ahead * (BS_WORDS * BS_M));
#endif
}

BS_INLINE void advance(Lane &l, int tiles)
{
    l.cols += tiles * BS_K, l.bits += tiles * (BS_WORDS * BS_M);
#if BS_WEIGHTS == BS_TILED
    l.offsets += tiles * (BS_WORDS * BS_M);
#endif
}

BS_INLINE u32 bits_of(u32 word, const Lane &l) { return word >> (BS_BITS * (4 * l.g + l.t) & 31) & ((1u << BS_BITS) - 1); }

// Starts the loads of a tile.
BS_INLINE void gather(Gathered &to, const Index &from, Lane &l, const TilesParams &p)
{
#pragma unroll
    for (int r = 0; r < BS_ROWS; r++) {
        const Element *row = (const Element *)((const char *)l.x + (u64)from.col[r] * p.row_bytes);
#pragma unroll
        for (int v = 0; v < BS_VECTORS; v++)
            load_run(to.b[r], v * BS_VEC, row + l.run[v]);
#if BS_SCALED
        to.scale[r] = __ldg(p.col_scale + from.col[r]);
#endif
    }
#pragma unroll
    for (int m = 0; m < BS_M; m++) {
        const u32 word = from.word[m];
        to.word[m] = word;
#if BS_WEIGHTS >= BS_TILED
        const u32 bits = bits_of(word, l);
        u32 at = 0;
#pragma unroll
        for (int i = 0; i < BS_BITS; i++) {
#if BS_WEIGHTS == BS_TILED
            if (i == 0)
                at = from.offset[m] + __popc(word & l.below);
#else
            const int upper = i / BS_ROWS;
            if (i % BS_ROWS == 0)
                at = passed(l, word, m, upper);
#endif
            to.value[m][i] = 0.0f;
            if (bits >> i & 1)
#if BS_WEIGHTS == BS_TILED
                to.value[m][i] = __ldg(l.values + at);
#else
                to.value[m][i] = __ldg((const float *)((const char *)l.values + (u64)at * l.step));
#endif
            at += bits >> i & 1;
        }
#endif
    }
}

// A float32 whose last 13 bits the products will cut off, which is at most 2^-10 of it. It is first enlarged by a third of that, so that
// the error is zero on average and at most 6.4e-4; this takes one instruction, and numbers that need no rounding keep their value.
BS_INLINE u32 narrowed(float x) { return __float_as_uint(x * 1.00034f); }

// The operand of 16 rows: register i holds row g + 8 (i % 2) and the columns of half i / 2 of those that the lane holds. With `low`, it
// holds the rounding errors of the weights.
BS_INLINE void weigh(u32 (&a)[4], const Gathered &from, int m, const Lane &l, bool low)
{
#if BS_WEIGHTS == BS_ONES
    const u32 bits = bits_of(from.word[m], l);
#if BS_TYPE == BS_FLOAT
    const int first[4] = {0, 2, 1, 3};
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = (bits & 1u << first[i]) * (0x3f800000u >> first[i]);
#else
    const u32 one = BS_TYPE == BS_F16 ? 0x3c00u : 0x3f80u, pairs = bits * 0x8001u; // bits i and i + 1 at i and i + 16
    const int first[4] = {0, 4, 2, 6};
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = (pairs & 0x10001u << first[i]) * (one >> first[i]);
#endif
#else
    float w[BS_BITS];
#if BS_WEIGHTS == BS_SCALES
    const u32 bits = bits_of(from.word[m], l);
#endif
#pragma unroll
    for (int i = 0; i < BS_BITS; i++) {
#if BS_WEIGHTS == BS_SCALES
        w[i] = bits >> i & 1 ? from.scale[i % BS_ROWS] : 0.0f;
#elif BS_SCALED
        w[i] = from.value[m][i] * from.scale[i % BS_ROWS];
#else
        w[i] = from.value[m][i];
#endif
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = BS_ROWS * (i % 2) + BS_ROWS / 2 * (i / 2), next = at + BS_ROWS / 2 - 1;
        a[i] = BS_TYPE == BS_FLOAT && !BS_SPLIT ? narrowed(w[at]) : rounded(w[at], w[next]);
#if BS_SPLIT
        if (low) {
#if BS_TYPE == BS_FLOAT
            a[i] = rounded(w[at] - __uint_as_float(a[i]), 0.0f);
#else
            a[i] = rounded(w[at] - float_of((Element)a[i]), w[next] - float_of((Element)(a[i] >> 16)));
#endif
        }
#endif
    }
#endif
}

BS_INLINE void product(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
#if BS_TYPE == BS_FLOAT
    mma_m16n8k8_tf32(d, a, b0, b1);
#elif BS_TYPE == BS_F16
    mma_m16n8k16_f16(d, a, b0, b1);
#else
    mma_m16n8k16_bf16(d, a, b0, b1);
#endif
}

// The operand of product j: element j of the rows of half `half`.
BS_INLINE u32 column_of(const Gathered &from, int half, int j)
{
#if BS_TYPE == BS_FLOAT
    return from.b[half][j];
#else
    return __byte_perm(from.b[2 * half][j / 2], from.b[2 * half + 1][j / 2], j % 2 ? 0x7632 : 0x5410);
#endif
}

// Multiplies one tile: adds its products to the sums of all rows and columns.
BS_INLINE void multiply(float (&sum)[BS_M][BS_WIDTH][4], const Gathered &from, const Lane &l)
{
    u32 b[2][BS_WIDTH];
#pragma unroll
    for (int j = 0; j < BS_WIDTH; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            b[half][j] = column_of(from, half, j);
#if BS_TYPE == BS_FLOAT && !BS_SPLIT
            b[half][j] = narrowed(__uint_as_float(b[half][j]));
#endif
        }
#pragma unroll
    for (int m = 0; m < BS_M; m++) {
        if (BS_M > 1 && !__any_sync(~0u, from.word[m] != 0))
            continue;
        u32 a[4];
        weigh(a, from, m, l, false);
#if BS_SPLIT && BS_WEIGHTS != BS_ONES
        u32 rest[4];
        weigh(rest, from, m, l, true);
#endif
#pragma unroll
        for (int j = 0; j < BS_WIDTH; j++) {
            u32 b0 = b[0][j], b1 = b[1][j];
#if BS_SPLIT && BS_TYPE == BS_FLOAT // the small products first
            const float f0 = __uint_as_float(b0), f1 = __uint_as_float(b1);
            b0 = tf32_of(f0), b1 = tf32_of(f1);
            product(sum[m][j], a, tf32_of(f0 - __uint_as_float(b0)), tf32_of(f1 - __uint_as_float(b1)));
#endif
#if BS_SPLIT && BS_WEIGHTS != BS_ONES
            product(sum[m][j], rest, b0, b1);
#endif
            product(sum[m][j], a, b0, b1);
        }
    }
}

#endif
