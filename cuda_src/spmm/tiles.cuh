// Condensed windows: 16 BS_M rows of a sparse matrix, whose columns are renumbered and cut into groups of 8 or 16. What a lane of a warp
// holds of such a tile, and how it loads, weighs, multiplies and stores it.
//
// A group of columns is one step of m16n8k8 (float32 as TF32) or m16n8k16 (16-bit floats). Lane 4 g + t loads whole runs of BS_VEC
// neighbours of the features' rows: rows 2 t and 2 t + 1 of the group (4 t to 4 t + 3 of 16). The runs go straight into the registers that
// the products read, since each product may compute any columns of the result: element j of a run belongs to product j.
#ifndef BITSPARSE_SPMM_TILES_CUH
#define BITSPARSE_SPMM_TILES_CUH

#include "common/ptx.cuh"

typedef long long i64;

// BS_TYPE: the type of features and results.
#define BS_FLOAT 0
#define BS_F16 1
#define BS_BF16 2
// BS_WEIGHTS: the entries of the matrix.
#define BS_ONES 0
#define BS_SCALES 1 // a factor of each column
#define BS_TILED 2 // values in the order of tiles, lanes and bits
#define BS_CSR 3 // values in the order of the rows
// BS_WARPS: warps of a block; each takes its own pieces, and they share nothing.

#define BS_ROWS (BS_TYPE == BS_FLOAT ? 2 : 4) // rows of a group in a lane
#define BS_K (4 * BS_ROWS)
#define BS_BITS (2 * BS_ROWS) // bits of a lane, of 16 rows of a tile: first those of row g, then those of row g + 8
#define BS_WORDS BS_BITS // words for 16 rows of a tile
#define BS_VECTORS (BS_WIDTH / BS_VEC)
#define BS_SLICE (8 * BS_WIDTH) // columns that a warp computes
#define BS_HELD (BS_TYPE == BS_FLOAT ? BS_WIDTH : BS_WIDTH / 2) // words of one row in a lane
#ifndef BS_SCALED
#define BS_SCALED (BS_WEIGHTS == BS_SCALES) // by a factor of each column, possibly together with values
#endif
#ifndef BS_SPLIT
#define BS_SPLIT 0 // whether products with the rounding errors are added
#endif

#if BS_TYPE == BS_FLOAT
typedef float Element;
#else
typedef unsigned short Element;
#endif

// A run of tiles of one window, for one warp. Windows of many tiles have several pieces, each of which adds into its own slot.
struct Piece {
    i64 tile; // the first
    i64 edge; // the first of the window
    int window, tiles, slot; // slot -1: the piece is the whole window
    int split; // for the kernel that adds up slots: how many slots follow
};

BS_INLINE Piece load_piece(const Piece *from)
{
    union {
        int4 v[2];
        Piece p;
    } both;
    both.v[0] = __ldg((const int4 *)from), both.v[1] = __ldg((const int4 *)from + 1);
    return both.p;
}

struct TilesParams {
    const void *x;
    void *y;
    float *partial; // (slots, 16 BS_M, columns)
    const u32 *cols; // (tiles, BS_K)
    const u32 *bits, *offsets; // (tiles, BS_WORDS, BS_M); edges of the window before those of each word
    const u32 *row_offsets; // (pieces, 16 BS_M): number in the window of each row's first edge from the piece on
    const float *values, *col_scale, *row_scale, *counts;
    const Piece *pieces;
    i64 rows, piece_count, value_head; // value_head: from the values of one head to those of the next
    u32 row_bytes;
    u32 value_bytes; // from the value of one edge to that of the next
    int columns, width, head_slices, slices; // width: columns of a head
};

// Columns of a group and bits of a tile, loaded one gather ahead of the features.
struct Index {
    u32 col[BS_ROWS], word[BS_M];
#if BS_WEIGHTS == BS_TILED
    u32 offset[BS_M];
#endif
};

// What the products of one tile need.
struct Gathered {
    u32 b[BS_ROWS][BS_HELD], word[BS_M];
#if BS_SCALED
    float scale[BS_ROWS];
#endif
#if BS_WEIGHTS >= BS_TILED
    float value[BS_M][BS_BITS]; // 0 where there is no edge
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

// Two elements rounded to nearest in the features' type, one word; for float32 one element as TF32.
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

// Loads BS_VEC neighbours as words; the first has index `at` in what a lane holds of the row.
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

#endif
