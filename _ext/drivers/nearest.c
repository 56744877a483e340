/* The k nearest lines of a database to each query, exactly.
 *
 * A unit of work compares a block of queries with a part of the database. It walks the part in tiles of 128 lines, in ascending order,
 * and keeps for each query a few more candidates than k. When these are full, the k best stay, and the worst of them determines what a
 * line must have in common with the query to get in: a test of one multiplication and one comparison for eight counts at a time, which
 * hardly any line passes. A line equal to the worst candidate comes after it, so it does not get in either. */
#include <stdlib.h>
#include <string.h>

#include "common/neighbours.h"
#include "drivers/aligned.h"
#include "drivers/search.h"

#define QUERY_BLOCK 512
/* So few queries are compared with lines in place, since packing a tile into panels would take longer. */
#define FEW_QUERIES 4
#define NOTHING UINT64_MAX

/* The candidates of a query in a part: key << 32 | line of the part. */
typedef struct {
    uint64_t *entries;
    size_t count;
    int64_t ones;
    bs_test test;
} heap;

typedef struct {
    bs_tiles t;
    const bs_nearest_job *job;
    size_t block, parts, part_lines, room, tile_words;
    unsigned char *memory; /* per thread: heaps, entries, a packed tile */
    size_t thread_bytes;
    uint64_t *found; /* (parts, queries, k) if there are several parts */
    int32_t *query_ones;
} nearest_run;

static void swap(uint64_t *x, uint64_t *y)
{
    const uint64_t z = *x;
    *x = *y;
    *y = z;
}

/* Moves the k smallest of n to the front, with the k-th as the last of them (Hoare's selection). */
static void select_smallest(uint64_t *x, size_t n, size_t k)
{
    size_t low = 0, high = n - 1;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (x[middle] < x[low])
            swap(x + middle, x + low);
        if (x[high] < x[low])
            swap(x + high, x + low);
        if (x[high] < x[middle])
            swap(x + high, x + middle);
        const uint64_t pivot = x[middle];
        size_t i = low, j = high;
        while (i <= j) {
            while (x[i] < pivot)
                i++;
            while (pivot < x[j])
                j--;
            if (i <= j) {
                swap(x + i++, x + j);
                if (!j--)
                    break;
            }
        }
        if (k - 1 <= j && j != SIZE_MAX)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            return;
    }
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Updates the test: what a line must have in common with the query to be nearer than the k-th candidate. */
static void tighten(const nearest_run *run, heap *h)
{
    const bs_nearest_job *job = run->job;
    select_smallest(h->entries, h->count, job->k);
    h->count = job->k;
    const bs_nearer test = bs_nearer_than(job->jaccard, (uint32_t)(h->entries[job->k - 1] >> 32), h->ones, 0);
    h->test = (bs_test){test.weight, test.share, test.bound};
}

static void take(const nearest_run *run, heap *h, size_t first, size_t n, const int64_t *counts, const int64_t *ones)
{
    for (size_t at = 0; at < n; at += 64) {
        const size_t m = bs_min(64, n - at);
        uint64_t hits = run->t.k->passing(counts + at, ones + at, m, h->test.weight, h->test.share, h->test.bound);
        for (; hits; hits &= hits - 1) {
            const size_t i = at + (size_t)__builtin_ctzll(hits);
            /* The test may have become stricter since. */
            if (ones[i] > (int64_t)BS_MOST_BITS || h->test.weight * counts[i] - h->test.share * ones[i] < h->test.bound)
                continue;
            const uint32_t key = bs_key_of(run->job->jaccard, (uint32_t)counts[i], (uint32_t)(h->ones + ones[i]));
            h->entries[h->count++] = (uint64_t)key << 32 | (uint32_t)(first + i);
            if (h->count == run->room)
                tighten(run, h);
        }
    }
}

static void give_out(const nearest_run *run, heap *h, size_t query, size_t part)
{
    const bs_nearest_job *job = run->job;
    qsort(h->entries, h->count, sizeof *h->entries, ascending);
    const size_t count = bs_min(h->count, job->k);
    if (run->parts > 1) {
        uint64_t *to = run->found + (part * job->queries.n + query) * job->k;
        memcpy(to, h->entries, count * sizeof *to);
        for (size_t i = count; i < job->k; i++)
            to[i] = NOTHING;
        return;
    }
    for (size_t i = 0; i < job->k; i++) {
        job->keys[query * job->k + i] = i < count ? (uint32_t)(h->entries[i] >> 32) : BS_FARTHEST;
        job->rows[query * job->k + i] = i < count ? (int64_t)(uint32_t)h->entries[i] : -1;
    }
}

static void nearest_unit(void *context, size_t unit, int thread)
{
    const nearest_run *run = context;
    const bs_nearest_job *job = run->job;
    const size_t part = unit % run->parts, q0 = unit / run->parts * run->block, queries = bs_min(run->block, job->queries.n - q0);
    const size_t start = part * run->part_lines, lines = start < job->database.n ? bs_min(run->part_lines, job->database.n - start) : 0;
    const uint32_t *words = job->database.words + start * job->width, *asked = job->queries.words + q0 * job->width;
    unsigned char *memory = run->memory + (size_t)thread * run->thread_bytes;
    uint64_t *panels = (uint64_t *)memory, *entries = panels + run->tile_words;
    heap *heaps = (heap *)(entries + run->block * run->room);
    for (size_t q = 0; q < queries; q++)
        heaps[q] = (heap){entries + q * run->room, 0, run->query_ones[q0 + q], {0, 0, 0}};
    for (size_t first = 0; first < lines; first += BS_TILE) {
        const size_t n = bs_min(BS_TILE, lines - first);
        const uint32_t *tile = words + first * job->width;
        int64_t ones[BS_TILE], counts[BS_MICRO_ROWS * BS_TILE];
        for (size_t i = 0; i < n; i++) {
            const int32_t here = job->database.ones[start + first + i];
            ones[i] = here < 0 ? INT32_MAX : here; /* fails every test but the first, which take() repeats */
        }
        if (queries <= FEW_QUERIES || !job->width) {
            for (size_t q = 0; q < queries; q++) {
                run->t.k->line_counts(asked + q * job->width, tile, job->width, n, counts);
                take(run, heaps + q, first, n, counts, ones);
            }
            continue;
        }
        bs_pack_tile(&run->t, tile, n, panels);
        for (size_t q = 0; q < queries; q += BS_MICRO_ROWS) {
            const size_t rows = bs_min(BS_MICRO_ROWS, queries - q);
            bs_count_tile(&run->t, asked + q * job->width, rows, panels, n, counts);
            for (size_t r = 0; r < rows; r++)
                take(run, heaps + q + r, first, n, counts + r * BS_TILE, ones);
        }
    }
    for (size_t q = 0; q < queries; q++)
        give_out(run, heaps + q, q0 + q, part);
}

/* Merges the parts' candidates in the order of their lines: of equal keys the one from the earlier part comes first. */
static void merge_unit(void *context, size_t query, int thread)
{
    const nearest_run *run = context;
    const bs_nearest_job *job = run->job;
    size_t *at = (size_t *)(run->memory + (size_t)thread * run->thread_bytes);
    memset(at, 0, run->parts * sizeof *at);
    for (size_t i = 0; i < job->k; i++) {
        size_t best = run->parts;
        uint64_t least = NOTHING;
        for (size_t p = 0; p < run->parts; p++) {
            const uint64_t one = at[p] < job->k ? run->found[(p * job->queries.n + query) * job->k + at[p]] : NOTHING;
            if (one != NOTHING && (best == run->parts || one >> 32 < least >> 32)) {
                best = p;
                least = one;
            }
        }
        job->keys[query * job->k + i] = best < run->parts ? (uint32_t)(least >> 32) : BS_FARTHEST;
        job->rows[query * job->k + i] = best < run->parts ? (int64_t)(best * run->part_lines + (uint32_t)least) : -1;
        if (best < run->parts)
            at[best]++;
    }
}

int bs_nearest(bs_run_on on, const bs_nearest_job *job)
{
    const size_t queries = job->queries.n, n = job->database.n;
    if (!queries || !job->k)
        return 0;
    nearest_run run = {.t = bs_tiles_of(on.level, job->width), .job = job};
    run.room = 2 * job->k + 32;
    run.block = bs_min(queries, QUERY_BLOCK);
    const size_t blocks = bs_ceil_div(queries, run.block), most = (size_t)1 << 31;
    /* Threads divide the database if there are too few blocks of queries; a part has at least as many lines as candidates. */
    const size_t wanted = blocks >= 4 * (size_t)on.threads || on.threads < 2 ? 1 : bs_ceil_div(4 * (size_t)on.threads, blocks);
    const size_t least = bs_ceil_div(bs_max(4096, 8 * job->k), BS_TILE) * BS_TILE;
    run.part_lines = bs_min(most, bs_max(least, bs_ceil_div(bs_ceil_div(n, wanted), BS_TILE) * BS_TILE));
    run.parts = bs_max(1, bs_ceil_div(n, run.part_lines));
    const size_t units = blocks * run.parts, threads = bs_min((size_t)on.threads, bs_max(units, queries));
    run.tile_words = bs_max(8, bs_tile_bytes(&run.t) / sizeof(uint64_t));
    run.thread_bytes = bs_max(run.tile_words * 8 + run.block * (run.room * 8 + sizeof(heap)), run.parts * sizeof(size_t));
    run.thread_bytes = bs_ceil_div(run.thread_bytes, BS_LINE) * BS_LINE;
    run.memory = bs_aligned(threads * run.thread_bytes);
    run.query_ones = malloc(queries * sizeof *run.query_ones);
    run.found = run.parts > 1 ? malloc(run.parts * queries * job->k * sizeof *run.found) : NULL;
    const int status = run.memory && run.query_ones && (run.parts == 1 || run.found) ? 0 : -1;
    if (!status) {
        bs_line_ones(on, job->queries.words, queries, job->width, run.query_ones);
        bs_parallel(nearest_unit, &run, units, (int)threads);
        if (run.parts > 1)
            bs_parallel(merge_unit, &run, queries, (int)threads);
    }
    bs_free_aligned(run.memory);
    free(run.query_ones);
    free(run.found);
    return status;
}
