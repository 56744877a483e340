/* What every per-ISA file needs: the table's types, intrinsics if the ISA has them, and a population count. */
#ifndef BITSPARSE_KERNELS_ISA_H
#define BITSPARSE_KERNELS_ISA_H

#include "simd/kernels.h"

#if defined(BS_ISA_AVX2) || defined(BS_ISA_AVX512)
#include <immintrin.h>
BS_FN int count_ones(uint32_t x) { return __builtin_popcount(x); }
#else
/* Without a population-count instruction the compiler would call a table lookup; these steps vectorise. */
BS_FN int count_ones(uint32_t x)
{
    x = x - ((x >> 1) & 0x55555555u);
    x = (x & 0x33333333u) + ((x >> 2) & 0x33333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0fu;
    return (int)((x * 0x01010101u) >> 24);
}
#endif

typedef int32_t bs_four __attribute__((aligned(1), may_alias)); /* four bytes at any address */
typedef uint64_t bs_word64 __attribute__((aligned(4), may_alias)); /* 64 bits of a plane, aligned to 4 bytes */

#endif
