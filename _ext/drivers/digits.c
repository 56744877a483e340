/* The digit product, for operands of many bits: both are split into short integer digits, which 16-bit multiply-adds multiply.
 *
 * a = sum_x a_x 2^(x wa), b = sum_y b_y 2^(y wb); the top digit is signed if the operand is. int32 holds 512 products of digits. B is
 * decoded once for each group of columns, into panels of 16; a unit of work decodes 128 rows of A and multiplies them by the group in
 * tiles of 128 columns. */
#include <stdlib.h>

#include "drivers/aligned.h"
#include "drivers/matmul.h"

#define BLOCK_K 512                          /* products summed in int32 before they are flushed */
#define BLOCK_TILES (BLOCK_K / 128)
#define DIGIT_BITS 22                        /* the most that wa + wb may be: 512 (2^wa - 1)(2^wb - 1) < 2^31 */
#define DIGIT_MAX 15
#define GROUP_BYTES ((size_t)64 << 20)       /* the most bytes of decoded panels of B at a time */

typedef struct {
    int width, digits;
} split;

/* The widths and numbers of digits that need the fewest products of digits. */
static void digit_widths(int a_bits, int b_bits, split *a, split *b)
{
    int best = 1 << 30;
    for (int da = 1; da <= a_bits; da++)
        for (int db = 1; db <= b_bits; db++) {
            const int wa = (a_bits + da - 1) / da, wb = (b_bits + db - 1) / db;
            if (wa <= DIGIT_MAX && wb <= DIGIT_MAX && wa + wb <= DIGIT_BITS && da * db < best) {
                best = da * db;
                *a = (split){wa, da};
                *b = (split){wb, db};
            }
        }
}

typedef struct {
    const bs_kernels *k;
    const bs_product *p;
    bs_epilogue *e;
    split a, b;
    size_t length;                       /* K in whole 128-bit groups */
    size_t row_stride, a_digit_stride;   /* int16 elements between rows and digits of decoded A */
    size_t panel_digit_stride;           /* int16 elements between digits of a panel, which has b.digits of them */
    int16_t *panels, *rows;              /* decoded B, and room for the decoded rows of A of each thread */
    size_t thread_elements;
    size_t batch, c0, cols, chunk_cols, chunks; /* the group being multiplied, and how its columns are split over units */
    /* A zero tile of a bipolar operand stands for -1s, so it cannot simply be skipped. With a bitmap, a = 2 bit - 1 is therefore
     * multiplied as its bit, and the result is twice that product minus b_sums, the sum of each column of B. */
    int a_encoding;
    const int64_t *b_sums;
} digits_job;

/* Decode one packed line into dst[digit][element], with zeros beyond k (where a pad bit of a bipolar operand would count as -1). */
static void decode_line(const digits_job *j, const uint32_t *line, int bits, int encoding, split s, int16_t *dst, size_t digit_stride)
{
    uint32_t codes[BS_CHUNK];
    for (size_t at = 0; at < j->length; at += BS_CHUNK) {
        const size_t n = bs_min(BS_CHUNK, j->length - at);
        j->k->unpack_planes(line + at / 32, j->p->width, n / 32, bits, codes);
        j->k->digits_split(codes, n, bits, encoding, s.width, s.digits, dst + at, digit_stride);
    }
    for (int d = 0; d < s.digits; d++)
        memset(dst + (size_t)d * digit_stride + j->p->k, 0, (j->length - j->p->k) * sizeof *dst);
}

/* Unit of work: decode one panel of 16 columns of the group. The thread's room for rows of A serves as scratch. */
static void decode_panel(void *context, size_t unit, int thread)
{
    const digits_job *j = context;
    const bs_product *p = j->p;
    int16_t *line = j->rows + (size_t)thread * j->thread_elements;
    int16_t *panel = j->panels + unit * j->panel_digit_stride * (size_t)j->b.digits;
    for (size_t lane = 0; lane < BS_MICRO_COLS; lane++) {
        const size_t col = unit * BS_MICRO_COLS + lane;
        if (col < j->cols)
            decode_line(j, p->b + ((size_t)p->b_index[j->batch] * p->n + j->c0 + col) * p->width * (size_t)p->b_bits, p->b_bits,
                        p->b_encoding, j->b, line, j->length);
        else
            memset(line, 0, j->length * (size_t)j->b.digits * sizeof *line);
        for (int d = 0; d < j->b.digits; d++)
            for (size_t i = 0; i < j->length; i += 2)
                memcpy(panel + (size_t)d * j->panel_digit_stride + i * BS_MICRO_COLS + 2 * lane, line + (size_t)d * j->length + i,
                       2 * sizeof *line);
    }
}

static void multiply_digits(const digits_job *j, const int16_t *a, const int16_t *panel, size_t start, size_t length, int64_t *acc)
{
    for (int x = 0; x < j->a.digits; x++)
        for (int y = 0; y < j->b.digits; y++)
            j->k->digits_micro(a + (size_t)x * j->a_digit_stride + start, j->row_stride,
                               panel + (size_t)y * j->panel_digit_stride + start * BS_MICRO_COLS, length / 2,
                               x * j->a.width + y * j->b.width, acc, BS_TILE);
}

static void signs_from_bits(const digits_job *j, const bs_out_tile *tile, int64_t *acc)
{
    const int64_t *sums = j->b_sums + (size_t)j->p->b_index[tile->batch] * j->p->n + tile->c0;
    for (size_t r = 0; r < tile->rows; r++, acc += BS_TILE)
        for (size_t c = 0; c < tile->cols; c++)
            acc[c] = 2 * acc[c] - sums[c];
}

/* Multiply up to 128 decoded rows with up to 128 columns, which start at column `col` of the group, and finish the tile. */
static void multiply_tile(const digits_job *j, const int16_t *rows, size_t col, bs_out_tile *tile)
{
    int64_t acc[BS_TILE * BS_TILE];
    memset(acc, 0, sizeof acc);
    const size_t panel_elements = j->panel_digit_stride * (size_t)j->b.digits;
    for (size_t t = 0; t < j->length / 128; t += BLOCK_TILES)
        for (size_t r = 0; r < tile->rows; r += BS_MICRO_ROWS) {
            bs_run runs[BLOCK_TILES];
            const size_t n_runs = bs_runs(j->p, j->batch, tile->r0 + r, t, bs_min(t + BLOCK_TILES, j->length / 128), runs);
            for (size_t i = 0; i < n_runs; i++)
                for (size_t c = 0; c < tile->cols; c += BS_MICRO_COLS)
                    multiply_digits(j, rows + r * j->row_stride, j->panels + (col + c) / BS_MICRO_COLS * panel_elements,
                                    runs[i].start * (size_t)128, runs[i].length * (size_t)128, acc + r * BS_TILE + c);
        }
    if (j->b_sums)
        signs_from_bits(j, tile, acc);
    bs_finish_rows(j->k, j->e, tile, 0, tile->rows, acc, j->p->narrow);
    bs_finish_tile(j->k, j->e, tile);
}

/* Unit of work: 128 rows times a share of the group's columns. */
static void digits_unit(void *context, size_t unit, int thread)
{
    const digits_job *j = context;
    const bs_product *p = j->p;
    int16_t *rows = j->rows + (size_t)thread * j->thread_elements;
    const size_t first = unit % j->chunks * j->chunk_cols, end = bs_min(first + j->chunk_cols, j->cols);
    bs_out_tile tile;
    tile.batch = j->batch;
    tile.r0 = unit / j->chunks * BS_TILE;
    tile.rows = bs_min(BS_TILE, p->m - tile.r0);
    const uint32_t *a = p->a + ((size_t)p->a_index[j->batch] * p->m + tile.r0) * p->width * (size_t)p->a_bits;
    for (size_t r = 0; r < tile.rows; r++)
        decode_line(j, a + r * p->width * (size_t)p->a_bits, p->a_bits, j->a_encoding, j->a, rows + r * j->row_stride, j->a_digit_stride);
    for (size_t r = tile.rows; r % BS_MICRO_ROWS; r++) /* zero rows that fill up the last micro-kernel */
        for (int x = 0; x < j->a.digits; x++)
            memset(rows + (size_t)x * j->a_digit_stride + r * j->row_stride, 0, j->length * sizeof *rows);
    for (size_t col = first; col < end; col += BS_TILE) {
        tile.c0 = j->c0 + col;
        tile.cols = bs_min(BS_TILE, end - col);
        multiply_tile(j, rows, col, &tile);
    }
}

int bs_matmul_digits(bs_run_on on, const bs_product *p, bs_epilogue *e)
{
    digits_job j = {.k = bs_table(on.level), .p = p, .e = e, .length = p->width * 32, .a_encoding = p->a_encoding};
    if (!p->batch || !p->m || !p->n)
        return 0;
    int64_t *b_sums = NULL;
    if (p->bitmap && p->a_encoding == BS_BIPOLAR) {
        b_sums = malloc(p->b_batch * p->n * sizeof *b_sums);
        if (!b_sums)
            return -1;
        bs_code_sums(on, p->b, p->b_batch * p->n, p->b_bits, p->b_encoding, p->k, p->width, b_sums);
        j.b_sums = b_sums;
        j.a_encoding = BS_UNSIGNED;
    }
    digit_widths(p->a_bits, p->b_bits, &j.a, &j.b);
    /* 32 elements of padding shift each row by a cache line: with a power-of-two stride all eight rows would fall into one cache set. */
    j.row_stride = j.length + 32;
    j.a_digit_stride = j.row_stride * BS_TILE;
    j.panel_digit_stride = j.length * BS_MICRO_COLS;
    j.thread_elements = bs_max(j.a_digit_stride * (size_t)j.a.digits, j.length * (size_t)j.b.digits);
    const size_t column_bytes = bs_max(1, j.length * sizeof *j.panels * (size_t)j.b.digits);
    const size_t group = bs_min(bs_ceil_div(p->n, BS_TILE), bs_max(1, GROUP_BYTES / (column_bytes * BS_TILE))) * BS_TILE;
    j.panels = bs_aligned(group * column_bytes);
    j.rows = bs_aligned((size_t)on.threads * j.thread_elements * sizeof *j.rows);
    const int status = j.panels && j.rows ? 0 : -1;
    for (j.batch = 0; !status && j.batch < p->batch; j.batch++)
        for (j.c0 = 0; j.c0 < p->n; j.c0 += group) {
            j.cols = bs_min(group, p->n - j.c0);
            bs_parallel(decode_panel, &j, bs_ceil_div(j.cols, BS_MICRO_COLS), on.threads);
            const size_t down = bs_ceil_div(p->m, BS_TILE);
            const size_t parts = on.threads > 1 ? bs_ceil_div(4 * (size_t)on.threads, down) : 1;
            j.chunk_cols = bs_ceil_div(bs_ceil_div(j.cols, parts), BS_TILE) * BS_TILE;
            j.chunks = bs_ceil_div(j.cols, j.chunk_cols);
            bs_parallel(digits_unit, &j, down * j.chunks, on.threads);
        }
    free(b_sums);
    bs_free_aligned(j.panels);
    bs_free_aligned(j.rows);
    return status;
}
