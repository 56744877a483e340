// How the float32 sums of a sparse product's row become its result: an addend, the epilogue's chain, then float32 or signs packed along the
// features. Steps and their order are those of common/scalar.h and backends/params.py, each rounded once, applied to the sums in registers.
#ifndef BITSPARSE_SPMM_FINISH_CUH
#define BITSPARSE_SPMM_FINISH_CUH

#include "csr/streams.cuh"

// BS_FINISH: 0 the kernel stores its sums itself, 1 the chain and float32, 2 the signs of the sums, 3 signs after any chain. A chain that
// ends in a sign is monotone in the sum, so the sign is a comparison with a limit of the column, which the host computes; what depends on
// the row is applied before. BS_STEPS: which steps there are. The compiler knows them, since rows are short: checking each step, and
// fetching missing vectors, would take longer than the steps.
#ifndef BS_FINISH
#define BS_FINISH 0
#endif
#ifndef BS_STEPS
#define BS_STEPS 0
#endif
#define BS_SIGNS (BS_FINISH > 1)

enum FinishStep {
    kOwnRow = 1, // the chain's own factor of the row
    kTheirRow = 2, // the operands' factor of the row
    kFloats = 4, // an addend of float32
    kBits = 8, // an addend of one bit
    kOwnColumn = 16,
    kTheirColumn = 32,
    kBias = 64,
    kNorm = 128,
    kRelu = 256,
    kLeaky = 512,
    kTanh = 1024,
};
static constexpr int kSteps = BS_STEPS;

// Vectors over the columns are 16-byte aligned and readable up to the next multiple of 32 columns; null: the step is missing.
struct Finish {
    const float *row_scale[2], *col_scale[2]; // those of the chain and those of the operands
    const void *addend; // added after the scales of the operands
    const float *bias, *bn_scale, *bn_shift;
    const float *limits; // bit = (sum >= limit) ^ bit of `flips`
    const unsigned *flips;
    int *nan; // becomes 1 when a NaN would have become a sign
    int addend_bytes; // of a row
    int bipolar; // bits of the addend stand for -1 and 1
    int columns; // of the result
    int row_bytes; // of the result
    float slope;
};

// n neighbouring floats of a vector, loaded together.
template <int n> struct FloatRun {
    static_assert(n == 1 || n == 2 || n == 4, "a float, two or four");
    float v[n];

    __device__ __forceinline__ void load(const float *at)
    {
        if constexpr (n == 4) {
            const float4 x = __ldg((const float4 *)at);
            v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        } else if constexpr (n == 2) {
            const float2 x = __ldg((const float2 *)at);
            v[0] = x.x, v[1] = x.y;
        } else {
            v[0] = __ldg(at);
        }
    }
};

template <int n> BS_INLINE void times_columns(const float *scale, int column, float (&v)[n])
{
    FloatRun<n> s;
    s.load(scale + column);
#pragma unroll
    for (int j = 0; j < n; j++)
        v[j] = bs_mulf(v[j], s.v[j]);
}

template <int n> BS_INLINE void plus_columns(const float *term, int column, float (&v)[n])
{
    FloatRun<n> s;
    s.load(term + column);
#pragma unroll
    for (int j = 0; j < n; j++)
        v[j] = bs_addf(v[j], s.v[j]);
}

template <int n> BS_INLINE void times_row(const float *scale, Index row, float (&v)[n])
{
    const float s = __ldg(scale + row);
#pragma unroll
    for (int j = 0; j < n; j++)
        v[j] = bs_mulf(v[j], s);
}

// The addend belongs to the caller and has any width and alignment.
template <int n> BS_INLINE void plus_addend(const Finish &f, Index row, int column, float (&v)[n])
{
    const char *line = (const char *)f.addend + (bs_u64)row * (unsigned)f.addend_bytes;
    if constexpr (kSteps & kFloats) {
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = bs_addf(v[j], __ldg((const float *)line + min(column + j, f.columns - 1)));
    } else {
        const unsigned bits = __ldg((const unsigned *)line + (column >> 5)) >> (column & 31);
#pragma unroll
        for (int j = 0; j < n; j++) {
            const float bit = (float)(bits >> j & 1);
            v[j] = bs_addf(v[j], f.bipolar ? 2.0f * bit - 1.0f : bit);
        }
    }
}

// Applies the steps before the chain's factors of the columns: factors of the operands, an addend, the chain's own factor of the row.
template <int n> BS_INLINE void before_limits(const Finish &f, Index row, int column, float (&v)[n])
{
    if constexpr (kSteps & kTheirRow)
        times_row(f.row_scale[1], row, v);
    if constexpr (kSteps & kTheirColumn)
        times_columns(f.col_scale[1], column, v);
    if constexpr (kSteps & (kFloats | kBits))
        plus_addend(f, row, column, v);
    if constexpr (kSteps & kOwnRow)
        times_row(f.row_scale[0], row, v);
}

// Applies the chain to n sums of a row, from `column` on, a multiple of n. If nothing is added, the factors are multiplied together first.
template <int n> BS_INLINE void apply_chain(const Finish &f, Index row, int column, float (&v)[n])
{
    constexpr bool added = (kSteps & (kFloats | kBits)) != 0;
    if constexpr (!added && (kSteps & kOwnRow) && (kSteps & kTheirRow)) {
        const float scale = bs_mulf(__ldg(f.row_scale[0] + row), __ldg(f.row_scale[1] + row));
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = bs_mulf(v[j], scale);
        if constexpr (kSteps & kTheirColumn && !(kSteps & kOwnColumn))
            times_columns(f.col_scale[1], column, v);
    } else if constexpr (!added && (kSteps & kOwnColumn) && (kSteps & kTheirColumn)) {
        if constexpr (kSteps & (kOwnRow | kTheirRow))
            times_row(f.row_scale[kSteps & kOwnRow ? 0 : 1], row, v);
    } else {
        before_limits(f, row, column, v);
    }
    if constexpr (!added && (kSteps & kOwnColumn) && (kSteps & kTheirColumn)) {
        FloatRun<n> scale;
        scale.load(f.col_scale[0] + column);
        times_columns(f.col_scale[1], column, scale.v);
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = bs_mulf(v[j], scale.v[j]);
    } else if constexpr (kSteps & kOwnColumn) {
        times_columns(f.col_scale[0], column, v);
    }
    if constexpr (kSteps & kBias)
        plus_columns(f.bias, column, v);
    if constexpr (kSteps & kNorm) {
        times_columns(f.bn_scale, column, v);
        plus_columns(f.bn_shift, column, v);
    }
    if constexpr (kSteps & kTanh) {
#pragma unroll 1
        for (int i = 0; i < n; i++) { // rotating: long code appears once and registers need no index
            const float x = bs_tanhf(v[0]);
#pragma unroll
            for (int j = 0; j < n - 1; j++)
                v[j] = v[j + 1];
            v[n - 1] = x;
        }
    } else if constexpr (kSteps & (kRelu | kLeaky)) {
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = kSteps & kRelu ? bs_reluf(v[j]) : bs_leaky_reluf(v[j], f.slope);
    }
}

// The mean over a row's edges, rounded like a division.
BS_INLINE float mean_of(float sum, float edges, float inverse)
{
    return fabsf(sum) <= 1.0e38f ? bs_div_knownf(sum, edges, inverse) : bs_mulf(sum, inverse);
}

template <int n> BS_INLINE void divide(Index edges, float (&v)[n])
{
    const float many = (float)max(edges, (Index)1), inverse = bs_divf(1.0f, many);
#pragma unroll
    for (int j = 0; j < n; j++)
        v[j] = mean_of(v[j], many, inverse);
}

// Takes sums, or means over `edges` edges, to the point where they are stored (BS_FINISH 1) or compared with limits.
template <int n> BS_INLINE void finish_sums(const Finish &f, Index row, Index edges, bool mean, int column, float (&v)[n])
{
#if BS_FINISH != 2 // the sign of a mean is that of the sum
    if (mean)
        divide(edges, v);
#endif
#if BS_FINISH == 1
    apply_chain(f, row, column, v);
#elif BS_FINISH == 3
    before_limits(f, row, column, v);
#endif
}

#endif
