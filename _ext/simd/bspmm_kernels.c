/* Vertical counters over one-bit features, compiled once per instruction set (BitGNN's BSpMM on the CPU). */
#include "simd/bspmm_kernels.h"

#include <stdlib.h>

#include "simd/kernels_isa.h"

typedef uint64_t v128 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint64_t v256 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint64_t v512 __attribute__((vector_size(64), aligned(4), may_alias));

#define PLANES 64 /* enough bits for any row length */

static const uint32_t all_zeros[16] = {0};
static const uint32_t all_ones[16] = {-1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u, -1u};

BS_FN size_t bit_length(size_t n) { return n ? 64 - (size_t)__builtin_clzll(n) : 0; }

/* Integers from counter planes, 32 lanes per word: start + (sum of bits << (q + shift)), or out minus that sum if `subtract`. */
BS_FN void expand(const uint32_t *planes, size_t width, size_t length, int shift, int subtract, int32_t start, size_t lanes, int32_t *out)
{
    for (size_t w = 0; 32 * w < lanes; w++) {
        const size_t here = lanes - 32 * w < 32 ? lanes - 32 * w : 32;
        int32_t sum[32];
#if defined(BS_ISA_AVX512)
        __m512i low = _mm512_set1_epi32(start), high = low;
        for (size_t q = 0; q < length; q++) {
            const uint32_t word = planes[q * width + w];
            const __m512i weight = _mm512_set1_epi32((int)(1u << (q + (size_t)shift)));
            low = _mm512_mask_add_epi32(low, (__mmask16)word, low, weight);
            high = _mm512_mask_add_epi32(high, (__mmask16)(word >> 16), high, weight);
        }
        _mm512_storeu_si512(sum, low);
        _mm512_storeu_si512(sum + 16, high);
#else
        for (int j = 0; j < 32; j++)
            sum[j] = start;
        for (size_t q = 0; q < length; q++) {
            const uint32_t word = planes[q * width + w];
            for (uint32_t j = 0; j < 32; j++)
                sum[j] += (int32_t)((word >> j & 1u) << (q + (size_t)shift));
        }
#endif
        int32_t *to = out + 32 * w;
        for (size_t j = 0; j < here; j++)
            to[j] = subtract ? to[j] - sum[j] : sum[j];
    }
}

#if defined(BS_ISA_AVX512)
#define XOR3_128(a, b, c) ((v128)_mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), 0x96))
#define MAJ_128(a, b, c) ((v128)_mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), 0xe8))
#define XOR3_256(a, b, c) ((v256)_mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), 0x96))
#define MAJ_256(a, b, c) ((v256)_mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), 0xe8))
#define XOR3_512(a, b, c) ((v512)_mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), 0x96))
#define MAJ_512(a, b, c) ((v512)_mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), 0xe8))
#else
#define XOR3_128(a, b, c) ((a) ^ (b) ^ (c))
#define MAJ_128(a, b, c) (((a) & (b)) | ((c) & ((a) ^ (b))))
#define XOR3_256 XOR3_128
#define MAJ_256 MAJ_128
#endif

#define INDEX uint32_t
#define ROWS(name) name##_narrow
#include "simd/bspmm_rows.inc"
#undef INDEX
#undef ROWS
#define INDEX uint64_t
#define ROWS(name) name##_wide
#include "simd/bspmm_rows.inc"

static int count_rows(const bs_bspmm_job *job, size_t r0, size_t r1, bs_own_row *own)
{
    return job->csr.wide ? count_rows_wide(job, r0, r1, own) : count_rows_narrow(job, r0, r1, own);
}

static int sign_rows(const bs_bspmm_job *job, size_t r0, size_t r1, bs_own_row *own)
{
    return job->csr.wide ? sign_rows_wide(job, r0, r1, own) : sign_rows_narrow(job, r0, r1, own);
}

const bs_bspmm_kernels NAME(bs_bspmm_kernels) = {.count_rows = count_rows, .sign_rows = sign_rows};
