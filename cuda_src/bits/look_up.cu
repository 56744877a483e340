// Codes of 1, 2, 4 or 8 bits that follow each other without gaps to the numbers of a table, or to other numbers times these. Floor: the
// bytes of words, factors and results.
//
// Compile-time: BS_BITS; BS_TIMES (numbers are multiplied by `times`).
#include "common/scalar.h"

typedef bs_u32 u32;
typedef bs_u64 u64;
typedef bs_i64 i64;

struct LookUpParams {
    const void *words;
    const float *table; // 1 << BS_BITS numbers
    const float *times;
    float *out;
    i64 size;
    int vector; // whether `times` and `out` can be accessed as vectors
};

#if BS_BITS == 8
typedef u64 Octet; // eight codes
#elif BS_BITS == 4
typedef u32 Octet;
#elif BS_BITS == 2
typedef unsigned short Octet;
#else
typedef unsigned char Octet;
#endif

// A thread takes eight codes at a time.
extern "C" __global__ void __launch_bounds__(256) look_up(const LookUpParams p)
{
    __shared__ float table[1 << BS_BITS];
    if (threadIdx.x < 1 << BS_BITS)
        table[threadIdx.x] = p.table[threadIdx.x];
    __syncthreads();
    const i64 octets = (p.size + 7) / 8;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < octets; i += (i64)gridDim.x * blockDim.x) {
        const Octet codes = ((const Octet *)p.words)[i];
        const i64 left = p.size - 8 * i;
        const bool whole = p.vector && left >= 8;
        float v[8];
#if BS_TIMES
        float f[8];
        const float *times = p.times + 8 * i;
        if (whole) {
            const float4 low = ((const float4 *)times)[0], high = ((const float4 *)times)[1];
            f[0] = low.x, f[1] = low.y, f[2] = low.z, f[3] = low.w;
            f[4] = high.x, f[5] = high.y, f[6] = high.z, f[7] = high.w;
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] = j < left ? times[j] : 0.0f;
        }
#endif
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] = table[(u32)(codes >> (BS_BITS * j)) & ((1u << BS_BITS) - 1u)];
#if BS_TIMES
            v[j] = bs_mulf(f[j], v[j]);
#endif
        }
        float *out = p.out + 8 * i;
        if (whole) {
            ((float4 *)out)[0] = make_float4(v[0], v[1], v[2], v[3]);
            ((float4 *)out)[1] = make_float4(v[4], v[5], v[6], v[7]);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j < left)
                    out[j] = v[j];
        }
    }
}
