/* Random draws for parts of a graph: 64 bits that depend on a seed and on what they are for. Shared by C and kernels. */
#ifndef BITSPARSE_DRAWS_H
#define BITSPARSE_DRAWS_H

#include "common/scalar.h"

/* Upper bits of the last counter word: what a draw is for. Elements and edges use 0 and 1 (common/scalar.h). */
#define BS_FOR_NEIGHBOURS 2u
#define BS_FOR_WALKS 3u
#define BS_FOR_NUMBERS 4u
#define BS_PURPOSE_SHIFT 28

struct bs_draws {
    bs_u64 seed;
    bs_u32 stream;
};
typedef struct bs_draws bs_draws;

/* Draw number `k` of `item`, scaled to a whole number below `limit`; one block of the generator holds two draws. */
BS_FN bs_u64 bs_draw_below(bs_draws draws, bs_u32 purpose, bs_u64 item, bs_u64 k, bs_u64 limit)
{
    bs_u32 w0, w1, w2, w3;
    bs_philox4x32_10((bs_u32)item, (bs_u32)(item >> 32), draws.stream, purpose << BS_PURPOSE_SHIFT | (bs_u32)(k >> 1), (bs_u32)draws.seed,
                     (bs_u32)(draws.seed >> 32), &w0, &w1, &w2, &w3);
    const bs_u64 a = k & 1 ? (bs_u64)w3 << 32 | w2 : (bs_u64)w1 << 32 | w0;
#ifdef BS_DEVICE
    return __umul64hi(a, limit);
#else
    const bs_u64 low = 0xffffffffu, a0 = a & low, a1 = a >> 32, b0 = limit & low, b1 = limit >> 32;
    const bs_u64 cross = a1 * b0 + (a0 * b0 >> 32), middle = a0 * b1 + (cross & low);
    return a1 * b1 + (cross >> 32) + (middle >> 32);
#endif
}

#endif
