/* Sparse times dense: units of rows and pieces of long rows over threads, blocks of columns inside them. Where x is gathered from often, its
 * columns are laid side by side first, a slice at a time. */
#include <stdlib.h>
#include <string.h>

#include "drivers/laid.h"

enum accumulator { ACC_F32, ACC_F64, ACC_I32, ACC_I64 };

typedef struct context {
    const bs_spmm_kernels *k;
    const bs_spmm_job *job;
    int (*one_column)(const struct context *, const bs_part *, const bs_spmm_block *); /* NULL where there are more, or other sums */
    int (*by_columns)(const bs_spmm_block *); /* NULL where rows of x are found beforehand */
    const bs_split *split;
    bs_gather gather;
    int acc, op, bad;
    size_t acc_size, x_bits, out_size; /* x_bits: of one element of x */
    size_t block_cols, blocks_per_head, blocks, per_slice;
    unsigned char *laid; /* columns of slice `slice`, times `factors`, if there are any; NULL where x is gathered as it lies */
    const float *factors;
    size_t slice; /* the first of the slices that units are of */
    float *col_scale, *col_offset; /* padded copies */
    unsigned char *partial; /* (pieces, heads * width) accumulators; with sums of weights of scores above 0 these as well, behind */
    unsigned char *shares; /* (pieces, heads) */
    void *stats;
} context;

/* Buffers of one unit, on the thread's stack. */
typedef struct {
    union {
        const unsigned char *at[BS_UNIT_EDGES + BS_AHEAD];
        uint32_t column[BS_UNIT_EDGES + BS_AHEAD];
    };
    union {
        float f32[BS_UNIT_EDGES + BS_SLACK / sizeof(float)];
        double f64[BS_UNIT_EDGES + BS_SLACK / sizeof(double)];
        int32_t i32[BS_UNIT_EDGES];
        int64_t i64[BS_UNIT_EDGES];
    } weight, above;
    unsigned char kept[BS_UNIT_EDGES];
    float scale[BS_UNIT_EDGES], offset[BS_UNIT_EDGES];
    bs_part part;
} frame;

static int accumulator_of(int load)
{
    return load == BS_X_F64 ? ACC_F64 : load < BS_X_F64 ? ACC_F32 : load < BS_X_I32_I64 ? ACC_I32 : ACC_I64;
}

size_t bs_spmm_acc_bytes(int load)
{
    const int acc = accumulator_of(load);
    return acc == ACC_F32 || acc == ACC_I32 ? 4 : 8;
}

size_t bs_spmm_out_bytes(int load) { return load == BS_X_F16 || load == BS_X_BF16 ? 2 : bs_spmm_acc_bytes(load); }

size_t bs_spmm_x_bits(int load, int field_bits)
{
    static const unsigned char bits[BS_SPMM_LOADS] = {
        [BS_X_F32] = 32,     [BS_X_F16] = 16,     [BS_X_BF16] = 16,    [BS_X_I8_F32] = 8,   [BS_X_U8_F32] = 8,
        [BS_X_I16_F32] = 16, [BS_X_U16_F32] = 16, [BS_X_F64] = 64,     [BS_X_I8_I32] = 8,   [BS_X_U8_I32] = 8,
        [BS_X_I16_I32] = 16, [BS_X_U16_I32] = 16, [BS_X_I32_I64] = 32, [BS_X_U32_I64] = 32, [BS_X_I64] = 64,
    };
    return bits[load] ? bits[load] : (size_t)field_bits;
}

#define FILL_WEIGHTS(T, member, FLOATING)                                                                                                  \
    do {                                                                                                                                   \
        const T *values = j->values;                                                                                                       \
        for (size_t e = 0; e < p->edges; e++) {                                                                                            \
            T weight = values ? values[(p->edge + e) * j->value_heads + (j->value_heads > 1 ? head : 0)] : (T)1;                           \
            if (FLOATING && j->col_scale)                                                                                                  \
                weight *= (T)j->col_scale[bs_column(&c->split->a, p->edge + e)];                                                           \
            f->weight.member[e] = weight;                                                                                                  \
        }                                                                                                                                  \
        if (FLOATING && BS_SELECTS(j->reduce) && j->row_scale)                                                                             \
            for (size_t r = 0; r < p->rows; r++)                                                                                           \
                for (size_t e = p->first[r]; e < p->first[r + 1]; e++)                                                                     \
                    f->weight.member[e] *= (T)j->row_scale[p->row + r];                                                                    \
    } while (0)

/* Item `head` of row `row` of an array (rows, heads) of accumulators; NULL if there is no array. */
static void *item(const context *c, void *array, size_t row, size_t head)
{
    return array ? (unsigned char *)array + (row * c->job->heads + head) * c->acc_size : NULL;
}

/* Weights by attention; sums of rows go with the first columns of a head. `*drawn`: which four heads `kept` is of. */
static void attend(const context *c, frame *f, size_t head, int first, size_t *drawn)
{
    const bs_attention *from = c->job->attention;
    const bs_part *p = &f->part;
    if (from->dropout && *drawn != head / 4) {
        *drawn = head / 4;
        for (size_t r = 0; r < p->rows; r++)
            for (size_t e = p->first[r]; e < p->first[r + 1]; e++) {
                const size_t column = bs_column(&c->split->a, p->edge + e), row = p->row + r;
                f->kept[e] = (unsigned char)bs_edge_kept(from->ends ? column : row, from->ends ? row : column, (uint32_t)*drawn, from->seed,
                                                         from->threshold);
            }
    }
    const int piece = p->piece != SIZE_MAX, leads = !piece || p->piece == c->split->first_piece[c->split->owner[p->piece]];
    void *share = !first ? NULL : piece ? item(c, c->shares, p->piece, head) : item(c, from->share, p->row, head);
    void *lse = first && leads ? item(c, from->lse, p->row, head) : NULL;
    bs_attention_part(c->k, c->split, p, from, head, c->stats, from->dropout ? f->kept : NULL, &f->weight, from->above ? &f->above : NULL,
                      share, lse);
}

/* The weights of the part's edges for one head. */
static const void *weights(const context *c, frame *f, size_t head)
{
    const bs_spmm_job *j = c->job;
    const bs_part *p = &f->part;
    if (c->op == BS_SUM)
        return NULL;
    if (c->by_columns == c->k->run_factors)
        return j->col_scale;
    if (j->values && j->value_heads == 1 && !j->col_scale && !(BS_SELECTS(j->reduce) && j->row_scale))
        return (const unsigned char *)j->values + p->edge * c->acc_size;
    switch (c->acc) {
    case ACC_F32: FILL_WEIGHTS(float, f32, 1); break;
    case ACC_F64: FILL_WEIGHTS(double, f64, 1); break;
    case ACC_I32: FILL_WEIGHTS(int32_t, i32, 0); break;
    default: FILL_WEIGHTS(int64_t, i64, 0);
    }
    return &f->weight;
}

#define SHORT_ROW 8 /* edges of a row, on average, up to which rows are summed side by side */

static int short_float(const context *c, const bs_part *p, const float *weights, float *out)
{
    const uint32_t *columns = (const uint32_t *)c->split->a.indices + p->edge;
    return c->k->short_rows_f32(columns, weights, c->job->x, c->split->a.cols, p->first, p->order, p->rows, out);
}

static int short_double(const context *c, const bs_part *p, const double *weights, double *out)
{
    const uint32_t *columns = (const uint32_t *)c->split->a.indices + p->edge;
    return c->k->short_rows_f64(columns, weights, c->job->x, c->split->a.cols, p->first, p->order, p->rows, out);
}

/* Sums of one column, for which vectors would hold one number each: every sum has the same steps as in the kernels. 1 for a bad index.
 * Rows are short, and time goes into branches that are foretold wrongly: each of the first eight edges of a row has its own way out. The code
 * begins on a line of the cache, as a tenth of the time depends on where its branches lie. */
#define ONE_COLUMN(name, T, I)                                                                                                             \
    BS_FN int name##_sums(const context *c, const bs_part *p, const T *weights, T *out)                                                    \
    {                                                                                                                                      \
        const unsigned char *const x = c->job->x;                                                                                          \
        const size_t limit = c->split->a.cols;                                                                                             \
        const I *const columns = (const I *)c->split->a.indices + p->edge;                                                                 \
        for (size_t row = 0; row < p->rows; row++) {                                                                                       \
            size_t e = p->first[row];                                                                                                      \
            const size_t end = p->first[row + 1];                                                                                          \
            T sum = 0, value;                                                                                                              \
            for (int more = 1; more;)                                                                                                      \
                _Pragma("GCC unroll 8") for (int k = 0; k < 8; k++, e++)                                                                   \
                {                                                                                                                          \
                    if (e == end) {                                                                                                        \
                        more = 0;                                                                                                          \
                        break;                                                                                                             \
                    }                                                                                                                      \
                    const size_t column = (size_t)__atomic_load_n(columns + e, __ATOMIC_RELAXED);                                          \
                    if (column >= limit)                                                                                                   \
                        return 1;                                                                                                          \
                    memcpy(&value, x + column * sizeof value, sizeof value);                                                               \
                    sum += weights ? value * weights[e] : value;                                                                           \
                }                                                                                                                          \
            out[row] = sum;                                                                                                                \
        }                                                                                                                                  \
        return 0;                                                                                                                          \
    }                                                                                                                                      \
    __attribute__((aligned(64))) static int name(const context *c, const bs_part *p, const bs_spmm_block *b)                               \
    {                                                                                                                                      \
        T *const out = (T *)(void *)b->out;                                                                                                \
        const int is_short =                                                                                                               \
            sizeof(I) == sizeof(uint32_t) && c->k->short_rows_f32 && p->edges <= SHORT_ROW * p->rows && c->split->a.cols <= INT32_MAX;     \
        if (is_short ? short_##T(c, p, b->weight, out) : b->weight ? name##_sums(c, p, b->weight, out) : name##_sums(c, p, NULL, out))     \
            return 1;                                                                                                                      \
        for (size_t row = 0; b->mean && row < p->rows; row++)                                                                              \
            if (p->first[row + 1] != p->first[row])                                                                                        \
                out[row] /= (T)(float)(p->first[row + 1] - p->first[row]);                                                                 \
        for (size_t row = 0; b->row_scale && row < p->rows; row++)                                                                         \
            out[row] *= (T)b->row_scale[row];                                                                                              \
        return 0;                                                                                                                          \
    }

ONE_COLUMN(one_column_f32, float, uint32_t)
ONE_COLUMN(one_column_f64, double, uint32_t)
ONE_COLUMN(wide_column_f32, float, uint64_t)
ONE_COLUMN(wide_column_f64, double, uint64_t)

/* The columns of a part's edges, with BS_AHEAD more behind them. */
static const uint32_t *columns_of(const bs_csr *a, const bs_part *p, uint32_t *own)
{
    const uint32_t *columns = (const uint32_t *)a->indices + p->edge;
    if (a->nnz - p->edge - p->edges >= BS_AHEAD)
        return columns;
    memcpy(own, columns, p->edges * sizeof *own);
    memset(own + p->edges, 0, BS_AHEAD * sizeof *own);
    return own;
}

static void run_block(context *c, const bs_spmm_block *b)
{
    if (!c->by_columns)
        c->k->run[c->job->load][c->op](b);
    else if (c->by_columns(b))
        __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
}

static void spmm_unit(void *shared, size_t unit, int thread)
{
    (void)thread;
    context *c = shared;
    const bs_spmm_job *j = c->job;
    frame f;
    bs_part *p = &f.part;
    const size_t parts = c->split->units + c->split->pieces, slice = c->slice + unit / parts;
    if (__atomic_load_n(&c->bad, __ATOMIC_RELAXED))
        return;
    bs_part_of(c->split, unit % parts, p);
    if (p->rows == 0)
        return;
    if (!c->one_column && !c->by_columns && bs_locate(c->k, &c->split->a, &c->gather, p->edge, p->edges, f.at)) {
        __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
        return;
    }
    const int piece = p->piece != SIZE_MAX;
    const size_t cols = j->heads * j->width;
    bs_spmm_block b = {
        .at = f.at, .gather = &c->gather, .first = p->first, .rows = p->rows, .raw = piece, .mean = j->reduce == BS_REDUCE_MEAN && !piece};
    b.bits = j->bits;
    b.sign = j->encoding == BS_SIGNED ? 1u << (j->bits - 1) : 0;
    b.twice = -(j->encoding == BS_BIPOLAR);
    b.shift = j->encoding == BS_BIPOLAR ? -1 : 0;
    b.row_scale = j->row_scale && !BS_SELECTS(j->reduce) && !piece ? j->row_scale + p->row : NULL;
    b.out_stride = cols * c->out_size;
    unsigned char *out = (unsigned char *)j->out + p->row * b.out_stride;
    const size_t out_size = piece ? c->acc_size : c->out_size;
    if (piece)
        out = c->partial + p->piece * cols * c->acc_size;
    if (c->by_columns)
        b.column = columns_of(&c->split->a, p, f.column);
    if (j->affine == BS_AFFINE_ROW) {
        for (size_t e = 0; e < p->edges; e++) {
            const size_t column = bs_column(&c->split->a, p->edge + e);
            f.scale[e] = j->scale[column];
            f.offset[e] = j->offset[column];
        }
        b.edge_scale = f.scale;
        b.edge_offset = f.offset;
    }
    if (c->one_column) {
        b.weight = weights(c, &f, 0);
        b.out = out;
        if (c->one_column(c, p, &b))
            __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
        return;
    }
    size_t weighed = SIZE_MAX, drawn = SIZE_MAX;
    for (size_t i = slice * c->per_slice; i < bs_min(c->blocks, (slice + 1) * c->per_slice); i++) {
        const size_t head = i / c->blocks_per_head, col = i % c->blocks_per_head * c->block_cols, at = head * j->width + col;
        if (weighed == SIZE_MAX || (weighed != head && (j->attention || j->value_heads > 1))) {
            if (j->attention)
                attend(c, &f, head, col == 0, &drawn);
            b.weight = j->attention ? &f.weight : weights(c, &f, head);
            weighed = head;
        }
        b.x_offset = c->laid ? 0 : head * j->head_stride + col * c->x_bits / 8;
        b.width = (int)bs_min(c->block_cols, j->width - col);
        b.out = out + at * out_size;
        if (c->col_scale) {
            b.col_scale = c->col_scale + at;
            b.col_offset = c->col_offset + at;
        }
        run_block(c, &b);
        if (j->attention && j->attention->above) {
            const int raw = piece || j->attention->ends;
            const size_t size = raw ? c->acc_size : c->out_size;
            unsigned char *above = piece ? c->partial + (c->split->pieces + p->piece) * cols * size
                                         : (unsigned char *)j->attention->above + p->row * cols * size;
            bs_spmm_block second = b;
            second.weight = &f.above;
            second.raw = raw;
            second.out = above + at * size;
            second.out_stride = cols * size;
            run_block(c, &second);
        }
    }
}

/* ---- columns side by side ---- */
static void lay_rows(void *shared, size_t unit, int thread)
{
    (void)thread;
    const context *c = shared;
    const bs_spmm_job *j = c->job;
    const size_t first = unit * BS_LAID_ROWS, col = c->slice * c->block_cols;
    c->k->lay_f32(j->x + first * j->stride + col * sizeof(float), j->stride, bs_min(BS_LAID_ROWS, c->gather.rows - first),
                  bs_min(c->block_cols, j->width - col), c->factors ? c->factors + first : NULL, c->laid + first * c->gather.stride,
                  c->gather.stride);
}

/* The gathers' way to the columns of the slice, which are laid at once. */
static void lay(context *c, int threads)
{
    c->gather.base = c->laid;
    c->gather.stride = bs_laid_stride(bs_min(c->block_cols, c->job->width - c->slice * c->block_cols));
    c->gather.tail_first = c->gather.rows;
    bs_parallel(lay_rows, c, bs_ceil_div(c->gather.rows, BS_LAID_ROWS), threads);
}

static void sum_slices(context *c, int threads)
{
    const size_t parts = c->split->units + c->split->pieces, slices = bs_ceil_div(c->blocks, c->per_slice);
    if (!c->laid)
        bs_parallel(spmm_unit, c, parts * slices, threads);
    for (; c->laid && c->slice < slices; c->slice++) {
        lay(c, threads);
        bs_parallel(spmm_unit, c, parts, threads);
    }
}

/* ---- long rows: pieces folded in order ---- */
#define FOLD(T, FLOATING)                                                                                                                  \
    do {                                                                                                                                   \
        const T *from = (const T *)(const void *)partial + c->split->first_piece[n] * cols;                                                \
        for (size_t i = 0; i < cols; i++) {                                                                                                \
            T v = from[i];                                                                                                                 \
            for (size_t piece = 1; piece < pieces; piece++) {                                                                              \
                const T w = from[piece * cols + i];                                                                                        \
                v = !BS_SELECTS(j->reduce) ? (T)(v + w) : (BS_TAKES(j->reduce, w, v) | (w != w)) ? w : v;                                  \
            }                                                                                                                              \
            if (FLOATING && j->reduce == BS_REDUCE_MEAN)                                                                                   \
                v /= (T)(float)length;                                                                                                     \
            if (FLOATING && j->row_scale && !BS_SELECTS(j->reduce))                                                                        \
                v *= (T)j->row_scale[row];                                                                                                 \
            if (j->load == BS_X_F16 && !raw)                                                                                               \
                ((uint16_t *)out)[row * cols + i] = bs_float_to_f16((float)v);                                                             \
            else if (j->load == BS_X_BF16 && !raw)                                                                                         \
                ((uint16_t *)out)[row * cols + i] = bs_float_to_bf16((float)v);                                                            \
            else                                                                                                                           \
                ((T *)out)[row * cols + i] = v;                                                                                            \
        }                                                                                                                                  \
    } while (0)

/* The pieces of long row n from `partial`, (pieces, cols), into its row of `out`; as they are if `raw`. */
static void fold(const context *c, size_t n, size_t cols, const unsigned char *partial, void *out, int raw)
{
    const bs_spmm_job *j = c->job;
    const size_t row = c->split->long_row[n], pieces = c->split->first_piece[n + 1] - c->split->first_piece[n];
    const size_t length = bs_row_start(&c->split->a, row + 1) - bs_row_start(&c->split->a, row);
    switch (c->acc) {
    case ACC_F32: FOLD(float, 1); break;
    case ACC_F64: FOLD(double, 1); break;
    case ACC_I32: FOLD(int32_t, 0); break;
    default: FOLD(int64_t, 0);
    }
}

static void fold_long_row(void *shared, size_t n, int thread)
{
    (void)thread;
    const context *c = shared;
    const bs_attention *from = c->job->attention;
    const size_t cols = c->job->heads * c->job->width;
    fold(c, n, cols, c->partial, c->job->out, 0);
    if (from && from->above)
        fold(c, n, cols, c->partial + c->split->pieces * cols * c->acc_size, from->above, from->ends != NULL);
    if (c->shares)
        fold(c, n, c->job->heads, c->shares, from->share, 1);
}

/* Blocks of columns to be done together: the part of x that they gather from should stay in the last-level cache. */
static size_t blocks_in_cache(const context *c)
{
    const size_t share = c->gather.rows * bs_max(c->block_cols * c->x_bits / 8, 64), cache = (size_t)16 << 20;
    return bs_max(1, cache / bs_max(share, 1));
}

/* Affine parameters per column, with room for whole vectors behind them. */
static float *padded(const float *from, size_t n)
{
    float *to = calloc(n + BS_SLACK / sizeof *to, sizeof *to);
    if (to)
        memcpy(to, from, n * sizeof *to);
    return to;
}

static int prepare(context *c)
{
    const bs_spmm_job *j = c->job;
    const bs_csr *a = &c->split->a;
    const size_t cols = j->heads * j->width;
    const int status = bs_gather_make(&c->gather, j->x, a->cols, j->stride, j->row_bytes);
    if (status != BS_SPARSE_OK)
        return status;
    c->acc = accumulator_of(j->load);
    c->acc_size = bs_spmm_acc_bytes(j->load);
    c->out_size = bs_spmm_out_bytes(j->load);
    c->x_bits = bs_spmm_x_bits(j->load, j->bits);
    c->op = BS_SELECTS(j->reduce) ? j->reduce : j->values || j->col_scale || j->attention ? BS_WEIGHTED_SUM : BS_SUM;
    if (cols == 1 && j->stride == c->acc_size && a->indices && !BS_SELECTS(j->reduce) && !j->attention && j->affine == BS_AFFINE_NONE) {
        if (j->load == BS_X_F32)
            c->one_column = a->wide ? wide_column_f32 : one_column_f32;
        else if (j->load == BS_X_F64)
            c->one_column = a->wide ? wide_column_f64 : one_column_f64;
    }
    if (a->indices && !a->wide && !BS_SELECTS(j->reduce))
        c->by_columns = c->k->run_columns[j->load][c->op];
    if (c->by_columns && j->load == BS_X_F32 && j->col_scale && !j->values && !j->attention && !c->one_column)
        c->by_columns = c->k->run_factors;
    c->block_cols = 4 * c->k->vector_bytes / c->acc_size;
    const size_t laid = c->by_columns && !c->one_column ? bs_laid_columns(a, j, c->block_cols) : 0;
    if (laid && !(c->laid = bs_laid_take(a->cols * bs_laid_stride(bs_min(laid, j->width)) + BS_SLACK)))
        return BS_NO_MEMORY;
    if (laid && j->col_scale) {
        c->factors = j->col_scale;
        c->op = BS_SUM;
        c->by_columns = c->k->run_columns[j->load][BS_SUM];
    }
    c->block_cols = laid ? laid : c->block_cols;
    c->blocks_per_head = bs_ceil_div(j->width, c->block_cols);
    c->blocks = j->heads * c->blocks_per_head;
    c->per_slice = laid ? 1 : bs_min(c->blocks, j->slice_blocks ? j->slice_blocks : blocks_in_cache(c));
    const int twice = j->attention && j->attention->above;
    if (c->split->pieces && !(c->partial = malloc((twice ? 2 : 1) * c->split->pieces * cols * c->acc_size)))
        return BS_NO_MEMORY;
    if (c->split->pieces && j->attention && j->attention->share && !(c->shares = malloc(c->split->pieces * j->heads * c->acc_size)))
        return BS_NO_MEMORY;
    if (j->affine == BS_AFFINE_COLUMN && (!(c->col_scale = padded(j->scale, cols)) || !(c->col_offset = padded(j->offset, cols))))
        return BS_NO_MEMORY;
    if (j->attention && !j->attention->ends && c->split->n_long && !(c->stats = malloc(c->split->n_long * j->heads * 2 * sizeof(double))))
        return BS_NO_MEMORY;
    return BS_SPARSE_OK;
}

int bs_spmm_split(bs_run_on on, const bs_split *split, const bs_spmm_job *job)
{
    context c = {.k = bs_spmm_table(on.level), .job = job, .split = split};
    if (job->heads == 0 || job->width == 0)
        return BS_SPARSE_OK;
    int status = prepare(&c);
    if (status == BS_SPARSE_OK && c.stats)
        status = bs_softmax_long(c.k, on.threads, split, &job->attention->scores, c.stats);
    if (status == BS_SPARSE_OK) {
        sum_slices(&c, on.threads);
        if (!c.bad)
            bs_parallel(fold_long_row, &c, split->n_long, on.threads);
        status = c.bad ? BS_BAD_INDEX : BS_SPARSE_OK;
    }
    free((void *)c.gather.tail);
    if (c.laid)
        bs_laid_give(c.laid);
    free(c.partial);
    free(c.shares);
    free(c.col_scale);
    free(c.col_offset);
    free(c.stats);
    return status;
}

int bs_spmm(bs_run_on on, const bs_csr *a, const bs_spmm_job *job)
{
    bs_split split;
    int status = bs_split_make(&split, a);
    if (status == BS_SPARSE_OK)
        status = bs_spmm_split(on, &split, job);
    bs_split_free(&split);
    return status;
}
