// Sums or products of two rows for every edge, element by element: out[e, d] = x[row of e, d] + or * y[column of e, d].
// Edges are dealt out as in sddmm_dot.cu; bound by writing the result.
#include "edge_chunks.cuh"

#define GROUPS (32 / BS_LANES)
#define BATCHES (BS_LANES / BS_STEPS)

extern "C" __global__ void __launch_bounds__(256, 4) sddmm_combine(const ChunkParams p)
{
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES;
    const i64 first = ((i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.span, end = min(first + p.span, p.chunks);
    if (first >= end)
        return;
    const int bytes = p.vectors * BS_VECTOR;
    EdgeChunk next = edge_chunk(p, first, lane);
    for (i64 chunk = first; chunk < end; chunk++) {
        const EdgeChunk c = next;
        if (chunk + 1 < end)
            next = edge_chunk(p, chunk + 1, lane);
        const Index own = row_of(p, c);
        char *out = p.out + 32 * chunk * bytes;
        const int left = (int)min((i64)32, p.edges - 32 * chunk);
#pragma unroll 1
        for (int batch = 0; batch < BATCHES; batch++) {
            const int edge = batch * BS_STEPS * GROUPS + group; // of the first step
            Index row[BS_STEPS], col[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                col[s] = __shfl_sync(~0u, c.col, edge + s * GROUPS);
                row[s] = __shfl_sync(~0u, own, edge + s * GROUPS);
            }
            for (int v = t; v < p.vectors; v += BS_LANES) {
                Vector a[BS_STEPS], b[BS_STEPS];
#pragma unroll
                for (int s = 0; s < BS_STEPS; s++) {
                    b[s] = load_vector(p.y + row_offset(col[s], bytes) + v * BS_VECTOR);
                    a[s] = load_vector(p.x + row_offset(row[s], bytes) + v * BS_VECTOR);
                }
#pragma unroll
                for (int s = 0; s < BS_STEPS; s++) {
                    Vector made;
#pragma unroll
                    for (int i = 0; i < BS_ELEMENTS; i++) {
                        const Sum l = widen(a[s], i), r = widen(b[s], i);
                        made.at[i] = narrow(p.product ? l * r : l + r);
                    }
                    if (edge + s * GROUPS < left)
                        store_vector(out + row_offset(edge + s * GROUPS, bytes) + v * BS_VECTOR, made);
                }
            }
            __syncwarp();
        }
    }
}
