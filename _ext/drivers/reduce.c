/* Reductions: value ranges, zero tiles, counts and sums of codes. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/content.h"
#include "drivers/drive.h"

/* ---- ranges ---- */

typedef struct {
    const bs_kernels *k;
    const void *x;
    int dtype;
    size_t batch, rows, cols, total;
    void *lo, *hi;
    int finite; /* threads only clear it, so a plain atomic store is enough */
} range_job;

BS_FN void mark_odd(range_job *j, int finite)
{
    if (!finite)
        __atomic_store_n(&j->finite, 0, __ATOMIC_RELAXED);
}

#define COLUMN_UNIT 512

/* Per row: unit = 64 rows of the flattened (batch * rows, cols). Per column: unit = (batch, COLUMN_UNIT columns). `x + 0` turns -0 into
 * +0, so that the result does not depend on which zero came first. */
#define DEFINE_RANGES(SUFFIX, T, LOAD, NATIVE)                                                                                             \
    static void range_of_line_##SUFFIX(range_job *j, size_t start, size_t n, T *lo, T *hi, int *finite)                                    \
    {                                                                                                                                      \
        T room[BS_CHUNK];                                                                                                                  \
        *lo = (T)INFINITY;                                                                                                                 \
        *hi = (T) - INFINITY;                                                                                                              \
        for (size_t i = 0; i < n; i += BS_CHUNK) {                                                                                         \
            const size_t count = bs_min(BS_CHUNK, n - i);                                                                                  \
            const T *x = (const T *)j->x + start + i;                                                                                      \
            if (j->dtype != NATIVE) {                                                                                                      \
                j->k->LOAD((const uint16_t *)j->x + start + i, j->dtype, count, room);                                                     \
                x = room;                                                                                                                  \
            }                                                                                                                              \
            j->k->range_##SUFFIX(x, count, lo, hi, finite);                                                                                \
        }                                                                                                                                  \
        *lo += (T)0;                                                                                                                       \
        *hi += (T)0;                                                                                                                       \
    }                                                                                                                                      \
    static void range_rows_##SUFFIX(void *context, size_t unit, int thread)                                                                \
    {                                                                                                                                      \
        (void)thread;                                                                                                                      \
        range_job *j = context;                                                                                                            \
        int finite = 1;                                                                                                                    \
        for (size_t r = unit * 64; r < bs_min(unit * 64 + 64, j->batch * j->rows); r++)                                                    \
            range_of_line_##SUFFIX(j, r * j->cols, bs_min(j->cols, j->total - r * j->cols), (T *)j->lo + r, (T *)j->hi + r, &finite);      \
        mark_odd(j, finite);                                                                                                               \
    }                                                                                                                                      \
    static void range_columns_##SUFFIX(void *context, size_t unit, int thread)                                                             \
    {                                                                                                                                      \
        (void)thread;                                                                                                                      \
        range_job *j = context;                                                                                                            \
        const size_t across = bs_ceil_div(j->cols, COLUMN_UNIT), b = unit / across, c0 = unit % across * COLUMN_UNIT;                      \
        const size_t n = bs_min(COLUMN_UNIT, j->cols - c0);                                                                                \
        T *lo = (T *)j->lo + b * j->cols + c0, *hi = (T *)j->hi + b * j->cols + c0, room[COLUMN_UNIT];                                     \
        int finite = 1;                                                                                                                    \
        for (size_t c = 0; c < n; c++) {                                                                                                   \
            lo[c] = (T)INFINITY;                                                                                                           \
            hi[c] = (T) - INFINITY;                                                                                                        \
        }                                                                                                                                  \
        for (size_t r = 0; r < j->rows; r++) {                                                                                             \
            const size_t start = (b * j->rows + r) * j->cols + c0;                                                                         \
            const T *x = (const T *)j->x + start;                                                                                          \
            if (j->dtype != NATIVE) {                                                                                                      \
                j->k->LOAD((const uint16_t *)j->x + start, j->dtype, n, room);                                                             \
                x = room;                                                                                                                  \
            }                                                                                                                              \
            j->k->range_columns_##SUFFIX(x, n, lo, hi, &finite);                                                                           \
        }                                                                                                                                  \
        for (size_t c = 0; c < n; c++) {                                                                                                   \
            lo[c] += (T)0;                                                                                                                 \
            hi[c] += (T)0;                                                                                                                 \
        }                                                                                                                                  \
        mark_odd(j, finite);                                                                                                               \
    }                                                                                                                                      \
    /* The whole tensor as lines of `cols` elements, then a fold over their ranges held in lo and hi. */                                   \
    static void fold_##SUFFIX(range_job *j, size_t n)                                                                                      \
    {                                                                                                                                      \
        T *lo = j->lo, *hi = j->hi;                                                                                                        \
        for (size_t i = 1; i < n; i++) {                                                                                                   \
            lo[0] = lo[i] < lo[0] ? lo[i] : lo[0];                                                                                         \
            hi[0] = hi[i] > hi[0] ? hi[i] : hi[0];                                                                                         \
        }                                                                                                                                  \
    }

DEFINE_RANGES(float, float, load_float, BS_F32)
DEFINE_RANGES(double, double, load_double, BS_F64)

/* BS_PER_TENSOR reads the array as lines of BS_RANGE_LINE elements, whose ranges need room in lo and hi; the result is in the first
 * element. */
int bs_calibrate(bs_run_on on, const void *x, int dtype, size_t batch, size_t rows, size_t cols, int granularity, void *lo, void *hi)
{
    range_job j = {
        .k = bs_table(on.level), .x = x, .dtype = dtype, .batch = batch, .rows = rows, .cols = cols, .lo = lo, .hi = hi, .finite = 1};
    const int wide = dtype == BS_F64;
    j.total = batch * rows * cols;
    if (granularity == BS_PER_COL) {
        bs_parallel(wide ? range_columns_double : range_columns_float, &j, batch * bs_ceil_div(cols, COLUMN_UNIT), on.threads);
        return j.finite;
    }
    if (granularity == BS_PER_TENSOR) {
        j.batch = 1;
        j.rows = bs_ceil_div(j.total, BS_RANGE_LINE);
        j.cols = BS_RANGE_LINE;
    }
    bs_parallel(wide ? range_rows_double : range_rows_float, &j, bs_ceil_div(j.batch * j.rows, 64), on.threads);
    if (granularity == BS_PER_TENSOR)
        (wide ? fold_double : fold_float)(&j, j.rows);
    return j.finite;
}

/* ---- words ---- */

typedef struct {
    const bs_kernels *k;
    const uint32_t *words;
    size_t lines, width, length;
    int bits, encoding, layout;
    uint32_t *bitmap;
    int64_t *sums;
    uint64_t count;
} words_job;

#define OR_WORDS 1024 /* 256 zero tiles: eight words of the bitmap */

static void bitmap_block(void *context, size_t unit, int thread)
{
    (void)thread;
    const words_job *j = context;
    /* lines = rows of one batch element; a block is eight of them, fewer at the end */
    const size_t blocks = bs_ceil_div(j->lines, 8), b = unit / blocks, r0 = unit % blocks * 8, rows = bs_min(8, j->lines - r0);
    const size_t planes = rows * (size_t)j->bits, out_width = bs_ceil_div(j->width / 4, 32);
    const uint32_t *words = j->words + (b * j->lines + r0) * (size_t)j->bits * j->width;
    uint32_t merged[OR_WORDS];
    for (size_t w0 = 0; w0 < j->width; w0 += OR_WORDS) {
        const size_t n = bs_min(OR_WORDS, j->width - w0);
        memset(merged, 0, sizeof merged);
        for (size_t p = 0; p < planes; p++)
            j->k->or_words(merged, words + p * j->width + w0, n);
        for (size_t out = 0; out < bs_ceil_div(n, 128); out++) {
            uint32_t bits = 0;
            for (size_t t = 0; t < 32; t++) {
                const uint32_t *tile = merged + (out * 32 + t) * 4;
                bits |= (uint32_t)((tile[0] | tile[1] | tile[2] | tile[3]) != 0) << t;
            }
            j->bitmap[unit * out_width + w0 / 128 + out] = bits;
        }
    }
}

void bs_tile_bitmap(bs_run_on on, const uint32_t *words, size_t batch, size_t outer, int bits, size_t width, uint32_t *bitmap)
{
    words_job j = {.k = bs_table(on.level), .words = words, .lines = outer, .width = width, .bits = bits, .bitmap = bitmap};
    bs_parallel(bitmap_block, &j, batch * bs_ceil_div(outer, 8), on.threads);
}

/* Folds each field to its lowest bit: set if any bit of the field is. */
BS_FN uint32_t fold_fields(uint32_t word, int bits)
{
    static const uint32_t lowest[] = {[1] = 0xffffffffu, [2] = 0x55555555u, [4] = 0x11111111u, [8] = 0x01010101u, [16] = 0x00010001u};
    for (int shift = 1; shift < bits; shift *= 2)
        word |= word >> shift;
    return word & lowest[bits];
}

#define LINE_UNIT 64

static void count_lines(void *context, size_t unit, int thread)
{
    (void)thread;
    words_job *j = context;
    uint64_t count = 0;
    uint32_t merged[OR_WORDS];
    const size_t planes = j->layout == BS_PLANES ? (size_t)j->bits : 1;
    for (size_t line = unit * LINE_UNIT; line < bs_min(unit * LINE_UNIT + LINE_UNIT, j->lines); line++)
        for (size_t w0 = 0; w0 < j->width; w0 += OR_WORDS) {
            const size_t n = bs_min(OR_WORDS, j->width - w0);
            const uint32_t *words = j->words + line * planes * j->width + w0;
            memcpy(merged, words, n * sizeof *merged);
            for (size_t p = 1; p < planes; p++)
                j->k->or_words(merged, words + p * j->width, n);
            if (j->layout == BS_ROWS)
                for (size_t w = 0; w < n; w++)
                    merged[w] = fold_fields(merged[w], j->bits);
            count += j->k->popcount(merged, n);
        }
    __atomic_fetch_add(&j->count, count, __ATOMIC_RELAXED);
}

uint64_t bs_count_nonzero(bs_run_on on, const uint32_t *words, size_t lines, int bits, int layout, size_t width)
{
    words_job j = {.k = bs_table(on.level), .words = words, .lines = lines, .width = width, .bits = bits, .layout = layout};
    bs_parallel(count_lines, &j, bs_ceil_div(lines, LINE_UNIT), on.threads);
    return j.count;
}

static void sum_lines(void *context, size_t unit, int thread)
{
    (void)thread;
    const words_job *j = context;
    for (size_t line = unit * LINE_UNIT; line < bs_min(unit * LINE_UNIT + LINE_UNIT, j->lines); line++) {
        uint64_t sum = 0;
        for (int p = 0; p < j->bits; p++) {
            const uint64_t part = j->k->popcount(j->words + (line * (size_t)j->bits + (size_t)p) * j->width, j->width) << p;
            sum += j->encoding == BS_SIGNED && p == j->bits - 1 ? -part : part;
        }
        j->sums[line] = (int64_t)(j->encoding == BS_BIPOLAR ? 2 * sum - (uint64_t)j->length : sum);
    }
}

void bs_code_sums(bs_run_on on, const uint32_t *words, size_t lines, int bits, int encoding, size_t k, size_t width, int64_t *sums)
{
    words_job j = {.k = bs_table(on.level),
                   .words = words,
                   .lines = lines,
                   .width = width,
                   .length = k,
                   .bits = bits,
                   .encoding = encoding,
                   .sums = sums};
    bs_parallel(sum_lines, &j, bs_ceil_div(lines, LINE_UNIT), on.threads);
}

int bs_pad_is_zero(const uint32_t *words, size_t planes, size_t used_bits, size_t width)
{
    const size_t first = used_bits / 32;
    const uint32_t mask = used_bits % 32 ? 0xffffffffu << (used_bits % 32) : 0xffffffffu;
    for (size_t p = 0; p < planes; p++)
        for (size_t w = first; w < width; w++)
            if (words[p * width + w] & (w == first ? mask : 0xffffffffu))
                return 0;
    return 1;
}

/* ---- fingerprints ---- */
#define CONTENT_UNIT ((size_t)1 << 16)

typedef struct {
    const unsigned char *x;
    size_t bytes;
    uint64_t sum;
} content_job;

static void content_of_unit(void *context, size_t unit, int thread)
{
    (void)thread;
    content_job *j = context;
    const size_t end = bs_min(unit * CONTENT_UNIT + CONTENT_UNIT, j->bytes);
    uint64_t sum = 0, word;
    size_t at = unit * CONTENT_UNIT;
    for (; at + 8 <= end; at += 8) {
        memcpy(&word, j->x + at, 8);
        sum += bs_content(word, at / 8);
    }
    if (at < end) {
        word = 0;
        memcpy(&word, j->x + at, end - at);
        sum += bs_content(word, at / 8);
    }
    __atomic_fetch_add(&j->sum, sum, __ATOMIC_RELAXED);
}

uint64_t bs_content_sum(const unsigned char *x, size_t bytes, int threads)
{
    content_job j = {.x = x, .bytes = bytes};
    bs_parallel(content_of_unit, &j, bs_ceil_div(bytes, CONTENT_UNIT), threads);
    return j.sum;
}
