// Integer reductions over packed words, and the steps that prepare an operand for a product. All are bound by reading the words once.
#include "scalar.h"

typedef bs_u32 u32;
typedef bs_u64 u64;
typedef bs_i64 i64;

struct StatsParams {
    const u32 *words;
    void *out;
    i64 rows; // of all batches together
    int bits, n_words, k;
    int outer;               // rows of one batch
    int weight, negative_top; // the integer of a code is weight times its sum of planes (the last one negative or not) plus constant
    i64 constant, factor, addend; // code_sums gives factor * sum + addend
    int wide;                // whether code_sums writes int64
    int tile_rows, block_words, out_words;
    u32 flip; // digits: whether the top plane is turned over
    int digits;
};

// One warp a row: factor times the sum of the row's integers, plus addend.
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

// One warp a word of the bitmap: lane t looks at the 8 x 128 tile of column 32 word + t.
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

// The bitmap (batch, outer / 8, n_words) made coarse: one bit per tile_rows rows and 8 of its tiles (1024 elements).
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

// Planes to bytes: digit d of an element holds its planes 8 d .. 8 d + 7; elements past k are 0. One thread 32 elements of a digit.
extern "C" __global__ void unpack_digits(const StatsParams p)
{
    const i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= p.rows * p.digits * p.n_words)
        return;
    const int word = (int)(item % p.n_words), digit = (int)(item / p.n_words % p.digits);
    const i64 row = item / p.n_words / p.digits;
    const int left = p.k - 32 * word;
    const u32 valid = left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1u;
    u32 bytes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int b = 0; b < 8; b++) {
        const int plane = 8 * digit + b;
        if (plane < p.bits) {
            u32 w = p.words[(row * p.bits + plane) * p.n_words + word];
            w = (plane == p.bits - 1 && p.flip ? ~w : w) & valid;
#pragma unroll
            for (int i = 0; i < 8; i++) // the product puts bit j of four into byte j
                bytes[i] |= ((((w >> (4 * i)) & 15u) * 0x00204081u) & 0x01010101u) << b;
        }
    }
    uint4 *out = (uint4 *)p.out + 2 * item;
    out[0] = make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
    out[1] = make_uint4(bytes[4], bytes[5], bytes[6], bytes[7]);
}
