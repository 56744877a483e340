/* All sparse hot loops of one instruction set: this file is compiled once per level (see meson.build) and exports one table. */
#include "simd/spmm_kernels.h"

#include <math.h>

#include "simd/join.h"

#define FN(f) BS_JOIN(BS_JOIN(f, KIND), CLASS)

#if defined(BS_ISA_AVX512)
#include <immintrin.h>
#define VECTOR_BYTES 64
#elif defined(BS_ISA_AVX2)
#include <immintrin.h>
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* The first n numbers of `size` bytes in a vector of `bytes`. */
BS_FN void store_same(unsigned char *p, const void *src, int n, const size_t size, const int bytes)
{
    const unsigned char *from = src;
    if (n * (int)size == bytes) {
        memcpy(p, from, (size_t)bytes);
        return;
    }
#if defined(BS_ISA_AVX512)
    const unsigned words = (1u << (unsigned)n * (unsigned)size / 4) - 1;
    if (bytes == 64)
        _mm512_mask_storeu_epi32(p, (__mmask16)words, _mm512_loadu_si512(from));
    else if (bytes == 32)
        _mm256_mask_storeu_epi32(p, (__mmask8)words, _mm256_loadu_si256((const __m256i *)from));
    else
        _mm_mask_storeu_epi32(p, (__mmask8)words, _mm_loadu_si128((const __m128i *)from));
#else
    for (int l = 0; l < n * (int)size; l += 4)
        memcpy(p + l, from + l, 4);
#endif
}

BS_FN void widen_f16(const unsigned char *p, float *to, const int lanes)
{
#if defined(BS_ISA_AVX512)
    if (lanes == 16) {
        _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)));
        return;
    }
#endif
#if defined(BS_ISA_AVX512) || defined(BS_ISA_AVX2)
    if (lanes == 8)
        _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)));
    else
        _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)));
#else
    uint16_t h[16];
    memcpy(h, p, (size_t)lanes * 2);
    for (int l = 0; l < lanes; l++)
        to[l] = bs_f16_to_float(h[l]);
#endif
}

BS_FN void store_f16(unsigned char *p, const float *from, int n, const int lanes)
{
    uint16_t h[16];
    for (int l = 0; l < lanes; l++)
        h[l] = bs_float_to_f16(from[l]);
    for (int l = 0; l < n; l++)
        memcpy(p + 2 * l, h + l, 2);
}

BS_FN void store_bf16(unsigned char *p, const float *from, int n, const int lanes)
{
    uint16_t h[16];
    for (int l = 0; l < lanes; l++)
        h[l] = bs_float_to_bf16(from[l]);
    for (int l = 0; l < n; l++)
        memcpy(p + 2 * l, h + l, 2);
}

/* Bytes as 32-bit integers. GCC 12 makes scalar code of a conversion to four times the width, so it is said what to use. */
BS_FN void widen_bytes(const unsigned char *p, unsigned char *to, const int lanes, const int has_sign)
{
#if defined(BS_ISA_AVX512)
    if (lanes == 16) {
        const __m128i x = _mm_loadu_si128((const __m128i *)p);
        _mm512_storeu_si512(to, has_sign ? _mm512_cvtepi8_epi32(x) : _mm512_cvtepu8_epi32(x));
        return;
    }
#endif
#if defined(BS_ISA_AVX512) || defined(BS_ISA_AVX2)
    if (lanes == 8) {
        const __m128i x = _mm_loadl_epi64((const __m128i *)p);
        _mm256_storeu_si256((__m256i *)to, has_sign ? _mm256_cvtepi8_epi32(x) : _mm256_cvtepu8_epi32(x));
    } else {
        const __m128i x = _mm_loadu_si32(p);
        _mm_storeu_si128((__m128i *)to, has_sign ? _mm_cvtepi8_epi32(x) : _mm_cvtepu8_epi32(x));
    }
#else
    for (int l = 0; l < lanes; l++) {
        const int32_t x = has_sign ? (int8_t)p[l] : p[l];
        memcpy(to + 4 * l, &x, 4);
    }
#endif
}

/* One 32-bit integer for each of `lanes` fields from number `lane` on: the field is its lowest bits, others follow. `lane` is a multiple of
 * `lanes`, so that the fields lie in one or two words. */
BS_FN void spread_fields(const unsigned char *p, const int lane, const int bits, unsigned char *to, const int lanes)
{
    const int start = lane * bits;
    uint64_t word;
    memcpy(&word, p + start / 32 * 4, 8);
    word >>= start % 32;
#if defined(BS_ISA_AVX512)
    if (lanes == 16) {
        const __m512i at =
            _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(bits));
        const __m512i low = _mm512_set1_epi32((int)word), high = _mm512_set1_epi32((int)(word >> 32)), last = _mm512_set1_epi32(31);
        const __m512i of = _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(at, last), low, high);
        _mm512_storeu_si512(to, _mm512_srlv_epi32(of, _mm512_and_si512(at, last)));
        return;
    }
#endif
#if defined(BS_ISA_AVX512) || defined(BS_ISA_AVX2)
    if (lanes == 8) {
        const __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bits));
        _mm256_storeu_si256((__m256i *)to, _mm256_srlv_epi32(_mm256_set1_epi32((int)word), at));
    } else {
        const __m128i at = _mm_mullo_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(bits));
        _mm_storeu_si128((__m128i *)to, _mm_srlv_epi32(_mm_set1_epi32((int)word), at));
    }
#else
    for (int l = 0; l < lanes; l++) {
        const uint32_t x = (uint32_t)(word >> (l * bits));
        memcpy(to + 4 * l, &x, 4);
    }
#endif
}

/* How the block of the row of x of an edge is found: by a list of rows and the block's offset in one, or by columns and where the blocks lie.
 * BY_FACTORS: the weight is found by the column too. */
enum { BY_ROWS, BY_COLUMNS, BY_FACTORS };

typedef struct {
    const unsigned char *const *at;
    size_t offset;
    const uint32_t *column;
    bs_gather blocks;
} block_finder;

BS_FN block_finder finder_of(const bs_spmm_block *b, const int by_column)
{
    block_finder f = {b->at, b->x_offset, b->column, {0}};
    if (by_column) {
        f.blocks = *b->gather;
        f.blocks.base += b->x_offset;
        f.blocks.tail += b->x_offset;
    }
    return f;
}

/* Columns whose rows are copied or that are out of range, which sets `bad`, are rare. `column` becomes one in range. */
BS_FN const unsigned char *block_of(const block_finder *f, size_t edge, const int by_column, int *bad, size_t *column)
{
    if (!by_column)
        return f->at[edge] + f->offset;
    *column = __atomic_load_n(f->column + edge, __ATOMIC_RELAXED);
    if (__builtin_expect(*column < f->blocks.tail_first, 1))
        return f->blocks.base + *column * f->blocks.stride;
    const int outside = *column >= f->blocks.rows;
    *bad |= outside;
    *column = outside ? 0 : *column;
    return f->blocks.tail + (outside ? 0 : (*column - f->blocks.tail_first) * f->blocks.tail_stride);
}

/* About where that of an edge to come is, for a prefetch, which takes any address. */
BS_FN uintptr_t block_ahead(const block_finder *f, size_t edge, const int by_column)
{
    return by_column ? (uintptr_t)f->blocks.base + __atomic_load_n(f->column + edge, __ATOMIC_RELAXED) * f->blocks.stride
                     : (uintptr_t)f->at[edge] + f->offset;
}

#define WIDTH_BYTES VECTOR_BYTES
#define CLASS whole
#define WHOLE 1
#include "simd/spmm_types.inc"
#undef WIDTH_BYTES
#undef CLASS
#undef WHOLE
#define WHOLE 0
#if VECTOR_BYTES >= 32
#define WIDTH_BYTES (VECTOR_BYTES / 2)
#define CLASS half
#include "simd/spmm_types.inc"
#undef WIDTH_BYTES
#undef CLASS
#endif
#if VECTOR_BYTES >= 64
#define WIDTH_BYTES (VECTOR_BYTES / 4)
#define CLASS quarter
#include "simd/spmm_types.inc"
#undef WIDTH_BYTES
#undef CLASS
#endif

#if VECTOR_BYTES == 64
#define WIDTHS(kind, lanes, op, by_column)                                                                                                 \
    (b->width <= (lanes) / 4   ? widths_##kind##_quarter(b, op, by_column)                                                                 \
     : b->width <= (lanes) / 2 ? widths_##kind##_half(b, op, by_column)                                                                    \
                               : widths_##kind##_whole(b, op, by_column))
#elif VECTOR_BYTES == 32
#define WIDTHS(kind, lanes, op, by_column)                                                                                                 \
    (b->width <= (lanes) / 2 ? widths_##kind##_half(b, op, by_column) : widths_##kind##_whole(b, op, by_column))
#else
#define WIDTHS(kind, lanes, op, by_column) widths_##kind##_whole(b, op, by_column)
#endif
#define RUN(kind, lanes, op, name)                                                                                                         \
    static void run_##kind##_##name(const bs_spmm_block *b) { (void)WIDTHS(kind, lanes, op, BY_ROWS); }
#define RUN_COLUMNS(kind, lanes, op, name)                                                                                                 \
    static int columns_##kind##_##name(const bs_spmm_block *b) { return WIDTHS(kind, lanes, op, BY_COLUMNS); }
#define RUNS(kind, lanes)                                                                                                                  \
    RUN(kind, lanes, BS_SUM, sum)                                                                                                          \
    RUN(kind, lanes, BS_WEIGHTED_SUM, weighted)                                                                                            \
    RUN_COLUMNS(kind, lanes, BS_SUM, sum)                                                                                                  \
    RUN_COLUMNS(kind, lanes, BS_WEIGHTED_SUM, weighted)                                                                                    \
    BS_FOR_SELECTIONS(RUN, kind, lanes)

#define ACC_LANES(size) (VECTOR_BYTES / (size))
RUNS(f32, ACC_LANES(4))
static int factors_f32(const bs_spmm_block *b) { return WIDTHS(f32, ACC_LANES(4), BS_WEIGHTED_SUM, BY_FACTORS); }
RUNS(f16, ACC_LANES(4))
RUNS(bf16, ACC_LANES(4))
RUNS(i8_f32, ACC_LANES(4))
RUNS(u8_f32, ACC_LANES(4))
RUNS(i16_f32, ACC_LANES(4))
RUNS(u16_f32, ACC_LANES(4))
RUNS(field_f32, ACC_LANES(4))
RUNS(f64, ACC_LANES(8))
RUNS(i8_i32, ACC_LANES(4))
RUNS(u8_i32, ACC_LANES(4))
RUNS(i16_i32, ACC_LANES(4))
RUNS(u16_i32, ACC_LANES(4))
#include "simd/field_sums.inc"
RUN(field_i32, ACC_LANES(4), BS_WEIGHTED_SUM, weighted)
RUN_COLUMNS(field_i32, ACC_LANES(4), BS_WEIGHTED_SUM, weighted)
BS_FOR_SELECTIONS(RUN, field_i32, ACC_LANES(4))
RUNS(i32_i64, ACC_LANES(8))
RUNS(u32_i64, ACC_LANES(8))
RUNS(i64, ACC_LANES(8))

typedef float lay_vector __attribute__((vector_size(VECTOR_BYTES)));

static void lay_f32(const unsigned char *from, size_t stride, size_t rows, size_t width, const float *factors, unsigned char *to,
                    size_t to_stride)
{
    const size_t bytes = width * sizeof(float), whole = bytes / VECTOR_BYTES * VECTOR_BYTES;
    for (size_t row = 0; row < rows; row++, from += stride, to += to_stride) {
        const float factor = factors ? factors[row] : 1;
        for (size_t at = 0; at < whole; at += VECTOR_BYTES) {
            lay_vector x;
            memcpy(&x, from + at, sizeof x);
            x *= factor;
            memcpy(to + at, &x, sizeof x);
        }
        for (size_t at = whole; at < bytes; at += sizeof(float)) {
            float x;
            memcpy(&x, from + at, sizeof x);
            x *= factor;
            memcpy(to + at, &x, sizeof x);
        }
        if (bytes < to_stride)
            memset(to + bytes, 0, to_stride - bytes);
    }
}

#define LOCATE(bits)                                                                                                                       \
    static int locate##bits(const uint##bits##_t *indices, size_t n, const bs_gather *g, const unsigned char **at)                         \
    {                                                                                                                                      \
        const uint64_t base = (uint64_t)(uintptr_t)g->base, tail = (uint64_t)(uintptr_t)g->tail, stride = g->stride;                       \
        const uint64_t tail_stride = g->tail_stride, tail_first = g->tail_first, rows = g->rows;                                           \
        uint64_t bad = 0;                                                                                                                  \
        for (size_t e = 0; e < n; e++) {                                                                                                   \
            const uint64_t c = indices[e];                                                                                                 \
            const uint64_t inside = base + c * stride, last = tail + (c - tail_first) * tail_stride;                                       \
            bad |= (uint64_t)(c >= rows);                                                                                                  \
            at[e] = (const unsigned char *)(uintptr_t)(c < tail_first ? inside : last);                                                    \
        }                                                                                                                                  \
        return bad != 0;                                                                                                                   \
    }
LOCATE(32)
LOCATE(64)

#if defined(BS_ISA_AVX512)
#include "simd/short_rows.inc"
#endif
#include "simd/sddmm_kernels.inc"
#include "simd/softmax_kernels.inc"

#define SELECTION(kind, op, name) [op] = run_##kind##_##name,
#define ENTRY(kind) {run_##kind##_sum, run_##kind##_weighted, BS_FOR_SELECTIONS(SELECTION, kind)}
#define COLUMNS(kind) {columns_##kind##_sum, columns_##kind##_weighted}
const bs_spmm_kernels BS_JOIN(bs_spmm_kernels, BS_ISA) = {
    .vector_bytes = VECTOR_BYTES,
    // clang-format off: a table by kind of features
    .run = {
        [BS_X_F32] = ENTRY(f32), [BS_X_F16] = ENTRY(f16), [BS_X_BF16] = ENTRY(bf16),
        [BS_X_I8_F32] = ENTRY(i8_f32), [BS_X_U8_F32] = ENTRY(u8_f32), [BS_X_I16_F32] = ENTRY(i16_f32),
        [BS_X_U16_F32] = ENTRY(u16_f32), [BS_X_FIELD_F32] = ENTRY(field_f32), [BS_X_F64] = ENTRY(f64),
        [BS_X_I8_I32] = ENTRY(i8_i32), [BS_X_U8_I32] = ENTRY(u8_i32), [BS_X_I16_I32] = ENTRY(i16_i32),
        [BS_X_U16_I32] = ENTRY(u16_i32), [BS_X_FIELD_I32] = ENTRY(field_i32),
        [BS_X_I32_I64] = ENTRY(i32_i64), [BS_X_U32_I64] = ENTRY(u32_i64), [BS_X_I64] = ENTRY(i64),
    },
    .run_columns = {
        [BS_X_F32] = COLUMNS(f32), [BS_X_F16] = COLUMNS(f16), [BS_X_BF16] = COLUMNS(bf16),
        [BS_X_I8_F32] = COLUMNS(i8_f32), [BS_X_U8_F32] = COLUMNS(u8_f32), [BS_X_I16_F32] = COLUMNS(i16_f32),
        [BS_X_U16_F32] = COLUMNS(u16_f32), [BS_X_FIELD_F32] = COLUMNS(field_f32), [BS_X_F64] = COLUMNS(f64),
        [BS_X_I8_I32] = COLUMNS(i8_i32), [BS_X_U8_I32] = COLUMNS(u8_i32), [BS_X_I16_I32] = COLUMNS(i16_i32),
        [BS_X_U16_I32] = COLUMNS(u16_i32), [BS_X_FIELD_I32] = {[BS_WEIGHTED_SUM] = columns_field_i32_weighted},
        [BS_X_I32_I64] = COLUMNS(i32_i64), [BS_X_U32_I64] = COLUMNS(u32_i64), [BS_X_I64] = COLUMNS(i64),
    },
    // clang-format on
    .run_factors = factors_f32,
#if defined(BS_ISA_AVX512)
    .short_rows_f32 = short_rows_f32,
    .short_rows_f64 = short_rows_f64,
#endif
    .lay_f32 = lay_f32,
    .locate32 = locate32,
    .locate64 = locate64,
    .sddmm =
        {
            [BS_SD_F32] = {dot_f32, add_f32, mul_f32, sub_f32, div_f32, leaky_f32, steep_f32},
            [BS_SD_F64] = {dot_f64, add_f64, mul_f64, sub_f64, div_f64, leaky_f64, steep_f64},
            [BS_SD_I32] = {dot_i32, add_i32, mul_i32, sub_i32},
            [BS_SD_I64] = {dot_i64, add_i64, mul_i64, sub_i64},
        },
    .exp_f32 = exp_f32,
    .exp_f64 = exp_f64,
    .max_f32 = max_f32,
    .max_f64 = max_f64,
    .sum_f32 = sum_f32,
    .sum_f64 = sum_f64,
    .shift_f32 = shift_f32,
    .shift_f64 = shift_f64,
    .divide_f32 = divide_f32,
    .divide_f64 = divide_f64,
    .shift_row_f32 = shift_row_f32,
    .shift_row_f64 = shift_row_f64,
    .normalise_row_f32 = normalise_row_f32,
    .normalise_row_f64 = normalise_row_f64,
};
