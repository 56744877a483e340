// The argument of kernels that deal out edges, whose results lie one beside the other like the edges, and which row and column an edge has.
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
    const Index *rows; // of edges 0, 32, 64, ... and of the last one
    const unsigned char *behind; // row of each edge, less that of the first of its 32; 255 if it is that or more
    const char *x, *y;
    char *out;
    i64 edges, warps;
    int heads;
    int vectors; // of a head's part of a row; of its results, for sums and products of codes
    int op; // on two elements: one of those below
#ifdef BS_CODES
    int row_bytes, columns; // of a head's part of a row: packed bytes, integers
    CodeSide left, right;
#endif
};

// What is loaded of an edge, all of it under way together.
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
    if (ends.behind == 255) { // hardly a row has edges
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

// The edge of a lane's pair of edge and head, and its head. With heads, 32 edges are those of as many warps.
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

// Which parts of x and y a lane's pair of edge and head meets.
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
