// The largest magnitude of floats, as its bits, which order magnitudes: so every order of the search gives the same result. NaN and
// infinities are larger than all finite values. `largest` must be zero at the start. Floor: the bytes of x at the memory's rate.
//
// Compile-time: BS_KIND (5: float32, 4: 16-bit floats); BS_FACTORS (each row of float32 is multiplied by a factor).
#include "common/ptx.cuh"
#include "common/scalar.h"

struct AbsmaxParams {
    const unsigned char *x;
    u32 *largest;
    const float *factors; // one per row
    long long rows, row_bytes; // from row to row
    int cols;                  // of a row, contiguous
    int words;                 // whether 16-byte vectors can be read: all rows as one or, with factors, each row by itself
    int infinity, pad;
};

constexpr int kThreads = 256, kAhead = 4;
constexpr int kItem = BS_KIND == 5 ? 4 : 2;

BS_INLINE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// The magnitude of the float in a word; of two 16-bit floats the larger one, in the upper half.
BS_INLINE u32 magnitude(u32 word) { return kItem == 4 ? word & 0x7fffffffu : larger(word & 0x7fff0000u, word << 16 & 0x7fff0000u); }

#if BS_FACTORS
BS_INLINE u32 magnitude_of_product(u32 word, float factor) { return bs_bits_of(bs_mulf(bs_float_of(word), factor)) & 0x7fffffffu; }

// The largest magnitude of this thread's share of rows without gaps, kFloats floats at a time; their row comes from a division.
template <int kFloats> BS_INLINE u32 largest_product(const AbsmaxParams &g, long long first, long long step)
{
    const long long each = g.cols / kFloats, count = g.rows * each;
    u32 found = 0;
#pragma unroll 1
    for (long long i = first; i < count; i += kAhead * step) {
        uint4 v[kAhead];
        float factor[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; a++) {
            const long long at = i + a * step;
            const bool there = at < count;
            if (kFloats == 4)
                v[a] = there ? __ldcs((const uint4 *)g.x + at) : make_uint4(0, 0, 0, 0);
            else
                v[a] = make_uint4(there ? __ldcs((const u32 *)g.x + at) : 0, 0, 0, 0);
            const long long row = count <= 0xffffffffll ? (long long)((u32)at / (u32)each) : at / each;
            factor[a] = there ? __ldg(g.factors + row) : 0.0f;
        }
#pragma unroll
        for (int a = 0; a < kAhead; a++) {
            found = larger(found, magnitude_of_product(v[a].x, factor[a]));
            if (kFloats == 4) {
                found = larger(larger(found, magnitude_of_product(v[a].y, factor[a])), magnitude_of_product(v[a].z, factor[a]));
                found = larger(found, magnitude_of_product(v[a].w, factor[a]));
            }
        }
    }
    return found;
}
#endif

extern "C" __global__ void __launch_bounds__(kThreads) quantized_absmax(const AbsmaxParams g)
{
    const long long first = (long long)blockIdx.x * kThreads + threadIdx.x, step = (long long)gridDim.x * kThreads;
    u32 found = 0;
#if BS_FACTORS
    found = g.words ? largest_product<4>(g, first, step) : largest_product<1>(g, first, step);
#else
    if (g.words) { // one long row
        const long long count = g.rows * g.cols * kItem / 16, most = g.rows * g.cols;
#pragma unroll 1
        for (long long i = first; i < count; i += kAhead * step) {
            uint4 v[kAhead];
#pragma unroll
            for (int a = 0; a < kAhead; a++)
                v[a] = i + a * step < count ? __ldcs((const uint4 *)g.x + i + a * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int a = 0; a < kAhead; a++)
                found = larger(larger(found, larger(magnitude(v[a].x), magnitude(v[a].y))), larger(magnitude(v[a].z), magnitude(v[a].w)));
        }
        for (long long i = count * (16 / kItem) + first; i < most; i += step)
            found = larger(found, kItem == 4 ? magnitude(((const u32 *)g.x)[i]) : magnitude((u32)((const unsigned short *)g.x)[i] << 16));
    } else {
        for (long long row = blockIdx.x; row < g.rows; row += gridDim.x)
            for (int i = threadIdx.x; i < g.cols; i += kThreads) {
                const unsigned char *at = g.x + row * g.row_bytes + (long long)i * kItem;
                found = larger(found, magnitude(kItem == 4 ? *(const u32 *)at : (u32) * (const unsigned short *)at << 16));
            }
    }
#endif
#pragma unroll
    for (int lanes = 16; lanes; lanes >>= 1)
        found = larger(found, __shfl_xor_sync(~0u, found, lanes));
    if ((threadIdx.x & 31) == 0) {
        if (kItem == 2) { // widened to float32
            const unsigned short half = (unsigned short)(found >> 16);
            found = bs_bits_of(g.infinity == 0x7c00 ? float_of_f16(half) : bs_bf16_to_float(half));
        }
        atomicMax(g.largest, found);
    }
}

struct StepParams {
    const float *largest;
    float *step;
    float top; // the largest code
    int count;
};

// The step of codes up to `top`, from a largest magnitude: 1 where that is too small to divide by, NaN where it is not finite.
extern "C" __global__ void __launch_bounds__(kThreads) steps_up_to(const StepParams p)
{
    const int i = (int)(blockIdx.x * kThreads + threadIdx.x);
    if (i >= p.count)
        return;
    const float step = bs_divf(p.largest[i], p.top);
    p.step[i] = step < 1.17549435e-38f ? 1.0f : bs_addf(step, bs_mulf(step, 0.0f));
}
