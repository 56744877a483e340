// The argument of kernels that deal out edges and store results in the order of edges, and the row and column of an edge.
#ifndef BITSPARSE_EDGE_ENDS_CUH
#define BITSPARSE_EDGE_ENDS_CUH

#ifdef BS_CODES
#include "edges/codes.cuh"
#else
#include "edges/vectors.cuh"
#endif

#define BS_ADD 1
#define BS_MUL 2
#define BS_SUB 3
#define BS_DIV 4

struct EdgesParams {
    const Index *indptr, *indices;
    const Index *rows; // row of edges 0, 32, 64, ... and of the last one
    const unsigned char *behind; // row of each edge, minus that of the first of its 32; 255 if the difference is 255 or more
    const char *x, *y;
    char *out;
    i64 edges, warps;
    int heads;
    int vectors; // vectors of a head's part of a row; for sums and products of codes, vectors of its results
    int op; // operation on two elements: one of those above
#ifdef BS_CODES
    int row_bytes, columns; // of a head's part of a row: packed bytes, integers
    CodeSide left, right;
#endif
};

// What is loaded for an edge; all of these loads are in flight together.
struct Ends {
    Index col, low;
    int behind;
};

BS_INLINE Ends load_ends(const EdgesParams &p, Index edge)
{
    return {__ldg(p.indices + edge), __ldg(p.rows + edge / 32), __ldg(p.behind + edge)};
}

BS_INLINE Index row_of(const EdgesParams &p, Index edge, const Ends &ends)
{
    Index row = ends.low + ends.behind;
    if (ends.behind == 255) { // most rows around here have no edges
        Index high = __ldg(p.rows + edge / 32 + 1);
        while (row < high) {
            const Index middle = row + (high - row + 1) / 2;
            if (__ldg(p.indptr + middle) <= edge)
                row = middle;
            else
                high = middle - 1;
        }
    }
    return row;
}

// The edge and the head of this lane's pair. With heads, 32 edges are shared by as many warps as there are heads.
BS_INLINE Index edge_of(const EdgesParams &p, i64 warp, int &head)
{
    const int lane = threadIdx.x & 31;
#ifdef BS_HEADS
    const Index block = (Index)((u32)warp / (u32)p.heads);
    const u32 pair = ((u32)warp - (u32)block * (u32)p.heads) * 32 + lane, behind = pair / (u32)p.heads;
    head = (int)(pair - behind * (u32)p.heads);
#else
    const Index block = (Index)warp, behind = lane;
    head = 0;
#endif
    return min((Index)32 * block + (Index)behind, (Index)p.edges - 1);
}

// The parts of x and y that belong to a lane's pair of edge and head.
struct Parts {
    Index left, right;
#ifdef BS_REAL
    NodeMap left_map, right_map;
#endif
};

BS_INLINE Parts parts_of(const EdgesParams &p, i64 warp)
{
    int head;
    const Index edge = edge_of(p, warp, head);
    const Ends ends = load_ends(p, edge);
    Parts parts;
    parts.left = row_of(p, edge, ends), parts.right = ends.col;
#ifdef BS_REAL
    parts.left_map = map_of(p.left, parts.left, head), parts.right_map = map_of(p.right, parts.right, head);
#endif
#ifdef BS_HEADS
    parts.left = parts.left * p.heads + head;
    parts.right = parts.right * p.heads + head;
#endif
    return parts;
}

#endif
