// Turns the floats of an octet into codes.
#ifndef BITSPARSE_EPILOGUE_CODES_CUH
#define BITSPARSE_EPILOGUE_CODES_CUH

#include "finish/chain.cuh"

BS_INLINE float4 grid_at(const EpilogueParams &e, int batch, int row, int column)
{
    if (e.grid == nullptr)
        return make_float4(e.offset, e.divisor, e.inverse, 0.0f);
    return __ldg(e.grid + batch * e.grid_batch + (bs_i64)min(row, e.m - 1) * e.grid_row + (bs_i64)min(column, e.n - 1) * e.grid_col);
}

// Codes exactly as common/scalar.h defines them, plus `above`, one element after another. Returns whether an element inside the result is
// NaN.
template <bool down>
BS_INLINE bool codes_exactly(const EpilogueParams &e, const EpilogueSpot &s, float (&v)[8], u32 (&code)[8], u32 above)
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
                const bs_u64 index = (bs_u64)(((bs_i64)s.batch * e.m + row) * e.n + column);
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
        v[7] = x, code[7] = c + above;
    }
    return nan;
}

// The same codes in a third of the instructions. The host sets kQuick for binarising, and also if all of this holds: rounding is to
// nearest, or down with codes from 0 on; codes have at most 20 bits; divisor and multiplier are of moderate size; the grid is constant
// along the octet. Then quotients up to 1e12 are those of a division or, if they are too small for that, both give the code of zero. An
// octet with any other element, NaN included, is left to codes_exactly.
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
    for (int i = 0; i < 8; i++) {
        x[i] = bs_div_knownf(bs_subf(v[i], grid.x), grid.y, grid.z);
        usual = usual && fabsf(x[i]) <= 1.0e12f;
        x[i] = fminf(fmaxf(bs_mulf(x[i], e.multiplier), e.low), e.high);
    }
    if (e.rounding == BS_NEAREST) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = bs_bits_nearestf(x[i], 1.0f);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = bs_bits_floorf(x[i], 1.0f);
    }
    return usual;
}

// Whether codes_plainly gives the right codes.
BS_INLINE bool usual_quotients(const EpilogueParams &e, const float (&v)[8])
{
    bool usual = true;
#pragma unroll
    for (int i = 0; i < 8; i++)
        usual = usual && fabsf(bs_mulf(v[i], e.inverse)) <= 1.0e12f;
    return usual;
}

// For codes from 0 on, with one grid for all and no offset: clips by saturating at 2^bits. BS_BIG_BITS is set above every code.
BS_INLINE void codes_plainly(const EpilogueParams &e, const float (&v)[8], u32 (&code)[8])
{
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = fminf(bs_mul_saturatef(bs_div_knownf(v[i], e.divisor, e.inverse), e.factor), e.ceiling);
    if (e.rounding == BS_NEAREST) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = bs_bits_nearestf(x[i], e.unit);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = bs_bits_floorf(x[i], e.unit);
    }
}

#endif
