// Sums of gathered float32 rows over the edges of a pattern with short rows, such as those of a sample: y[i] = sum over edges (i, j) of w
// x[j].
//
// Rows are dealt out by their length: a team of 1, 2, 4, ... groups of BS_LANES lanes takes a row, and all teams of a warp have rows of
// about as many edges. So no group waits for the end of another group's row, which is where spmm/csr.cu would spend its instructions here.
// One vector of a table says what a group does. Edges are padded so that each row begins at a multiple of four.
//
// Floor: edges * row bytes at 9 TB/s, edges at 150 G/s for rows below 64 bytes.
//
// BS_WEIGHTS: 1 if edges have values.
#include "csr/streams.cuh"

#ifndef BS_BLOCKS
#define BS_BLOCKS (1024 / BS_THREADS)
#endif

struct ShortParams {
    const int4 *units; // of each group: its row or -1, its first edge, edges from there to the row's end, edges of its team's step
    const int *indices; // padded
    const float *values;
    const char *x, *row_scale;
    char *out;
    unsigned vectors, row_bytes; // of a row of x and of the result
    int warps;
};

// A load that stays where it is written; if not valid, it gives zeros and reads nothing.
BS_INLINE float4 load_or_zero(bool valid, const char *at)
{
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
                 : "l"(at), "r"((bs_u32)valid)
                 : "memory");
    return v;
}

BS_INLINE void add(float4 &sum, const float4 &v, float weight)
{
#if BS_WEIGHTS
    sum.x = bs_fmaf(v.x, weight, sum.x);
    sum.y = bs_fmaf(v.y, weight, sum.y);
    sum.z = bs_fmaf(v.z, weight, sum.z);
    sum.w = bs_fmaf(v.w, weight, sum.w);
#else
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
#endif
}

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) spmm_short(const ShortParams p)
{
    const int lane = (int)threadIdx.x & 31, t = lane % BS_LANES;
    const int thread = (int)(blockIdx.x * BS_THREADS + threadIdx.x);
    if (thread / 32 >= p.warps)
        return;
    const int4 unit = __ldg(p.units + thread / BS_LANES);
    const char *x = kept(p.x + min((unsigned)t, p.vectors - 1) * 16u);
    const int step = unit.w;
    int at = unit.y, left = unit.z, columns[BS_U];
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0)
        load_run(columns, p.indices + at, left);
    while (left > 0) {
        float4 v[BS_U];
        float weight[BS_U] = {};
#if BS_WEIGHTS
        load_run(weight, p.values + at, left);
#endif
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            v[u] = load_or_zero(u < left, row_address(x, columns[u], p.row_bytes));
        if (left > step)
            load_run(columns, p.indices + at + step, left - step); // these loads arrive while the gathers do
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            add(sum, v[u], u < left ? weight[u] : 0.0f);
        at += step;
        left -= step;
    }
    __syncwarp();
    // All teams of a warp have the same size.
    const int lanes = step / BS_U * BS_LANES;
    for (int o = BS_LANES; o < lanes; o <<= 1) {
        sum.x += __shfl_xor_sync(~0u, sum.x, o);
        sum.y += __shfl_xor_sync(~0u, sum.y, o);
        sum.z += __shfl_xor_sync(~0u, sum.z, o);
        sum.w += __shfl_xor_sync(~0u, sum.w, o);
    }
    if (unit.x < 0 || (lane & (lanes - 1)) >= BS_LANES || (unsigned)t >= p.vectors)
        return;
    if (p.row_scale) {
        const float scale = __ldg((const float *)p.row_scale + unit.x);
        sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
    }
    *(float4 *)(row_address(p.out, unit.x, p.row_bytes) + (unsigned)t * 16u) = sum;
}
