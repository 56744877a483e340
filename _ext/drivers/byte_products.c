/* The byte product, for operands of at most 8 bits: both are decoded into bytes and multiplied four at a time.
 *
 * The instruction multiplies unsigned by signed bytes, so codes are shifted: a' = a + up with a' in 0..255 and b' = b - down with b' in
 * -128..127, and a b = a' b' + down a - up b' undoes the shifts. Panels of B are decoded once for a group of columns. A unit of work
 * walks some of their 128-column tiles with 128 rows of A, which a thread decodes unless they are those of its last unit. */
#include <stdlib.h>

#include "drivers/aligned.h"
#include "drivers/matmul.h"

#define STEP 64 /* codes of the contraction axis are decoded and multiplied in steps of this many */
#define BLOCK_TILES 32 /* 128-bit tiles of the contraction axis per pass: two panels stay in a second-level cache */
#define SUM_TILES 128 /* int32 holds the sum of 16384 products of bytes */
#define GROUP_BYTES ((size_t)64 << 20) /* decoded panels of B kept at a time */
#define PAIR_PANELS 2 /* panels that one call of the micro-kernel takes */
#define OWN_BYTES ((size_t)1 << 14) /* panels and rows of at most this size lie on the stack, as taking memory costs a tenth of a call */
#define UNITS_PER_THREAD 16 /* many, since all threads wait for the last unit */

typedef struct {
    const bs_kernels *k;
    const bs_product *p;
    bs_epilogue *e;
    bs_byte_form a, b;
    int up, down;
    size_t step; /* rows that one call of the micro-kernel takes: those of a zero tile if some are skipped */
    int pairs; /* int16 holds sums of this many pairs of products; see bytes_micro */
    size_t length, tiles_deep, row_stride, panel_bytes; /* length: k, rounded up to whole steps; in 128-bit tiles, the last may be half */
    int8_t *panels;
    uint8_t *rows; /* per thread, after a cache line with the number of the tile that they belong to */
    size_t thread_bytes;
    size_t tiles, beside; /* tiles of 128 rows; units alternate between `beside` of them, so that a thread keeps the rows that it has */
    size_t batch, c0, cols, chunk_cols, chunks; /* the group being multiplied, and how its columns are split over units */
    const int64_t *a_sums, *b_sums; /* per line, sums of the codes; only if `down` and `up` need them */
    /* If zero tiles of a shifted A are skipped, they hold `up` and not 0. Sums of b' over each tile of the group: [tile][column]. */
    int32_t *tile_sums;
} bytes_job;

/* How codes of an operand become bytes, and by how much they are shifted: unsigned bytes for A, signed ones for B. */
static int form_of(int bits, int encoding, int left, bs_byte_form *form)
{
    form->bits = bits;
    form->start = 0;
    for (int p = 0; p < bits; p++)
        form->weights[p] = (uint8_t)(1u << p);
    if (encoding == BS_BIPOLAR) {
        form->weights[0] = 2;
        form->start = (uint8_t)(left ? 0 : -1);
        return left;
    }
    const int top = 1 << (bits - 1);
    if (encoding == BS_SIGNED) {
        form->weights[bits - 1] = (uint8_t)-top;
        form->start = (uint8_t)(left ? top : 0);
        return left ? top : 0;
    }
    if (left || bits < 8)
        return 0;
    form->start = 128;
    return 128;
}

/* The largest absolute value that a byte can have. */
static int most_of(int bits, int encoding, int left)
{
    if (encoding == BS_BIPOLAR)
        return left ? 2 : 1;
    if (encoding == BS_SIGNED)
        return left ? (1 << bits) - 1 : 1 << (bits - 1);
    return left || bits < 8 ? (1 << bits) - 1 : 128;
}

/* Unit of work: one panel of 16 columns of the group. */
static void decode_panel(void *context, size_t unit, int thread)
{
    (void)thread;
    const bytes_job *j = context;
    const bs_product *p = j->p;
    const size_t line_words = p->width * (size_t)p->b_bits, first = unit * BS_MICRO_COLS;
    const uint32_t *lines = p->b + ((size_t)p->b_index[j->batch] * p->n + j->c0 + first) * line_words;
    const size_t lanes = bs_min(BS_MICRO_COLS, j->cols - first);
    int8_t *to = j->panels + unit * j->panel_bytes;
    uint8_t bytes[BS_MICRO_COLS][BS_TILE];
    if (lanes < BS_MICRO_COLS)
        memset(bytes[lanes], 0, (BS_MICRO_COLS - lanes) * BS_TILE);
    for (size_t at = 0; at < j->length; at += BS_TILE) {
        const size_t here = bs_min(BS_TILE, j->length - at), real = bs_min(here, p->k - at);
        j->k->planes_to_form(lines + at / 32, line_words, lanes, p->width, here, &j->b, bytes[0], BS_TILE);
        for (size_t lane = 0; real < here && lane < lanes; lane++)
            memset(bytes[lane] + real, 0, here - real);
        j->k->interleave(bytes[0], here, to + at * BS_MICRO_COLS);
        if (!j->tile_sums)
            continue;
        int32_t *sums = j->tile_sums + at / BS_TILE * bs_ceil_div(j->cols, BS_MICRO_COLS) * BS_MICRO_COLS + first;
        for (size_t lane = 0; lane < BS_MICRO_COLS; lane++) {
            sums[lane] = 0;
            for (size_t i = 0; i < here; i++)
                sums[lane] += (int8_t)bytes[lane][i];
        }
    }
}

/* Address of the tiles from t on of a pair of panels; the second panel of the pair is `panel_bytes` further on. */
static const int8_t *panels_at(const bytes_job *j, size_t col, size_t panel, size_t t)
{
    return j->panels + (col / BS_MICRO_COLS + panel) * j->panel_bytes + t * (BS_TILE * BS_MICRO_COLS);
}

/* What is multiplied after a pair of panels: the next pair, pass or columns, or the first ones again, by other rows. Only complete pairs
 * and passes, so that no address lies beyond the panels. */
static const int8_t *panels_after(const bytes_job *j, size_t col, size_t panels, size_t panel, size_t t, size_t t1)
{
    if (panel + PAIR_PANELS < panels)
        return panels_at(j, col, panel + PAIR_PANELS, t);
    if (t + 2 * BLOCK_TILES <= t1)
        return panels_at(j, col, 0, t + BLOCK_TILES);
    return col + 2 * BS_TILE <= j->cols ? panels_at(j, col + BS_TILE, 0, 0) : j->panels;
}

/* Adds products of rows and columns over tiles [t0, t1) of the contraction axis to sums that start at `first`, one line for all rows;
 * rounded up to eight rows and sixteen columns. */
static void add_products(const bytes_job *j, const uint8_t *rows, size_t col, const bs_out_tile *tile, size_t t0, size_t t1,
                         const int32_t *first, int32_t *to, size_t to_step)
{
    const size_t panels = bs_ceil_div(tile->cols, BS_MICRO_COLS);
    for (size_t t = t0; t < t1 || t == t0; t += BLOCK_TILES)
        for (size_t c = 0; c < panels; c += PAIR_PANELS) {
            /* A call over a whole pass prefetches `share` bytes of what comes next; half of a tile's rows prefetch one of its two
             * panels. */
            const int8_t *next = panels_after(j, col, panels, c, t, t1);
            const size_t share = bs_min(BLOCK_TILES, t1 - t) * (BS_TILE / 4 * BS_BYTES_AHEAD), half = BS_TILE / PAIR_PANELS;
            for (size_t r = 0; r < tile->rows; r += j->step) {
                const size_t here = bs_min(PAIR_PANELS, panels - c);
                const size_t rows_here = bs_min(j->step, bs_ceil_div(tile->rows - r, BS_MICRO_ROWS) * BS_MICRO_ROWS);
                const int8_t *ahead = next + r / half * j->panel_bytes + r % half / BS_MICRO_ROWS * share;
                bs_run runs[BLOCK_TILES];
                size_t n_runs = bs_runs(j->p, j->batch, tile->r0 + r, t, bs_min(t + BLOCK_TILES, t1), runs);
                if (!n_runs && t == t0)
                    runs[n_runs++] = (bs_run){(uint32_t)t, 0}; /* all tiles are zero: the sums are their start values */
                bs_sums s = {first + c * BS_MICRO_COLS, 0, to + r * to_step + c * BS_MICRO_COLS, to_step};
                for (size_t i = 0; i < n_runs; i++) {
                    if (i || t > t0)
                        s.from = s.to, s.from_step = to_step;
                    const size_t from = runs[i].start * (size_t)BS_TILE, codes = bs_min(runs[i].length * (size_t)BS_TILE, j->length - from);
                    j->k->bytes_micro(rows + r * j->row_stride + from, j->row_stride, rows_here, panels_at(j, col, c, runs[i].start), here,
                                      j->panel_bytes, codes / 4, j->pairs, ahead, &s);
                }
            }
        }
}

/* The correction that the sums of a row need. */
static int64_t missing_of_row(const bytes_job *j, const bs_out_tile *tile, size_t row)
{
    return j->a_sums ? j->down * j->a_sums[(size_t)j->p->a_index[tile->batch] * j->p->m + tile->r0 + row] : 0;
}

/* The corrections of the columns: the same for all rows or, if tiles are skipped, for eight of them. */
static void missing_of_columns(const bytes_job *j, const bs_out_tile *tile, size_t col, size_t row, int64_t *more)
{
    const bs_product *p = j->p;
    if (j->tile_sums) {
        const size_t stride = bs_ceil_div(j->cols, BS_MICRO_COLS) * BS_MICRO_COLS, tiles = j->tiles_deep;
        memset(more, 0, BS_TILE * sizeof *more);
        for (size_t t = 0; t < tiles; t++) {
            bs_run run;
            if (bs_runs(p, j->batch, tile->r0 + row, t, t + 1, &run))
                for (size_t c = 0; c < tile->cols; c++)
                    more[c] -= (int64_t)j->up * j->tile_sums[t * stride + col + c];
        }
    } else if (row == 0) {
        const int64_t *sums = j->b_sums ? j->b_sums + (size_t)p->b_index[tile->batch] * p->n + tile->c0 : NULL;
        for (size_t c = 0; c < tile->cols; c++)
            more[c] = sums ? -j->up * (sums[c] - (int64_t)p->k * j->down) : 0;
    }
}

static const int32_t zeros[BS_TILE];

/* Sums over 16384 products at a time, for sums that int32 cannot hold. */
static void multiply_wide(const bytes_job *j, const uint8_t *rows, size_t col, bs_out_tile *tile)
{
    int32_t part[BS_TILE * BS_TILE];
    int64_t acc[BS_TILE * BS_TILE], more[BS_TILE];
    const size_t tiles = j->tiles_deep;
    memset(acc, 0, sizeof acc);
    for (size_t t = 0; t < tiles; t += SUM_TILES) {
        add_products(j, rows, col, tile, t, bs_min(t + SUM_TILES, tiles), zeros, part, BS_TILE);
        for (size_t r = 0; r < tile->rows; r++)
            for (size_t c = 0; c < tile->cols; c++)
                acc[r * BS_TILE + c] += part[r * BS_TILE + c];
    }
    for (size_t row = 0; row < tile->rows; row += BS_MICRO_ROWS) {
        int64_t *to = acc + row * BS_TILE;
        const size_t count = bs_min(BS_MICRO_ROWS, tile->rows - row);
        missing_of_columns(j, tile, col, row, more);
        for (size_t r = 0; r < count; r++) {
            const int64_t of = missing_of_row(j, tile, row + r);
            for (size_t c = 0; c < tile->cols; c++)
                to[r * BS_TILE + c] += of + more[c];
        }
        bs_finish_rows(j->k, j->e, tile, row, count, to, 0);
    }
}

/* Adds the corrections of rows, and of columns if they differ from row to row, modulo 2^32, like the sums. */
static void complete(const bytes_job *j, const bs_out_tile *tile, size_t col, size_t row, size_t count, int32_t *acc)
{
    int64_t more[BS_TILE] = {0};
    if (j->tile_sums)
        missing_of_columns(j, tile, col, row, more);
    for (size_t r = 0; r < count; r++, acc += BS_TILE) {
        const uint32_t of = (uint32_t)missing_of_row(j, tile, row + r);
        for (size_t c = 0; c < tile->cols; c++)
            acc[c] = (int32_t)((uint32_t)acc[c] + of + (uint32_t)more[c]);
    }
}

static void multiply_narrow(const bytes_job *j, const uint8_t *rows, size_t col, bs_out_tile *tile)
{
    int32_t first[BS_TILE] = {0}, acc[BS_TILE * BS_TILE];
    const size_t tiles = j->tiles_deep;
    if (j->b_sums) {
        int64_t more[BS_TILE];
        missing_of_columns(j, tile, col, 0, more);
        for (size_t c = 0; c < tile->cols; c++)
            first[c] = (int32_t)(uint32_t)more[c];
    }
    if (bs_takes_int32(j->e) && !j->a_sums && !j->tile_sums && tile->cols % BS_MICRO_COLS == 0 && tile->rows % BS_MICRO_ROWS == 0) {
        int32_t *out = (int32_t *)j->e->out + (tile->batch * j->e->rows + tile->r0) * j->e->cols + tile->c0;
        add_products(j, rows, col, tile, 0, tiles, first, out, j->e->cols);
        return;
    }
    add_products(j, rows, col, tile, 0, tiles, first, acc, BS_TILE);
    for (size_t row = 0; row < tile->rows; row += BS_MICRO_ROWS) {
        const size_t count = bs_min(BS_MICRO_ROWS, tile->rows - row);
        int32_t *to = acc + row * BS_TILE;
        if (j->a_sums || j->tile_sums)
            complete(j, tile, col, row, count, to);
        if (j->e->result == BS_RESULT_INT32) {
            bs_finish_int32(j->k, j->e, tile, row, count, to);
            continue;
        }
        int64_t wide[BS_MICRO_ROWS * BS_TILE];
        for (size_t r = 0; r < count; r++)
            for (size_t c = 0; c < tile->cols; c++)
                wide[r * BS_TILE + c] = to[r * BS_TILE + c];
        bs_finish_rows(j->k, j->e, tile, row, count, wide, 1);
    }
}

/* Decodes tile `row_tile` of the rows into the memory of a thread, unless it is there already. */
static const uint8_t *rows_of(const bytes_job *j, size_t row_tile, int thread)
{
    const bs_product *p = j->p;
    size_t *const held = (size_t *)(j->rows + (size_t)thread * j->thread_bytes);
    uint8_t *const rows = (uint8_t *)held + BS_LINE;
    const size_t line_words = p->width * (size_t)p->a_bits, first = row_tile * BS_TILE, count = bs_min(BS_TILE, p->m - first);
    const uint32_t *a = p->a + ((size_t)p->a_index[j->batch] * p->m + first) * line_words;
    if (*held == j->batch * j->tiles + row_tile)
        return rows;
    *held = j->batch * j->tiles + row_tile;
    j->k->planes_to_form(a, line_words, count, p->width, j->length, &j->a, rows, j->row_stride);
    for (size_t r = 0; p->k < j->length && r < count; r++)
        memset(rows + r * j->row_stride + p->k, 0, j->length - p->k);
    for (size_t r = count; r % BS_MICRO_ROWS; r++) /* rows that only fill up the last micro-kernel */
        memset(rows + r * j->row_stride, 0, j->length);
    return rows;
}

/* Unit of work: 128 rows and a share of the group's columns. */
static void bytes_unit(void *context, size_t unit, int thread)
{
    const bytes_job *j = context;
    const bs_product *p = j->p;
    const size_t before = unit / (j->beside * j->chunks) * j->beside, turn = unit % (j->beside * j->chunks);
    const size_t here = bs_min(j->beside, j->tiles - before), row_tile = before + turn % here;
    const size_t first = turn / here * j->chunk_cols, end = bs_min(first + j->chunk_cols, j->cols);
    const uint8_t *rows = rows_of(j, row_tile, thread);
    bs_out_tile tile;
    tile.batch = j->batch;
    tile.r0 = row_tile * BS_TILE;
    tile.rows = bs_min(BS_TILE, p->m - tile.r0);
    for (size_t col = first; col < end; col += BS_TILE) {
        tile.c0 = j->c0 + col;
        tile.cols = bs_min(BS_TILE, end - col);
        (p->narrow ? multiply_narrow : multiply_wide)(j, rows, col, &tile);
        bs_finish_tile(j->k, j->e, &tile);
    }
}

/* Sums of the codes of each line of an operand. */
static int64_t *sums_of(bs_run_on on, const bs_product *p, const uint32_t *words, size_t lines, int bits, int encoding)
{
    int64_t *sums = malloc(bs_max(1, lines) * sizeof *sums);
    if (sums)
        bs_code_sums(on, words, lines, bits, encoding, p->k, p->width, sums);
    return sums;
}

static void run_groups(bs_run_on on, bytes_job *j, size_t group)
{
    const bs_product *p = j->p;
    for (j->batch = 0; j->batch < p->batch; j->batch++)
        for (j->c0 = 0; j->c0 < p->n; j->c0 += group) {
            j->cols = bs_min(group, p->n - j->c0);
            bs_parallel(decode_panel, j, bs_ceil_div(j->cols, BS_MICRO_COLS), on.threads);
            const size_t parts = on.threads > 1 ? bs_ceil_div(UNITS_PER_THREAD * (size_t)on.threads, j->tiles) : 1;
            j->chunk_cols = bs_ceil_div(bs_ceil_div(j->cols, parts), BS_TILE) * BS_TILE;
            j->chunks = bs_ceil_div(j->cols, j->chunk_cols);
            bs_parallel(bytes_unit, j, j->tiles * j->chunks, on.threads);
        }
}

int bs_matmul_bytes(bs_run_on on, const bs_product *p, bs_epilogue *e)
{
    bytes_job j = {.k = bs_table(on.level), .p = p, .e = e, .length = bs_ceil_div(p->k, STEP) * STEP};
    if (!p->batch || !p->m || !p->n)
        return 0;
    j.up = form_of(p->a_bits, p->a_encoding, 1, &j.a);
    j.down = form_of(p->b_bits, p->b_encoding, 0, &j.b);
    j.pairs = 32767 / (2 * most_of(p->a_bits, p->a_encoding, 1) * most_of(p->b_bits, p->b_encoding, 0));
    /* Neighbouring rows are one cache line apart modulo the page: a power-of-two stride would map all eight to one set. */
    j.row_stride = j.length + BS_LINE;
    j.step = p->bitmap ? BS_MICRO_ROWS : j.k->bytes_rows;
    j.tiles_deep = bs_ceil_div(j.length, BS_TILE);
    j.thread_bytes = BS_LINE + j.row_stride * bs_min(BS_TILE, bs_ceil_div(p->m, BS_MICRO_ROWS) * BS_MICRO_ROWS);
    j.tiles = bs_ceil_div(p->m, BS_TILE);
    j.beside = (size_t)on.threads;
    j.panel_bytes = j.length * BS_MICRO_COLS;
    const size_t column_bytes = bs_max(1, j.length);
    const size_t group = bs_min(bs_ceil_div(p->n, BS_TILE), bs_max(1, GROUP_BYTES / (column_bytes * BS_TILE))) * BS_TILE;
    /* A zero tile of a bipolar operand holds -1s, which the 0 bits stand for. */
    const int moved_tiles = p->bitmap && p->a_encoding == BS_SIGNED;
    int64_t *a_sums = j.down ? sums_of(on, p, p->a, p->a_batch * p->m, p->a_bits, p->a_encoding) : NULL;
    int64_t *b_sums = j.up && !moved_tiles ? sums_of(on, p, p->b, p->b_batch * p->n, p->b_bits, p->b_encoding) : NULL;
    j.a_sums = a_sums;
    j.b_sums = b_sums;
    const size_t panel_columns = bs_min(group, bs_ceil_div(p->n, BS_MICRO_COLS) * BS_MICRO_COLS);
    const size_t row_bytes = (size_t)on.threads * j.thread_bytes, bytes = row_bytes + panel_columns * column_bytes;
    _Alignas(BS_LINE) uint8_t own[OWN_BYTES];
    j.rows = bytes <= OWN_BYTES ? own : bs_aligned(bytes);
    j.panels = j.rows ? (int8_t *)j.rows + row_bytes : NULL;
    j.tile_sums = moved_tiles ? bs_aligned(j.tiles_deep * group * sizeof *j.tile_sums) : NULL;
    const int enough = j.rows && !(j.down && !a_sums) && !(j.up && !moved_tiles && !b_sums) && !(moved_tiles && !j.tile_sums);
    for (int t = 0; enough && t < on.threads; t++)
        *(size_t *)(j.rows + (size_t)t * j.thread_bytes) = SIZE_MAX; /* of no tile yet */
    if (enough)
        run_groups(on, &j, group);
    free(a_sums);
    free(b_sums);
    if (j.rows != own)
        bs_free_aligned(j.rows);
    bs_free_aligned(j.tile_sums);
    return enough ? 0 : -1;
}
