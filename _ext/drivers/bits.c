/* Packing, quantising, unpacking and repacking: a source fills tiles of codes in the first-level cache, and a sink empties them. */
#include <string.h>

#include "drivers/drive.h"

/* Columns of one unit of work when the last axis is packed: whole chunks. */
#define COLUMN_SPAN (16 * BS_CHUNK)

static const size_t item_size[BS_DTYPES] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};

/* ---- one short row of codes from values, and one short row of values from codes ---- */

typedef struct {
    const bs_kernels *k;
    const void *values; /* source or destination, C order */
    int dtype, how, wide, encoding;
    bs_operand first, second; /* offset and divisor, or scale and offset */
    const bs_quantizer *quantizer;
    uint64_t seed, first_index;
    uint32_t stream;
    const bs_packed *from, *to;
    int *nan; /* set when a float that is packed by its sign is NaN */
} job;

BS_FN const char *value_at(const job *j, size_t index) { return (const char *)j->values + index * item_size[j->dtype]; }

/* Pointer to n values of an operand for one row, copied into `room` if the operand is constant along the row. */
#define DEFINE_OPERAND_ROW(T)                                                                                                              \
    static const T *operand_row_##T(const bs_operand *o, size_t batch, size_t row, size_t col, size_t n, T *room)                          \
    {                                                                                                                                      \
        const T *at = (const T *)o->data + batch * o->batch_stride + row * o->row_stride + col * o->col_stride;                            \
        if (o->col_stride)                                                                                                                 \
            return at;                                                                                                                     \
        for (size_t i = 0; i < n; i++)                                                                                                     \
            room[i] = *at;                                                                                                                 \
        return room;                                                                                                                       \
    }
DEFINE_OPERAND_ROW(float)
DEFINE_OPERAND_ROW(double)

/* Random half words of elements index .. index + n; `room` holds whole draws. */
static const uint16_t *half_words(const bs_kernels *k, uint64_t index, size_t n, uint64_t seed, uint32_t stream, uint16_t *room)
{
    k->half_words(index / 8, (size_t)((index + n - 1) / 8 - index / 8 + 1), seed, stream, room);
    return room + index % 8;
}

static int holds_nan(const void *x, int dtype, size_t n)
{
    int nan = 0;
    for (size_t i = 0; i < n; i++)
        switch (dtype) {
        case BS_F16: nan |= (((const uint16_t *)x)[i] & 0x7fffu) > 0x7c00u; break;
        case BS_BF16: nan |= (((const uint16_t *)x)[i] & 0x7fffu) > 0x7f80u; break;
        case BS_F32: nan |= ((const float *)x)[i] != ((const float *)x)[i]; break;
        case BS_F64: nan |= ((const double *)x)[i] != ((const double *)x)[i]; break;
        default: return 0;
        }
    return nan;
}

/* Several threads may find a NaN; each writes the same 1. */
static void note_nan(const job *j, int found)
{
    if (found)
        __atomic_store_n(j->nan, 1, __ATOMIC_RELAXED);
}

#define HALF_ROOM (BS_CHUNK + 16)

static void codes_from_values(const job *j, size_t batch, size_t row, size_t col, size_t n, uint32_t *codes)
{
    const size_t index = (batch * j->to->rows + row) * j->to->cols + col;
    const void *x = value_at(j, index);
    if (!j->quantizer) {
        note_nan(j, holds_nan(x, j->dtype, n));
        j->k->load_codes(x, j->dtype, n, j->how, j->to->bits, codes);
        return;
    }
    uint16_t half_room[HALF_ROOM];
    const uint16_t *half = half_room;
    if (j->quantizer->rounding == BS_STOCHASTIC)
        half = half_words(j->k, j->first_index + index, n, j->seed, j->stream, half_room);
    if (j->wide) {
        double room[BS_CHUNK], first[BS_CHUNK], second[BS_CHUNK];
        if (j->dtype != BS_F64) {
            j->k->load_double(x, j->dtype, n, room);
            x = room;
        }
        j->k->quantize_double(x, operand_row_double(&j->first, batch, row, col, n, first),
                              operand_row_double(&j->second, batch, row, col, n, second), n, j->quantizer, half, codes);
    } else {
        float room[BS_CHUNK], first[BS_CHUNK], second[BS_CHUNK];
        if (j->dtype != BS_F32) {
            j->k->load_float(x, j->dtype, n, room);
            x = room;
        }
        j->k->quantize_float(x, operand_row_float(&j->first, batch, row, col, n, first),
                             operand_row_float(&j->second, batch, row, col, n, second), n, j->quantizer, half, codes);
    }
}

static void values_from_codes(const job *j, size_t batch, size_t row, size_t col, size_t n, const uint32_t *codes)
{
    const size_t index = (batch * j->from->rows + row) * j->from->cols + col;
    void *y = (void *)value_at(j, index);
    const int bits = j->from->bits;
    if (!j->first.data) {
        j->k->store_values(codes, n, bits, j->encoding, j->dtype, y);
        return;
    }
    float first[BS_CHUNK], second[BS_CHUNK];
    const float *scale = operand_row_float(&j->first, batch, row, col, n, first);
    const float *offset = operand_row_float(&j->second, batch, row, col, n, second);
    if (j->dtype == BS_F64) {
        j->k->dequantize_double(codes, n, bits, j->encoding, scale, offset, y);
    } else if (j->dtype == BS_F32) {
        j->k->dequantize_float(codes, n, bits, j->encoding, scale, offset, y);
    } else {
        float room[BS_CHUNK];
        j->k->dequantize_float(codes, n, bits, j->encoding, scale, offset, room);
        j->k->store_float(room, n, j->dtype, y);
    }
}

/* ---- units of work ---- */

/* Unit -> batch, 128 rows, and 128 columns (tiles) or COLUMN_SPAN columns (rows). */
typedef struct {
    size_t batch, r0, rows, c0, cols;
} region;

BS_FN size_t span_of(const bs_packed *p, int tiles)
{
    (void)p;
    return tiles ? BS_TILE : COLUMN_SPAN;
}

static size_t region_count(const bs_packed *p, int tiles)
{
    return p->batch * bs_ceil_div(p->rows, BS_TILE) * bs_ceil_div(p->cols, span_of(p, tiles));
}

static region region_at(const bs_packed *p, int tiles, size_t unit)
{
    const size_t span = span_of(p, tiles), across = bs_ceil_div(p->cols, span), down = bs_ceil_div(p->rows, BS_TILE);
    region g = {.c0 = unit % across * span, .r0 = unit / across % down * BS_TILE, .batch = unit / across / down};
    g.rows = bs_min(BS_TILE, p->rows - g.r0);
    g.cols = bs_min(span, p->cols - g.c0);
    return g;
}

BS_FN void clear_tail(uint32_t *codes, size_t n)
{
    for (size_t i = n; i % BS_TILE; i++)
        codes[i] = 0;
}

/* Packs 32 signs a word straight from memory, without codes in between. Returns the number of elements done, whole words only. */
static size_t pack_signs(const job *j, size_t batch, size_t row, size_t col, size_t n)
{
    if (j->quantizer || j->dtype != BS_F32 || j->to->bits != 1)
        return 0;
    const size_t done = n / BS_TILE * BS_TILE;
    uint32_t *line = j->to->words + (batch * j->to->rows + row) * bs_packed_stride(j->to) + col / 32;
    note_nan(j, j->k->pack_sign_float((const float *)value_at(j, (batch * j->to->rows + row) * j->to->cols + col), done / 32, line));
    return done;
}

/* Whether rows are quantised several at a time: they are short and contiguous, and share one offset and one divisor. */
static int takes_rows_together(const job *j)
{
    const bs_operand *a = &j->first, *b = &j->second;
    return j->quantizer && 2 * j->to->cols <= BS_CHUNK && !(a->batch_stride | a->row_stride | a->col_stride) &&
           !(b->batch_stride | b->row_stride | b->col_stride);
}

/* Some costs of a row do not depend on its length: spreading operands and drawing whole vectors. As many rows as fit into a chunk share
 * them. */
static void encode_short_rows(const job *j, const region *g)
{
    const size_t cols = j->to->cols, together = BS_CHUNK / cols;
    uint32_t codes[BS_CHUNK], line[BS_CHUNK];
    for (size_t r = g->r0; r < g->r0 + g->rows; r += together) {
        const size_t rows = bs_min(together, g->r0 + g->rows - r);
        codes_from_values(j, g->batch, r, 0, rows * cols, codes);
        for (size_t i = 0; i < rows; i++) {
            memcpy(line, codes + i * cols, cols * sizeof *line);
            clear_tail(line, cols);
            bs_put_row(j->k, j->to, g->batch, r + i, 0, cols, line);
        }
    }
}

static void encode_rows(void *context, size_t unit, int thread)
{
    (void)thread;
    const job *j = context;
    const region g = region_at(j->to, 0, unit);
    if (takes_rows_together(j)) {
        encode_short_rows(j, &g);
        return;
    }
    uint32_t codes[BS_CHUNK];
    for (size_t r = g.r0; r < g.r0 + g.rows; r++)
        for (size_t c = g.c0 + pack_signs(j, g.batch, r, g.c0, g.cols); c < g.c0 + g.cols; c += BS_CHUNK) {
            const size_t n = bs_min(BS_CHUNK, g.c0 + g.cols - c);
            codes_from_values(j, g.batch, r, c, n, codes);
            clear_tail(codes, n);
            bs_put_row(j->k, j->to, g.batch, r, c, n, codes);
        }
}

static void encode_tile(void *context, size_t unit, int thread)
{
    (void)thread;
    const job *j = context;
    const region g = region_at(j->to, 1, unit);
    uint32_t tile[BS_TILE * BS_TILE];
    for (size_t r = 0; r < g.rows; r++) {
        codes_from_values(j, g.batch, g.r0 + r, g.c0, g.cols, tile + r * BS_TILE);
        /* whole vectors of columns are read */ // whole vectors of columns are read
        clear_tail(tile + r * BS_TILE, g.cols);
    }
    bs_put_tile(j->k, j->to, g.batch, g.r0, g.c0, g.rows, g.cols, tile);
}

static void decode_rows(void *context, size_t unit, int thread)
{
    (void)thread;
    const job *j = context;
    const region g = region_at(j->from, 0, unit);
    uint32_t codes[BS_CHUNK];
    for (size_t r = g.r0; r < g.r0 + g.rows; r++)
        for (size_t c = g.c0; c < g.c0 + g.cols; c += BS_CHUNK) {
            const size_t n = bs_min(BS_CHUNK, g.c0 + g.cols - c);
            bs_get_row(j->k, j->from, g.batch, r, c, n, codes);
            values_from_codes(j, g.batch, r, c, n, codes);
        }
}

static void decode_tile(void *context, size_t unit, int thread)
{
    (void)thread;
    const job *j = context;
    const region g = region_at(j->from, 1, unit);
    uint32_t tile[BS_TILE * BS_TILE];
    bs_get_tile(j->k, j->from, g.batch, g.r0, g.c0, g.rows, g.cols, tile);
    for (size_t r = 0; r < g.rows; r++)
        values_from_codes(j, g.batch, g.r0 + r, g.c0, g.cols, tile + r * BS_TILE);
}

static void repack_tile(void *context, size_t unit, int thread)
{
    (void)thread;
    const job *j = context;
    const region g = region_at(j->from, 1, unit);
    uint32_t tile[BS_TILE * BS_TILE];
    bs_get_tile(j->k, j->from, g.batch, g.r0, g.c0, g.rows, g.cols, tile);
    /* Pad bits of a hostile input must not reach the other axis. */
    for (size_t r = 0; r < g.rows; r++)
        clear_tail(tile + r * BS_TILE, g.cols);
    bs_put_tile(j->k, j->to, g.batch, g.r0, g.c0, g.rows, g.cols, tile);
}

static void encode(bs_run_on on, job *j)
{
    const int tiles = j->to->axis != -1;
    bs_parallel(tiles ? encode_tile : encode_rows, j, region_count(j->to, tiles), on.threads);
}

static void decode(bs_run_on on, job *j)
{
    const int tiles = j->from->axis != -1;
    bs_parallel(tiles ? decode_tile : decode_rows, j, region_count(j->from, tiles), on.threads);
}

/* ---- public ---- */

int bs_pack(bs_run_on on, const void *values, int dtype, int how, const bs_packed *to)
{
    int nan = 0;
    job j = {.k = bs_table(on.level), .values = values, .dtype = dtype, .how = how, .to = to, .nan = &nan};
    encode(on, &j);
    return nan;
}

void bs_quantize(bs_run_on on, const void *x, int dtype, int wide, bs_operand offset, bs_operand divisor, const bs_quantizer *q,
                 uint64_t seed, uint32_t stream, uint64_t first_index, const bs_packed *to)
{
    job j = {.k = bs_table(on.level),
             .values = x,
             .dtype = dtype,
             .wide = wide,
             .first = offset,
             .second = divisor,
             .quantizer = q,
             .seed = seed,
             .first_index = first_index,
             .stream = stream,
             .to = to};
    encode(on, &j);
}

void bs_unpack(bs_run_on on, const bs_packed *from, int encoding, int dtype, void *values)
{
    job j = {.k = bs_table(on.level), .values = values, .dtype = dtype, .encoding = encoding, .from = from};
    decode(on, &j);
}

void bs_dequantize(bs_run_on on, const bs_packed *from, int encoding, bs_operand scale, bs_operand offset, int dtype, void *values)
{
    job j = {
        .k = bs_table(on.level), .values = values, .dtype = dtype, .encoding = encoding, .first = scale, .second = offset, .from = from};
    decode(on, &j);
}

void bs_repack(bs_run_on on, const bs_packed *from, const bs_packed *to)
{
    job j = {.k = bs_table(on.level), .from = from, .to = to};
    bs_parallel(repack_tile, &j, region_count(from, 1), on.threads);
}

/* ---- stochastic rounding of floats to integral floats ---- */

static void round_chunk(void *context, size_t unit, int thread)
{
    (void)thread;
    const job *j = context;
    const size_t start = unit * BS_CHUNK, n = bs_min(BS_CHUNK, j->to->cols - start);
    uint16_t room[HALF_ROOM];
    const uint16_t *half = half_words(j->k, start, n, j->seed, j->stream, room);
    const void *x = value_at(j, start);
    char *out = (char *)j->to->words + start * item_size[j->dtype];
    if (j->dtype == BS_F64) {
        for (size_t i = 0; i < n; i++)
            ((double *)out)[i] = bs_stochastic_roundd(((const double *)x)[i], half[i]);
        return;
    }
    float v[BS_CHUNK];
    j->k->load_float(x, j->dtype, n, v);
    for (size_t i = 0; i < n; i++)
        v[i] = bs_stochastic_roundf(v[i], half[i]);
    j->k->store_float(v, n, j->dtype, out);
}

void bs_stochastic_round(bs_run_on on, const void *x, int dtype, size_t n, uint64_t seed, uint32_t stream, void *out)
{
    const bs_packed to = {.words = out, .cols = n};
    job j = {.k = bs_table(on.level), .values = x, .dtype = dtype, .seed = seed, .stream = stream, .to = &to};
    bs_parallel(round_chunk, &j, bs_ceil_div(n, BS_CHUNK), on.threads);
}
