// The relative error of one array against another, summed in an order that depends on the size alone. Floor: reading both once.
#include "common/scalar.h"

typedef bs_i64 i64;

struct ErrorParams {
    const void *x, *y;
    double *out; // one number per block
    i64 n;
    int x_type, y_type;
};

#define BS_BLOCK_ELEMENTS 8192

// Element i as a double; the numbers of types are the host's.
static __device__ __forceinline__ double load(const void *x, int type, i64 i)
{
    switch (type) {
    case 1: return ((const signed char *)x)[i];
    case 0:
    case 2: return ((const unsigned char *)x)[i];
    case 3: return ((const short *)x)[i];
    case 4: return ((const unsigned short *)x)[i];
    case 5: return ((const int *)x)[i];
    case 6: return ((const unsigned int *)x)[i];
    case 7: return (double)((const i64 *)x)[i];
    case 8: return (double)((const bs_u64 *)x)[i];
    case 9: return bs_f16_to_float(((const bs_u16 *)x)[i]);
    case 10: return bs_bf16_to_float(((const bs_u16 *)x)[i]);
    case 11: return ((const float *)x)[i];
    default: return ((const double *)x)[i];
    }
}

// The sum over the threads of a block, as a tree, in every thread.
static __device__ __forceinline__ double block_sum(double sum)
{
    __shared__ double parts[256];
    parts[threadIdx.x] = sum;
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step)
            parts[threadIdx.x] = bs_addd(parts[threadIdx.x], parts[threadIdx.x + step]);
    }
    __syncthreads();
    return parts[0];
}

// Sums |x - y| / (|x| + |y| + 0.0005) over the elements of each block.
extern "C" __global__ void __launch_bounds__(256, 2) relative_error(const ErrorParams p)
{
    const i64 start = (i64)blockIdx.x * BS_BLOCK_ELEMENTS;
    double sum = 0.0;
#pragma unroll 1
    for (int i = threadIdx.x; i < BS_BLOCK_ELEMENTS; i += 256)
        if (start + i < p.n) {
            const double x = load(p.x, p.x_type, start + i), y = load(p.y, p.y_type, start + i);
            sum = bs_addd(sum, bs_divd(fabs(bs_subd(x, y)), bs_addd(bs_addd(fabs(x), fabs(y)), 0.0005)));
        }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        p.out[blockIdx.x] = sum;
}

// Adds up the numbers of all blocks, in one block.
extern "C" __global__ void __launch_bounds__(256, 4) add_blocks(const ErrorParams p)
{
    const double *parts = (const double *)p.x;
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < p.n; i += 256)
        sum = bs_addd(sum, parts[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *p.out = sum;
}
