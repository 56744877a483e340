// Integer reductions over packed words, and the steps that prepare an operand for a product. All are bound by reading the words once.
#include "bits/octet_turn.cuh"
#include "common/ptx.cuh"
#include "common/scalar.h"

typedef bs_i64 i64;

struct StatsParams {
    const u32 *words;
    void *out;
    i64 rows; // of all batches together
    int bits, n_words, k;
    int outer;               // rows of one batch
    int weight, negative_top; // integer of a code: weight times the sum of its planes (the last one negative or not), plus constant
    i64 constant, factor, addend; // code_sums gives factor * sum + addend
    int wide;                // whether code_sums writes int64
    int tile_rows, block_words, out_words;
    u32 flip; // digits: whether the top plane is inverted
    int digits;
    int extend; // digits: whether the top plane is repeated up to the sign bit of the byte
};

// One warp per row: factor times the sum of the row's integers, plus addend.
extern "C" __global__ void code_sums(const StatsParams p)
{
    const i64 row = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31;
    if (row >= p.rows)
        return;
    i64 sum = 0;
    for (int plane = 0; plane < p.bits; plane++) {
        const uint4 *words = (const uint4 *)(p.words + (row * p.bits + plane) * p.n_words);
        i64 ones = 0;
        for (int i = lane; i < p.n_words / 4; i += 32) {
            const uint4 w = words[i];
            ones += __popc(w.x) + __popc(w.y) + __popc(w.z) + __popc(w.w);
        }
        sum += plane == p.bits - 1 && p.negative_top ? -(ones << plane) : ones << plane;
    }
    for (int offset = 16; offset > 0; offset >>= 1)
        sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) {
        const i64 value = p.factor * (p.weight * sum + p.constant * p.k) + p.addend;
        if (p.wide)
            ((i64 *)p.out)[row] = value;
        else
            ((int *)p.out)[row] = (int)value;
    }
}

// One warp per word of the bitmap: lane t examines the 8 x 128 tile of column 32 word + t.
extern "C" __global__ void tile_bitmap(const StatsParams p)
{
    const i64 item = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31, tile_rows = (p.outer + 7) / 8;
    if (item >= p.rows / (p.outer ? p.outer : 1) * tile_rows * p.out_words)
        return;
    const int word = (int)(item % p.out_words), tile_row = (int)(item / p.out_words % tile_rows);
    const i64 batch = item / p.out_words / tile_rows;
    const int tile = 32 * word + lane, first = 8 * tile_row, last = min(p.outer, first + 8);
    u32 any = 0;
    if (tile < p.n_words / 4)
        for (i64 r = (batch * p.outer + first) * p.bits; r < (batch * p.outer + last) * p.bits; r++) {
            const uint4 w = ((const uint4 *)(p.words + r * p.n_words))[tile];
            any |= w.x | w.y | w.z | w.w;
        }
    const u32 found = __ballot_sync(~0u, any != 0);
    if (lane == 0)
        ((u32 *)p.out)[item] = found;
}

// Coarsens the bitmap (batch, outer / 8, n_words): one bit per tile_rows rows and 8 of its tiles (1024 elements).
extern "C" __global__ void coarsen_bitmap(const StatsParams p)
{
    const i64 item = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31, fine_rows = (p.outer + 7) / 8, coarse_rows = (p.outer + p.tile_rows - 1) / p.tile_rows;
    if (item >= p.rows / (p.outer ? p.outer : 1) * coarse_rows * p.out_words)
        return;
    const int word = (int)(item % p.out_words), tile = (int)(item / p.out_words % coarse_rows);
    const i64 batch = item / p.out_words / coarse_rows;
    const int first = tile * (p.tile_rows / 8), last = min(fine_rows, first + p.tile_rows / 8), from = word * 8 + (lane >> 2);
    u32 any = 0;
    if (from < p.n_words)
        for (int r = first; r < last; r++)
            any |= p.words[(batch * fine_rows + r) * p.n_words + from];
    const u32 found = __ballot_sync(~0u, (any >> ((lane & 3) * 8)) & 0xffu);
    if (lane == 0)
        ((u32 *)p.out)[item] = found;
}

// Where 32 elements of a digit come from.
struct DigitWords {
    const u32 *from; // the digit's first plane
    int last;        // its last plane
    u32 valid;       // which elements are before k
};

static __device__ __forceinline__ DigitWords digit_words(const StatsParams &p, i64 item, bool small)
{
    // A 64-bit division would take as long as everything else.
    const i64 line = small ? (u32)item / (u32)p.n_words : item / p.n_words;
    const int word = (int)(item - line * p.n_words);
    const i64 row = p.digits == 1 ? line : small ? (u32)line / (u32)p.digits : line / p.digits;
    const int digit = (int)(line - row * p.digits), left = p.k - 32 * word;
    const u32 valid = left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1u;
    return {p.words + (row * p.bits + 8 * digit) * p.n_words + word, p.bits - 1 - 8 * digit, valid};
}

// Planes to bytes: digit d of an element holds its planes 8 d .. 8 d + 7; elements past k are 0. A thread takes 32 elements of a digit at a
// time. Byte c of word i is element 8 c + i, the order that a transposition of 8 x 8 bits yields; a product is not affected, since both
// operands have that order. Few registers are used so that all blocks fit on the few multiprocessors that a preceding product may leave
// free.
extern "C" __global__ void __launch_bounds__(256, 8) unpack_digits(const StatsParams p)
{
    const i64 items = p.rows * p.digits * p.n_words, step = (i64)gridDim.x * blockDim.x;
    const bool small = items <= 0xffffffffll;
    i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    let_next_kernel_start(); // the product, which starts as soon as there is room and loads what this kernel does not write
#endif
    DigitWords at = digit_words(p, item, small);
#if __CUDA_ARCH__ >= 900
    wait_for_previous_kernel();
#endif
    while (item < items) {
        const int filled = p.extend ? 7 : at.last;
        u32 w[8];
#pragma unroll
        for (int b = 0; b < 8; b++)
            w[b] = b <= filled ? at.from[min(b, at.last) * p.n_words] : 0;
        if (p.flip)
#pragma unroll
            for (int b = 0; b < 8; b++)
                w[b] ^= b == at.last ? ~0u : 0u;
#pragma unroll
        for (int b = 0; b < 8; b++)
            w[b] &= at.valid;
        turn_octets(w);
        uint4 *out = (uint4 *)p.out + 2 * item;
        out[0] = make_uint4(w[0], w[1], w[2], w[3]);
        out[1] = make_uint4(w[4], w[5], w[6], w[7]);
        item += step;
        if (item < items)
            at = digit_words(p, item, small);
    }
}
