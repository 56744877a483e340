// From integer sums to what is stored: scales, correction terms, bias, batch norm, activation, then float32 or packed codes.
//
// A warp takes a block of 16 rows x 64 columns. Every lane handles eight neighbours along the packed axis (floats: two fours in a row) and
// four such octets, "turns", so that the chain stands once in the code, eight elements wide, and branches cost an eighth of an instruction
// each. Steps are those of scalar.h in the order of backends/params.py, so the results are the host's bit for bit. A missing scale is 1, a
// missing addend -0: both leave every float as it is.
#ifndef BITSPARSE_EPILOGUE_CHAIN_CUH
#define BITSPARSE_EPILOGUE_CHAIN_CUH

#include "ptx.cuh"
#include "scalar.h"

enum EpilogueStep {
    kTerms = 1,      // a correction term of rows times columns
    kNorm = 2,       // batch norm
    kBits = 4,       // codes come out, else floats
    kDown = 8,       // packed along the rows of the result (axis -2)
    kWhole = 16,     // the "rows" layout: whole integers side by side, else planes
    kBinarize = 32,  // v >= 0
    kQuick = 64,     // the divisor's inverse may be used, and rounding by addition of a large number (see codes_quickly)
    kOffset = 128,   // the grid's offset is not 0
    kMultiplier = 256, // nor the multiplier 1
    kAligned = 512,  // four floats of a row can be stored at once
};

// Element i of batch b is at[b * batch_step + i * step].
struct EpilogueVector {
    const float *at; // null: the neutral element
    int step, batch_step;
};

struct EpilogueParams {
    EpilogueVector row_scale[2], col_scale[2]; // the chain's own and an operand's: their product, rounded, is the factor
    EpilogueVector row_term[2], col_term[2];   // a vector over the rows times one over the columns
    EpilogueVector bias, bn_scale, bn_shift;   // over the columns
    const float4 *grid; // offset, divisor, 1 / divisor; null: the three numbers below
    void *out;
    int *nan; // becomes 1 when NaN was to become a code
    bs_u64 seed;
    bs_i64 grid_batch;
    int grid_row, grid_col;
    float offset, divisor, inverse, multiplier, low, high, slope;
    int m, n;
    int steps, activation, rounding;
    int bits, words; // of a packed line: uint32 of one plane, or of all
    u32 stream;
};

// Element i of a lane's octet; `jump` is from its first four columns to the others.
struct EpilogueSpot {
    bs_i64 batch;
    int row, column, jump;
};

template <bool down> BS_INLINE int row_of(const EpilogueSpot &s, int i) { return s.row + (down ? i : 0); }
template <bool down> BS_INLINE int column_of(const EpilogueSpot &s, int i) { return s.column + (down ? 0 : (i & 3) + (i & 4 ? s.jump : 0)); }

// The whole octet's values of a vector; indices past the end take the last value.
template <bool down, int n> BS_INLINE void load_rows(const EpilogueParams &e, const EpilogueVector &v, const EpilogueSpot &s, float (&x)[n], float neutral)
{
    const float *from = v.at + s.batch * v.batch_step;
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = v.at ? __ldg(from + (bs_i64)min(row_of<down>(s, i), e.m - 1) * v.step) : neutral;
}

template <bool down, int n> BS_INLINE void load_columns(const EpilogueParams &e, const EpilogueVector &v, const EpilogueSpot &s, float (&x)[n], float neutral)
{
    const float *from = v.at + s.batch * v.batch_step;
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = v.at ? __ldg(from + (bs_i64)min(column_of<down>(s, i), e.n - 1) * v.step) : neutral;
}

// What the chain needs of a row and of a column: eight along the packed axis, one across.
template <bool down> struct RowValues {
    float scale[down ? 8 : 1];
    __device__ __forceinline__ void load(const EpilogueParams &e, const EpilogueSpot &s)
    {
        float theirs[down ? 8 : 1];
        load_rows<down>(e, e.row_scale[0], s, scale, 1.0f);
        load_rows<down>(e, e.row_scale[1], s, theirs, 1.0f);
#pragma unroll
        for (int i = 0; i < (down ? 8 : 1); i++)
            scale[i] = bs_mulf(scale[i], theirs[i]);
    }
};

template <bool down> struct ColumnValues {
    static constexpr int n = down ? 1 : 8;
    float scale[n], bias[n], bn_scale[n], bn_shift[n];
    __device__ __forceinline__ void load(const EpilogueParams &e, const EpilogueSpot &s)
    {
        float theirs[n];
        load_columns<down>(e, e.col_scale[0], s, scale, 1.0f);
        load_columns<down>(e, e.col_scale[1], s, theirs, 1.0f);
        load_columns<down>(e, e.bias, s, bias, -0.0f);
#pragma unroll
        for (int i = 0; i < n; i++)
            scale[i] = bs_mulf(scale[i], theirs[i]);
        if (e.steps & kNorm) {
            load_columns<down>(e, e.bn_scale, s, bn_scale, 1.0f);
            load_columns<down>(e, e.bn_shift, s, bn_shift, -0.0f);
        }
    }
};

template <bool down> BS_INLINE void add_term(const EpilogueParams &e, const EpilogueVector (&term)[2], const EpilogueSpot &s, float (&v)[8])
{
    float row[down ? 8 : 1], column[down ? 1 : 8];
    load_rows<down>(e, term[0], s, row, -0.0f);
    load_columns<down>(e, term[1], s, column, 1.0f);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bs_addf(v[i], bs_mulf(row[down ? i : 0], column[down ? 0 : i]));
}

template <bool down>
BS_INLINE void apply_chain(const EpilogueParams &e, const RowValues<down> &r, const ColumnValues<down> &c, const EpilogueSpot &s, float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bs_mulf(bs_mulf(v[i], r.scale[down ? i : 0]), c.scale[down ? 0 : i]);
    if (e.steps & kTerms) {
        add_term<down>(e, e.row_term, s, v);
        add_term<down>(e, e.col_term, s, v);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bs_addf(v[i], c.bias[down ? 0 : i]);
    if (e.steps & kNorm) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = bs_addf(bs_mulf(v[i], c.bn_scale[down ? 0 : i]), c.bn_shift[down ? 0 : i]);
    }
    if (e.activation == BS_RELU) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = bs_reluf(v[i]);
    } else if (e.activation != BS_IDENTITY) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) { // two at a time, going round: long code stands once and registers need no index
            const float x = bs_activatef(v[0], e.activation, e.slope), y = bs_activatef(v[1], e.activation, e.slope);
#pragma unroll
            for (int j = 0; j < 6; j++)
                v[j] = v[j + 2];
            v[6] = x, v[7] = y;
        }
    }
}

BS_INLINE float4 grid_at(const EpilogueParams &e, bs_i64 batch, int row, int column)
{
    if (e.grid == nullptr)
        return make_float4(e.offset, e.divisor, e.inverse, 0.0f);
    return __ldg(e.grid + batch * e.grid_batch + (bs_i64)min(row, e.m - 1) * e.grid_row + (bs_i64)min(column, e.n - 1) * e.grid_col);
}

// Codes by the letter of scalar.h, one element after another. Gives whether one of the elements inside the result is NaN.
template <bool down> BS_INLINE bool codes_exactly(const EpilogueParams &e, const EpilogueSpot &s, float (&v)[8], u32 (&code)[8])
{
    bool nan = false;
    bs_u64 draw = ~0ull;
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const int row = row_of<down>(s, i), column = column_of<down>(s, i);
        const float x = v[0];
        u32 c = x >= 0.0f;
        nan = nan || (x != x && row < e.m && column < e.n);
        if (!(e.steps & kBinarize)) {
            const float4 grid = grid_at(e, s.batch, row, column);
            u32 half_word = 0;
            if (e.rounding == BS_STOCHASTIC) {
                const bs_u64 index = (bs_u64)((s.batch * e.m + row) * e.n + column);
                if (index >> 3 != draw) {
                    draw = index >> 3;
                    bs_stochastic_words(draw, e.seed, e.stream, &words[0], &words[1], &words[2], &words[3]);
                }
                const u32 j = (u32)index & 7u, word = j < 4 ? (j < 2 ? words[0] : words[1]) : (j < 6 ? words[2] : words[3]);
                half_word = (j & 1u ? word >> 16 : word) & 0xffffu;
            }
            const float q = bs_clipf(bs_affinef(x, grid.x, grid.y, e.multiplier), e.low, e.high);
            c = (u32)bs_round_clippedf(q, e.rounding, half_word);
        }
#pragma unroll
        for (int j = 0; j < 7; j++)
            v[j] = v[j + 1], code[j] = code[j + 1];
        v[7] = x, code[7] = c;
    }
    return nan;
}

// The same codes in a third of the instructions. The host sets kQuick for binarising, and if rounding is to nearest, or down with codes from
// 0 on, the codes have at most 20 bits, divisor and multiplier are of middling size and the grid is constant along the octet. Then quotients
// up to 1e12 come out as a division would round them or, where they are too small for that, both give the code of zero. With any other
// element, NaN as well, the octet is left to codes_exactly.
BS_INLINE bool codes_quickly(const EpilogueParams &e, const float4 &grid, const float (&v)[8], u32 (&code)[8])
{
    float x[8];
    bool usual = true;
    if (e.steps & kBinarize) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            code[i] = v[i] >= 0.0f;
            usual = usual && v[i] == v[i];
        }
        return usual;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = v[i];
    if (e.steps & kOffset) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = bs_subf(x[i], grid.x);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] = bs_div_knownf(x[i], grid.y, grid.z);
        usual = usual && fabsf(x[i]) <= 1.0e12f;
    }
    if (e.steps & kMultiplier) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = bs_mulf(x[i], e.multiplier);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = fminf(fmaxf(x[i], e.low), e.high);
    if (e.rounding == BS_NEAREST) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = bs_low_bits_nearestf(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = bs_low_bits_floorf(x[i]);
    }
    return usual;
}

#endif
