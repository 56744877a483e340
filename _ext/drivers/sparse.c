/* What the sparse drivers share: checks of row pointers, the division of work, addresses of gathered rows. */
#include <stdlib.h>
#include <string.h>

#include "drivers/sparse.h"

const bs_spmm_kernels *bs_spmm_table(int level)
{
#ifdef BS_X86
    level = bs_runs_level(level);
    if (level >= BS_AVX512)
        return &bs_spmm_kernels_avx512;
    if (level >= BS_AVX2)
        return &bs_spmm_kernels_avx2;
#else
    (void)level;
#endif
    return &bs_spmm_kernels_scalar;
}

#define DEFINE_LONGEST(bits)                                                                                                               \
    static int64_t longest##bits(const uint##bits##_t *indptr, size_t rows, size_t nnz)                                                    \
    {                                                                                                                                      \
        uint##bits##_t longest = 0, falls = 0;                                                                                             \
        if (indptr[0] != 0 || indptr[rows] != nnz)                                                                                         \
            return -1;                                                                                                                     \
        for (size_t r = 0; r < rows; r++) {                                                                                                \
            const uint##bits##_t length = indptr[r + 1] - indptr[r];                                                                       \
            falls |= (uint##bits##_t)(indptr[r + 1] < indptr[r]);                                                                          \
            longest = length > longest ? length : longest;                                                                                 \
        }                                                                                                                                  \
        return falls ? -1 : (int64_t)longest;                                                                                              \
    }
DEFINE_LONGEST(32)
DEFINE_LONGEST(64)

int64_t bs_longest_row(const bs_csr *a) { return a->wide ? longest64(a->indptr, a->rows, a->nnz) : longest32(a->indptr, a->rows, a->nnz); }

int bs_rows_copy(bs_csr *own, const bs_csr *a, int64_t *longest)
{
    const size_t bytes = (a->rows + 1) * (a->wide ? 8 : 4);
    void *starts = malloc(bytes);
    *own = *a;
    own->indptr = starts;
    if (!starts)
        return BS_NO_MEMORY;
    memcpy(starts, a->indptr, bytes);
    *longest = bs_longest_row(own);
    return *longest < 0 ? BS_BAD_INDPTR : BS_SPARSE_OK;
}

void bs_rows_free(bs_csr *own)
{
    free((void *)own->indptr);
    own->indptr = NULL;
}

/* The first row r with r + indptr[r] >= unit * BS_SEGMENT, for every unit and for one past the last, where it is `rows`. */
#define FIND_STARTS(T)                                                                                                                     \
    for (size_t r = 0; r < a->rows; r++)                                                                                                   \
        for (const size_t last = (r + (size_t)((const T *)a->indptr)[r]) / BS_SEGMENT; unit <= last;)                                      \
    s->start[unit++] = r

static int find_starts(bs_split *s)
{
    const bs_csr *a = &s->a;
    size_t unit = 0;
    s->start = malloc((s->units + 1) * sizeof *s->start);
    if (!s->start)
        return BS_NO_MEMORY;
    if (a->wide)
        FIND_STARTS(uint64_t);
    else
        FIND_STARTS(uint32_t);
    s->start[s->units] = a->rows;
    return BS_SPARSE_OK;
}

int bs_split_make(bs_split *s, const bs_csr *caller)
{
    const bs_csr *a = &s->a;
    int64_t longest;
    memset(s, 0, sizeof *s);
    const int status = bs_rows_copy(&s->a, caller, &longest);
    if (status != BS_SPARSE_OK)
        return status;
    if (a->rows == 0)
        return BS_SPARSE_OK;
    s->units = (a->rows - 1 + bs_row_start(a, a->rows - 1)) / BS_SEGMENT + 1;
    if (find_starts(s) != BS_SPARSE_OK)
        return BS_NO_MEMORY;
    if (longest <= BS_SEGMENT)
        return BS_SPARSE_OK;
    for (size_t r = 0; r < a->rows; r++) {
        const size_t length = bs_row_start(a, r + 1) - bs_row_start(a, r);
        if (length > BS_SEGMENT) {
            s->n_long++;
            s->pieces += bs_ceil_div(length, BS_SEGMENT);
        }
    }
    s->long_row = malloc(s->n_long * sizeof *s->long_row);
    s->first_piece = malloc((s->n_long + 1) * sizeof *s->first_piece);
    s->owner = malloc(s->pieces * sizeof *s->owner);
    if (!s->long_row || !s->first_piece || !s->owner)
        return BS_NO_MEMORY;
    size_t n = 0, piece = 0;
    for (size_t r = 0; r < a->rows; r++) {
        const size_t length = bs_row_start(a, r + 1) - bs_row_start(a, r);
        if (length <= BS_SEGMENT)
            continue;
        s->long_row[n] = r;
        s->first_piece[n] = piece;
        for (size_t i = bs_ceil_div(length, BS_SEGMENT); i > 0; i--)
            s->owner[piece++] = n;
        n++;
    }
    s->first_piece[n] = piece;
    return BS_SPARSE_OK;
}

void bs_split_free(bs_split *s)
{
    bs_rows_free(&s->a);
    free(s->start);
    free(s->long_row);
    free(s->first_piece);
    free(s->owner);
    free(s->order);
    s->start = s->long_row = s->first_piece = s->owner = NULL;
    s->order = NULL;
}

#define COUNT_FROM(T)                                                                                                                      \
    for (size_t k = 0; k <= p->rows; k++)                                                                                                  \
    p->first[k] = (uint32_t)(((const T *)a->indptr)[p->row + k] - (T)p->edge)

void bs_part_of(const bs_split *s, size_t unit, bs_part *p)
{
    const bs_csr *a = &s->a;
    if (unit >= s->units) {
        p->piece = unit - s->units;
        p->order = NULL;
        const size_t n = s->owner[p->piece];
        p->row = s->long_row[n];
        p->rows = 1;
        p->edge = bs_row_start(a, p->row) + (p->piece - s->first_piece[n]) * BS_SEGMENT;
        p->edges = bs_min(BS_SEGMENT, bs_row_start(a, p->row + 1) - p->edge);
        p->first[0] = 0;
        p->first[1] = (uint32_t)p->edges;
        return;
    }
    p->piece = SIZE_MAX;
    p->row = s->start[unit];
    size_t end = s->start[unit + 1];
    /* Only the last row can be a long one: it ends beyond the interval of costs. */
    if (end > p->row && bs_row_start(a, end) - bs_row_start(a, end - 1) > BS_SEGMENT)
        end--;
    p->rows = end - p->row;
    p->edge = bs_row_start(a, p->row);
    p->edges = bs_row_start(a, end) - p->edge;
    p->order = s->order ? s->order + p->row : NULL;
    if (a->wide)
        COUNT_FROM(uint64_t);
    else
        COUNT_FROM(uint32_t);
}

int bs_split_order(bs_split *s)
{
    uint16_t *const order = malloc(s->a.rows * sizeof *order + BS_SLACK);
    bs_part p;
    if (!order)
        return BS_NO_MEMORY;
    for (size_t unit = 0; unit < s->units; unit++) {
        size_t places[BS_SEGMENT + 1] = {0}; /* by length: how many rows there are, then where the next one goes */
        bs_part_of(s, unit, &p);
        for (size_t r = 0; r < p.rows; r++)
            places[p.first[r + 1] - p.first[r]]++;
        for (size_t length = BS_SEGMENT + 1, longer = 0; length-- > 0;) {
            const size_t here = places[length];
            places[length] = longer;
            longer += here;
        }
        for (size_t r = 0; r < p.rows; r++)
            order[p.row + places[p.first[r + 1] - p.first[r]]++] = (uint16_t)r;
    }
    s->order = order;
    return BS_SPARSE_OK;
}

int bs_gather_make(bs_gather *g, const unsigned char *x, size_t rows, size_t stride, size_t row_bytes)
{
    const size_t copied = bs_min(rows, bs_ceil_div(BS_SLACK, bs_max(stride, 1)));
    memset(g, 0, sizeof *g);
    g->base = x;
    g->rows = rows;
    g->stride = stride;
    g->tail_first = rows - copied;
    g->tail_stride = row_bytes + BS_SLACK;
    unsigned char *tail = calloc(bs_max(copied, 1), g->tail_stride);
    if (!tail)
        return BS_NO_MEMORY;
    for (size_t r = 0; r < copied && row_bytes; r++) /* without features x may be null, which memcpy must not get */
        memcpy(tail + r * g->tail_stride, x + (g->tail_first + r) * stride, row_bytes);
    g->tail = tail;
    return BS_SPARSE_OK;
}

int bs_locate(const bs_spmm_kernels *k, const bs_csr *a, const bs_gather *g, size_t edge, size_t edges, const unsigned char **at)
{
    int bad = 0;
    if (!a->indices) {
        for (size_t e = 0; e < edges; e++) {
            const size_t c = edge + e;
            bad |= c >= g->rows;
            at[e] = c < g->tail_first ? g->base + c * g->stride : g->tail + (c - g->tail_first) * g->tail_stride;
        }
    } else if (a->wide) {
        bad = k->locate64((const uint64_t *)a->indices + edge, edges, g, at);
    } else {
        bad = k->locate32((const uint32_t *)a->indices + edge, edges, g, at);
    }
    for (size_t e = edges; e < edges + BS_AHEAD; e++)
        at[e] = edges ? at[edges - 1] : g->base;
    return bad;
}
