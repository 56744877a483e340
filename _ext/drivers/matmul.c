/* The bit-plane product: sum over plane pairs of +-2^(p+q) popcount(a_p & b_q), skipping zero tiles of A.
 *
 * Values are a weighted sum of bits plus a constant: bipolar is 2 bit - 1, and the constant's contribution follows from the operands'
 * sums. A unit of work packs the panels of 128 columns of B once and walks blocks of eight rows of A, read in place. */
#include <stdlib.h>

#include "drivers/aligned.h"
#include "drivers/matmul.h"

/* 128-bit tiles of the contraction axis per pass: 8 rows of A and a panel of B stay in a 32 KiB first-level cache. */
#define PASS_TILES 64
#define PANELS (BS_TILE / BS_MICRO_COLS)

size_t bs_runs(const bs_product *p, size_t batch, size_t row, size_t t0, size_t t1, bs_run *runs)
{
    if (!p->bitmap) {
        runs[0] = (bs_run){(uint32_t)t0, (uint32_t)(t1 - t0)};
        return t1 > t0;
    }
    const size_t words = bs_ceil_div(p->width / 4, 32), blocks = bs_ceil_div(p->m, 8);
    const uint32_t *bits = p->bitmap + ((size_t)p->a_index[batch] * blocks + row / 8) * words;
    size_t n = 0;
    for (size_t t = t0; t < t1; t++) {
        if (!(bits[t / 32] >> (t % 32) & 1u))
            continue;
        if (n && runs[n - 1].start + runs[n - 1].length == t)
            runs[n - 1].length++;
        else
            runs[n++] = (bs_run){(uint32_t)t, 1};
    }
    return n;
}

typedef struct {
    const bs_kernels *k;
    const bs_product *p;
    bs_epilogue *e;
    size_t chunk_rows, chunks; /* rows of one unit of work, and units down the rows */
    size_t steps, panel_words; /* 64-bit steps of K; uint64 words of one panel of one plane */
    uint64_t *panels;          /* per thread: [plane of B][panel][step][lane] */
    size_t thread_words;
    const int64_t *a_sums, *b_sums; /* per line, only when the other operand is bipolar */
} planes_job;

static void pack_panels(const planes_job *j, size_t b, size_t c0, size_t cols, uint64_t *panels)
{
    const bs_product *p = j->p;
    const size_t plane_words = p->width, column_words = plane_words * (size_t)p->b_bits;
    const uint32_t *first = p->b + ((size_t)p->b_index[b] * p->n + c0) * column_words;
    for (int q = 0; q < p->b_bits; q++)
        for (size_t c = 0; c < cols; c += BS_MICRO_COLS)
            j->k->planes_pack(first + c * column_words + (size_t)q * plane_words, column_words, bs_min(BS_MICRO_COLS, cols - c), j->steps,
                              panels + ((size_t)q * PANELS + c / BS_MICRO_COLS) * j->panel_words);
}

/* Multiplies eight rows (fewer at the end: the last row is repeated and the copies are dropped) by the panels, over tiles [t0, t1) of K. */
static void multiply_block(const planes_job *j, const uint64_t *panels, size_t b, size_t row, size_t cols, size_t t0, size_t t1,
                           int first_pass, int64_t *acc)
{
    const bs_product *p = j->p;
    bs_run runs[PASS_TILES / 2 + 1];
    const size_t n_runs = bs_runs(p, b, row, t0, t1, runs);
    if (!n_runs) {
        if (first_pass)
            memset(acc, 0, BS_MICRO_ROWS * BS_TILE * sizeof *acc);
        return;
    }
    const int weight = (p->a_encoding == BS_BIPOLAR) + (p->b_encoding == BS_BIPOLAR);
    const size_t row_words = p->width * (size_t)p->a_bits;
    const uint32_t *a = p->a + (size_t)p->a_index[b] * p->m * row_words;
    for (int pa = 0; pa < p->a_bits; pa++) {
        const uint32_t *rows[BS_MICRO_ROWS];
        for (size_t r = 0; r < BS_MICRO_ROWS; r++)
            rows[r] = a + bs_min(row + r, p->m - 1) * row_words + (size_t)pa * p->width;
        const int a_negative = p->a_encoding == BS_SIGNED && pa == p->a_bits - 1;
        for (int pb = 0; pb < p->b_bits; pb++) {
            const int negative = a_negative != (p->b_encoding == BS_SIGNED && pb == p->b_bits - 1);
            j->k->planes_micro(rows, panels + (size_t)pb * PANELS * j->panel_words, bs_ceil_div(cols, BS_MICRO_COLS), j->panel_words, runs,
                               n_runs, pa + pb + weight, negative, first_pass && !pa && !pb, acc, BS_TILE);
        }
    }
}

/* (A' - 1)(B' - 1) = A'B' - sum A' - sum B' + k, with only the terms of the bipolar operands. */
static void correct_rows(const planes_job *j, const bs_out_tile *tile, size_t first, size_t count, int64_t *acc)
{
    const bs_product *p = j->p;
    const int both = j->a_sums && j->b_sums;
    for (size_t r = 0; r < count; r++, acc += BS_TILE) {
        /* The sums of a bipolar operand are over values 2 bit - 1, that is, k less than twice those over its bits. With both bipolar,
         * -(sum a + k) - (sum b + k) + k. */
        const int64_t constant = both ? -(int64_t)p->k : 0;
        const int64_t of_row = constant - (j->a_sums ? j->a_sums[(size_t)p->a_index[tile->batch] * p->m + tile->r0 + first + r] : 0);
        const int64_t *of_col = j->b_sums ? j->b_sums + (size_t)p->b_index[tile->batch] * p->n + tile->c0 : NULL;
        for (size_t c = 0; c < tile->cols; c++)
            acc[c] = (int64_t)((uint64_t)acc[c] + (uint64_t)of_row - (uint64_t)(of_col ? of_col[c] : 0));
    }
}

static void finish(const planes_job *j, bs_out_tile *tile, size_t first, size_t count, int64_t *acc)
{
    if (j->a_sums || j->b_sums)
        correct_rows(j, tile, first, count, acc);
    bs_finish_rows(j->k, j->e, tile, first, count, acc, j->p->narrow);
}

/* The range of tiles of K from the first to the last that has a bit in some row of the tile. */
static void active_tiles(const bs_product *p, const bs_out_tile *tile, size_t *first, size_t *end)
{
    if (!p->bitmap)
        return;
    const size_t words = bs_ceil_div(p->width / 4, 32), blocks = bs_ceil_div(p->m, 8), last = (tile->r0 + tile->rows - 1) / 8;
    const uint32_t *bits = p->bitmap + (size_t)p->a_index[tile->batch] * blocks * words;
    size_t low = *end, high = 0;
    for (size_t w = 0; w < words; w++) {
        uint32_t any = 0;
        for (size_t block = tile->r0 / 8; block <= last; block++)
            any |= bits[block * words + w];
        for (size_t t = 32 * w; any; t++, any >>= 1)
            if (any & 1u) {
                low = bs_min(low, t);
                high = t + 1;
            }
    }
    *first = high ? low : 0;
    *end = high;
}

static void multiply_tile(const planes_job *j, const uint64_t *panels, bs_out_tile *tile)
{
    int64_t acc[BS_TILE * BS_TILE];
    size_t start = 0, tiles = j->steps / 2;
    active_tiles(j->p, tile, &start, &tiles);
    /* One pass over K: finish every eight rows while they are in the first-level cache. */
    const size_t group = tiles - start <= PASS_TILES ? BS_MICRO_ROWS : BS_TILE;
    for (size_t first = 0; first < tile->rows; first += group) {
        const size_t count = bs_min(group, tile->rows - first);
        size_t t = start;
        do /* the first pass, empty if there is nothing to add, also clears acc */
            for (size_t r = 0; r < count; r += BS_MICRO_ROWS)
                multiply_block(j, panels, tile->batch, tile->r0 + first + r, tile->cols, t, bs_min(t + PASS_TILES, tiles), t == start,
                               acc + r * BS_TILE);
        while ((t += PASS_TILES) < tiles);
        finish(j, tile, first, count, acc);
    }
    bs_finish_tile(j->k, j->e, tile);
}

static void planes_unit(void *context, size_t unit, int thread)
{
    const planes_job *j = context;
    const bs_product *p = j->p;
    const size_t across = bs_ceil_div(p->n, BS_TILE);
    const size_t r0 = unit % j->chunks * j->chunk_rows, end = bs_min(r0 + j->chunk_rows, p->m);
    uint64_t *panels = j->panels + (size_t)thread * j->thread_words;
    bs_out_tile tile;
    tile.batch = unit / j->chunks / across;
    tile.c0 = unit / j->chunks % across * BS_TILE;
    tile.cols = bs_min(BS_TILE, p->n - tile.c0);
    pack_panels(j, tile.batch, tile.c0, tile.cols, panels);
    for (tile.r0 = r0; tile.r0 < end; tile.r0 += BS_TILE) {
        tile.rows = bs_min(BS_TILE, end - tile.r0);
        multiply_tile(j, panels, &tile);
    }
}

/* Sums of an operand's lines; *sums stays NULL if they are not needed. */
static int line_sums(bs_run_on on, const bs_product *p, const uint32_t *words, size_t lines, int bits, int encoding, int64_t **sums)
{
    *sums = malloc(bs_max(1, lines) * sizeof **sums);
    if (!*sums)
        return -1;
    bs_code_sums(on, words, lines, bits, encoding, p->k, p->width, *sums);
    return 0;
}

int bs_matmul_planes(bs_run_on on, const bs_product *p, bs_epilogue *e)
{
    planes_job j = {.k = bs_table(on.level), .p = p, .e = e, .steps = p->width / 2};
    const size_t wide_units = p->batch * bs_ceil_div(p->n, BS_TILE);
    if (!wide_units || !p->m)
        return 0;
    /* Split the rows only if there are too few units: packing the panels once more pays from 64 rows on, and a result that is packed
     * down the rows needs whole tiles of 128 rows. */
    const size_t parts = on.threads > 1 ? bs_ceil_div(4 * (size_t)on.threads, wide_units) : 1;
    const size_t grain = e->result == BS_RESULT_BITS && e->packed.axis != -1 ? BS_TILE : BS_TILE / 2;
    j.chunk_rows = bs_ceil_div(bs_ceil_div(p->m, parts), grain) * grain;
    j.chunks = bs_ceil_div(p->m, j.chunk_rows);
    j.panel_words = j.steps * j.k->planes_step_words;
    j.thread_words = bs_max(1, j.panel_words * PANELS * (size_t)p->b_bits);

    int64_t *a_sums = NULL, *b_sums = NULL;
    int status = 0;
    if (p->b_encoding == BS_BIPOLAR)
        status |= line_sums(on, p, p->a, p->a_batch * p->m, p->a_bits, p->a_encoding, &a_sums);
    if (p->a_encoding == BS_BIPOLAR)
        status |= line_sums(on, p, p->b, p->b_batch * p->n, p->b_bits, p->b_encoding, &b_sums);
    const size_t threads = bs_min((size_t)on.threads, wide_units * j.chunks);
    j.panels = bs_aligned(threads * j.thread_words * sizeof *j.panels);
    if (!status && j.panels) {
        j.a_sums = a_sums;
        j.b_sums = b_sums;
        bs_parallel(planes_unit, &j, wide_units * j.chunks, on.threads);
    } else {
        status = -1;
    }
    bs_free_aligned(j.panels);
    free(a_sums);
    free(b_sums);
    return status;
}
