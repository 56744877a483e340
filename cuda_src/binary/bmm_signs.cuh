// Turns elements of every dtype into bits, eight rows of 128 columns to a warp. Included by binary/bmm_rows.cuh.
#ifndef BITSPARSE_BMM_SIGNS_CUH
#define BITSPARSE_BMM_SIGNS_CUH

// An element as float32.
BS_INLINE float value_of(Element e, const BmmParams &g)
{
#if BS_KIND == BS_HALF && defined(BS_BFLOAT)
    return bs_float_of((u32)e << 16);
#elif BS_KIND == BS_HALF
    return float_of_f16(e);
#elif BS_KIND == BS_FLOAT
    return bs_float_of(e);
#elif BS_KIND == BS_DOUBLE
    return (float)double_of(e);
#elif BS_KIND == 3
    return g.is_signed ? (float)(i64)e : (float)e;
#else
    const int away = 32 - 8 * (int)sizeof(Element);
    return g.is_signed ? (float)((int)((u32)e << away) >> away) : (float)(u32)e;
#endif
}

// A word whose highest bit says whether the element is negative; -0 is not. v is the element's value, scaled and shifted by BS_NORM.
BS_INLINE u32 sign_of(Element e, float v, const BmmParams &g)
{
#if defined(BS_NORM) || BS_KIND == BS_HALF || BS_KIND == BS_FLOAT
    return bs_bits_of(bs_addf(v, 0.0f));
#elif BS_KIND == BS_DOUBLE
    return e << 1 ? (u32)(e >> 32) : 0u;
#else
    return g.is_signed ? (u32)((u64)e << (64 - 8 * (int)sizeof(Element)) >> 32) : 0u;
#endif
}

// X that is too large to stay in the L2 is evicted first.
#ifdef BS_STREAM
#define BS_LOAD(at) __ldcs(at)
#else
#define BS_LOAD(at) (*(at))
#endif

// Four neighbours by loads of BS_VECTOR bytes.
BS_INLINE Quad load_neighbours(const unsigned char *at)
{
    Quad q = zero_quad();
    constexpr int size = 4 * (int)sizeof(Element);
#if BS_VECTOR == 16
#pragma unroll
    for (int i = 0; i < size / 16; i++) {
        const uint4 v = BS_LOAD((const uint4 *)at + i);
        u32 *w = q.w + 4 * i;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
#elif BS_VECTOR == 8
#pragma unroll
    for (int i = 0; i < size / 8; i++) {
        const uint2 v = BS_LOAD((const uint2 *)at + i);
        u32 *w = q.w + 2 * i;
        w[0] = v.x, w[1] = v.y;
    }
#elif BS_VECTOR == 4
#pragma unroll
    for (int i = 0; i < size / 4; i++)
        q.w[i] = BS_LOAD((const u32 *)at + i);
#else
#pragma unroll
    for (int j = 0; j < 4; j++)
        set_element(q, j, ((const Element *)at)[j]);
#endif
    return q;
}

// Shifts the quad by one element; a zero follows the last one.
BS_INLINE void drop_first(Quad &q)
{
    constexpr int words = sizeof(Quad) / 4, step = (int)sizeof(Element) / 4;
#pragma unroll
    for (int i = 0; i < words; i++) {
        if (step > 0)
            q.w[i] = i + step < words ? q.w[i + step < words ? i + step : i] : 0u;
        else
            q.w[i] = __funnelshift_r(q.w[i], i + 1 < words ? q.w[i + 1 < words ? i + 1 : i] : 0u, 8 * (int)sizeof(Element));
    }
}

// Eight rows of 128 columns: a lane takes four neighbours of each row. Lane 4 j + t has the j-th four of word t.
struct Unit {
    Quad quads[8];
    int column; // of this lane's elements, in the row
    int left;   // elements from there to the end of the row

    // At the end of a row the last four elements of the row are loaded; those that belong to another lane are dropped.
    __device__ __forceinline__ void load(const BmmParams &g, int lane, int row, int first)
    {
        column = first + 32 * (lane & 3) + 4 * (lane >> 2);
        left = g.k - column;
        const int last = g.m - 1;
#pragma unroll
        for (int i = 0; i < 8; i++)
            quads[i] = zero_quad();
        if (left <= 0)
            return;
#ifdef BS_TINY
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (j < left)
                    set_element(quads[i], j, ((const Element *)(g.x + min(row + i, last) * g.x_row))[j]);
#else
        const unsigned char *from = g.x + row * g.x_row + (long long)min(column, g.k - 4) * (int)sizeof(Element);
        if (row + 7 <= last) {
#pragma unroll
            for (int i = 0; i < 8; i++, from += g.x_row)
                quads[i] = load_neighbours(from);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                quads[i] = load_neighbours(from + (min(row + i, last) - row) * g.x_row);
        }
#pragma unroll 1
        for (int n = left; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                drop_first(quads[i]);
#endif
    }

    // The signs as a word of row lane / 4, and the magnitudes of the lane's four neighbours in every row.
    __device__ __forceinline__ u32 signs(const BmmParams &g, int lane, float (&magnitudes)[8]) const
    {
#ifdef BS_NORM
        float factor[4] = {0.0f, 0.0f, 0.0f, 0.0f}, addend[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (left > 0) {
            const float4 a = __ldg((const float4 *)(g.norm[0] + column)), b = __ldg((const float4 *)(g.norm[1] + column));
            factor[0] = a.x, factor[1] = a.y, factor[2] = a.z, factor[3] = a.w;
            addend[0] = b.x, addend[1] = b.y, addend[2] = b.z, addend[3] = b.w;
        }
#endif
        u32 negative = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
#if BS_KIND == 0 && !defined(BS_VALUES)
            // the highest bits of four bytes to the highest four bits
            magnitudes[i] = 0.0f;
            negative = __funnelshift_l(g.is_signed ? (quads[i].w[0] >> 7 & 0x01010101u) * 0x10204080u : 0u, negative, 4);
            continue;
#endif
            float v[4];
#pragma unroll
            for (int j = 3; j >= 0; j--) {
                const Element e = element_of(quads[i], j);
                v[j] = value_of(e, g);
#ifdef BS_NORM
                v[j] = bs_addf(bs_mulf(v[j], factor[j]), addend[j]);
#endif
                negative = __funnelshift_l(sign_of(e, v[j], g), negative, 1);
            }
            if (kValues)
                magnitudes[i] = bs_addf(bs_addf(fabsf(v[0]), fabsf(v[1])), bs_addf(fabsf(v[2]), fabsf(v[3])));
            else
                magnitudes[i] = 0.0f;
        }
        const u32 valid = left >= 4 ? ~0u : left <= 0 ? 0u : ((1u << left) - 1u) * 0x11111111u;
        u32 word = ~negative & valid; // nibble i belongs to row i
        u32 other = __shfl_xor_sync(~0u, word, 16);
        word = __byte_perm(word, other, lane & 16 ? 0x3276 : 0x5410);
        other = __shfl_xor_sync(~0u, word, 8);
        word = __byte_perm(word, other, lane & 8 ? 0x3715 : 0x6240);
        other = __shfl_xor_sync(~0u, word, 4);
        const u32 keep = lane & 4 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        return (word & keep) | ((lane & 4 ? other >> 4 : other << 4) & ~keep);
    }
};

// The sum of each of eight numbers over the lanes, always added as a tree over neighbours; row_of_sum says which sum a lane gets.
BS_INLINE float sum_of_lanes(int lane, const float (&v)[8])
{
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        four[i] = bs_addf(lane & 4 ? v[i + 4] : v[i], __shfl_xor_sync(~0u, lane & 4 ? v[i] : v[i + 4], 4));
#pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] = bs_addf(lane & 8 ? four[i + 2] : four[i], __shfl_xor_sync(~0u, lane & 8 ? four[i] : four[i + 2], 8));
    float one = bs_addf(lane & 16 ? two[1] : two[0], __shfl_xor_sync(~0u, lane & 16 ? two[0] : two[1], 16));
    one = bs_addf(one, __shfl_xor_sync(~0u, one, 1));
    return bs_addf(one, __shfl_xor_sync(~0u, one, 2));
}

BS_INLINE int row_of_sum(int lane) { return (lane & 4) | (lane & 8) >> 2 | (lane & 16) >> 4; }

#endif
