/* The table of hot loops that is compiled once per instruction set, and the plain data that these loops share with the drivers. */
#ifndef BITSPARSE_KERNELS_H
#define BITSPARSE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/scalar.h"
#include "simd/join.h"

enum bs_dtype { BS_BOOL, BS_I8, BS_U8, BS_I16, BS_U16, BS_I32, BS_U32, BS_I64, BS_U64, BS_F16, BS_BF16, BS_F32, BS_F64, BS_DTYPES };
enum bs_encoding { BS_UNSIGNED, BS_SIGNED, BS_BIPOLAR };
enum bs_layout { BS_PLANES, BS_ROWS };
/* How a value becomes a code: its low bits, v > 0, or (floats) v >= 0. */
enum bs_load { BS_LOAD_BITS, BS_LOAD_POSITIVE };

#define BS_TILE 128         /* rows and columns of a tile of codes: one 128-bit group */
#define BS_CHUNK 1024       /* elements of one row handled at a time when the last axis is packed */
#define BS_MICRO_ROWS 8     /* rows of a product's micro-kernel: the height of a canonical zero tile */
#define BS_MICRO_COLS 16    /* columns of a product's micro-kernel */
#define BS_BYTES_AHEAD 8    /* bytes of panels prefetched while one group is multiplied; see bytes_micro */

/* How a code of at most 8 bits becomes a byte: start + the weights of its set bits, modulo 256. */
typedef struct {
    int bits;
    uint8_t start, weights[8];
} bs_byte_form;

/* Sums of rows by panels: they start with the values at `from`, where rows may share one line (step 0), and are stored at `to`. */
typedef struct {
    const int32_t *from;
    size_t from_step;
    int32_t *to;
    size_t to_step;
} bs_sums;

/* Runs of 128-bit steps along the contraction axis: the steps of a row block that are left when its zero tiles are skipped. */
typedef struct {
    uint32_t start, length;
} bs_run;

/* round(((x - offset) / divisor) * multiplier) clipped to [qmin, qmax], kept modulo 2^bits. */
typedef struct {
    double multiplier;
    int64_t qmin, qmax;
    int rounding, bits;
} bs_quantizer;

/* A step on codes in bytes, in rows of `stride` bytes (a multiple of 16; bytes after the codes are ignored). With panels ([columns /
 * 16][k / 4][16][4], zero beyond k and the columns) it multiplies x by weights. Otherwise it sums rows of x: row r of the result is the
 * sum of the rows indices[indptr[r - from]] .. indices[indptr[r - from + 1] - 1]. With `lines` the codes are sparse: row r is the sum of
 * the lines of weights ([k][columns in whole blocks of 16], 16 bits each) that its indices name, each times its code, or once if there
 * are no `values`. Every sum fits int32. */
typedef struct {
    const uint8_t *x;
    size_t stride, k;
    const int8_t *panels;
    const int32_t *lines;
    const uint8_t *values;
    const int32_t *indptr, *indices;
    size_t from;           /* the row that indptr begins with */
    const int32_t *places; /* row r of a float result is stored at places[r]; NULL: at r */
    int most;              /* no code of x is larger */
} bs_bytes_step;

/* A chain of few operations: float(sum) * row_scale * scale + row_term * term + bias, then to codes of 0 .. high or, with `floats`,
 * through a relu or nothing. Vectors over columns extend to whole blocks of 16; those over rows may be constant (step 0). */
typedef struct {
    const float *row_scale, *row_term, *scale, *term, *bias;
    size_t row_scale_step, row_term_step;
    size_t columns, width; /* columns of the result, and columns rounded up to whole blocks of 16 */
    int rows;            /* whether there is a factor or a term of the rows */
    int relu, divided;   /* divided: the value is divided by `high` and multiplied by it before the rounding */
    float high, inverse; /* the highest code, and 1 / high */
    uint8_t *codes;
    float *floats;
    const int32_t *places;
} bs_lines;

/* Rows of a packet's chunk in units of at most 8 bits. */
typedef struct {
    const uint8_t *units; /* eight bytes past the end can be read */
    uint32_t *counts;     /* units of each row, later its entries */
    size_t rows, row, low, span; /* number of rows, number of the first row, first column, nodes of the largest block */
    int full, loops;
    int32_t filler; /* rows are padded with it to whole fours of entries; negative: they are not padded */
} bs_gap_rows;

/* Tallest window: a row in a window is one bit of a 16-bit mask. */
#define BS_WINDOW_MAX 16
/* Words of a panel that are examined together; `words` is a multiple of this. */
#define BS_PANEL_STEP 16

/* The entries of some windows' rows between two columns; see simd/kernels_cells.inc. A cell is 2^shift columns. A panel may hold several
 * windows, each of `words` words of cells. */
typedef struct {
    const void *entries; /* of the windows: int32 or int64, within the panel */
    size_t from[BS_WINDOW_MAX], to[BS_WINDOW_MAX]; /* the range of entries of each row */
    int rows, whole, shift, windows;   /* whole: each row begins where the previous one ends */
    int64_t base;                      /* the panel's first column, a multiple of 64 cells */
    uint32_t row_codes[BS_WINDOW_MAX]; /* for blocks: 16 for each cell before the row's window, and the row's first bit in a tile */
    uint32_t *codes; /* for blocks: room for 16 times the cell of each entry plus its bit in the tile, and for 16 more */
    uint64_t *bits; /* one bit per cell; zero before and after */
    uint8_t *touched; /* one per word of cells: whether it has any; zero before and after */
    void *through; /* number of cells up to the end of each word, or of each nonzero word: room for uint32 */
    uint32_t *list; /* room for the numbers of words, and for 16 more */
    size_t words, number; /* words of each window; number of the window's cells before the panel */
    void *cells; /* the windows' columns (shift 0) or blocks of four (shift 2), of the type of the entries */
    void *edge_col; /* shift 0: position of each entry's column, an integer of `bytes` bytes; NULL with `tiles` or if only counting */
    int bytes;
    uint16_t *tiles; /* shift 2: bit 4 r + c of a block is row r and column c; NULL if only counting */
} bs_panel;

/* Windows of at most this many entries together, and of at most this many columns: a key of 32 bits holds a column above the number of
 * its entry, and one more key must be possible. */
#define BS_FEW_MOST 256
#define BS_FEW_COLUMNS (((int64_t)1 << 24) - 1)

/* Rows of some windows with few entries, which have not been checked; see simd/kernels_sorted.inc. */
typedef struct {
    const void *entries, *starts; /* of the matrix, and where these rows start in it: int32 or int64 */
    int rows, window, shift; /* a cell is 2^shift columns */
    int blocks; /* several windows of 4 rows with blocks of 4 columns (shift 2); otherwise one window of any height */
    int64_t cols;
    size_t cells_of_row; /* at least the number of cells that all columns make: a power of two */
    void *cells; /* as in bs_panel */
    void *edge_col;
    int bytes;
    uint16_t *tiles;
} bs_few;

/* The first gap of a row is counted from the earliest column at which its block can begin. */
BS_FN uint64_t bs_gaps_from(size_t row, size_t low, size_t span) { return row + 1 - low > span ? row + 1 - span : low; }

typedef struct {
    /* codes from values */
    void (*load_codes)(const void *src, int dtype, size_t n, int how, int bits, uint32_t *codes);
    void (*load_float)(const void *src, int dtype, size_t n, float *dst);
    void (*load_double)(const void *src, int dtype, size_t n, double *dst);
    void (*quantize_float)(const float *x, const float *offset, const float *divisor, size_t n, const bs_quantizer *q,
                           const uint16_t *half_words, uint32_t *codes);
    void (*quantize_double)(const double *x, const double *offset, const double *divisor, size_t n, const bs_quantizer *q,
                            const uint16_t *half_words, uint32_t *codes);
    void (*half_words)(uint64_t draw, size_t draws, uint64_t seed, uint32_t stream, uint16_t *out);
    /* values from codes */
    void (*store_values)(const uint32_t *codes, size_t n, int bits, int encoding, int dtype, void *dst);
    void (*dequantize_float)(const uint32_t *codes, size_t n, int bits, int encoding, const float *scale, const float *offset, float *dst);
    void (*dequantize_double)(const uint32_t *codes, size_t n, int bits, int encoding, const float *scale, const float *offset,
                              double *dst);
    void (*store_float)(const float *x, size_t n, int dtype, void *dst);
    /* words; code buffers are zero up to the next multiple of 128 */
    int (*pack_sign_float)(const float *x, size_t words, uint32_t *dst); /* returns whether some value is NaN */
    void (*pack_planes)(const uint32_t *codes, size_t words, int bits, uint32_t *dst, size_t plane_stride);
    void (*pack_fields)(const uint32_t *codes, size_t words, int bits, uint32_t *dst);
    void (*pack_columns)(const uint32_t *tile, size_t rows, size_t cols, int bits, uint32_t *dst, size_t plane_stride);
    void (*unpack_planes)(const uint32_t *src, size_t plane_stride, size_t words, int bits, uint32_t *codes);
    void (*unpack_fields)(const uint32_t *src, size_t words, int bits, uint32_t *codes);
    void (*unpack_columns)(const uint32_t *src, size_t plane_stride, size_t rows, size_t cols, int bits, uint32_t *tile);
    /* reductions */
    uint64_t (*popcount)(const uint32_t *words, size_t n);
    void (*or_words)(uint32_t *into, const uint32_t *words, size_t n);
    void (*range_float)(const float *x, size_t n, float *lo, float *hi, int *finite);
    void (*range_double)(const double *x, size_t n, double *lo, double *hi, int *finite);
    void (*range_columns_float)(const float *x, size_t n, float *lo, float *hi, int *finite);
    void (*range_columns_double)(const double *x, size_t n, double *lo, double *hi, int *finite);
    /* products: see simd/kernels_planes.inc and simd/kernels_digits.inc */
    size_t planes_step_words; /* uint64 words of a plane panel per 64-bit step */
    void (*planes_pack)(const uint32_t *plane, size_t column_stride, size_t cols, size_t steps, uint64_t *panel);
    void (*planes_micro)(const uint32_t *const rows[BS_MICRO_ROWS], const uint64_t *panels, size_t n_panels, size_t panel_stride,
                         const bs_run *runs, size_t n_runs, int shift, int negative, int fresh, int64_t *acc, size_t acc_stride);
    /* searches, see simd/kernels_search.inc: counts[i] = popcount(line & lines[i]), and which of n <= 64 counts have weight * count -
     * share * ones >= bound, for numbers of 31 bits and a bound of any size */
    void (*line_counts)(const uint32_t *line, const uint32_t *lines, size_t width, size_t n, int64_t *counts);
    uint64_t (*passing)(const int64_t *counts, const int64_t *ones, size_t n, int64_t weight, int64_t share, int64_t bound);
    void (*digits_split)(const uint32_t *codes, size_t n, int bits, int encoding, int width, int digits, int16_t *dst, size_t digit_stride);
    void (*digits_micro)(const int16_t *a, size_t a_stride, const int16_t *panel, size_t pairs, int shift, int64_t *acc, size_t acc_stride);
    /* products of bytes with one or two panels: see simd/kernels_blocks.inc */
    void (*planes_to_form)(const uint32_t *lines, size_t line_stride, size_t count, size_t plane_stride, size_t n, const bs_byte_form *form,
                           uint8_t *dst, size_t dst_stride);
    void (*interleave)(const uint8_t *columns, size_t n, int8_t *panel);
    size_t bytes_rows; /* rows that one call may take, a multiple of BS_MICRO_ROWS */
    void (*bytes_micro)(const uint8_t *a, size_t stride, size_t rows, const int8_t *panels, size_t n_panels, size_t panel_stride,
                        size_t groups, int pairs, const int8_t *ahead, const bs_sums *sums);
    /* codes in bytes: see simd/kernels_bytes.inc */
    void (*bytes_product)(const uint8_t *x, size_t stride, size_t rows, const int8_t *panel, size_t groups, int32_t *acc,
                          size_t acc_stride);
    void (*bytes_gather)(const uint8_t *x, size_t stride, const int32_t *rows, size_t count, size_t width, int32_t *acc);
    void (*lines_gather)(const int32_t *lines, size_t width, const int32_t *rows, const uint8_t *values, size_t count, int32_t *acc);
    void (*ints_to_float)(const int32_t *acc, size_t n, float *v);
    void (*codes_to_bytes)(const uint32_t *codes, size_t n, uint8_t *out);
    void (*nearest_bytes)(const float *v, size_t n, float high, uint8_t *out);
    /* Computes rows first .. last of a step at once, see simd/kernels_lines.inc; returns whether a NaN would have become a code. NULL if
     * this level has no such kernel. */
    int (*bytes_lines)(const bs_bytes_step *s, const bs_lines *l, size_t first, size_t last);
    /* packets: see simd/kernels_gaps.inc */
    void (*fields_to_bytes)(const uint8_t *from, const uint8_t *end, size_t run, int bits, size_t count, size_t rows, size_t stride,
                            uint8_t *to);
    void (*planes_to_bytes)(const uint8_t *from, const uint8_t *end, size_t run, int bits, size_t columns, size_t rows, size_t stride,
                            uint8_t *to);
    size_t (*gaps_to_columns)(const bs_gap_rows *g, size_t entry, int32_t *indptr, int32_t *indices, uint64_t *reach);
    /* windows: store the cells of a panel, and return how many it has and how many each of its windows has */
    size_t (*panel_cells_i32)(const bs_panel *p, size_t *of_windows);
    size_t (*panel_cells_i64)(const bs_panel *p, size_t *of_windows);
    /* The same for few entries; SIZE_MAX if they do not ascend in their rows or are out of range. NULL if this level is not faster. */
    size_t (*few_cells_i32)(const bs_few *p, size_t *of_windows);
    size_t (*few_cells_i64)(const bs_few *p, size_t *of_windows);
    /* Copies columns, or only examines them if `to` is NULL. Returns how many are not above the previous one; SIZE_MAX if one is not
     * within `limit`. */
    size_t (*take_columns_i32)(const void *from, size_t count, int64_t limit, void *to);
    size_t (*take_columns_i64)(const void *from, size_t count, int64_t limit, void *to);
    /* epilogue pieces over one row of up to 128 columns */
    void (*acc_to_float)(const int64_t *acc, size_t n, int narrow, float *v);
    void (*scale_row)(float *v, size_t n, float factor);
    void (*multiply_row)(float *v, size_t n, const float *factor);
    void (*add_row)(float *v, size_t n, const float *term);
    void (*add_product_row)(float *v, size_t n, float row, const float *col);
    void (*activate_row)(float *v, size_t n, int activation, float slope);
    int (*has_nan)(const float *v, size_t n);
    /* memcpy past the caches, for results too large to stay there; the caller fences */
    void (*stream)(void *dst, const void *src, size_t bytes);
    /* The same for accumulators as int32; `past` is 0 for a result that is small. */
    void (*store_int32)(int32_t *dst, const int64_t *acc, size_t n, int past);
} bs_kernels;

extern const bs_kernels bs_kernels_scalar;
#ifdef BS_X86
extern const bs_kernels bs_kernels_avx2;
#ifdef BS_AVXVNNI
extern const bs_kernels bs_kernels_avxvnni;
#endif
extern const bs_kernels bs_kernels_avx512;
#ifdef BS_AMX_TILES
extern const bs_kernels bs_kernels_amx;
#endif
#endif

/* Inside the per-ISA files: NAME(f) is f_avx2 and so on. */
#ifdef BS_ISA
#define NAME(f) BS_JOIN(f, BS_ISA)
#endif

#endif
