// Scores of nodes for graph attention, which are dot products of each head's features with two vectors; their gradients; and sums over
// nodes.
//
// Floor: each pass reads every row once; with BS_ADDED the gradient by the features is also read and written.
#include "edges/node_rows.cuh"

struct HeadScoresParams {
    NodeRows rows;
    const char *x;
    const void *first, *second; // Sum (heads, columns)
    void *by_first, *by_second; // Sum (nodes, heads): the scores, or the gradients by them
    char *laid;                 // the rows of x with heads of whole vectors, or null
};

#if BS_TYPE == 3
#define ROWS 2 // of a group at a time
#else
#define ROWS 4
#endif

// by_first = <x, first>, by_second = <x, second> for each node and head; x is also copied to `laid`.
#ifdef BS_TOGETHER
extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) head_scores(const HeadScoresParams p)
{
    const NodeRows &r = p.rows;
    const int rounds = (r.head_vectors + r.head_lanes - 1) / r.head_lanes;
    Lane l = this_lane(r);
    Sum first[BS_ELEMENTS], second[BS_ELEMENTS];
    load_own(p.first, l, first), load_own(p.second, l, second);
    const bool leads = l.vector == 0 && l.left > 0; // of the lanes of a head
    const i64 stride = stride_of(r);
    for (i64 base = first_row(r); base < r.nodes; base += ROWS * stride) { // the same for all threads of a block
        Sum one[ROWS], two[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; u++)
            one[u] = two[u] = 0;
        for (int round = 0; round < rounds; round++) {
            if (rounds > 1) {
                l = this_lane(r, round);
                load_own(p.first, l, first), load_own(p.second, l, second);
            }
            Vector a[ROWS];
#pragma unroll
            for (int u = 0; u < ROWS; u++)
                a[u] = load_part(p.x, min(base + l.group + u * stride, r.nodes - 1), r, l);
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                const i64 row = base + l.group + u * stride;
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    one[u] = fused(widen(a[u], i), first[i], one[u]);
                    two[u] = fused(widen(a[u], i), second[i], two[u]);
                }
                if (p.laid && row < r.nodes)
                    store_laid(p.laid, row, r, l, a[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const i64 row = base + l.group + u * stride;
            one[u] = over_head(one[u]), two[u] = over_head(two[u]);
            if (leads && row < r.nodes) {
                ((Sum *)p.by_first)[row * r.heads + l.head] = one[u];
                ((Sum *)p.by_second)[row * r.heads + l.head] = two[u];
            }
        }
    }
}
#endif

#ifdef BS_SETS
struct SumNodesParams {
    NodeRows rows;
    NodeSums sums;
    const char *x;
    const void *by_first, *by_second; // Sum (nodes, heads): gradients by the scores
    const void *first, *second;       // BS_ADDED: Sum (heads, columns)
    char *dx;                         // BS_ADDED: an array like x, which is added to
};

// Sums over the nodes. BS_SETS 1: sums of the rows of x. BS_SETS 2: sums of the rows of x times the gradients by both scores; with BS_ADDED,
// the gradient by the features is added to dx.
#if BS_SETS == 1
#define AHEAD 4 // rows that are loaded together
#elif BS_TYPE == 3
#define AHEAD 1
#else
#define AHEAD 2
#endif
extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) sum_nodes(const SumNodesParams p)
{
    __shared__ Shared shared;
    const NodeRows &r = p.rows;
    const Lane l = this_lane(r);
    Totals sum;
    clear(sum);
#ifdef BS_ADDED
    Sum first[BS_ELEMENTS], second[BS_ELEMENTS];
    load_own(p.first, l, first), load_own(p.second, l, second);
    const int width = r.heads * r.columns;
#endif
    const i64 stride = stride_of(r);
    for (i64 begin = first_row(r) + l.group; begin < r.nodes; begin += AHEAD * stride) {
        Vector a[AHEAD];
#if BS_SETS == 2
        Sum one[AHEAD], two[AHEAD];
#endif
#ifdef BS_ADDED
        Vector d[AHEAD];
#endif
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const i64 row = min(begin + u * stride, r.nodes - 1);
            a[u] = load_part(p.x, row, r, l);
#if BS_SETS == 2
            one[u] = __ldg((const Sum *)p.by_first + row * r.heads + l.head);
            two[u] = __ldg((const Sum *)p.by_second + row * r.heads + l.head);
#endif
#ifdef BS_ADDED
            d[u] = load_part(p.dx, row, r, l);
#endif
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (begin + u * stride >= r.nodes)
                break;
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++) {
#if BS_SETS == 2
                sum.of[0][i] = fused(one[u], widen(a[u], i), sum.of[0][i]);
                sum.of[1][i] = fused(two[u], widen(a[u], i), sum.of[1][i]);
#else
                sum.of[0][i] += widen(a[u], i);
#endif
#ifdef BS_ADDED
                d[u].at[i] = narrow(fused(one[u], first[i], fused(two[u], second[i], widen(d[u], i))));
#ifdef BS_RAGGED
                if (i < l.left)
                    ((Element *)p.dx)[(begin + u * stride) * width + l.at + i] = d[u].at[i];
#endif
#endif
            }
#if defined(BS_ADDED) && !defined(BS_RAGGED)
            if (l.left > 0)
                store_vector(p.dx + ((begin + u * stride) * width + l.at) * (int)sizeof(Element), d[u]);
#endif
        }
    }
    over_blocks(sum, shared, r, l, p.sums);
}
#endif
