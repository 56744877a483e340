// What all tiled products of packed operands iterate over: passes over pairs of planes, ranges and blocks of the contraction axis.
#ifndef BITSPARSE_MATMUL_PASSES_CUH
#define BITSPARSE_MATMUL_PASSES_CUH

#include "common/ptx.cuh"

#ifdef BS_OUT64
typedef long long Out;
#else
typedef int Out;
#endif

constexpr int kRowBytes = 128;   // of the contraction axis in a stage: one block of it
constexpr int kInlinePasses = 8; // this many are in the parameters, more are in memory

// A pass over the contraction blocks k0 .. k1 with plane p of A and planes q0 .. q0 + qb - 1 of B. For the j-th of these, ratio[j] is the
// weight of the previous pass over that of this one, and weight[j] is the weight of this one, modulo 2^32. With more than four planes a
// pass has all planes of B, so ratios differ between no two of them: ratio[j % 4]. With BS_OUT64 in matmul/mma.cu,
// qb is 1 and weight[0] is the shift, plus 64 if the weight is negative; matmul/wgmma.cu then has its own kind of pass (WidePass).
struct Pass {
    int p, q0, k0, k1;
    int ratio[4], weight[8];
};

// The next contraction block at or after kb that is not all zero in this row tile, or at least `end`.
BS_INLINE int next_block(const u32 *blocks, int kb, int end)
{
    if (blocks == nullptr)
        return kb;
    while (kb < end) {
        const u32 rest = __ldg(blocks + (kb >> 5)) >> (kb & 31);
        if (rest != 0)
            return kb + __ffs(rest) - 1;
        kb = (kb | 31) + 1;
    }
    return kb;
}

// Which batch of a and of b a batch of the result uses; without a table the same one.
BS_INLINE int2 operands_of(const int2 *indices, int batch) { return indices ? indices[batch] : make_int2(batch, batch); }

// x / by, where magic = 2^31 / by rounded up. The launch code checks the range of x, and sets magic to 0 where this does not work.
BS_INLINE int quotient(int x, int by, u32 magic) { return magic ? (int)__umulhi(2u * (u32)x, magic) : x / by; }

struct Range {
    int begin, end;
};

BS_INLINE Range part_of(int begin, int end, int part, int parts)
{
    const int length = end - begin;
    if (parts == 1)
        return {begin, end};
    return {begin + length * part / parts, begin + length * (part + 1) / parts};
}

#endif
