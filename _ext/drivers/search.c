/* Tiles of counts, from the kernels of the product, and what else searches need. */
#include "drivers/search.h"

#include "common/neighbours.h"

bs_tiles bs_tiles_of(int level, size_t width)
{
    const bs_kernels *k = bs_table(level);
    return (bs_tiles){k, width, width / 2 * k->planes_step_words};
}

size_t bs_tile_bytes(const bs_tiles *t) { return t->panel_words * (BS_TILE / BS_MICRO_COLS) * sizeof(uint64_t); }

void bs_pack_tile(const bs_tiles *t, const uint32_t *words, size_t n, uint64_t *panels)
{
    for (size_t c = 0; c < n; c += BS_MICRO_COLS)
        t->k->planes_pack(words + c * t->width, t->width, bs_min(BS_MICRO_COLS, n - c), t->width / 2,
                          panels + c / BS_MICRO_COLS * t->panel_words);
}

void bs_count_tile(const bs_tiles *t, const uint32_t *queries, size_t rows, const uint64_t *panels, size_t n, int64_t *counts)
{
    const uint32_t *lines[BS_MICRO_ROWS];
    for (size_t r = 0; r < BS_MICRO_ROWS; r++)
        lines[r] = queries + bs_min(r, rows - 1) * t->width;
    const bs_run all = {0, (uint32_t)(t->width / 4)};
    t->k->planes_micro(lines, panels, bs_ceil_div(n, BS_MICRO_COLS), t->panel_words, &all, 1, 0, 0, 1, counts, BS_TILE);
}

typedef struct {
    const bs_kernels *k;
    const uint32_t *words;
    size_t n, width;
    int32_t *ones;
} ones_job;

#define LINES_OF_A_UNIT 4096

static void ones_unit(void *context, size_t unit, int thread)
{
    const ones_job *j = context;
    (void)thread;
    const size_t end = bs_min((unit + 1) * LINES_OF_A_UNIT, j->n);
    for (size_t i = unit * LINES_OF_A_UNIT; i < end; i++)
        j->ones[i] = (int32_t)j->k->popcount(j->words + i * j->width, j->width);
}

void bs_line_ones(bs_run_on on, const uint32_t *words, size_t n, size_t width, int32_t *ones)
{
    ones_job j = {bs_table(on.level), words, n, width, ones};
    bs_parallel(ones_unit, &j, bs_ceil_div(n, LINES_OF_A_UNIT), on.threads);
}

void bs_jaccard_distances(const uint32_t *keys, size_t n, float *distances)
{
    for (size_t i = 0; i < n; i++)
        distances[i] = bs_jaccard_of_key(keys[i]);
}
