// Activations as an operand of a product of bytes: floats are loaded four to a lane and become codes of a symmetric grid, four to a word.
// Included by quantized/produce.cuh and quantized/mma.cu.
//
// Compile-time: BS_KIND (5: float32, 4: 16-bit floats, with BS_BFLOAT bfloat16), BS_VECTOR (bytes of a load: 16, 8 or 4, of 16 bits 8, 4
// or 2), BS_RANDOM (stochastic rounding), BS_WHOLE (k is a multiple of four), BS_STREAM (x will not stay in the L2).
#ifndef BITSPARSE_QUANTIZED_LOAD_CUH
#define BITSPARSE_QUANTIZED_LOAD_CUH

#include "common/ptx.cuh"
#include "common/scalar.h"

constexpr int kRowBytes = 128; // of the contraction axis at a time: 128 codes
constexpr int kTileRows = 128, kTileColumns = 128;
constexpr int kBytesBlock = kTileRows * kRowBytes; // a tile's codes of one block of the contraction axis
constexpr int kItem = BS_KIND == 5 ? 4 : 2;        // bytes of an element

struct QuantizedParams {
    TensorMap w, y;              // of the weights, and of the result if it is stored in bulk
    const unsigned char *x;
    const u32 *weights;          // (n, w_words): codes in bytes, packed along the contraction axis
    float *out;                  // (m, n)
    const float *scale;          // of x, in memory; null: scale_value
    const u32 *largest;          // the bits of the largest magnitude of x, from which the scale is computed; null: the scale is known
    const float *w_scale, *bias; // of columns, padded to whole tiles; bias may be null
    u32 *codes;                  // of x, (m, codes_words), packed along the rows; may be null
    u32 *absmax;                 // the bits of the largest magnitude of the result so far; may be null
    int *odd;                    // becomes 1 if an element of x is not finite
    const u32 *stream_at;        // address of the number of the stream of draws; null: stream
    long long x_row;             // bytes from row to row
    u64 seed;
    u32 stream;
    float scale_value, top; // top: the largest code
    int m, n, k, w_words, codes_words, codes_bits;
    int n_tiles, full, split, per_part, units; // see Unit
    int bulk, pairs;                           // whether y is set; whether two neighbours of the result may be stored at once
    int k_parts; // of the contraction axis, which units of the same rows and columns share (quantized/wgmma.cu)
    int *partial,
        *arrived; // their sums, in the order of fragments; of each warp and tile, how many parts have come: zeros before and after
};

// ---- the grid
struct Grid {
    float scale, inverse, limit, top;
    bool usual; // neither dividends nor remainders of divisions can become subnormal where that would change a code
};

BS_INLINE Grid grid_of(const QuantizedParams &g)
{
    float scale = g.scale ? *g.scale : g.scale_value;
    if (g.largest) { // as in schemes.grid_from_range: a zero or subnormal scale becomes 1
        scale = bs_divf(fabsf(bs_float_of(*g.largest)), g.top);
        scale = scale >= 1.17549435e-38f ? scale : 1.0f;
    }
#ifdef BS_RANDOM // a quotient must not become zero unless it is zero
    const float most = 1.0f;
    const float reach = bs_addf(g.top, 1.0f); // so that a quotient becomes the largest code only by clipping
#else
    const float most = 1.0995116e12f; // 2^40
    const float reach = g.top;
#endif
    return {scale, bs_divf(1.0f, scale), bs_mulf(scale, reach), g.top, scale >= 8.6736174e-19f && scale <= most}; // 2^-60
}

// ---- elements: four neighbours as they lie in memory
struct Four {
    u32 w[kItem];
};

#ifdef BS_STREAM // x that is too large to stay in the L2 is evicted first
#define BS_LOAD(at) __ldcs(at)
#else
#define BS_LOAD(at) __ldg(at)
#endif

// Four neighbours from memory.
BS_INLINE Four load_vector(const unsigned char *at)
{
    Four four;
#if BS_VECTOR == 16
    const uint4 v = BS_LOAD((const uint4 *)at);
    four.w[0] = v.x, four.w[1] = v.y, four.w[kItem - 2] = v.z, four.w[kItem - 1] = v.w;
#elif BS_VECTOR == 8
#pragma unroll
    for (int i = 0; i < kItem / 2; i++) {
        const uint2 v = BS_LOAD((const uint2 *)at + i);
        four.w[2 * i] = v.x, four.w[2 * i + 1] = v.y;
    }
#elif BS_VECTOR == 4
#pragma unroll
    for (int i = 0; i < kItem; i++)
        four.w[i] = BS_LOAD((const u32 *)at + i);
#else
    const unsigned short *h = (const unsigned short *)at;
    four.w[0] = BS_LOAD(h) | (u32)BS_LOAD(h + 1) << 16;
    four.w[1] = BS_LOAD(h + 2) | (u32)BS_LOAD(h + 3) << 16;
#endif
    return four;
}

// A row's elements from column `column` on. Elements past the last column do not affect the product, since weights are zero there: they are
// arbitrary if rows are multiples of four, so that no load is inside a branch, and zeros otherwise.
BS_INLINE Four load_four(const unsigned char *row, int column, int k)
{
#ifdef BS_WHOLE
    return load_vector(row + (long long)min(column, k - 4) * kItem);
#else
    Four four;
#pragma unroll
    for (int i = 0; i < kItem; i++)
        four.w[i] = 0;
    const unsigned char *at = row + (long long)column * kItem;
    if (column + 4 <= k)
        return load_vector(at);
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (column + j < k) {
            if (kItem == 4)
                four.w[kItem == 4 ? j : 0] = ((const u32 *)at)[j];
            else
                four.w[j / 2] |= (u32)((const unsigned short *)at)[j] << 16 * (j % 2);
        }
    return four;
#endif
}

BS_INLINE float element_of(const Four &four, int j)
{
#if BS_KIND == 5
    return bs_float_of(four.w[j]);
#elif defined(BS_BFLOAT)
    return bs_float_of(j % 2 ? four.w[j / 2] & 0xffff0000u : four.w[j / 2] << 16);
#else
    return float_of_f16((unsigned short)(four.w[j / 2] >> 16 * (j % 2)));
#endif
}

// ---- codes
// The code of x is the low byte. Clipping comes before the division: the largest code times the scale, divided by the scale, is within a
// rounding of the largest code, and smaller values stay as they are. The quotient by way of the inverse differs from the IEEE one only
// where something is subnormal, and then both are far below 1/2 (`usual` keeps remainders of larger ones normal) and of the same sign.
template <bool usual> BS_INLINE float quotient(float x, const Grid &grid)
{
    if (usual)
        return bs_div_knownf(fminf(fmaxf(x, -grid.limit), grid.limit), grid.scale, grid.inverse);
    return bs_divf(x, grid.scale);
}

BS_INLINE float clipped(float v, const Grid &grid) { return fminf(fmaxf(v, -grid.top), grid.top); }

template <bool usual> BS_INLINE u32 nearest(float x, const Grid &grid)
{
    const float v = quotient<usual>(x, grid);
    return bs_bits_of(bs_addf(usual ? v : clipped(v, grid), BS_BIG));
}

// Values beyond the largest code, of either sign, become exactly that code: a quotient off by a rounding would have a fraction.
template <bool usual> BS_INLINE u32 stochastic(float x, const Grid &grid, u32 half)
{
    const float v = clipped(quotient<usual>(x, grid), grid);
    const float below = __fadd_rd(v, BS_BIG), part = bs_subf(v, bs_subf(below, BS_BIG));
    const float draw = bs_subf(bs_float_of(0x4b000000u | half), 8388608.0f); // the half word as a float
    return bs_bits_of(below) + (draw < bs_mulf(part, 65536.0f) ? 1u : 0u);
}

BS_INLINE u32 bytes_of(u32 a, u32 b, u32 c, u32 d) { return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410); }

#ifdef BS_RANDOM
BS_INLINE u32 stream_of(const QuantizedParams &g) { return g.stream_at ? __ldg(g.stream_at) : g.stream; }

// The half words drawn for the elements index .. index + 3.
BS_INLINE uint2 draws_of(const QuantizedParams &g, u64 index)
{
    uint2 found = make_uint2(0, 0);
#ifdef BS_WHOLE // they come from the same half of one draw
    uint4 w;
    bs_stochastic_words(index >> 3, g.seed, stream_of(g), &w.x, &w.y, &w.z, &w.w);
    found = index & 4 ? make_uint2(w.z, w.w) : make_uint2(w.x, w.y);
#else
#pragma unroll 1
    for (int j = 0; j < 4; j++) {
        const u32 half = bs_stochastic_bits(index + j, g.seed, stream_of(g)) << 16 * (j & 1);
        found.x |= j < 2 ? half : 0u, found.y |= j < 2 ? 0u : half;
    }
#endif
    return found;
}
#endif

// The draws for a lane's elements of two rows. A draw serves eight elements, which belong to two lanes. Where the rows are aligned alike,
// the even lane draws for the first row and the odd one for the second, and they exchange halves.
struct Draws {
    uint2 of[2];

    __device__ __forceinline__ Draws(const QuantizedParams &g, u64 index)
    {
#ifdef BS_RANDOM
#ifdef BS_WHOLE
        if ((g.k & 7) == 0) {
            const bool odd = threadIdx.x & 1;
            uint4 w;
            bs_stochastic_words((odd ? index + (u32)g.k : index) >> 3, g.seed, stream_of(g), &w.x, &w.y, &w.z, &w.w);
            const uint2 got = make_uint2(__shfl_xor_sync(~0u, odd ? w.x : w.z, 1), __shfl_xor_sync(~0u, odd ? w.y : w.w, 1));
            of[0] = odd ? got : make_uint2(w.x, w.y);
            of[1] = odd ? make_uint2(w.z, w.w) : got;
            return;
        }
#endif
        of[0] = draws_of(g, index);
        of[1] = draws_of(g, index + (u32)g.k);
#else
        of[0] = of[1] = make_uint2(0, 0);
#endif
    }
};

// Four codes, the first one in the lowest byte; `odd` becomes NaN if an element is not finite.
template <bool usual> BS_INLINE u32 codes_of(const Grid &grid, const Four &four, uint2 draws, float &odd)
{
    u32 code[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float x = element_of(four, j);
        odd = fmaf(x, 0.0f, odd);
#ifdef BS_RANDOM
        code[j] = stochastic<usual>(x, grid, ((j < 2 ? draws.x : draws.y) >> 16 * (j & 1)) & 0xffffu);
#else
        code[j] = nearest<usual>(x, grid);
#endif
    }
    return bytes_of(code[0], code[1], code[2], code[3]);
}

// Stores a lane's word of a row where codes are wanted: unchanged, or with two codes to a byte. Codes past the last column are zero.
BS_INLINE void keep_codes(const QuantizedParams &g, int row, int word, u32 codes)
{
    if (row >= g.m)
        return;
    u32 *line = g.codes + (long long)row * g.codes_words;
    codes = 4 * word < g.k ? codes : 0u;
    if (g.codes_bits == 8) {
        if (word < g.codes_words)
            line[word] = codes;
    } else if (word < 2 * g.codes_words) {
        u32 nibbles = codes & 0x0f0f0f0fu;
        nibbles = (nibbles | nibbles >> 4) & 0x00ff00ffu;
        ((unsigned short *)line)[word] = (unsigned short)(nibbles | nibbles >> 8);
    }
}

// ---- storing
struct Finish {
    float scale;
    u32 largest = 0; // magnitudes are ordered like their bits, and NaN is above all

    __device__ __forceinline__ explicit Finish(float x_scale) : scale(x_scale) {}

    // The chain of Epilogue(bias=...) after a product of operands with scales.
    __device__ __forceinline__ float value(int sum, float w_scale) const { return bs_mulf(bs_mulf((float)sum, scale), w_scale); }

    __device__ __forceinline__ void see(float v) { largest = max(largest, bs_bits_of(v) & 0x7fffffffu); }

    // Called by whole warps when they are finished.
    __device__ __forceinline__ void report(const QuantizedParams &g)
    {
        if (!g.absmax)
            return;
#pragma unroll
        for (int lanes = 16; lanes; lanes >>= 1)
            largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
        if ((threadIdx.x & 31) == 0)
            atomicMax(g.absmax, largest);
    }
};

#endif
