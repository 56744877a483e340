// Condensed windows: 16 BS_M rows of a sparse matrix, whose columns are numbered anew and cut into groups of 8 or 16. What a lane of a warp
// holds of such a tile, and how it loads, weighs, multiplies and stores it.
//
// A group of k columns is one step of m16n8k8 (float32 as TF32) or m16n8k16 (16-bit floats). Lane 4 g + t takes whole runs of BS_VEC
// neighbours of the features' rows: rows 2 t and 2 t + 1 of the group (4 t to 4 t + 3 of 16), straight into the registers in which the
// products want them, since which columns of the result a product makes is free: element j of a run belongs to product j.
#ifndef BITSPARSE_SPMM_TILES_CUH
#define BITSPARSE_SPMM_TILES_CUH

#include "ptx.cuh"

typedef long long i64;

// BS_TYPE: what features and results are.
#define BS_FLOAT 0
#define BS_F16 1
#define BS_BF16 2
// BS_WEIGHTS: what the entries of the matrix are.
#define BS_ONES 0
#define BS_SCALES 1 // a factor of each column
#define BS_TILED 2  // values in the order of tiles, lanes and bits
#define BS_CSR 3    // values in the order of the rows

#define BS_ROWS (BS_TYPE == BS_FLOAT ? 2 : 4) // of a group, in a lane
#define BS_K (4 * BS_ROWS)
#define BS_BITS (2 * BS_ROWS)         // of 16 rows of a tile, in a lane: first those of row g, then those of row g + 8
#define BS_WORDS BS_BITS              // of 16 rows of a tile
#define BS_VECTORS (BS_WIDTH / BS_VEC)
#define BS_SLICE (8 * BS_WIDTH)       // columns that a warp makes
#define BS_HELD (BS_TYPE == BS_FLOAT ? BS_WIDTH : BS_WIDTH / 2) // words of one row in a lane
#define BS_WARPS 4 // of a block
#ifndef BS_SPLIT
#define BS_SPLIT 0 // products of what rounding leaves as well
#endif
#ifndef BS_ROUND
#define BS_ROUND 1 // how float32 features become TF32
#endif

#if BS_TYPE == BS_FLOAT
typedef float Element;
#else
typedef unsigned short Element;
#endif

// A run of tiles of one window, as one warp takes it. Windows of many tiles have several; each of those adds into a slot of its own.
struct Piece {
    i64 tile;  // the first
    i64 edge;  // the first of the window
    int window, tiles, slot; // slot -1: all there is of the window
    int split; // of the kernel that adds up: how many slots follow
};

struct TilesParams {
    const void *x;
    void *y;
    float *partial;              // (slots, 16 BS_M, columns)
    const u32 *cols;             // (tiles, BS_K)
    const u32 *bits, *offsets;   // (tiles, BS_WORDS, BS_M); edges of the window before those of a word
    const u32 *row_offsets;      // (pieces, 16 BS_M): edges of the window before those of a row from the piece on
    const float *values, *col_scale, *row_scale, *counts;
    const Piece *pieces;
    i64 rows, piece_count, value_head; // value_head: from the values of one head to those of the next
    u32 row_bytes;
    int columns, width, head_slices, slices, outer, value_step; // width: columns of a head
    u32 groups;                  // of BS_WARPS pieces
};

// Columns of a group and bits of a tile, on their way one gather ahead of the features.
struct Index {
    u32 col[BS_ROWS], word[BS_M];
#if BS_WEIGHTS == BS_TILED
    u32 offset[BS_M];
#endif
};

// What one tile needs for its products.
struct Gathered {
    u32 b[BS_ROWS][BS_HELD], word[BS_M];
#if BS_WEIGHTS != BS_ONES
    float scale[BS_ROWS];
#endif
#if BS_WEIGHTS >= BS_TILED
    float value[BS_M][BS_BITS];
#endif
};

BS_INLINE float float_of(Element e)
{
#if BS_TYPE == BS_FLOAT
    return e;
#elif BS_TYPE == BS_F16
    return float_of_f16(e);
#else
    return __uint_as_float((u32)e << 16);
#endif
}

// Two elements of the features' type, rounded to nearest; TF32 for float32, one to a word.
BS_INLINE u32 rounded(float low, float high)
{
#if BS_TYPE == BS_FLOAT
    return tf32_of(low);
#elif BS_TYPE == BS_F16
    return f16x2_of(low, high);
#else
    return bf16x2_of(low, high);
#endif
}

BS_INLINE Element element_of(float f)
{
#if BS_TYPE == BS_FLOAT
    return f;
#else
    return (Element)rounded(f, f);
#endif
}

template <int n> BS_INLINE void load_words(u32 (&to)[n], const u32 *from)
{
    if (n == 4) {
        const uint4 v = __ldg((const uint4 *)from);
        to[0] = v.x, to[n > 1 ? 1 : 0] = v.y, to[n > 2 ? 2 : 0] = v.z, to[n > 3 ? 3 : 0] = v.w;
    } else if (n == 2) {
        const uint2 v = __ldg((const uint2 *)from);
        to[0] = v.x, to[n > 1 ? 1 : 0] = v.y;
    } else {
        to[0] = __ldg(from);
    }
}

// BS_VEC neighbours as words, the first at index `at` of what a lane holds of the row.
BS_INLINE void load_run(u32 (&to)[BS_HELD], int at, const Element *from)
{
#if BS_TYPE == BS_FLOAT
    u32 w[BS_VEC];
    load_words(w, (const u32 *)from);
#pragma unroll
    for (int i = 0; i < BS_VEC; i++)
        to[at + i] = w[i];
#elif BS_VEC == 1
    const u32 w = __ldg((const unsigned short *)from); // two runs make a word
    to[at / 2] = at % 2 ? to[at / 2] | w << 16 : w;
#else
    u32 w[BS_VEC / 2];
    load_words(w, (const u32 *)from);
#pragma unroll
    for (int i = 0; i < BS_VEC / 2; i++)
        to[at / 2 + i] = w[i];
#endif
}

// What a lane always needs: where it is in the tile and in the features.
struct Lane {
    int g, t, q;          // 4 g + t; the word that holds its bits
    u32 below, row[2], row_below[2]; // masks of that word: the bits of lower lanes, those of its rows, those in lower lanes
    const u32 *cols, *bits, *offsets;
    const Element *x;
    int run[BS_VECTORS];  // elements from x to its runs
    const float *values;
    u32 next[BS_M][2];    // values in the order of rows: where the rows go on
};

// Of the tile that is `ahead` tiles from where the lane is.
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
#if BS_WEIGHTS == BS_SCALES
        to.scale[r] = __ldg(p.col_scale + from.col[r]);
#elif BS_WEIGHTS >= BS_TILED
        to.scale[r] = p.col_scale == nullptr ? 1.0f : __ldg(p.col_scale + from.col[r]);
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
            if (i % BS_ROWS == 0) {
                at = l.next[m][upper] + __popc(word & l.row_below[upper]);
                l.next[m][upper] += __popc(word & l.row[upper]);
            }
#endif
            if (bits >> i & 1)
                to.value[m][i] = __ldg(l.values + (i64)at * p.value_step);
            at += bits >> i & 1;
        }
#endif
    }
}

// The operand of 16 rows: register i holds row g + 8 (i % 2), the columns of half i / 2 of what the lane holds. With `low`, what rounding
// left of the weights.
BS_INLINE void weigh(u32 (&a)[4], const Gathered &from, int m, const Lane &l, bool low)
{
    const u32 bits = bits_of(from.word[m], l);
#if BS_WEIGHTS == BS_ONES
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
#pragma unroll
    for (int i = 0; i < BS_BITS; i++) {
        float f = from.scale[i % BS_ROWS];
#if BS_WEIGHTS >= BS_TILED
        f *= from.value[m][i];
#endif
        w[i] = bits >> i & 1 ? f : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = BS_ROWS * (i % 2) + BS_ROWS / 2 * (i / 2), next = at + BS_ROWS / 2 - 1;
        a[i] = rounded(w[at], w[next]);
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

// A float32 feature whose last 13 bits the products will cut off. BS_ROUND 0: as it is, 2^-10 of it at most are lost. 1: made larger by
// two thirds of half of that first, so that what is cut off is right on average and 6.4e-4 at most; one instruction, and what fits stays
// what it is. 2: rounded to nearest, 2^-11; three instructions.
BS_INLINE u32 narrowed(u32 x)
{
    return BS_ROUND == 2 ? tf32_of(__uint_as_float(x)) : BS_ROUND == 1 ? __float_as_uint(__uint_as_float(x) * 1.00034f) : x;
}

BS_INLINE void multiply(float (&sum)[BS_M][BS_WIDTH][4], const Gathered &from, const Lane &l)
{
    u32 b[2][BS_WIDTH];
#pragma unroll
    for (int j = 0; j < BS_WIDTH; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            b[half][j] = column_of(from, half, j);
#if BS_TYPE == BS_FLOAT && !BS_SPLIT
            b[half][j] = narrowed(b[half][j]);
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
