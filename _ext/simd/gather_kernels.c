/* Weighted sums of feature rows, compiled once per instruction set. A block of features stays in registers while all rows are added. */
#include "simd/gather_kernels.h"

#include "simd/kernels_isa.h"

typedef float v16f __attribute__((vector_size(64), aligned(4), may_alias));
typedef double v8d __attribute__((vector_size(64), aligned(8), may_alias));

#define BLOCK 64 /* features of codes dequantised at a time */

/* Instances for one type: blocks of four vectors, then one, then single features. */
#define DEFINE_ADD(T, V, LANES)                                                                                                            \
    static void add_##T(const T *x, size_t stride, size_t features, const int64_t *column, const T *weight, size_t n, T *out)              \
    {                                                                                                                                      \
        size_t j = 0;                                                                                                                      \
        for (; j + 4 * (LANES) <= features; j += 4 * (LANES)) {                                                                            \
            V *to = (V *)(out + j), s0 = *(V *)(out + j), s1 = *(V *)(out + j + (LANES)), s2 = *(V *)(out + j + 2 * (LANES)),              \
              s3 = *(V *)(out + j + 3 * (LANES));                                                                                          \
            for (size_t k = 0; k < n; k++) {                                                                                               \
                const T *row = x + (size_t)column[k] * stride + j;                                                                         \
                const T w = weight[k];                                                                                                     \
                s0 += *(const V *)row * w;                                                                                                 \
                s1 += *(const V *)(row + (LANES)) * w;                                                                                     \
                s2 += *(const V *)(row + 2 * (LANES)) * w;                                                                                 \
                s3 += *(const V *)(row + 3 * (LANES)) * w;                                                                                 \
            }                                                                                                                              \
            *to = s0;                                                                                                                      \
            *(V *)(out + j + (LANES)) = s1;                                                                                                \
            *(V *)(out + j + 2 * (LANES)) = s2;                                                                                            \
            *(V *)(out + j + 3 * (LANES)) = s3;                                                                                            \
        }                                                                                                                                  \
        for (; j + (LANES) <= features; j += (LANES)) {                                                                                    \
            V s = *(V *)(out + j);                                                                                                         \
            for (size_t k = 0; k < n; k++)                                                                                                 \
                s += *(const V *)(x + (size_t)column[k] * stride + j) * weight[k];                                                         \
            *(V *)(out + j) = s;                                                                                                           \
        }                                                                                                                                  \
        if (j == features)                                                                                                                 \
            return;                                                                                                                        \
        for (size_t k = 0; k < n; k++) {                                                                                                   \
            const T *row = x + (size_t)column[k] * stride;                                                                                 \
            for (size_t i = j; i < features; i++)                                                                                          \
                out[i] += row[i] * weight[k];                                                                                              \
        }                                                                                                                                  \
    }
DEFINE_ADD(float, v16f, 16)
DEFINE_ADD(double, v8d, 8)

/* Up to BLOCK codes from a word boundary; `bits` and `encoding` are constants in each instance. */
BS_FN void decode_as(const uint32_t *word, size_t words, const int bits, const int encoding, float *q)
{
    const uint32_t per_word = 32u / (uint32_t)bits, mask = (1u << bits) - 1u;
    for (size_t w = 0; w < words; w++)
        for (uint32_t i = 0; i < per_word; i++) {
            const uint32_t code = word[w] >> (i * (uint32_t)bits) & mask;
            int32_t value = (int32_t)code;
            if (encoding == BS_BIPOLAR)
                value = 2 * value - 1;
            else if (encoding == BS_SIGNED)
                value = (int32_t)(code << (32 - bits)) >> (32 - bits);
            q[w * per_word + i] = (float)value;
        }
}

/* Whole bytes widen without shifts (words are little-endian, as everywhere in the formats). */
BS_FN void decode_bytes(const uint8_t *code, size_t n, int is_signed, float *q)
{
    if (is_signed)
        for (size_t i = 0; i < n; i++)
            q[i] = (float)(int8_t)code[i];
    else
        for (size_t i = 0; i < n; i++)
            q[i] = (float)code[i];
}

#define DECODE_BITS(BITS)                                                                                                                  \
    case BITS:                                                                                                                             \
        if (x->encoding == BS_SIGNED)                                                                                                      \
            decode_as(word, words, BITS, BS_SIGNED, q);                                                                                    \
        else                                                                                                                               \
            decode_as(word, words, BITS, BS_UNSIGNED, q);                                                                                  \
        return;

static void decode(const bs_features *x, const uint32_t *word, size_t words, float *q)
{
    switch (x->bits) {
    case 1:
        if (x->encoding == BS_BIPOLAR)
            decode_as(word, words, 1, BS_BIPOLAR, q);
        else if (x->encoding == BS_SIGNED)
            decode_as(word, words, 1, BS_SIGNED, q);
        else
            decode_as(word, words, 1, BS_UNSIGNED, q);
        return;
        DECODE_BITS(2)
        DECODE_BITS(4)
    case 8: decode_bytes((const uint8_t *)word, 4 * words, x->encoding == BS_SIGNED, q); return;
    }
}

static void dequantise(const bs_features *x, size_t row, size_t j, size_t n, float *q)
{
    if (x->scale) {
        const float *scale = x->scale + row * x->scale_row + j * x->scale_col;
        if (x->scale_col)
            for (size_t i = 0; i < n; i++)
                q[i] = bs_mulf(q[i], scale[i]);
        else
            for (size_t i = 0; i < n; i++)
                q[i] = bs_mulf(q[i], *scale);
    }
    if (x->offset) {
        const float *offset = x->offset + row * x->offset_row + j * x->offset_col;
        if (x->offset_col)
            for (size_t i = 0; i < n; i++)
                q[i] = bs_addf(q[i], offset[i]);
        else
            for (size_t i = 0; i < n; i++)
                q[i] = bs_addf(q[i], *offset);
    }
}

static void add_codes(const bs_features *x, const int64_t *column, const float *weight, size_t n, float *out)
{
    const uint32_t *data = x->data;
    const size_t bits = (size_t)x->bits;
    for (size_t j = 0; j < x->features; j += BLOCK) {
        const size_t here = x->features - j < BLOCK ? x->features - j : BLOCK, words = (here * bits + 31) / 32;
        float sum[BLOCK] = {0}, q[BLOCK] = {0};
        memcpy(sum, out + j, here * sizeof *sum);
        for (size_t k = 0; k < n; k++) {
            decode(x, data + (size_t)column[k] * x->stride + j * bits / 32, words, q);
            dequantise(x, (size_t)column[k], j, here, q);
            const float w = weight[k];
            for (size_t i = 0; i < BLOCK; i++)
                sum[i] = bs_addf(sum[i], bs_mulf(q[i], w));
        }
        memcpy(out + j, sum, here * sizeof *sum);
    }
}

static void add_rows(const bs_features *x, const int64_t *column, const float *weight, size_t n, float *out)
{
    if (x->kind == BS_FEATURE_CODES)
        add_codes(x, column, weight, n, out);
    else
        add_float(x->data, x->stride, x->features, column, weight, n, out);
}

static void add_rows_double(const bs_features *x, const int64_t *column, const double *weight, size_t n, double *out)
{
    add_double(x->data, x->stride, x->features, column, weight, n, out);
}

const bs_gather_kernels NAME(bs_gather_kernels) = {.add_rows = add_rows, .add_rows_double = add_rows_double};
