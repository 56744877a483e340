/* The sparse drivers that the Cython modules call. Those modules have checked sizes against the buffers. What only a pass over the data
 * can show (row pointers, column indices) is checked here, before anything is read through an index.
 *
 * Another thread may write into the caller's arrays meanwhile, as the GIL is not held. So what was checked is never read from them
 * again: row pointers are copied and the copy is checked, and a column is bounded each time it is loaded (atomically, so that no
 * compiler loads it twice). The worst outcome is a wrong number. */
#ifndef BITSPARSE_DRIVE_SPARSE_H
#define BITSPARSE_DRIVE_SPARSE_H

#include "drivers/drive.h"
#include "drivers/parallel.h"
#include "simd/spmm_kernels.h"

typedef struct {
    const void *indptr, *indices; /* uint64 if wide, else uint32; no indices: edge e belongs to column e */
    int wide;
    size_t rows, cols, nnz;
} bs_csr;

enum bs_sparse_status { BS_SPARSE_OK, BS_BAD_INDPTR, BS_BAD_INDEX, BS_NO_MEMORY };

BS_FN size_t bs_row_start(const bs_csr *a, size_t r)
{
    return a->wide ? (size_t)((const uint64_t *)a->indptr)[r] : ((const uint32_t *)a->indptr)[r];
}

/* The column of an edge as it is stored, unchecked. */
BS_FN size_t bs_stored_column(const bs_csr *a, size_t e)
{
    if (!a->indices)
        return e;
    return a->wide ? (size_t)__atomic_load_n((const uint64_t *)a->indices + e, __ATOMIC_RELAXED)
                   : __atomic_load_n((const uint32_t *)a->indices + e, __ATOMIC_RELAXED);
}

/* The column of an edge that has been checked; column 0 if another thread has written something else since. */
BS_FN size_t bs_column(const bs_csr *a, size_t e)
{
    const size_t c = bs_stored_column(a, e);
    return c < a->cols ? c : 0;
}

/* Rows divided into units of work: a unit holds the rows r with r + indptr[r] in one interval, so at most BS_SEGMENT rows and
 * BS_UNIT_EDGES edges. Rows of more than BS_SEGMENT edges are in no unit; they are cut into pieces, by position alone, so sums do not
 * depend on threads. */
typedef struct {
    bs_csr a; /* with its own copy of the row pointers */
    size_t units, n_long, pieces;
    size_t *start; /* first row of every unit, then `rows`: units + 1 */
    size_t *long_row, *first_piece, *owner; /* n_long, n_long + 1, pieces */
    uint16_t *order; /* see bs_split_order; NULL if there is none */
} bs_split;

/* The length of the longest row, or -1 if indptr does not start at 0, decreases, or does not end at nnz. */
int64_t bs_longest_row(const bs_csr *a);
/* Copies the pattern's row pointers and checks the copy; call bs_rows_free also after a failure. */
int bs_rows_copy(bs_csr *own, const bs_csr *a, int64_t *longest);
void bs_rows_free(bs_csr *own);
int bs_split_make(bs_split *s, const bs_csr *a);
/* Orders the rows of each unit from the longest to the shortest, for repeated sums of one column. */
int bs_split_order(bs_split *s);
void bs_split_free(bs_split *s);

/* The part of A that one unit handles: whole short rows, or one piece of a long row. */
typedef struct {
    size_t row, rows, edge, edges;
    size_t piece; /* index of the piece, or SIZE_MAX */
    const uint16_t *order; /* rows of a unit, the longest first, readable BS_SLACK bytes past the last; or NULL */
    uint32_t first[BS_SEGMENT + 1];
} bs_part;

void bs_part_of(const bs_split *s, size_t unit, bs_part *p);

/* ---- softmax over the edges of a row ---- */
typedef struct {
    int wide;                    /* float64, else float32 */
    size_t heads;
    const void *scores;          /* (nnz, heads), or NULL: leaky(source[column] + target[row]) */
    const void *source, *target; /* (cols, heads), (rows, heads) */
    double slope;
} bs_scores;

/* What attention keeps for its gradient, and what the gradient sums. All of it has the scores' type unless noted; absent parts are NULL. */
typedef struct {
    bs_scores scores;
    const void *ends; /* only for the gradient: (cols, heads, 3), target, lse and dot product of each row of the attention's pattern, whose
                         * transpose is then summed over, without `source` and with the scores of its rows as `target` */
    int dropout;
    double kept_scale; /* factor of the weights that are kept; 1 without dropout */
    uint64_t seed;
    uint32_t threshold;
    void *lse; /* (rows, heads): logarithms of sums of powers; not with `ends` */
    void *share; /* (rows, heads): sums of weights of scores above 0; in the gradient: of weights, slopes and dot products */
    void *above; /* (rows, heads * width): like `out`, with weights of scores above 0; in the gradient: with slopes, accumulators */
} bs_attention;

/* Largest score and sum of exponentials of every long row and head, of the scores' type: `stats` is (n_long, heads, 2). */
int bs_softmax_long(const bs_spmm_kernels *k, int threads, const bs_split *s, const bs_scores *from, void *stats);
/* Weights of the part's edges for one head, into `to` and, if sums over scores above 0 are wanted, `above` (one value per edge, of the
 * scores' type). Columns have been checked. `kept`: for each edge one bit per head, for the group of four heads that includes this one;
 * only with dropout. The sums of rows go to `share` (`heads` elements apart) and `lse`, if these are given. */
void bs_attention_part(const bs_spmm_kernels *k, const bs_split *s, const bs_part *p, const bs_attention *from, size_t head,
                       const void *stats, const unsigned char *kept, void *to, void *above, void *share, void *lse);

/* ---- drivers ---- */
enum bs_affine { BS_AFFINE_NONE, BS_AFFINE_ROW, BS_AFFINE_COLUMN };

typedef struct {
    int load, reduce; /* one of common/reductions.h; the mean of floats only */
    const unsigned char *x; /* row r begins at r * stride, its head h head_stride bytes later */
    size_t stride, head_stride, row_bytes;
    size_t heads, width; /* columns of a head */
    int bits, encoding; /* fields */
    const void *values; /* (nnz, value_heads) in the accumulator's type, or NULL */
    size_t value_heads; /* 1 or heads */
    const float *row_scale, *col_scale;
    int affine; /* enum bs_affine */
    const float *scale, *offset; /* per row of x, or per column (heads * width) */
    const bs_attention *attention; /* instead of values */
    void *out; /* (rows, heads * width) */
    size_t slice_blocks; /* blocks of columns taken together; 0: depends on the size of x */
} bs_spmm_job;

/* Bits of one element of x, bytes of an accumulator (and of a value), bytes of a result. */
size_t bs_spmm_x_bits(int load, int field_bits);
size_t bs_spmm_acc_bytes(int load);
size_t bs_spmm_out_bytes(int load);
int bs_spmm(bs_run_on on, const bs_csr *a, const bs_spmm_job *job);
/* The same over rows that have been divided already, for repeated calls. */
int bs_spmm_split(bs_run_on on, const bs_split *split, const bs_spmm_job *job);
/* scores and out: (nnz, heads) */
int bs_edge_softmax(bs_run_on on, const bs_csr *a, const bs_scores *from, void *out);

typedef struct {
    int type, op;
    const void *x, *y; /* (rows, heads * width), (cols, heads * width) */
    size_t heads, width;
    const void *weights; /* BS_LEAKY: (heads * width); BS_STEEP: (nnz, heads) */
    double slope;
    void *out; /* (nnz, heads) for dot products and BS_LEAKY, (rows, heads * width) for BS_STEEP, else (nnz, heads * width) */
} bs_sddmm_job;

int bs_sddmm(bs_run_on on, const bs_csr *a, const bs_sddmm_job *job); /* not BS_STEEP */
int bs_steep_sums(bs_run_on on, const bs_csr *a, const bs_sddmm_job *job);

/* The table of a level, or of the best level that the processor has. */
const bs_spmm_kernels *bs_spmm_table(int level);
/* Rows of x for gathers that read up to BS_SLACK bytes past a row: the last rows are copied. The caller frees g->tail. */
int bs_gather_make(bs_gather *g, const unsigned char *x, size_t rows, size_t stride, size_t row_bytes);
/* Addresses of the part's edges, and BS_AHEAD more; not 0 if a column is out of range. */
int bs_locate(const bs_spmm_kernels *k, const bs_csr *a, const bs_gather *g, size_t edge, size_t edges, const unsigned char **at);

#endif
