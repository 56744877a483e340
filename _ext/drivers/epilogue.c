/* The epilogue: rows of accumulators become integers, floats or packed codes. One chain for products and for bs_epilogue_only. */
#include "drivers/matmul.h"

BS_FN float row_value(const bs_operand *o, size_t batch, size_t row)
{
    return ((const float *)o->data)[batch * o->batch_stride + row * o->row_stride];
}

/* Values of an operand along one row, copied into `room` if the operand is constant there. */
static const float *row_values(const bs_operand *o, size_t batch, size_t row, size_t col, size_t n, float *room)
{
    const float *at = (const float *)o->data + batch * o->batch_stride + row * o->row_stride + col * o->col_stride;
    if (o->col_stride)
        return at;
    for (size_t i = 0; i < n; i++)
        room[i] = *at;
    return room;
}

static void apply_chain(const bs_kernels *k, const bs_epilogue *e, size_t b, size_t row, size_t col, size_t n, float *v)
{
    float room[BS_TILE];
    if (e->row_scale.data)
        k->scale_row(v, n, row_value(&e->row_scale, b, row));
    if (e->col_scale.data)
        k->multiply_row(v, n, row_values(&e->col_scale, b, row, col, n, room));
    if (e->row_term[0].data)
        k->add_product_row(v, n, row_value(&e->row_term[0], b, row), row_values(&e->row_term[1], b, row, col, n, room));
    if (e->col_term[0].data)
        k->add_product_row(v, n, row_value(&e->col_term[0], b, row), row_values(&e->col_term[1], b, row, col, n, room));
    if (e->bias.data)
        k->add_row(v, n, row_values(&e->bias, b, row, col, n, room));
    if (e->bn_scale.data)
        k->multiply_row(v, n, row_values(&e->bn_scale, b, row, col, n, room));
    if (e->bn_shift.data)
        k->add_row(v, n, row_values(&e->bn_shift, b, row, col, n, room));
    k->activate_row(v, n, e->activation, e->slope);
}

static void requantise(const bs_kernels *k, const bs_epilogue *e, size_t b, size_t row, size_t col, size_t n, const float *v,
                       uint32_t *codes)
{
    if (e->binarize) {
        k->load_codes(v, BS_F32, n, BS_LOAD_BITS, 1, codes);
        return;
    }
    uint16_t room[BS_TILE + 16];
    const uint16_t *half = room;
    if (e->quantizer.rounding == BS_STOCHASTIC) {
        const uint64_t index = (b * e->rows + row) * e->cols + col;
        k->half_words(index / 8, (size_t)((index + n - 1) / 8 - index / 8 + 1), e->seed, e->stream, room);
        half = room + index % 8;
    }
    float offset[BS_TILE], divisor[BS_TILE];
    k->quantize_float(v, row_values(&e->offset, b, row, col, n, offset), row_values(&e->divisor, b, row, col, n, divisor), n, &e->quantizer,
                      half, codes);
}

/* A result larger than this will not be in a cache when it is read next. */
#define STREAM_BYTES ((size_t)8 << 20)

BS_FN int is_large(const bs_epilogue *e, size_t item) { return e->batch * e->rows * e->cols * item >= STREAM_BYTES; }

static void put_values(const bs_kernels *k, const bs_epilogue *e, const bs_out_tile *tile, size_t r, const void *values, size_t item)
{
    char *to = (char *)e->out + ((tile->batch * e->rows + tile->r0 + r) * e->cols + tile->c0) * item;
    if (is_large(e, item))
        k->stream(to, values, tile->cols * item);
    else
        memcpy(to, values, tile->cols * item);
}

/* Stores one row of floats; v is overwritten. */
static void finish_float_row(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t r, float *v)
{
    const size_t row = tile->r0 + r, n = tile->cols;
    apply_chain(k, e, tile->batch, row, tile->c0, n, v);
    if (e->result == BS_RESULT_FLOAT) {
        put_values(k, e, tile, r, v, sizeof *v);
        return;
    }
    if (k->has_nan(v, n))
        __atomic_store_n(&e->found_nan, 1, __ATOMIC_RELAXED);
    uint32_t line[BS_TILE];
    uint32_t *codes = e->packed.axis == -1 ? line : tile->codes + r * BS_TILE;
    requantise(k, e, tile->batch, row, tile->c0, n, v, codes);
    for (size_t i = n; i < BS_TILE; i++)
        codes[i] = 0;
    if (e->packed.axis == -1)
        bs_put_row(k, &e->packed, tile->batch, row, tile->c0, n, codes);
}

void bs_finish_rows(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t first, size_t count, const int64_t *acc, int narrow)
{
    for (size_t r = 0; r < count; r++, acc += BS_TILE) {
        if (e->result == BS_RESULT_INT32) {
            int32_t *to = (int32_t *)e->out + (tile->batch * e->rows + tile->r0 + first + r) * e->cols + tile->c0;
            k->store_int32(to, acc, tile->cols, is_large(e, sizeof *to));
        } else if (e->result == BS_RESULT_INT64) {
            put_values(k, e, tile, first + r, acc, sizeof *acc);
        } else {
            float v[BS_TILE];
            k->acc_to_float(acc, tile->cols, narrow, v);
            finish_float_row(k, e, tile, first + r, v);
        }
    }
}

int bs_takes_int32(const bs_epilogue *e) { return e->result == BS_RESULT_INT32 && !is_large(e, sizeof(int32_t)); }

void bs_finish_int32(const bs_kernels *k, bs_epilogue *e, bs_out_tile *tile, size_t first, size_t count, const int32_t *acc)
{
    for (size_t r = 0; r < count; r++, acc += BS_TILE)
        put_values(k, e, tile, first + r, acc, sizeof *acc);
}

void bs_finish_tile(const bs_kernels *k, const bs_epilogue *e, const bs_out_tile *tile)
{
    if (e->result == BS_RESULT_BITS && e->packed.axis != -1)
        bs_put_tile(k, &e->packed, tile->batch, tile->r0, tile->c0, tile->rows, tile->cols, tile->codes);
#ifdef BS_X86
    /* Streamed rows must be visible to any thread that joins this one. The fence comes once per tile, since it waits for the stores. */
    if (e->result != BS_RESULT_BITS)
        __builtin_ia32_sfence();
#endif
}

/* ---- on existing accumulators ---- */

typedef struct {
    const bs_kernels *k;
    const void *acc;
    int dtype;
    bs_epilogue *e;
} epilogue_job;

static void epilogue_unit(void *context, size_t unit, int thread)
{
    (void)thread;
    const epilogue_job *j = context;
    bs_epilogue *e = j->e;
    const size_t across = bs_ceil_div(e->cols, BS_TILE), down = bs_ceil_div(e->rows, BS_TILE);
    bs_out_tile tile;
    tile.batch = unit / across / down;
    tile.r0 = unit / across % down * BS_TILE;
    tile.c0 = unit % across * BS_TILE;
    tile.rows = bs_min(BS_TILE, e->rows - tile.r0);
    tile.cols = bs_min(BS_TILE, e->cols - tile.c0);
    for (size_t r = 0; r < tile.rows; r++) {
        const size_t at = (tile.batch * e->rows + tile.r0 + r) * e->cols + tile.c0;
        float v[BS_TILE];
        if (j->dtype == BS_F32)
            memcpy(v, (const float *)j->acc + at, tile.cols * sizeof *v);
        else if (j->dtype == BS_I64)
            j->k->acc_to_float((const int64_t *)j->acc + at, tile.cols, 0, v);
        else
            for (size_t i = 0; i < tile.cols; i++)
                v[i] = (float)((const int32_t *)j->acc)[at + i];
        finish_float_row(j->k, e, &tile, r, v);
    }
    bs_finish_tile(j->k, e, &tile);
}

void bs_epilogue_only(bs_run_on on, const void *acc, int dtype, bs_epilogue *e)
{
    epilogue_job j = {.k = bs_table(on.level), .acc = acc, .dtype = dtype, .e = e};
    bs_parallel(epilogue_unit, &j, e->batch * bs_ceil_div(e->rows, BS_TILE) * bs_ceil_div(e->cols, BS_TILE), on.threads);
}
