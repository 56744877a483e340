/* Parts of a graph for training in batches: sampled neighbours, walks, the edges among some nodes. One thread works on a batch while
 * others work on other batches; all draws are determined by a seed and their purpose. */
#ifndef BITSPARSE_DRIVE_SUBGRAPHS_H
#define BITSPARSE_DRIVE_SUBGRAPHS_H

#include "common/draws.h"
#include "drivers/csr.h"

/* Outcomes of a call: done, an argument that is not valid, no memory. */
enum bs_outcome { BS_DONE = 0, BS_NOT_VALID = -1, BS_NO_MEMORY = -2 };

/* Some rows of a graph with at most `width` neighbours each (all if width < 0), as a graph of its own with renumbered columns. `place`
 * has the new number of every column, or -1; before and after a call all are -1. With `own` the targets are the first columns. */
typedef struct {
    bs_csr a;
    const int64_t *targets;
    size_t count;
    int64_t width;
    int own;
    bs_draws draws;
    int32_t *place;
    const int64_t *starts; /* count + 1: where the edges of each target go */
    size_t total;
    int64_t *sources; /* the columns, in the order of their new numbers; with room for the most there can be */
    size_t room;
    int32_t *columns; /* total: new numbers, ascending within a row */
    int64_t *edges;   /* total: number of each edge in the graph */
} bs_hop;

/* Returns the number of columns, or an outcome below 0. */
int64_t bs_sample_hop(const bs_hop *hop);

/* The edges among `count` nodes, which are ascending and distinct and are numbered in this order. With `columns` == NULL the edges are
 * only counted, into starts[i + 1]; otherwise starts holds the running sums. Returns an outcome. */
int bs_induced(const bs_csr *a, const int64_t *nodes, size_t count, int32_t *place, int64_t *starts, size_t total, int32_t *columns,
               int64_t *edges);

/* Walks of `length` steps from each root to uniformly drawn neighbours; a walk stays where there are none. out is (count, length + 1). */
int bs_walks(const bs_csr *a, const int64_t *roots, size_t count, size_t length, bs_draws draws, int64_t *out);

/* Whole numbers below `limit`, drawn uniformly. */
void bs_draw_numbers(bs_draws draws, uint64_t limit, size_t count, int64_t *out);

#endif
