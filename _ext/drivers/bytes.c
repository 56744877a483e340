/* Steps of low-bit networks on codes in bytes: products with weights and sums over neighbours, each followed by the epilogue.
 *
 * The chain is that of drivers/epilogue.c, value by value; here a group of whole rows goes through it at once, since rows are short. */
#include "drivers/bytes.h"

#include <stdlib.h>

#define FLAT BS_BYTES_LONGEST /* values that go through the chain together */
#define UNIT_ROWS 256

enum { COL_SCALE, ROW_SCALE, ROW_TERM, ROW_TERM_COL, COL_TERM, COL_TERM_COL, BIAS, BN_SCALE, BN_SHIFT, OFFSET, DIVISOR, OPERANDS };

typedef struct {
    const bs_kernels *k;
    const bs_bytes_step *s;
    bs_epilogue *e;
    size_t width; /* columns, rounded up to whole blocks of 16 */
    size_t group; /* rows that go through the chain together */
    int plain;    /* see is_plain */
} bytes_job;

/* Values of operands for a group of rows, expanded; values that are the same for all rows are kept from group to group. */
typedef struct {
    float values[OPERANDS][FLAT];
    size_t kept[OPERANDS];
} spread_room;

static const float *spread(spread_room *room, int which, const bs_operand *o, size_t row, size_t rows, size_t n)
{
    float *to = room->values[which];
    const float *data = (const float *)o->data + row * o->row_stride;
    if (!o->row_stride && room->kept[which] >= rows)
        return to;
    room->kept[which] = rows;
    for (size_t r = 0; r < rows; r++, data += o->row_stride) {
        if (o->col_stride) {
            memcpy(to + r * n, data, n * sizeof *to);
        } else {
            const float value = *data;
            for (size_t c = 0; c < n; c++)
                to[r * n + c] = value;
        }
    }
    return to;
}

static void add_term(const bytes_job *j, spread_room *room, int which, const bs_operand *pair, size_t row, size_t rows, float *v)
{
    const size_t n = j->e->cols;
    const float *column = spread(room, which + 1, &pair[1], row, 1, n);
    const float *data = (const float *)pair[0].data + row * pair[0].row_stride;
    for (size_t r = 0; r < rows; r++)
        j->k->add_product_row(v + r * n, n, data[r * pair[0].row_stride], column);
}

static void chain(const bytes_job *j, spread_room *room, size_t row, size_t rows, float *v)
{
    const bs_epilogue *e = j->e;
    const size_t n = e->cols, total = rows * n;
    if (e->row_scale.data)
        j->k->multiply_row(v, total, spread(room, ROW_SCALE, &e->row_scale, row, rows, n));
    if (e->col_scale.data)
        j->k->multiply_row(v, total, spread(room, COL_SCALE, &e->col_scale, row, rows, n));
    if (e->row_term[0].data)
        add_term(j, room, ROW_TERM, e->row_term, row, rows, v);
    if (e->col_term[0].data)
        add_term(j, room, COL_TERM, e->col_term, row, rows, v);
    if (e->bias.data)
        j->k->add_row(v, total, spread(room, BIAS, &e->bias, row, rows, n));
    if (e->bn_scale.data)
        j->k->multiply_row(v, total, spread(room, BN_SCALE, &e->bn_scale, row, rows, n));
    if (e->bn_shift.data)
        j->k->add_row(v, total, spread(room, BN_SHIFT, &e->bn_shift, row, rows, n));
    j->k->activate_row(v, total, e->activation, e->slope);
}

/* Whether codes begin at 0 and all values are divided and multiplied by the same number, `divisor`: round(x / divisor * divisor). */
static int grid_is(const bs_epilogue *e, double divisor)
{
    const bs_operand *o = &e->offset, *d = &e->divisor;
    return !o->row_stride && !o->col_stride && !d->row_stride && !d->col_stride && *(const float *)o->data == 0.0f &&
           *(const float *)d->data == divisor && e->quantizer.multiplier == divisor && e->quantizer.rounding == BS_NEAREST &&
           e->quantizer.qmin == 0;
}

/* Whether the grid of the codes is the integers, so that values are simply rounded. */
static int is_plain(const bs_epilogue *e) { return grid_is(e, 1.0); }

/* Whether the grid is that of the scheme "affine": a step of 1, and a range divided into as many steps as there are codes. */
static int is_divided(const bs_epilogue *e)
{
    return e->quantizer.qmax == (1 << e->quantizer.bits) - 1 && grid_is(e, (double)e->quantizer.qmax);
}

/* Stores rows of floats, or of codes followed by zeros. */
static void store(const bytes_job *j, spread_room *room, size_t row, size_t rows, const float *v)
{
    bs_epilogue *e = j->e;
    const size_t n = e->cols, total = rows * n;
    if (e->result == BS_RESULT_FLOAT) {
        const int32_t *places = j->s->places;
        if (!places)
            memcpy((float *)e->out + row * n, v, total * sizeof *v);
        for (size_t r = 0; places && r < rows; r++)
            memcpy((float *)e->out + (size_t)places[row + r] * n, v + r * n, n * sizeof *v);
        return;
    }
    if (j->k->has_nan(v, total))
        __atomic_store_n(&e->found_nan, 1, __ATOMIC_RELAXED);
    uint8_t codes[FLAT];
    uint8_t *out = (uint8_t *)e->out + row * j->width, *to = n == j->width ? out : codes;
    if (j->plain) {
        j->k->nearest_bytes(v, total, (float)e->quantizer.qmax, to);
    } else {
        uint32_t wide[FLAT];
        j->k->quantize_float(v, spread(room, OFFSET, &e->offset, row, rows, n), spread(room, DIVISOR, &e->divisor, row, rows, n), total,
                             &e->quantizer, NULL, wide);
        j->k->codes_to_bytes(wide, total, to);
    }
    if (to == out)
        return;
    for (size_t r = 0; r < rows; r++, out += j->width) {
        memcpy(out, codes + r * n, n);
        memset(out + n, 0, j->width - n);
    }
}

static void accumulate(const bytes_job *j, size_t row, size_t rows, int32_t *acc)
{
    const bs_bytes_step *s = j->s;
    if (s->panels) {
        const size_t groups = bs_ceil_div(s->k, 4);
        for (size_t c = 0; c < j->width; c += 16)
            j->k->bytes_product(s->x + row * s->stride, s->stride, rows, s->panels + c / 16 * groups * 64, groups, acc + c, j->width);
        return;
    }
    for (size_t r = 0; r < rows; r++, acc += j->width) {
        const int32_t *starts = s->indptr + (row + r - s->from);
        if (s->lines) {
            j->k->lines_gather(s->lines, j->width, s->indices + starts[0], s->values ? s->values + starts[0] : NULL,
                               (size_t)(starts[1] - starts[0]), acc);
            continue;
        }
        j->k->bytes_gather(s->x, s->stride, s->indices + starts[0], (size_t)(starts[1] - starts[0]), j->width, acc);
    }
}

/* Computes rows by way of sums in memory. */
static void general_rows(bytes_job *j, size_t first, size_t last)
{
    const size_t n = j->e->cols;
    int32_t acc[FLAT];
    float v[FLAT];
    spread_room room;
    memset(room.kept, 0, sizeof room.kept);
    j->group = bs_max(1, FLAT / j->width);
    j->plain = j->e->result == BS_RESULT_BYTES && is_plain(j->e);
    for (size_t row = first; row < last; row += j->group) {
        const size_t rows = bs_min(j->group, last - row);
        accumulate(j, row, rows, acc);
        if (n == j->width)
            j->k->ints_to_float(acc, rows * n, v);
        else
            for (size_t r = 0; r < rows; r++)
                j->k->ints_to_float(acc + r * j->width, n, v + r * n);
        chain(j, &room, row, rows, v);
        store(j, &room, row, rows, v);
    }
}

/* ---- chains of few operations ---- */

static int same_for_rows(const bs_operand *o) { return !o->data || !o->row_stride; }
static int same_for_columns(const bs_operand *o) { return !o->data || !o->col_stride; }

static int is_simple(const bs_epilogue *e)
{
    const bs_operand *term = e->row_term[0].data ? e->row_term : e->col_term;
    return (e->result == BS_RESULT_FLOAT || is_plain(e) || is_divided(e)) && !(e->row_term[0].data && e->col_term[0].data) &&
           !e->bn_scale.data && !e->bn_shift.data && (e->activation == BS_IDENTITY || e->activation == BS_RELU) &&
           same_for_columns(&e->row_scale) && same_for_columns(&term[0]) && same_for_rows(&e->col_scale) && same_for_rows(&e->bias) &&
           same_for_rows(&term[1]);
}

static void fill(float *to, const bs_operand *o, size_t n, float none)
{
    for (size_t c = 0; c < n; c++)
        to[c] = o->data ? ((const float *)o->data)[c * o->col_stride] : none;
    for (size_t c = n; c < bs_bytes_width(n); c++)
        to[c] = 0.0f;
}

void bs_bytes_prepare(bs_run_on on, const bs_epilogue *e, bs_bytes_chain *chain)
{

    chain->simple = bs_table(on.level)->bytes_lines && is_simple(e);
    if (!chain->simple)
        return;
    fill(chain->columns[0], &e->col_scale, e->cols, 1.0f);
    fill(chain->columns[1], e->row_term[0].data ? &e->row_term[1] : &e->col_term[1], e->cols, -0.0f);
    fill(chain->columns[2], &e->bias, e->cols, -0.0f);
}

void bs_bytes_rows(bs_run_on on, const bs_bytes_step *s, bs_epilogue *e, const bs_bytes_chain *chain, size_t first, size_t last)
{
    static const float one = 1.0f;
    const bs_kernels *k = bs_table(on.level);
    const size_t width = bs_bytes_width(e->cols);
    if (!chain->simple) {
        general_rows(&(bytes_job){.k = k, .s = s, .e = e, .width = width}, first, last);
        return;
    }
    const bs_operand *scale = &e->row_scale, *term = e->row_term[0].data ? e->row_term : e->col_term;
    const int floats = e->result == BS_RESULT_FLOAT;
    const bs_lines lines = {
        .row_scale = scale->data ? scale->data : &one,
        .row_scale_step = scale->data ? scale->row_stride : 0,
        .row_term = term->data ? term->data : &one,
        .row_term_step = term->data ? term->row_stride : 0,
        .scale = chain->columns[0],
        .term = chain->columns[1],
        .bias = chain->columns[2],
        .columns = e->cols,
        .width = width,
        .rows = scale->data || term->data,
        .relu = e->activation == BS_RELU,
        .divided = !floats && !is_plain(e),
        .high = floats ? 0.0f : (float)e->quantizer.qmax,
        .inverse = floats ? 0.0f : 1.0f / (float)e->quantizer.qmax,
        .codes = floats ? NULL : e->out,
        .floats = floats ? e->out : NULL,
        .places = s->places,
    };
    if (k->bytes_lines(s, &lines, first, last))
        __atomic_store_n(&e->found_nan, 1, __ATOMIC_RELAXED);
}

/* ---- all rows ---- */

typedef struct {
    bs_run_on on;
    const bs_bytes_step *s;
    bs_epilogue *e;
    bs_bytes_chain chain;
    size_t nnz;
    int status;
} run_job;

/* Copies the edges of a unit's rows and then checks the copy: another thread may write into the caller's arrays meanwhile, and every
 * block of columns reads the edges again. `starts` has one more entry than there are rows; the caller frees *columns, and *values begins
 * with the first row's values. */
static int own_edges(const run_job *j, size_t first, size_t last, int32_t *starts, int32_t **columns, const uint8_t **values)
{
    const size_t rows = last - first;
    memcpy(starts, j->s->indptr + first, (rows + 1) * sizeof *starts);
    const int32_t begin = starts[0];
    int wrong = begin < 0 || starts[rows] < begin || (size_t)starts[rows] > j->nnz;
    for (size_t r = 0; r < rows; r++)
        wrong |= starts[r + 1] < starts[r];
    if (wrong)
        return BS_BYTES_PATTERN;
    const size_t edges = (size_t)(starts[rows] - begin);
    *columns = malloc((edges + 1) * sizeof **columns);
    if (!*columns)
        return BS_BYTES_MEMORY;
    for (size_t r = 0; r <= rows; r++)
        starts[r] -= begin;
    if (*values)
        *values += begin;
    if (edges)
        memcpy(*columns, j->s->indices + begin, edges * sizeof **columns);
    uint32_t largest = 0; /* a negative index is a large unsigned one */
    for (size_t e = 0; e < edges; e++)
        largest = (uint32_t)(*columns)[e] > largest ? (uint32_t)(*columns)[e] : largest;
    return edges && largest >= (j->s->lines ? j->s->k : j->e->rows) ? BS_BYTES_PATTERN : BS_BYTES_OK;
}

static void run_unit(void *context, size_t unit, int thread)
{
    (void)thread;
    run_job *j = context;
    const size_t first = unit * UNIT_ROWS, last = bs_min(first + UNIT_ROWS, j->e->rows);
    if (j->s->panels) {
        bs_bytes_rows(j->on, j->s, j->e, &j->chain, first, last);
        return;
    }
    bs_bytes_step own = *j->s;
    int32_t starts[UNIT_ROWS + 1], *columns = NULL;
    const int status = own_edges(j, first, last, starts, &columns, &own.values);
    if (status == BS_BYTES_OK) {
        own.indptr = starts, own.indices = columns, own.from = first;
        bs_bytes_rows(j->on, &own, j->e, &j->chain, first, last);
    } else {
        __atomic_store_n(&j->status, status, __ATOMIC_RELAXED);
    }
    free(columns);
}

int bs_bytes_run(bs_run_on on, const bs_bytes_step *s, size_t nnz, bs_epilogue *e)
{
    run_job j = {.on = on, .s = s, .e = e, .nnz = nnz, .status = BS_BYTES_OK};
    bs_bytes_prepare(on, e, &j.chain);
    bs_parallel(run_unit, &j, bs_ceil_div(e->rows, UNIT_ROWS), on.threads);
    return j.status;
}
