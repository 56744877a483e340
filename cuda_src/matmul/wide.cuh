// Results of 64 bits: sums of 32 bits with different weights are combined in registers, so that a tile is written once.
//
// Passes come lightest first. When the weight grows by some bits, that many low bits of the accumulators are final: they move to a second
// set of registers, and the rest is shifted down and starts the next pass. Where the accumulators leave no registers for that (BS_MB BS_NB
// > 2), each pass is a run of its own; the same goes for blocks of the contraction axis beyond what 32 bits can hold. The first run of
// passes writes the result, the others add to it.
#ifndef BITSPARSE_MATMUL_WIDE_CUH
#define BITSPARSE_MATMUL_WIDE_CUH

#include "matmul/tiles.cuh"

#ifdef BS_OUT64
#ifdef BS_BYTES
constexpr int kStep = 8; // by how many bits the weights of neighbouring planes differ
#else
constexpr int kStep = 1;
#endif
constexpr bool kCarries = BS_MB * BS_NB <= 2;

// Multiplies planes p + i of A (i < BS_MB) by planes q0 + j of B; bit 4 i + j of `signs` means a negative weight.
struct WidePass {
    int p, q0, k0, k1;
    int opens, closes;      // whether a run of passes begins or ends here
    int drop, done;         // bits by which the weight exceeds the last pass's, and how many bits had been moved before
    int signs_before, signs;
    int shift, span;        // weight of the run; bits moved away when it ends
    int pad[4];
};
static_assert(sizeof(WidePass) == sizeof(Pass), "a pass of either kind has the same place");

typedef int WideSums[BS_MB][32 * BS_NB];

BS_INLINE void apply_signs(const MatmulParams &g, WideSums &acc, int signs)
{
    if (signs != 0)
#pragma unroll
        for (int i = 0; i < BS_MB; i++)
#pragma unroll
            for (int j = 0; j < BS_NB; j++) {
                const int sign = (signs >> (4 * i + plane_of(g, j))) & 1 ? -1 : 1;
#pragma unroll
                for (int e = 0; e < 32; e++)
                    acc[i][32 * j + e] *= sign;
            }
}

// Goes from one weight to the next: the old sum is 2^drop times what stays plus what moves, also for negative sums.
BS_INLINE void carry(WideSums &acc, WideSums &low, int drop, int done)
{
    const int moved = (1 << drop) - 1;
#pragma unroll
    for (int i = 0; i < BS_MB; i++)
#pragma unroll
        for (int e = 0; e < 32 * BS_NB; e++) {
            low[i][e] |= (acc[i][e] & moved) << done;
            acc[i][e] >>= drop;
        }
}

// The elements of a row that a thread owns: two neighbours in each block of eight columns.
struct WideRow {
    Out *out;
    const Out *col_term;
    Out row_term;
    int column, n;
    bool first, pairs;

    __device__ __forceinline__ Out term(int at) const { return row_term + (col_term ? col_term[at] : 0); }

    __device__ __forceinline__ longlong2 before(int at) const
    {
        longlong2 v = make_longlong2(0, 0);
        if (at >= n)
            return v;
        if (first)
            v.x = term(at);
        else if (pairs)
            return *(const longlong2 *)(out + at);
        else
            v.x = out[at];
        if (at + 1 < n)
            v.y = first ? term(at + 1) : out[at + 1];
        return v;
    }

    __device__ __forceinline__ void put(int at, longlong2 v) const
    {
        if (at >= n)
            return;
        if (pairs) {
            *(longlong2 *)(out + at) = v;
        } else {
            out[at] = v.x;
            if (at + 1 < n)
                out[at + 1] = v.y;
        }
    }
};

// Adds up the products of `planes` adjacent planes of B, and of the planes of A, for register `at`, or `at` + 2, of each block of columns.
template <int planes> BS_INLINE u64 wide_sum(const WideSums &acc, const WideSums &low, int at, int half, int span)
{
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < BS_MB; i++)
#pragma unroll
        for (int q = 0; q < planes; q++) {
            const int e = 32 * (BS_NB / planes) * q + at, high = half ? acc[i][e + 2] : acc[i][e];
            if (kCarries)
                sum += (((u64)(long long)high << span) + (u32)(half ? low[i][e + 2] : low[i][e])) << (kStep * (i + q));
            else
                sum += (u64)((long long)high * (1 << (kStep * (i + q))));
        }
    return sum;
}

template <int planes>
BS_INLINE void flush_planes(const MatmulParams &g, const WideSums &acc, const WideSums &low, const Work &w, int row0, const WidePass &pass,
                            bool first)
{
    constexpr int blocks = BS_NB / planes, batch = 4; // loads in flight together
    const int lane = threadIdx.x & 31, column0 = w.n_tile * blocks * 64 + 2 * (lane & 3);
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int row = row0 + (lane >> 2) + 8 * half;
        if (row >= g.m)
            break;
        WideRow to;
        to.out = g.out + ((long long)w.batch * g.m + row) * g.n;
        to.col_term = g.col_term ? g.col_term + (long long)w.operand.y * g.n : nullptr;
        to.row_term = g.row_term ? g.row_term[(long long)w.operand.x * g.m + row] : 0;
        to.n = g.n, to.first = first, to.pairs = g.pairs;
#pragma unroll
        for (int i = 0; i < 8 * blocks; i += batch) {
            longlong2 v[batch];
#pragma unroll
            for (int j = 0; j < batch; j++)
                v[j] = to.before(column0 + 8 * (i + j));
#pragma unroll
            for (int j = 0; j < batch; j++) {
                v[j].x += (Out)(wide_sum<planes>(acc, low, 4 * (i + j), half, pass.span) << pass.shift);
                v[j].y += (Out)(wide_sum<planes>(acc, low, 4 * (i + j) + 1, half, pass.span) << pass.shift);
                to.put(column0 + 8 * (i + j), v[j]);
            }
        }
    }
}

// Adds the sums of a run of passes to the result; only the thread that owns an element touches it.
BS_INLINE void flush(const MatmulParams &g, const WideSums &acc, const WideSums &low, const Work &w, int row0, const WidePass &pass,
                     bool first)
{
    if (g.qb == 1)
        flush_planes<1>(g, acc, low, w, row0, pass, first);
#if BS_NB > 1
    else if (g.nb == 1)
        flush_planes<BS_NB>(g, acc, low, w, row0, pass, first);
#endif
#if BS_NB == 4
    else
        flush_planes<2>(g, acc, low, w, row0, pass, first);
#endif
}
#endif

#endif
