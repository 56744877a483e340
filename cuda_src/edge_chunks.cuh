// Edges in chunks of 32, one to a lane, with the row of each; for work whose results lie one beside the other like the edges.
#ifndef BITSPARSE_EDGE_CHUNKS_CUH
#define BITSPARSE_EDGE_CHUNKS_CUH

#include "edge_vectors.cuh"

// The argument of the kernels that deal out edges. A chunk is 32 pairs of edge and head, head by head; without heads, 32 edges.
struct ChunkParams {
    const Index *indptr, *indices, *rows; // rows of edges 0, 32, 64, ... and of the last one: they narrow the search for a row
    const char *x, *y;
    char *out;
    i64 edges, chunks;
    int heads;
    int vectors; // of a head's part of a row
    int span;    // chunks that a warp takes
    int product; // of two elements, else their sum
};

// What a warp knows about a chunk before it needs it; loaded one chunk ahead.
struct EdgeChunk {
    Index edge, col; // of this lane, the last ones if the chunk is not full; with heads, a column is one of a head's parts of rows
    Index low, high; // the warp's edges lie in rows low .. high
    Index bound;     // where row low + 1 + lane starts, if there are fewer than 32 of them
    int head;
};

BS_INLINE EdgeChunk edge_chunk(const ChunkParams &p, i64 chunk, int lane)
{
    EdgeChunk c;
#ifdef BS_HEADS
    const u32 block = (u32)chunk / (u32)p.heads, pair = ((u32)chunk - block * (u32)p.heads) * 32 + lane, edge = pair / (u32)p.heads;
    c.head = (int)(pair - edge * (u32)p.heads);
#else
    const Index block = (Index)chunk;
    const int edge = lane;
    c.head = 0;
#endif
    c.edge = (Index)min((i64)block * 32 + edge, p.edges - 1);
    c.col = __ldg(p.indices + c.edge);
#ifdef BS_HEADS
    c.col = c.col * p.heads + c.head;
#endif
    c.low = __ldg(p.rows + block);
    c.high = __ldg(p.rows + block + 1);
    c.bound = lane < c.high - c.low && c.high - c.low < 32 ? __ldg(p.indptr + c.low + 1 + lane) : (Index)p.edges;
    return c;
}

// The row of the lane's edge: the last one that starts at it or before.
BS_INLINE Index row_of(const ChunkParams &p, const EdgeChunk &c)
{
    if (c.low == c.high)
        return c.low;
    if (c.high - c.low < 32) {
        int before = 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const Index bound = __shfl_sync(~0u, c.bound, before + step - 1);
            before += bound <= c.edge ? step : 0;
        }
        return c.low + before;
    }
    Index low = c.low, high = c.high; // many rows are empty
    while (low < high) {
        const Index middle = low + (high - low + 1) / 2;
        if (__ldg(p.indptr + middle) <= c.edge)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

#endif
