/* One-bit aggregation over threads. Rows are dealt out in short runs, so that long rows (hubs) go to different threads. No two rows share
 * an output word, so threads never write to the same one. */
#include "drivers/bspmm.h"

#include <stdlib.h>

#include "drivers/parallel.h"

#define ROWS_PER_UNIT 128

static const bs_bspmm_kernels *table(int level)
{
#ifdef BS_X86
    level = bs_runs_level(level);
    if (level >= BS_AVX512)
        return &bs_bspmm_kernels_avx512;
    if (level >= BS_AVX2)
        return &bs_bspmm_kernels_avx2;
#else
    (void)level;
#endif
    return &bs_bspmm_kernels_scalar;
}

typedef int rows_function(const bs_bspmm_job *job, size_t r0, size_t r1, bs_own_row *own);

typedef struct {
    const bs_bspmm_job *job;
    rows_function *rows;
    size_t per_unit;
    int status;
} run;

static void run_unit(void *context, size_t unit, int thread)
{
    run *r = context;
    (void)thread;
    const size_t r0 = unit * r->per_unit, r1 = bs_min(r0 + r->per_unit, r->job->csr.rows);
    bs_own_row own = {0};
    const int status = r->rows(r->job, r0, r1, &own);
    free(own.columns);
    if (status != BS_BSPMM_OK)
        __atomic_store_n(&r->status, status, __ATOMIC_RELAXED);
}

static int over_rows(int threads, const bs_bspmm_job *job, rows_function *rows)
{
    const size_t m = job->csr.rows, few = bs_ceil_div(m, (size_t)threads * 8);
    run r = {job, rows, bs_max(1, bs_min(few, ROWS_PER_UNIT)), BS_BSPMM_OK};
    bs_parallel(run_unit, &r, bs_ceil_div(m, r.per_unit), threads);
    return r.status;
}

int bs_bspmm_count(int level, int threads, const bs_bspmm_job *job) { return over_rows(threads, job, table(level)->count_rows); }

int bs_bspmm_sign(int level, int threads, const bs_bspmm_job *job) { return over_rows(threads, job, table(level)->sign_rows); }
