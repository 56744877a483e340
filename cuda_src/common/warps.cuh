// Sums over the lanes of a warp.
#ifndef BITSPARSE_WARPS_CUH
#define BITSPARSE_WARPS_CUH

// The sum over the lanes up to this one. All lanes of the warp.
template <class T> static __device__ __forceinline__ T sum_up_to_lane(T mine)
{
    const int lane = threadIdx.x & 31;
    T sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const T other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    return sum;
}
#endif
