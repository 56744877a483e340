/* Softmax over the edges of each row, by units of rows; long rows take three passes over their pieces. */
#include <math.h>
#include <stdlib.h>

#include "drivers/sparse.h"
#include "simd/join.h"

typedef struct {
    const bs_spmm_kernels *k;
    const bs_split *s;
    const bs_scores *from;
    void *stats, *pieces;
    int pass, bad;
} long_job;

#define TYPED(name) BS_JOIN(name, SUFFIX)

#define T float
#define SUFFIX f32
#include "drivers/softmax_rows.inc"
#undef T
#undef SUFFIX
#define T double
#define SUFFIX f64
#include "drivers/softmax_rows.inc"
#undef T
#undef SUFFIX

int bs_softmax_long(const bs_spmm_kernels *k, int threads, const bs_split *s, const bs_scores *from, void *stats)
{
    long_job j = {.k = k, .s = s, .from = from, .stats = stats};
    if (s->n_long == 0)
        return BS_SPARSE_OK;
    j.pieces = malloc(s->pieces * from->heads * sizeof(double));
    if (!j.pieces)
        return BS_NO_MEMORY;
    for (j.pass = 1; j.pass <= 2 && !j.bad; j.pass++) {
        bs_parallel(from->wide ? long_piece_f64 : long_piece_f32, &j, s->pieces, threads);
        if (!j.bad)
            (from->wide ? fold_pieces_f64 : fold_pieces_f32)(&j);
    }
    free(j.pieces);
    return j.bad ? BS_BAD_INDEX : BS_SPARSE_OK;
}

void bs_attention_part(const bs_spmm_kernels *k, const bs_split *s, const bs_part *p, const bs_attention *from, size_t head,
                       const void *stats, const unsigned char *kept, void *to, void *above, void *share, void *lse)
{
    if (from->scores.wide)
        attention_part_f64(k, s, p, from, head, stats, kept, to, above, share, lse);
    else
        attention_part_f32(k, s, p, from, head, stats, kept, to, above, share, lse);
}

typedef struct {
    const bs_spmm_kernels *k;
    bs_split s;
    const bs_scores *from;
    void *stats, *out;
} softmax_job;

static void softmax_unit(void *shared, size_t unit, int thread)
{
    (void)thread;
    softmax_job *j = shared;
    bs_part p;
    union {
        float f32[BS_UNIT_EDGES + BS_SLACK / sizeof(float)];
        double f64[BS_UNIT_EDGES + BS_SLACK / sizeof(double)];
    } buffer;
    bs_part_of(&j->s, unit, &p);
    for (size_t head = 0; head < j->from->heads && p.edges; head++) {
        if (j->from->wide) {
            softmax_part_f64(j->k, &j->s, &p, j->from, head, j->stats, buffer.f64, NULL);
            store_part_f64(&p, j->from->heads, head, buffer.f64, j->out);
        } else {
            softmax_part_f32(j->k, &j->s, &p, j->from, head, j->stats, buffer.f32, NULL);
            store_part_f32(&p, j->from->heads, head, buffer.f32, j->out);
        }
    }
}

int bs_edge_softmax(bs_run_on on, const bs_csr *a, const bs_scores *from, void *out)
{
    softmax_job j = {.k = bs_spmm_table(on.level), .from = from, .out = out};
    int status = bs_split_make(&j.s, a);
    if (status == BS_SPARSE_OK && j.s.n_long && from->heads) {
        j.stats = malloc(j.s.n_long * from->heads * 2 * sizeof(double));
        status = j.stats ? bs_softmax_long(j.k, on.threads, &j.s, from, j.stats) : BS_NO_MEMORY;
    }
    if (status == BS_SPARSE_OK && from->heads)
        bs_parallel(softmax_unit, &j, j.s.units + j.s.pieces, on.threads);
    free(j.stats);
    bs_split_free(&j.s);
    return status;
}
