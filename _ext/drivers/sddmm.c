/* A product of two rows for every edge: units of edges over threads, so that hub rows are shared out as well. */
#include <stdlib.h>
#include <string.h>

#include "drivers/sparse.h"

typedef struct {
    const bs_spmm_kernels *k;
    bs_csr a; /* with row pointers of its own */
    bs_gather x, y;
    int type, op, bad;
    size_t heads, width, out_bytes; /* of one edge */
    unsigned char *out;
} context;

/* The row of an edge: the last one that starts at it or before and is not empty. */
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

static void sddmm_unit(void *shared, size_t unit, int thread)
{
    (void)thread;
    context *c = shared;
    const unsigned char *at[BS_SEGMENT + BS_AHEAD];
    const size_t first = unit * BS_SEGMENT, end = bs_min(first + BS_SEGMENT, c->a.nnz);
    if (__atomic_load_n(&c->bad, __ATOMIC_RELAXED))
        return;
    if (bs_locate(c->k, &c->a, &c->y, first, end - first, at)) {
        __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
        return;
    }
    size_t edge = first;
    for (size_t row = row_of_edge(&c->a, first); edge < end; row++) {
        const size_t stop = bs_min(end, bs_row_start(&c->a, row + 1));
        if (stop <= edge)
            continue;
        bs_sddmm_block b = {.at = at + (edge - first), .edges = stop - edge, .heads = c->heads, .width = c->width};
        b.x = row < c->x.tail_first ? c->x.base + row * c->x.stride : c->x.tail + (row - c->x.tail_first) * c->x.tail_stride;
        b.out = c->out + edge * c->out_bytes;
        c->k->sddmm[c->type][c->op](&b);
        edge = stop;
    }
}

int bs_sddmm(bs_run_on on, const bs_csr *a, int type, int op, const void *x, const void *y, size_t heads, size_t width, void *out)
{
    context c = {.k = bs_spmm_table(on.level), .type = type, .op = op, .heads = heads, .width = width, .out = out};
    const size_t item = type == BS_SD_F32 || type == BS_SD_I32 ? 4 : 8, row_bytes = heads * width * item;
    c.out_bytes = op == BS_DOT ? heads * item : row_bytes;
    int64_t longest;
    int status = bs_rows_copy(&c.a, a, &longest);
    if (status != BS_SPARSE_OK || a->nnz == 0 || c.out_bytes == 0) {
        bs_rows_free(&c.a);
        return status;
    }
    status = bs_gather_make(&c.x, x, a->rows, row_bytes, row_bytes);
    if (status == BS_SPARSE_OK)
        status = bs_gather_make(&c.y, y, a->cols, row_bytes, row_bytes);
    if (status == BS_SPARSE_OK) {
        bs_parallel(sddmm_unit, &c, bs_ceil_div(a->nnz, BS_SEGMENT), on.threads);
        status = c.bad ? BS_BAD_INDEX : BS_SPARSE_OK;
    }
    free((void *)c.x.tail);
    free((void *)c.y.tail);
    bs_rows_free(&c.a);
    return status;
}
