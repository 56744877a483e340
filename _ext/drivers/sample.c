/* The choice of the edges of a row that are sampled (AES-SpMM Table 1 and Eq. 3), and sums over them without storing the sample. */
#include "drivers/sample.h"

#include "drivers/parallel.h"

#define ROWS_PER_UNIT 64

enum { AES_PRIME = 1429, AFS_PRIME = 577 };

/* ---- one row's plan: `count` samples of `run` consecutive edges ---- */
typedef struct {
    int64_t nnz, count, run;
} row_plan;

static row_plan plan_row(const bs_sampler *s, int64_t nnz)
{
    const int64_t w = nnz < s->width ? nnz : s->width;
    if (s->strategy == BS_SAMPLE_ALL || nnz == 0)
        return (row_plan){nnz, nnz ? 1 : 0, nnz};
    if (s->strategy != BS_SAMPLE_AES)
        return (row_plan){nnz, s->strategy == BS_SAMPLE_SFS ? 1 : w, s->strategy == BS_SAMPLE_SFS ? w : 1};
    if (nnz <= w)
        return (row_plan){nnz, 1, nnz};
    const int64_t parts = nnz <= 2 * w ? 4 : nnz <= 36 * w ? 8 : nnz <= 54 * w ? 16 : 32;
    return (row_plan){nnz, parts < w ? parts : w, w / parts > 1 ? w / parts : 1};
}

/* floor(k part / count), with the remainder in `rest`, for part < count < 2^61. The division goes bit by bit over k, because the product
 * may need 128 bits, and some compilers lack a division of 128-bit integers. */
static int64_t divided(int64_t k, int64_t part, int64_t count, int64_t *rest)
{
    int64_t whole = 0, left = 0;
    for (int bit = k ? 63 - __builtin_clzll((uint64_t)k) : -1; bit >= 0; bit--) {
        whole *= 2;
        left = 2 * left + (k >> bit & 1 ? part : 0);
        for (; left >= count; left -= count)
            whole++;
    }
    *rest = left;
    return whole;
}

/* The upper 64 bits of a 128-bit product. */
static uint64_t product_high(uint64_t a, uint64_t b)
{
    const uint64_t low = UINT32_MAX, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
    const uint64_t cross = a1 * b0 + (a0 * b0 >> 32), middle = a0 * b1 + (cross & low);
    return a1 * b1 + (cross >> 32) + (middle >> 32);
}

static int64_t start_of(const bs_sampler *s, const row_plan *p, size_t row, int64_t k)
{
    switch (s->strategy) {
    case BS_SAMPLE_AES: return k * AES_PRIME % (p->nnz - p->run + 1);
    case BS_SAMPLE_AFS: return k * AFS_PRIME % p->nnz;
    case BS_SAMPLE_UNIFORM: {
        /* A position in stratum k, [k nnz / count, (k + 1) nnz / count), from 64 random bits scaled to the stratum's length. */
        const int64_t each = p->nnz / p->count, part = p->nnz % p->count;
        int64_t rest;
        const int64_t low = k * each + divided(k, part, p->count, &rest), length = each + (rest + part >= p->count);
        uint32_t w0, w1, w2, w3;
        bs_stochastic_words((uint64_t)row * (uint64_t)s->width + (uint64_t)k, s->seed, s->stream, &w0, &w1, &w2, &w3);
        return low + (int64_t)product_high((uint64_t)w1 << 32 | w0, (uint64_t)length);
    }
    default: return 0;
    }
}

/* The sampled positions k, ..., k + n - 1 of a row, in the order of the samples and then of the edges of each. */
static void positions(const bs_sampler *s, const row_plan *p, size_t row, int64_t k, size_t n, int64_t *out)
{
    int64_t sample = k / p->run, inside = k % p->run, start = start_of(s, p, row, sample);
    for (size_t i = 0; i < n; i++) {
        out[i] = start + inside;
        if (++inside == p->run && i + 1 < n) {
            inside = 0;
            start = start_of(s, p, row, ++sample);
        }
    }
}

/* ---- over rows ---- */
typedef struct {
    const bs_csr *a;
    const bs_sampler *sampler;
    const int64_t *starts;
    size_t total;
    int64_t *out;
    const bs_gather_job *job;
    const bs_gather_kernels *kernels;
    size_t per_unit;
    int wrong;
} run;

static void refuse(run *r) { __atomic_store_n(&r->wrong, 1, __ATOMIC_RELAXED); }

static int over_rows(int threads, run *r, void (*body)(void *, size_t, int))
{
    const size_t m = r->a->rows;
    r->per_unit = bs_max(1, bs_min(bs_ceil_div(m, (size_t)threads * 8), ROWS_PER_UNIT));
    bs_parallel(body, r, bs_ceil_div(m, r->per_unit), threads);
    return !r->wrong;
}

static void count_unit(void *context, size_t unit, int thread)
{
    run *r = context;
    (void)thread;
    const size_t r0 = unit * r->per_unit, r1 = bs_min(r0 + r->per_unit, r->a->rows);
    for (size_t row = r0; row < r1; row++) {
        size_t first, count;
        if (!bs_row(r->a, row, &first, &count)) {
            refuse(r);
            return;
        }
        const row_plan p = plan_row(r->sampler, (int64_t)count);
        r->out[row] = p.count * p.run;
    }
}

static void edges_unit(void *context, size_t unit, int thread)
{
    run *r = context;
    (void)thread;
    const size_t r0 = unit * r->per_unit, r1 = bs_min(r0 + r->per_unit, r->a->rows);
    for (size_t row = r0; row < r1; row++) {
        size_t first, count;
        const int64_t from = __atomic_load_n(r->starts + row, __ATOMIC_RELAXED),
                      to = __atomic_load_n(r->starts + row + 1, __ATOMIC_RELAXED);
        const int there = bs_row(r->a, row, &first, &count);
        const row_plan p = plan_row(r->sampler, there ? (int64_t)count : 0);
        const int64_t n = p.count * p.run;
        if (!there || from < 0 || to < from || (uint64_t)to > r->total || to - from != n) {
            refuse(r);
            return;
        }
        if (n == 0)
            continue;
        positions(r->sampler, &p, row, 0, (size_t)n, r->out + from);
        for (int64_t k = 0; k < n; k++)
            r->out[from + k] += (int64_t)first;
    }
}

int bs_sample_counts(int threads, const bs_csr *a, const bs_sampler *s, int64_t *counts)
{
    run r = {.a = a, .sampler = s, .out = counts};
    return over_rows(threads, &r, count_unit);
}

int bs_sample_edges(int threads, const bs_csr *a, const bs_sampler *s, const int64_t *starts, size_t total, int64_t *edges)
{
    run r = {.a = a, .sampler = s, .starts = starts, .total = total, .out = edges};
    return over_rows(threads, &r, edges_unit);
}

/* ---- sums ---- */

/* Sum one row in type T: add the sampled edges in chunks, then multiply by the factors, rounding once for each. Returns 0 if the row is not
 * valid; all of its columns are checked, not only the sampled ones. */
#define DEFINE_SUM_ROW(T, ADD)                                                                                                             \
    static int sum_row_##T(const run *r, size_t row)                                                                                       \
    {                                                                                                                                      \
        const bs_gather_job *job = r->job;                                                                                                 \
        const size_t d = job->x.features;                                                                                                  \
        size_t first, edges;                                                                                                               \
        if (!bs_row(r->a, row, &first, &edges) || !bs_columns_valid(r->a, first, edges))                                                   \
            return 0;                                                                                                                      \
        const row_plan p = plan_row(r->sampler, (int64_t)edges);                                                                           \
        const int64_t samples = p.count * p.run;                                                                                           \
        const T *values = job->values, *col_scale = job->col_scale, *row_scale = job->row_scale;                                           \
        T *out = (T *)job->out + row * d, weight[BS_GATHER_CHUNK];                                                                         \
        int64_t column[BS_GATHER_CHUNK];                                                                                                   \
        memset(out, 0, d * sizeof *out);                                                                                                   \
        for (int64_t k = 0; k < samples; k += BS_GATHER_CHUNK) {                                                                           \
            const size_t n = bs_min((size_t)(samples - k), BS_GATHER_CHUNK);                                                               \
            positions(r->sampler, &p, row, k, n, column);                                                                                  \
            for (size_t i = 0; i < n; i++) {                                                                                               \
                const size_t edge = first + (size_t)column[i];                                                                             \
                column[i] = bs_column(r->a, edge);                                                                                         \
                const T w = values ? values[edge] : 1;                                                                                     \
                weight[i] = col_scale ? w * col_scale[column[i]] : w;                                                                      \
            }                                                                                                                              \
            r->kernels->ADD(&job->x, column, weight, n, out);                                                                              \
        }                                                                                                                                  \
        if (!samples)                                                                                                                      \
            return 1;                                                                                                                      \
        const T factor = (T)p.nnz / (T)samples;                                                                                            \
        for (size_t j = 0; j < d; j++) {                                                                                                   \
            T v = out[j];                                                                                                                  \
            v = job->rescale ? v * factor : v;                                                                                             \
            v = job->mean ? v / (T)p.nnz : v;                                                                                              \
            out[j] = row_scale ? v * row_scale[row] : v;                                                                                   \
        }                                                                                                                                  \
        return 1;                                                                                                                          \
    }
DEFINE_SUM_ROW(float, add_rows)
DEFINE_SUM_ROW(double, add_rows_double)

static void sum_unit(void *context, size_t unit, int thread)
{
    run *r = context;
    (void)thread;
    const size_t r0 = unit * r->per_unit, r1 = bs_min(r0 + r->per_unit, r->a->rows);
    for (size_t row = r0; row < r1; row++)
        if (!(r->job->x.kind == BS_FEATURE_DOUBLE ? sum_row_double(r, row) : sum_row_float(r, row))) {
            refuse(r);
            return;
        }
}

static const bs_gather_kernels *table(int level)
{
#ifdef BS_X86
    level = bs_runs_level(level);
    if (level >= BS_AVX512)
        return &bs_gather_kernels_avx512;
    if (level >= BS_AVX2)
        return &bs_gather_kernels_avx2;
#else
    (void)level;
#endif
    return &bs_gather_kernels_scalar;
}

int bs_gather(int level, int threads, const bs_gather_job *job)
{
    run r = {.a = &job->csr, .sampler = &job->sampler, .job = job, .kernels = table(level)};
    return over_rows(threads, &r, sum_unit);
}
