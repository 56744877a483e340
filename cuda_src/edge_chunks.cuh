// Edges in chunks of 32, one to a lane, with the row of each; for work whose results lie one beside the other like the edges.
#ifndef BITSPARSE_EDGE_CHUNKS_CUH
#define BITSPARSE_EDGE_CHUNKS_CUH

#include "edge_vectors.cuh"

// The argument of the kernels that deal out edges. A chunk is 32 pairs of edge and head, head by head; without heads, 32 edges.
#ifdef BS_HEADS
typedef i64 Chunk;
#else
typedef Index Chunk;
#endif

struct ChunkParams {
    const Index *indptr, *indices;
    const Index *rows;           // of edges 0, 32, 64, ... and of the last one
    const unsigned char *behind; // row of each edge, less that of the first of its 32; 255 if it is that or more
    const char *x, *y;
    char *out;
    i64 edges, chunks;
    int heads;
    int vectors; // of a head's part of a row
    int span;    // chunks that a warp takes
    int between; // their distance: 1, or the warps of a block, which then take neighbouring chunks at the same time
    int ahead;   // bits: what the next chunk needs is brought to L2: 1 rows of x, 2 rows of y
    int product; // of two elements, else their sum
};

// What a lane knows about its edge of a chunk; loaded one chunk ahead. The last edge if the chunk is not full.
struct ChunkEdge {
    Index col; // with heads, one of a head's parts of rows
    Index low; // row of the first edge of the chunk
    int behind, head;
};

// The chunks of a warp, in order: this one, and where they end.
struct ChunkWalk {
    Chunk now, end;
    ChunkEdge next;
};

BS_INLINE bool more_chunks(const ChunkParams &p, const ChunkWalk &w) { return w.now + p.between < w.end; }

// The edges of a chunk are among 32 * block + 0 .. 31, and this is the lane's.
BS_INLINE Index edge_of(const ChunkParams &p, Chunk chunk, Index &block, int &head)
{
    const int lane = threadIdx.x & 31;
#ifdef BS_HEADS
    block = (Index)((u32)chunk / (u32)p.heads);
    const u32 pair = ((u32)chunk - (u32)block * (u32)p.heads) * 32 + lane, edge = pair / (u32)p.heads;
    head = (int)(pair - edge * (u32)p.heads);
#else
    block = chunk;
    const int edge = lane;
    head = 0;
#endif
    return min(32 * block + (Index)edge, (Index)p.edges - 1);
}

BS_INLINE void load_chunk(const ChunkParams &p, ChunkWalk &w, Chunk chunk)
{
    if (chunk >= w.end)
        return;
    Index block;
    const Index edge = edge_of(p, chunk, block, w.next.head);
    w.next.col = __ldg(p.indices + edge);
    w.next.behind = __ldg(p.behind + edge);
    w.next.low = __ldg(p.rows + block);
}

// The first chunk of this warp is the next one; false if it has none.
BS_INLINE bool first_chunk(const ChunkParams &p, ChunkWalk &w)
{
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const Chunk block = (Chunk)blockIdx.x * warps * p.span;
    const Chunk first = block + (Chunk)(p.between == 1 ? warp * p.span : warp);
    w.end = min(p.between == 1 ? first + p.span : block + (Chunk)warps * p.span, (Chunk)p.chunks);
    if (first >= w.end)
        return false;
    load_chunk(p, w, first);
    w.now = first - p.between;
    return true;
}

// Goes on to the next chunk, which there is: row, column and head of the lane's pair in it.
BS_INLINE void next_chunk(const ChunkParams &p, ChunkWalk &w, Index &row, Index &col, int &head)
{
    w.now += p.between;
    row = w.next.low + w.next.behind;
    col = w.next.col;
    head = w.next.head;
    if (w.next.behind == 255) { // hardly a row has edges
        Index block;
        const Index edge = edge_of(p, w.now, block, head);
        Index high = __ldg(p.rows + block + 1);
        while (row < high) {
            const Index middle = row + (high - row + 1) / 2;
            if (__ldg(p.indptr + middle) <= edge)
                row = middle;
            else
                high = middle - 1;
        }
    }
#ifdef BS_HEADS
    col = col * p.heads + head;
#endif
    load_chunk(p, w, w.now + p.between);
}

#endif
