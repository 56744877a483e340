// The sums of binary/bspmm_count.cu, computed in the two other ways of BitGNN (section 3.2.2) for comparison: a lane is a feature, and a
// warp takes one row and one word. BS_METHOD 1: popc(a & b) - popc(a & ~b), both counted; 2: bit by bit.
//
// Floor: that of binary/bspmm_count.cu. An edge costs a warp some eight instructions a word, so this is slower by design.
#define BS_WORDS 1
#define BS_THREADS 128
#include "binary/bspmm_finish.cuh"

// Whether the sum reaches the lane's threshold.
BS_INLINE bool reaches(const CountParams &p, Index row, int word, int lane, int sum)
{
    if (!p.limits)
        return (sum >= p.limit) != (p.flip != 0);
    const bs_u64 line = p.class_of ? (bs_u64)(unsigned)__ldg(p.class_of + row) : 0;
    const u32 *limits = p.limits + line * (unsigned)(p.limit_planes * p.width) + word;
    bs_i64 limit = 0;
    for (int q = 0; q < p.limit_planes; q++)
        limit |= (bs_i64)(__ldg(limits + q * p.width) >> lane & 1u) << q;
    const bool flip = __ldg(p.flips + line * (unsigned)p.width + word) >> lane & 1u;
    return ((bs_i64)sum + p.base >= limit) != flip;
}

extern "C" __global__ void __launch_bounds__(128) bspmm_methods(const __grid_constant__ CountParams p)
{
    const bs_i64 row = (bs_i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int word = (int)blockIdx.y, lane = (int)threadIdx.x & 31;
    if (row >= p.rows)
        return;
    const Index begin = __ldg(p.streams.indptr + row), end = __ldg(p.streams.indptr + row + 1);
    int plus = 0, minus = 0;
#pragma unroll 4
    for (Index e = begin; e < end; e++) {
        const u32 bits =
            __ldg((const u32 *)row_address((const char *)(p.words + word), __ldg(p.streams.indices + e), 4u * (unsigned)p.width));
#if BS_METHOD == 1
        plus += (int)(bits >> lane & 1u);
        minus += (int)(~bits >> lane & 1u);
#else
        plus += bits >> lane & 1u ? 1 : p.bipolar ? -1 : 0;
#endif
    }
    const int sum = p.bipolar ? plus - minus : plus, column = 32 * word + lane;
#if BS_OUT == BS_SUMS
    if (column < p.features)
        ((int *)p.out)[row * p.features + column] = sum;
#elif BS_OUT == BS_SIGNS
    const u32 ones = __ballot_sync(~0u, column < p.features && reaches(p, (Index)row, word, lane, sum));
    if (lane == 0)
        ((u32 *)p.out)[row * p.width + word] = ones;
#else
    int sums[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = __shfl_sync(~0u, sum, 4 * (lane & 3) + (i & 3) + 4 * (i & 4));
    const CountedRow counted = {(Index)row, end - begin, true};
    u32 bits = lane < 4 && 32 * word < p.features ? chain_of_sums(p, counted, 32 * word + 4 * lane, sums) : 0;
    bits |= __shfl_xor_sync(~0u, bits, 1);
    bits |= __shfl_xor_sync(~0u, bits, 2);
    if (lane == 0 && p.epilogue.steps & kBits)
        ((u32 *)p.out)[row * p.width + word] = bits & features_of_word(p, word);
#endif
}
