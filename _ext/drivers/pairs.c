/* All pairs of lines that have enough in common.
 *
 * A pair has at most as many ones in common as its smaller line has, so a line of a needs only the lines of b whose number of ones lies
 * in a range (BitBound: Swamidass and Baldi 2007). b is sorted by that number, so a block of lines of a meets one contiguous run of b. */
#include <stdlib.h>
#include <string.h>

#include "drivers/aligned.h"
#include "drivers/search.h"

#define A_BLOCK 256

typedef struct {
    bs_pair *pairs;
    size_t count, room;
} found_pairs;

typedef struct {
    bs_tiles t;
    const bs_pairs_job *job;
    uint64_t *panels; /* per thread */
    size_t tile_words;
    found_pairs *found; /* per unit */
    size_t total;
    int failed;
} pairs_run;

/* The first line of b with at least `ones` ones. */
static size_t first_with(const bs_codes *b, int64_t ones)
{
    size_t low = 0, high = b->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (b->ones[middle] < ones)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The run of b whose lines can pair with lines that have low .. high ones: with nb <= na at most nb are common, so (weight - share) nb
 * >= share na + bound; with nb >= na, share nb <= (weight - share) na - bound. */
static void run_of(const bs_pairs_job *job, int64_t low, int64_t high, size_t *first, size_t *end)
{
    const bs_test t = job->test;
    const int64_t rest = t.weight - t.share, least = t.share * low + t.bound;
    *first = rest > 0 && least > 0 ? first_with(&job->b, bs_min((size_t)low, (size_t)((least + rest - 1) / rest))) : 0;
    const int64_t most = rest * high - t.bound;
    *end = t.share > 0 ? first_with(&job->b, (most < 0 ? 0 : most / t.share) + 1) : job->b.n;
    if (most < 0 && t.share > 0)
        *end = *first;
}

static int add(found_pairs *f, bs_pair pair)
{
    if (f->count == f->room) {
        const size_t room = bs_max(256, 2 * f->room);
        bs_pair *larger = realloc(f->pairs, room * sizeof *larger);
        if (!larger)
            return -1;
        f->pairs = larger;
        f->room = room;
    }
    f->pairs[f->count++] = pair;
    return 0;
}

static int by_lines(const void *x, const void *y)
{
    const bs_pair *a = x, *b = y;
    return a->a != b->a ? (a->a > b->a) - (a->a < b->a) : (a->b > b->b) - (a->b < b->b);
}

static void pairs_unit(void *context, size_t unit, int thread)
{
    pairs_run *run = context;
    const bs_pairs_job *job = run->job;
    if (run->failed)
        return;
    found_pairs *f = run->found + unit;
    const size_t a0 = unit * A_BLOCK, rows = bs_min(A_BLOCK, job->a.n - a0);
    uint64_t *panels = run->panels + (size_t)thread * run->tile_words;
    int64_t low = job->a.ones[a0], high = low;
    for (size_t r = 1; r < rows; r++) {
        const int64_t here = job->a.ones[a0 + r];
        low = here < low ? here : low;
        high = here > high ? here : high;
    }
    size_t first, end;
    run_of(job, low, high, &first, &end);
    if (job->triangle)
        first = bs_max(first, a0 + 1);
    for (size_t at = first; at < end; at += BS_TILE) {
        const size_t n = bs_min(BS_TILE, end - at);
        int64_t ones[BS_TILE], counts[BS_MICRO_ROWS * BS_TILE] = {0};
        for (size_t i = 0; i < n; i++)
            ones[i] = job->b.ones[at + i];
        if (job->width)
            bs_pack_tile(&run->t, job->b.words + at * job->width, n, panels);
        for (size_t r = 0; r < rows; r++) {
            if (r % BS_MICRO_ROWS == 0 && job->width)
                bs_count_tile(&run->t, job->a.words + (a0 + r) * job->width, bs_min(BS_MICRO_ROWS, rows - r), panels, n, counts);
            const int64_t *of_row = counts + r % BS_MICRO_ROWS * BS_TILE, mine = job->a.ones[a0 + r];
            const int64_t bound = job->test.share * mine + job->test.bound;
            for (size_t part = 0; part < n; part += 64) {
                uint64_t hits =
                    run->t.k->passing(of_row + part, ones + part, bs_min(64, n - part), job->test.weight, job->test.share, bound);
                for (; hits; hits &= hits - 1) {
                    const size_t i = part + (size_t)__builtin_ctzll(hits);
                    if (job->triangle && at + i <= a0 + r)
                        continue;
                    const bs_pair pair = {(int64_t)(a0 + r), (int64_t)(at + i), (int32_t)of_row[i], (int32_t)(mine + ones[i])};
                    if (f->count == job->most || add(f, pair)) {
                        run->failed = f->count == job->most ? BS_TOO_MANY : -1;
                        return;
                    }
                }
            }
        }
    }
    if (!f->count)
        return;
    qsort(f->pairs, f->count, sizeof *f->pairs, by_lines);
    if (__atomic_add_fetch(&run->total, f->count, __ATOMIC_RELAXED) > job->most)
        run->failed = BS_TOO_MANY;
}

int bs_pairs(bs_run_on on, const bs_pairs_job *job, bs_pair **pairs, size_t *count)
{
    pairs_run run = {.t = bs_tiles_of(on.level, job->width), .job = job};
    const size_t units = bs_ceil_div(job->a.n, A_BLOCK), threads = bs_min((size_t)on.threads, bs_max(1, units));
    run.tile_words = bs_ceil_div(bs_max(8, bs_tile_bytes(&run.t) / sizeof(uint64_t)), 8) * 8;
    run.panels = bs_aligned(threads * run.tile_words * sizeof(uint64_t));
    run.found = calloc(bs_max(1, units), sizeof *run.found);
    run.failed = run.panels && run.found ? 0 : -1;
    *pairs = NULL;
    *count = 0;
    if (!run.failed) {
        bs_parallel(pairs_unit, &run, units, (int)threads);
        for (size_t u = 0; u < units; u++)
            *count += run.found[u].count;
        *pairs = run.failed ? NULL : malloc(bs_max(1, *count) * sizeof **pairs);
        run.failed = *pairs || run.failed ? run.failed : -1;
        for (size_t u = 0, at = 0; u < units; u++) {
            if (!run.failed && run.found[u].count)
                memcpy(*pairs + at, run.found[u].pairs, run.found[u].count * sizeof **pairs);
            at += run.found[u].count;
            free(run.found[u].pairs);
        }
    }
    bs_free_aligned(run.panels);
    free(run.found);
    if (run.failed) {
        free(*pairs);
        *pairs = NULL;
        *count = 0;
    }
    return run.failed;
}
