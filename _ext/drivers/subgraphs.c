/* Parts of a graph for training in batches. */
#include "drivers/subgraphs.h"

#include <stdlib.h>

/* Up to this many picks of a row are compared one by one; for more a hash table of taken positions is kept. */
#define FEW 48

typedef struct {
    int32_t column;
    int64_t edge;
} pick;

/* Memory of one call besides its arguments; it grows with the longest row. */
typedef struct {
    pick *picks;
    int64_t *taken;
    size_t picks_room, taken_room;
} scratch;

/* The column of an edge as it is stored; -1 if it is not valid. */
static int64_t column_at(const bs_csr *a, size_t edge)
{
    const int64_t c = a->wide ? __atomic_load_n((const int64_t *)a->indices + edge, __ATOMIC_RELAXED)
                              : __atomic_load_n((const int32_t *)a->indices + edge, __ATOMIC_RELAXED);
    return (uint64_t)c < a->cols ? c : -1;
}

static int ensure(void **memory, size_t *room, size_t wanted, size_t item)
{
    if (wanted <= *room)
        return 1;
    size_t larger = *room ? *room : 64;
    while (larger < wanted)
        larger *= 2;
    void *grown = realloc(*memory, larger * item);
    if (!grown)
        return 0;
    *memory = grown;
    *room = larger;
    return 1;
}

/* Returns whether a position is in the table of taken positions, and inserts it. The table's length is a power of two; -1 marks free
 * places. */
static int take(int64_t *table, size_t mask, int64_t position)
{
    size_t at = (size_t)((uint64_t)position * 0x9E3779B97F4A7C15u >> 20) & mask;
    for (; table[at] >= 0; at = (at + 1) & mask)
        if (table[at] == position)
            return 0;
    table[at] = position;
    return 1;
}

/* Chooses `k` of `n` positions, every set with the same probability (Floyd; Bentley, CACM 30, 1987). */
static int choose(const bs_hop *hop, size_t row, size_t n, size_t k, scratch *s)
{
    size_t mask = 0;
    if (k > FEW) {
        size_t size = 64;
        while (size < 2 * k)
            size *= 2;
        if (!ensure((void **)&s->taken, &s->taken_room, size, sizeof *s->taken))
            return 0;
        for (size_t i = 0; i < size; i++)
            s->taken[i] = -1;
        mask = size - 1;
    }
    for (size_t i = 0; i < k; i++) {
        const size_t last = n - k + i;
        int64_t position = (int64_t)bs_draw_below(hop->draws, BS_FOR_NEIGHBOURS, row, i, last + 1);
        int fresh = 1;
        if (mask)
            fresh = take(s->taken, mask, position);
        else
            for (size_t j = 0; j < i && fresh; j++)
                fresh = s->picks[j].edge != position;
        if (!fresh) {
            position = (int64_t)last;
            if (mask)
                take(s->taken, mask, position);
        }
        s->picks[i].edge = position;
    }
    return 1;
}

static int by_column(const void *left, const void *right)
{
    const int32_t a = ((const pick *)left)->column, b = ((const pick *)right)->column;
    return (a > b) - (a < b);
}

static int by_edge(const void *left, const void *right)
{
    const int64_t a = ((const pick *)left)->edge, b = ((const pick *)right)->edge;
    return (a > b) - (a < b);
}

static inline void sort(pick *picks, size_t n, int (*order)(const void *, const void *))
{
    if (n > 32) {
        qsort(picks, n, sizeof *picks, order);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        const pick one = picks[i];
        size_t j = i;
        for (; j && order(picks + j - 1, &one) > 0; j--)
            picks[j] = picks[j - 1];
        picks[j] = one;
    }
}

/* One target: draws, numbers, sorts and writes its edges. `known` counts the columns so far. Returns an outcome. */
static int target_row(const bs_hop *hop, size_t i, int64_t *known, scratch *s)
{
    const int64_t from = hop->starts[i], to = hop->starts[i + 1], row = hop->targets[i];
    size_t first, degree;
    if ((uint64_t)row >= hop->a.rows || !bs_row(&hop->a, (size_t)row, &first, &degree))
        return BS_NOT_VALID;
    const size_t n = hop->width < 0 || degree <= (uint64_t)hop->width ? degree : (size_t)hop->width;
    if (from < 0 || to < from || (uint64_t)to > hop->total || (uint64_t)(to - from) != n)
        return BS_NOT_VALID;
    if (!ensure((void **)&s->picks, &s->picks_room, n, sizeof *s->picks))
        return BS_NO_MEMORY;
    if (n < degree) {
        if (!choose(hop, (size_t)row, degree, n, s))
            return BS_NO_MEMORY;
    } else {
        for (size_t j = 0; j < n; j++)
            s->picks[j].edge = (int64_t)j;
    }
    /* New columns are numbered in the order of the edges, whatever the order of the draws. */
    if (n < degree)
        sort(s->picks, n, by_edge);
    for (size_t j = 0; j < n; j++) {
        s->picks[j].edge += (int64_t)first;
        const int64_t column = column_at(&hop->a, (size_t)s->picks[j].edge);
        if (column < 0)
            return BS_NOT_VALID;
        int32_t number = hop->place[column];
        if (number < 0) {
            if ((uint64_t)*known >= hop->room)
                return BS_NOT_VALID;
            number = (int32_t)*known;
            hop->sources[(*known)++] = column;
            hop->place[column] = number;
        }
        s->picks[j].column = number;
    }
    sort(s->picks, n, by_column);
    for (size_t j = 0; j < n; j++) {
        hop->columns[from + (int64_t)j] = s->picks[j].column;
        hop->edges[from + (int64_t)j] = s->picks[j].edge;
    }
    return BS_DONE;
}

int64_t bs_sample_hop(const bs_hop *hop)
{
    scratch s = {0};
    int64_t known = 0;
    int outcome = BS_DONE;
    if (hop->own) {
        for (size_t i = 0; i < hop->count; i++) {
            const int64_t node = hop->targets[i];
            if ((uint64_t)node >= hop->a.cols || (uint64_t)known >= hop->room || hop->place[node] >= 0) {
                outcome = BS_NOT_VALID;
                break;
            }
            hop->place[node] = (int32_t)known;
            hop->sources[known++] = node;
        }
    }
    for (size_t i = 0; i < hop->count && outcome == BS_DONE; i++)
        outcome = target_row(hop, i, &known, &s);
    /* Checked again: another thread may have written into the caller's array. */
    for (int64_t i = 0; i < known; i++) {
        const int64_t node = __atomic_load_n(hop->sources + i, __ATOMIC_RELAXED);
        if ((uint64_t)node < hop->a.cols)
            hop->place[node] = -1;
    }
    free(s.picks);
    free(s.taken);
    return outcome == BS_DONE ? known : outcome;
}

/* ---- the edges among some nodes ---- */
static int induced_row(const bs_csr *a, int64_t node, const int32_t *place, int64_t *at, int64_t end, int32_t *columns, int64_t *edges)
{
    size_t first, degree;
    if (!bs_row(a, (size_t)node, &first, &degree))
        return BS_NOT_VALID;
    for (size_t e = first; e < first + degree; e++) {
        const int64_t column = column_at(a, e);
        if (column < 0)
            return BS_NOT_VALID;
        if (place[column] < 0)
            continue;
        if (columns) {
            if (*at >= end)
                return BS_NOT_VALID;
            columns[*at] = place[column];
            edges[*at] = (int64_t)e;
        }
        ++*at;
    }
    return BS_DONE;
}

int bs_induced(const bs_csr *a, const int64_t *given, size_t count, int32_t *place, int64_t *starts, size_t total, int32_t *columns,
               int64_t *edges)
{
    int outcome = BS_DONE;
    size_t numbered = 0;
    /* A copy, so that the nodes that were checked are the ones used, whatever another thread writes meanwhile. */
    int64_t *nodes = malloc((count ? count : 1) * sizeof *nodes);
    if (!nodes)
        return BS_NO_MEMORY;
    for (; numbered < count; numbered++) {
        const int64_t node = __atomic_load_n(given + numbered, __ATOMIC_RELAXED);
        if ((uint64_t)node >= a->rows || (uint64_t)node >= a->cols || (numbered && nodes[numbered - 1] >= node) || place[node] >= 0) {
            outcome = BS_NOT_VALID;
            break;
        }
        nodes[numbered] = node;
        place[node] = (int32_t)numbered;
    }
    for (size_t i = 0; i < count && outcome == BS_DONE; i++) {
        int64_t at = columns ? __atomic_load_n(starts + i, __ATOMIC_RELAXED) : 0;
        const int64_t end = columns ? __atomic_load_n(starts + i + 1, __ATOMIC_RELAXED) : 0;
        if (at < 0 || end < at || (uint64_t)end > total) {
            outcome = BS_NOT_VALID;
            break;
        }
        outcome = induced_row(a, nodes[i], place, &at, end, columns, edges);
        if (!columns)
            starts[i + 1] = at;
        else if (at != end)
            outcome = BS_NOT_VALID;
    }
    for (size_t i = 0; i < numbered; i++)
        place[nodes[i]] = -1;
    free(nodes);
    return outcome;
}

/* ---- walks and numbers ---- */
int bs_walks(const bs_csr *a, const int64_t *roots, size_t count, size_t length, bs_draws draws, int64_t *out)
{
    for (size_t i = 0; i < count; i++) {
        int64_t node = roots[i];
        if ((uint64_t)node >= a->rows)
            return BS_NOT_VALID;
        *out++ = node;
        for (size_t k = 0; k < length; k++) {
            size_t first, degree;
            if (!bs_row(a, (size_t)node, &first, &degree))
                return BS_NOT_VALID;
            if (degree) {
                node = column_at(a, first + (size_t)bs_draw_below(draws, BS_FOR_WALKS, i, k, degree));
                if (node < 0 || (uint64_t)node >= a->rows)
                    return BS_NOT_VALID;
            }
            *out++ = node;
        }
    }
    return BS_DONE;
}

void bs_draw_numbers(bs_draws draws, uint64_t limit, size_t count, int64_t *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (int64_t)bs_draw_below(draws, BS_FOR_NUMBERS, i >> 1, i & 1, limit);
}
