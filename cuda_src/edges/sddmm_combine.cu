// Sums, products, differences or quotients of two rows for every edge, element by element: out[e, d] = x[row of e, d] op y[column of e, d].
// Each warp takes 32 edges, as in edges/sddmm_dot.cu. The time is bound by writing the result.
// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.
#include "edges/ends.cuh"

#define GROUPS (32 / BS_LANES)
#define BATCHES (BS_LANES / BS_STEPS)

// Only floats are divided.
BS_INLINE Sum combined(int op, Sum l, Sum r)
{
#if BS_TYPE < 4
    if (op == BS_DIV)
        return l / r;
#endif
    return op == BS_MUL ? l * r : op == BS_SUB ? l - r : l + r;
}

extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) sddmm_combine(const EdgesParams p)
{
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES;
    const i64 warp = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (warp >= p.warps)
        return;
    const int bytes = p.vectors * BS_VECTOR;
    const char *x = in_registers(p.x + t * BS_VECTOR), *y = in_registers(p.y + t * BS_VECTOR);
    const Index first = 32 * (Index)warp;
    const int left = (int)min((Index)32, (Index)p.edges - first);
    const Index edge = first + min(lane, left - 1);
    const Ends ends = load_ends(p, edge);
    const Index own = row_of(p, edge, ends);
    __syncwarp();
    char *out = p.out + (i64)first * bytes;
#pragma unroll 1
    for (int batch = 0; batch < BATCHES; batch++) {
        const int place = batch * BS_STEPS * GROUPS + group; // of the first step
        Index row[BS_STEPS], col[BS_STEPS];
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
            col[s] = __shfl_sync(~0u, ends.col, place + s * GROUPS);
            row[s] = __shfl_sync(~0u, own, place + s * GROUPS);
        }
        for (int v = 0; v < p.vectors - t; v += BS_LANES) {
            Vector a[BS_STEPS], b[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                b[s] = load_vector(y + row_offset(col[s], bytes) + v * BS_VECTOR);
                a[s] = load_vector(x + row_offset(row[s], bytes) + v * BS_VECTOR);
            }
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                Vector made;
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    const Sum l = widen(a[s], i), r = widen(b[s], i);
                    made.at[i] = narrow(combined(p.op, l, r));
                }
                if (place + s * GROUPS < left)
                    store_vector(out + row_offset(place + s * GROUPS, bytes) + (v + t) * BS_VECTOR, made);
            }
        }
        __syncwarp();
    }
}
