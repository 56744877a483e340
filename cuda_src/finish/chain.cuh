// How integer sums become the stored result: scales, correction terms, bias, batch norm, activation, then float32 or packed codes.
//
// A warp takes a block of 16 rows x 64 columns. Every lane handles eight neighbours along the packed axis (floats: two fours in a row) at a
// time, and four such octets in "turns". So the code of the chain appears once, eight elements wide, and branches cost an eighth of an
// instruction each. Steps are those of common/scalar.h in the order of backends/params.py, so the results are the host's bit for bit. A
// missing scale is 1 and a missing addend -0; both leave every float as it is.
#ifndef BITSPARSE_EPILOGUE_CHAIN_CUH
#define BITSPARSE_EPILOGUE_CHAIN_CUH

#include "common/ptx.cuh"
#include "common/scalar.h"

// How vectors are read: through the read-only cache, unless the kernel itself may have written one.
#ifdef BS_OWN_VECTORS
#define BS_VECTOR_AT(at) (*(at))
#else
#define BS_VECTOR_AT(at) __ldg(at)
#endif

// The lane's number, read anew at each use, so that values derived from it do not stay in registers while a product runs.
BS_INLINE int pinned_lane()
{
    int lane = (int)(threadIdx.x & 31);
    asm volatile("" : "+r"(lane));
    return lane;
}

enum EpilogueStep {
    kTerms = 1, // a correction term of rows times columns
    kNorm = 2, // batch norm
    kBits = 4, // results are codes, else floats
    kDown = 8, // packed along the rows of the result (axis -2)
    kWhole = 16, // the "rows" layout: whole integers, adjacent; else planes
    kBinarize = 32, // v >= 0
    kQuick = 64, // see codes_quickly
    kPlain = 128, // planes of unsigned codes after scales and a bias only (see codes_plainly)
    kBounded = 256, // no quotient can be NaN or beyond 1e12
    kAligned = 512, // four floats of a row can be stored at once
    kJoins = 1024, // results are added to the floats that are there
};

// A row or column vector: element i of batch b is at[b * batch_step + i], or at[b * batch_step] if `step` is 0. `padded`: 16-byte aligned
// and long enough that any block can be read whole.
struct EpilogueVector {
    const float *at; // null: the neutral element
    int batch_step;
    short step, padded; // step in bytes
};

struct EpilogueParams {
    EpilogueVector row_scale[2], col_scale[2]; // the chain's own scale and the operand's: the factor is their product, rounded
    EpilogueVector row_term[2], col_term[2]; // a vector over the rows, multiplied by one over the columns
    EpilogueVector bias, bn_scale, bn_shift; // over the columns
    const float4 *grid; // offset, divisor, 1 / divisor; null: the three numbers below
    void *out;
    int *nan; // becomes 1 when a NaN would have become a code
    bs_u64 seed;
    bs_i64 grid_batch;
    int grid_row, grid_col;
    float offset, divisor, inverse, multiplier, low, high, slope;
    float factor, ceiling, unit; // kPlain: multiplier / unit, high / unit, 2^bits
    int m, n;
    int steps, activation, rounding;
    int bits, words; // words of a packed line: uint32 of one plane, or of all
    u32 stream;
    int pad[6];
};

// Where an octet lies: element i is at row + i (packed along the rows) or at column + i, where the last four are `jump` columns after the
// first four.
struct EpilogueSpot {
    int batch, row, column, jump;
};

template <bool down> BS_INLINE int row_of(const EpilogueSpot &s, int i) { return s.row + (down ? i : 0); }
template <bool down> BS_INLINE int column_of(const EpilogueSpot &s, int i)
{
    return s.column + (down ? 0 : (i & 3) + (i & 4 ? s.jump : 0));
}

// Loads one value of a vector, or eight, from index `first` on; indices past `last` give the last value.
BS_INLINE void load_values(const EpilogueVector &v, int batch, int first, int, int last, float neutral, float (&x)[1])
{
    x[0] = neutral;
    if (v.at)
        x[0] = BS_VECTOR_AT((const float *)((const char *)(v.at + (bs_i64)batch * v.batch_step) + (bs_i64)min(first, last) * v.step));
}

BS_INLINE void load_values(const EpilogueVector &v, int batch, int first, int jump, int last, float neutral, float (&x)[8])
{
    const float *from = v.at + (bs_i64)batch * v.batch_step;
    if (v.padded) {
        const float4 a = BS_VECTOR_AT((const float4 *)(from + first)), b = BS_VECTOR_AT((const float4 *)(from + first + jump));
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = neutral;
    if (v.at)
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = BS_VECTOR_AT((const float *)((const char *)from + (bs_i64)min(first + (i & 3) + (i & 4 ? jump : 0), last) * v.step));
}

// What the chain needs to know about the rows and columns of an octet: eight values along the packed axis, and one across.
template <bool down> struct RowValues {
    static constexpr int n = down ? 8 : 1;
    float scale[n];

    static __device__ __forceinline__ void values(const EpilogueParams &e, const EpilogueVector &v, const EpilogueSpot &s, float neutral,
                                                  float (&x)[n])
    {
        load_values(v, s.batch, s.row, 4, e.m - 1, neutral, x);
    }

    __device__ __forceinline__ void load(const EpilogueParams &e, const EpilogueSpot &s)
    {
        values(e, e.row_scale[0], s, 1.0f, scale);
        if (e.row_scale[1].at) {
            float theirs[n];
            values(e, e.row_scale[1], s, 1.0f, theirs);
#pragma unroll
            for (int i = 0; i < n; i++)
                scale[i] = bs_mulf(scale[i], theirs[i]);
        }
    }
};

template <bool down> struct ColumnValues {
    static constexpr int n = down ? 1 : 8;
    float scale[n], bias[n];

    static __device__ __forceinline__ void values(const EpilogueParams &e, const EpilogueVector &v, const EpilogueSpot &s, float neutral,
                                                  float (&x)[n])
    {
        load_values(v, s.batch, s.column, s.jump, e.n - 1, neutral, x);
    }

    __device__ __forceinline__ void load(const EpilogueParams &e, const EpilogueSpot &s)
    {
        values(e, e.col_scale[0], s, 1.0f, scale);
        values(e, e.bias, s, -0.0f, bias);
        if (e.col_scale[1].at) {
            float theirs[n];
            values(e, e.col_scale[1], s, 1.0f, theirs);
#pragma unroll
            for (int i = 0; i < n; i++)
                scale[i] = bs_mulf(scale[i], theirs[i]);
        }
    }
};

// Values across the packed axis pass from lane to lane: each lane keeps the values of one row of a strip, or of two columns of a block.
template <bool down> struct AcrossRows {
    RowValues<false> mine;
    __device__ __forceinline__ void load(const EpilogueParams &e, int lane, int batch, int row0)
    {
        if constexpr (!down)
            mine.load(e, {batch, row0 + (lane & 15), 0, 0});
    }
    __device__ __forceinline__ void take(int lane, int turn, RowValues<down> &rows) const
    {
        if constexpr (!down)
            rows.scale[0] = __shfl_sync(~0u, mine.scale[0], 4 * turn + (lane >> 3));
    }
};

template <bool down> struct AcrossColumns {
    ColumnValues<true> mine[2];
    __device__ __forceinline__ void load(const EpilogueParams &e, int lane, int batch, int column0)
    {
        if constexpr (down) {
            mine[0].load(e, {batch, 0, column0 + lane, 0});
            mine[1].load(e, {batch, 0, column0 + 32 + lane, 0});
        }
    }
    __device__ __forceinline__ void take(int lane, int turn, ColumnValues<down> &columns) const
    {
        if constexpr (down) {
            const int from = 16 * (turn & 1) + (lane & 15);
            columns.scale[0] = __shfl_sync(~0u, turn < 2 ? mine[0].scale[0] : mine[1].scale[0], from);
            columns.bias[0] = __shfl_sync(~0u, turn < 2 ? mine[0].bias[0] : mine[1].bias[0], from);
        }
    }
};

template <bool down> BS_INLINE void add_term(const EpilogueParams &e, const EpilogueVector (&term)[2], const EpilogueSpot &s, float (&v)[8])
{
    float row[down ? 8 : 1], column[down ? 1 : 8];
    RowValues<down>::values(e, term[0], s, -0.0f, row);
    ColumnValues<down>::values(e, term[1], s, 1.0f, column);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bs_addf(v[i], bs_mulf(row[down ? i : 0], column[down ? 0 : i]));
}

// With `plain` there are only scales and a bias.
template <bool down, bool plain>
BS_INLINE void apply_chain(const EpilogueParams &e, const RowValues<down> &r, const ColumnValues<down> &c, const EpilogueSpot &s,
                           float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bs_mulf(bs_mulf(v[i], r.scale[down ? i : 0]), c.scale[down ? 0 : i]);
    if (!plain && (e.steps & kTerms)) {
        add_term<down>(e, e.row_term, s, v);
        add_term<down>(e, e.col_term, s, v);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bs_addf(v[i], c.bias[down ? 0 : i]);
    if (!plain && (e.steps & kNorm)) {
        float scale[down ? 1 : 8], shift[down ? 1 : 8];
        ColumnValues<down>::values(e, e.bn_scale, s, 1.0f, scale);
        ColumnValues<down>::values(e, e.bn_shift, s, -0.0f, shift);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = bs_addf(bs_mulf(v[i], scale[down ? 0 : i]), shift[down ? 0 : i]);
    }
    if (plain || e.activation == BS_IDENTITY)
        return;
    if (e.activation == BS_RELU) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = bs_reluf(v[i]);
    } else {
#pragma unroll 1
        for (int i = 0; i < 4; i++) { // two at a time, rotating: long code appears once and registers need no index
            const float x = bs_activatef(v[0], e.activation, e.slope), y = bs_activatef(v[1], e.activation, e.slope);
#pragma unroll
            for (int j = 0; j < 6; j++)
                v[j] = v[j + 2];
            v[6] = x, v[7] = y;
        }
    }
}

#endif
