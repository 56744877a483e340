/* A product of two rows for every edge: threads take units of edges, so that hub rows are divided too. */
#include <stdlib.h>
#include <string.h>

#include "drivers/sparse.h"

typedef struct {
    const bs_spmm_kernels *k;
    const bs_sddmm_job *job;
    bs_csr a; /* with its own copy of the row pointers */
    bs_split split;
    bs_gather x, y, weights;
    int bad;
    size_t item, row_bytes, out_bytes; /* bytes of an element, of a row of y, of the result of an edge */
    unsigned char *partial;            /* (pieces, heads * width) */
} context;

/* The row of an edge: the last nonempty one that starts at the edge or before. */
static size_t row_of_edge(const bs_csr *a, size_t edge)
{
    size_t low = 0, high = a->rows;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (bs_row_start(a, middle) <= edge)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Finds the addresses of the rows of n edges. If a column is out of range, returns nonzero, and other threads get no more work. */
static int located(context *c, const bs_csr *a, size_t first, size_t n, const unsigned char **at)
{
    if (__atomic_load_n(&c->bad, __ATOMIC_RELAXED))
        return 1;
    if (!bs_locate(c->k, a, &c->y, first, n, at))
        return 0;
    __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
    return 1;
}

static bs_sddmm_block block_of(const context *c, const unsigned char *const *at, size_t edges)
{
    return (bs_sddmm_block){.at = at, .edges = edges, .heads = c->job->heads, .width = c->job->width, .slope = c->job->slope};
}

static void sddmm_unit(void *shared, size_t unit, int thread)
{
    (void)thread;
    context *c = shared;
    const unsigned char *at[BS_SEGMENT + BS_AHEAD];
    const size_t first = unit * BS_SEGMENT, end = bs_min(first + BS_SEGMENT, c->a.nnz);
    if (located(c, &c->a, first, end - first, at))
        return;
    size_t edge = first;
    for (size_t row = row_of_edge(&c->a, first); edge < end; row++) {
        const size_t stop = bs_min(end, bs_row_start(&c->a, row + 1));
        if (stop <= edge)
            continue;
        bs_sddmm_block b = block_of(c, at + (edge - first), stop - edge);
        b.x = row < c->x.tail_first ? c->x.base + row * c->x.stride : c->x.tail + (row - c->x.tail_first) * c->x.tail_stride;
        b.out = (unsigned char *)c->job->out + edge * c->out_bytes;
        b.weights = c->weights.tail;
        c->k->sddmm[c->job->type][c->job->op](&b);
        edge = stop;
    }
}

static context context_of(bs_run_on on, const bs_sddmm_job *job)
{
    context c = {.k = bs_spmm_table(on.level), .job = job, .item = job->type == BS_SD_F32 || job->type == BS_SD_I32 ? 4 : 8};
    c.row_bytes = job->heads * job->width * c.item;
    c.out_bytes = job->op == BS_DOT || job->op == BS_LEAKY ? job->heads * c.item : c.row_bytes;
    return c;
}

int bs_sddmm(bs_run_on on, const bs_csr *a, const bs_sddmm_job *job)
{
    context c = context_of(on, job);
    int64_t longest;
    int status = bs_rows_copy(&c.a, a, &longest);
    if (status != BS_SPARSE_OK || a->nnz == 0 || c.out_bytes == 0) {
        bs_rows_free(&c.a);
        return status;
    }
    status = bs_gather_make(&c.x, job->x, a->rows, c.row_bytes, c.row_bytes);
    if (status == BS_SPARSE_OK)
        status = bs_gather_make(&c.y, job->y, a->cols, c.row_bytes, c.row_bytes);
    if (status == BS_SPARSE_OK && job->op == BS_LEAKY)
        status = bs_gather_make(&c.weights, job->weights, 1, c.row_bytes, c.row_bytes);
    if (status == BS_SPARSE_OK) {
        bs_parallel(sddmm_unit, &c, bs_ceil_div(a->nnz, BS_SEGMENT), on.threads);
        status = c.bad ? BS_BAD_INDEX : BS_SPARSE_OK;
    }
    free((void *)c.x.tail);
    free((void *)c.y.tail);
    free((void *)c.weights.tail);
    bs_rows_free(&c.a);
    return status;
}

/* ---- sums over rows of a function of both ends of every edge ---- */
static void steep_unit(void *shared, size_t unit, int thread)
{
    (void)thread;
    context *c = shared;
    const unsigned char *at[BS_UNIT_EDGES + BS_AHEAD];
    bs_part p;
    bs_part_of(&c->split, unit, &p);
    if (p.rows == 0 || located(c, &c->split.a, p.edge, p.edges, at))
        return;
    unsigned char *out = p.piece == SIZE_MAX ? (unsigned char *)c->job->out + p.row * c->row_bytes : c->partial + p.piece * c->row_bytes;
    memset(out, 0, p.rows * c->row_bytes);
    for (size_t r = 0; r < p.rows; r++) {
        bs_sddmm_block b = block_of(c, at + p.first[r], p.first[r + 1] - p.first[r]);
        b.x = (const unsigned char *)c->job->x + (p.row + r) * c->row_bytes;
        b.out = out + r * c->row_bytes;
        b.weights = (const unsigned char *)c->job->weights + (p.edge + p.first[r]) * c->job->heads * c->item;
        c->k->sddmm[c->job->type][BS_STEEP](&b);
    }
}

#define JOIN_PIECES(T)                                                                                                                     \
    for (size_t i = 0; i < c->job->heads * c->job->width; i++) {                                                                           \
        T sum = ((const T *)(const void *)from)[i];                                                                                        \
        for (size_t piece = 1; piece < pieces; piece++)                                                                                    \
            sum += ((const T *)(const void *)(from + piece * c->row_bytes))[i];                                                            \
        ((T *)c->job->out)[row * c->job->heads * c->job->width + i] = sum;                                                                 \
    }

/* Adds up the pieces of a long row, in order. */
static void join_long_row(void *shared, size_t n, int thread)
{
    (void)thread;
    const context *c = shared;
    const size_t row = c->split.long_row[n], first = c->split.first_piece[n], pieces = c->split.first_piece[n + 1] - first;
    const unsigned char *from = c->partial + first * c->row_bytes;
    if (c->item == 4)
        JOIN_PIECES(float)
    else
        JOIN_PIECES(double)
}

int bs_steep_sums(bs_run_on on, const bs_csr *a, const bs_sddmm_job *job)
{
    context c = context_of(on, job);
    int status = bs_split_make(&c.split, a);
    if (status == BS_SPARSE_OK && c.row_bytes) {
        status = bs_gather_make(&c.y, job->y, a->cols, c.row_bytes, c.row_bytes);
        if (status == BS_SPARSE_OK && c.split.pieces && !(c.partial = malloc(c.split.pieces * c.row_bytes)))
            status = BS_NO_MEMORY;
        if (status == BS_SPARSE_OK) {
            bs_parallel(steep_unit, &c, c.split.units + c.split.pieces, on.threads);
            if (!c.bad)
                bs_parallel(join_long_row, &c, c.split.n_long, on.threads);
            status = c.bad ? BS_BAD_INDEX : BS_SPARSE_OK;
        }
    }
    free((void *)c.y.tail);
    free(c.partial);
    bs_split_free(&c.split);
    return status;
}
