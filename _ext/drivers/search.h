/* Searches among lines of bits: the nearest ones to each query, and all pairs that pass a test. */
#ifndef BITSPARSE_SEARCH_H
#define BITSPARSE_SEARCH_H

#include "drivers/drive.h"

/* Lines of `width` words, and how many bits of each are set; negative: this line must not be found. */
typedef struct {
    const uint32_t *words;
    const int32_t *ones;
    size_t n;
} bs_codes;

typedef struct {
    bs_codes queries, database;
    size_t width, k;
    int jaccard;
    uint32_t *keys; /* (queries, k), see common/neighbours.h, ascending; equal keys are ordered by their rows */
    int64_t *rows;  /* -1 where there are fewer than k */
} bs_nearest_job;

/* 0, or -1 when memory is short. */
int bs_nearest(bs_run_on on, const bs_nearest_job *job);

/* Which pairs to find: weight * common >= share * (ones of both) + bound. */
typedef struct {
    int64_t weight, share, bound;
} bs_test;

typedef struct {
    bs_codes a, b; /* b in ascending order of its ones */
    size_t width;
    bs_test test;
    int triangle; /* only pairs whose line of b comes after that of a */
    size_t most;  /* the most pairs; if there are more, the result is BS_TOO_MANY */
} bs_pairs_job;

typedef struct {
    int64_t a, b;
    int32_t common, sum;
} bs_pair;

#define BS_TOO_MANY 1
/* Pairs in the order of a and then b, which the caller frees. Returns -1 with NULL if memory is short, or BS_TOO_MANY. */
int bs_pairs(bs_run_on on, const bs_pairs_job *job, bs_pair **pairs, size_t *count);

/* ones[i]: the number of bits set in line i, of `width` words. */
void bs_line_ones(bs_run_on on, const uint32_t *words, size_t n, size_t width, int32_t *ones);
void bs_jaccard_distances(const uint32_t *keys, size_t n, float *distances);

/* ---- shared by both searches: counts of up to BS_TILE lines of a database for eight queries at a time ---- */
typedef struct {
    const bs_kernels *k;
    size_t width, panel_words;
} bs_tiles;

bs_tiles bs_tiles_of(int level, size_t width);
/* Bytes of a packed tile. */
size_t bs_tile_bytes(const bs_tiles *t);
void bs_pack_tile(const bs_tiles *t, const uint32_t *words, size_t n, uint64_t *panels);
/* counts[BS_MICRO_ROWS][BS_TILE] of `rows` queries, at most eight. */
void bs_count_tile(const bs_tiles *t, const uint32_t *queries, size_t rows, const uint64_t *panels, size_t n, int64_t *counts);

#endif
