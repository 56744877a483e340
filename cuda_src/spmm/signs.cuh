// Signs of the sums of a row, packed along the features: the limits that sums are compared with, and how the lanes of a group store their
// bits.
#ifndef BITSPARSE_SPMM_SIGNS_CUH
#define BITSPARSE_SPMM_SIGNS_CUH

#include "csr/groups.cuh"
#include "finish/floats.cuh"

// BS_PADS: bytes of zeros after a row: 0 none, 1 so few that lanes without a byte of their own can store one each, 2 any number.
#ifndef BS_PADS
#define BS_PADS 2
#endif

// The limits that the sums of n columns are compared with.
template <int n> struct Limits {
#if BS_FINISH == 3
    float at[n];
    unsigned flips;
#endif

    // Loads the limits of columns from `column` on, a multiple of n.
    __device__ __forceinline__ void load(const Finish &f, int column)
    {
#if BS_FINISH == 3
#pragma unroll
        for (int j = 0; j < n; j++)
            at[j] = __ldg(f.limits + column + j);
        flips = __ldg(f.flips + (column >> 5)) >> (column & 31);
        if constexpr (n < 32)
            flips &= (1u << n) - 1;
#endif
    }

    __device__ __forceinline__ bool is_one(int j, float v) const
    {
#if BS_FINISH == 3
        return v >= at[j];
#else
        return v >= 0.0f;
#endif
    }

    __device__ __forceinline__ unsigned flipped(unsigned bits) const
    {
#if BS_FINISH == 3
        return bits ^ flips;
#else
        return bits;
#endif
    }
};

// Bit j says whether v[j] gives a one; `strange` becomes true when a sum is NaN.
template <int n> BS_INLINE unsigned signs_of(const Limits<n> &limits, const float (&v)[n], bool &strange)
{
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < n; j++) {
        bits |= limits.is_one(j, v[j]) ? 1u << j : 0u;
        strange = strange || v[j] != v[j];
    }
    return limits.flipped(bits);
}

// The mask of the group's lanes, and of lanes of other groups that happen to be here as well. All lanes of a group come here together,
// since no branch separates them. If the compiler knows that the mask is the same for all, it need not find out which lanes share one
// (MATCH and REDUX, also with __syncwarp(group_mask)).
BS_INLINE unsigned lanes_here(int lanes)
{
#ifdef BITSPARSE_EMULATED
    return group_mask(lanes);
#else
    return __activemask();
#endif
}

// Stores the signs of a group's part of a row, `n` adjacent bits of every lane, at most eight; lane l has the bits from n * (start + l) on.
// Called by all lanes of the group together: the lanes of a byte combine it, and one of them stores it. Lanes past the end of the row pass
// zeros. The call that reaches the row's end, `last`, clears the bytes after it.
template <int n> BS_INLINE void store_signs(char *out, unsigned bits, unsigned start, int lane, int lanes, int row_bytes, bool last)
{
    const unsigned mask = lanes_here(lanes);
#pragma unroll
    for (int d = 1; d < 8 / n; d *= 2) {
        if (d < lanes) {
            const unsigned other = __shfl_xor_sync(mask, bits, d);
            bits = lane & d ? bits << (n * d) | other : other << (n * d) | bits;
        }
    }
    // The first lane of a byte stores it; the others store zeros after the row.
    const int part = lane & (8 / n - 1), share = max(lanes * n / 8, 1), first = (int)start * n / 8,
              byte = first + part * share + lane * n / 8;
    if ((part == 0 || (BS_PADS && last)) && byte < row_bytes)
        out[byte] = part == 0 ? (char)bits : 0;
    if (BS_PADS > 1 && last)
#pragma unroll 1
        for (int i = first + lanes + lane; i < row_bytes; i += lanes)
            out[i] = 0;
}

// Like store_signs, for lanes whose `n` bits are whole bytes.
template <int n> BS_INLINE void store_sign_words(char *out, unsigned bits, unsigned start, int lane, int lanes, int row_bytes, bool last)
{
    static_assert(n == 8 || n == 16 || n == 32, "whole bytes");
    const int byte = (int)(start + (unsigned)lane) * (n / 8);
    if (byte < row_bytes) {
        if constexpr (n == 8)
            out[byte] = (char)bits;
        else if constexpr (n == 16)
            *(unsigned short *)(out + byte) = (unsigned short)bits;
        else
            *(unsigned *)(out + byte) = bits;
    }
    if (BS_PADS && last)
#pragma unroll 1
        for (int i = (int)(start + (unsigned)lanes) * (n / 8) + lane; i < row_bytes; i += lanes)
            out[i] = 0;
}

#endif
