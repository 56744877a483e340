// Dot products per edge and head: out[e, h] = sum over d of x[row of e, h, d] y[column of e, h, d].
//
// A result belongs to one edge, so edges, not rows, are dealt out: 32 pairs of edge and head to a warp at a time (a chunk), of which groups
// of BS_LANES lanes take one each in a step. Neighbouring groups have neighbouring edges, mostly of one row, so rows of x come out of L1,
// and what bounds the kernel is gathering rows of y. All gathers of BS_STEPS steps are issued before the first is used; columns and bounds
// of rows are loaded a chunk ahead. Sums over the lanes of a group are made for all steps at once and leave one result to each lane.
// BS_ROUNDS: vectors of a head's part of a row to a lane, 0 if they are many. BS_BLOCKS: blocks of a multiprocessor, bounds registers.
#include "edge_chunks.cuh"

#ifndef BS_BLOCKS
#if BS_TYPE == 3 || BS_TYPE == 5 || defined(BS_LARGE)
#define BS_BLOCKS 2
#elif BS_ROUNDS == 1
#define BS_BLOCKS 4
#else
#define BS_BLOCKS 3
#endif
#endif

#define GROUPS (32 / BS_LANES)
#define BATCHES (BS_LANES / BS_STEPS) // and so many lanes are left with one result

// What vector v adds to the sums of a batch.
BS_INLINE void add_products(const char *x, const char *y, int bytes, bool one_row, const Index (&row)[BS_STEPS],
                            const Index (&col)[BS_STEPS], Sum (&sum)[BS_STEPS])
{
    Vector left[BS_STEPS], right[BS_STEPS];
#pragma unroll
    for (int s = 0; s < BS_STEPS; s++)
        right[s] = load_vector(y + row_offset(col[s], bytes));
    if (one_row) {
        left[0] = load_vector(x + row_offset(row[0], bytes));
        Sum a[BS_ELEMENTS];
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            a[i] = widen(left[0], i);
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++)
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                sum[s] = fused(a[i], widen(right[s], i), sum[s]);
    } else {
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++)
            left[s] = load_vector(x + row_offset(row[s], bytes));
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++)
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                sum[s] = fused(widen(left[s], i), widen(right[s], i), sum[s]);
    }
}

extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) sddmm_dot(const ChunkParams p)
{
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES;
    const Chunk first = ((Chunk)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.span, end = min(first + p.span, (Chunk)p.chunks);
    if (first >= end)
        return;
    const int bytes = p.vectors * BS_VECTOR;
    const char *x = p.x + t * BS_VECTOR, *y = p.y + t * BS_VECTOR;
#if BS_ROUNDS
    x = in_registers(x), y = in_registers(y);
#endif
    EdgeChunk next = edge_chunk(p, first, lane);
    for (Chunk chunk = first; chunk < end; chunk++) {
        const EdgeChunk c = next;
        if (chunk + 1 < end)
            next = edge_chunk(p, chunk + 1, lane);
        Index own = row_of(p, c);
        bool one_row = c.low == c.high;
#ifdef BS_HEADS
        own = own * p.heads + c.head;
        one_row = one_row && GROUPS % p.heads == 0; // and a group has one head in all steps
#endif
        Sum result = 0;
#pragma unroll 1
        for (int batch = 0; batch < BATCHES; batch++) {
            Sum sum[BS_STEPS];
            Index row[BS_STEPS], col[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                const int from = (batch * BS_STEPS + s) * GROUPS + group; // the lane that knows about the pair
                sum[s] = 0;
                col[s] = __shfl_sync(~0u, c.col, from);
                row[s] = __shfl_sync(~0u, own, from);
            }
#if BS_ROUNDS
#pragma unroll
            for (int v = 0; v < BS_ROUNDS * BS_LANES; v += BS_LANES)
                if (v < p.vectors - t)
                    add_products(x + v * BS_VECTOR, y + v * BS_VECTOR, bytes, one_row, row, col, sum);
#else
#pragma unroll 1
            for (int v = 0; v < p.vectors - t; v += BS_LANES)
                add_products(x + v * BS_VECTOR, y + v * BS_VECTOR, bytes, one_row, row, col, sum);
#endif
            __syncwarp();
            const Sum made = transposed_sum<BS_LANES, BS_STEPS>(sum, lane);
            result = t % BATCHES == batch ? made : result;
        }
        // Of batch t % BATCHES the lane was left with the result of step t / BATCHES.
        const int at = (t % BATCHES * BS_STEPS + t / BATCHES) * GROUPS + group;
#ifdef BS_HEADS
        const i64 pair = 32 * chunk + at, pairs = p.edges * p.heads;
#else
        const Index pair = 32 * chunk + at, pairs = (Index)p.edges;
#endif
        if (pair < pairs)
            ((Element *)p.out)[pair] = narrow(result);
    }
}
