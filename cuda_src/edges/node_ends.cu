// What attention's gradient needs of each node, from one pass over the gradient by the result: the dot products with the result and with
// its second part, the sums of the gradient's columns, which are the gradient by a bias, and the gradient's rows as edges gather them.
//
// Floor: the gradient, the result and its second part are read once; 16 bytes for each node and head, 4 more for the gradient by its score,
// and a copy of the gradient, if it is asked for, are written.
#include "edges/node_rows.cuh"
#include "edges/second.cuh"

struct NodeEndsParams {
    NodeRows rows;
    NodeSums sums; // its `out` is null if sums of columns are not wanted
    const char *x, *y; // the gradient, and the result
    const char *above; // the part of the result that comes from edges with scores above 0, or null
    const void *bias; // Sum (heads, columns), which the result contains, or null
    const void *share, *lse, *target; // Sum (nodes, heads)
    void *ends; // Ends (nodes, heads), or null
    void *out; // Sum (nodes, heads): the gradient by the score of the attending node, or null
    char *laid; // the rows of x with heads of whole vectors, or null
    double slope;
};

#if BS_TYPE == 3
#define AHEAD 1 // rows that are loaded together
#else
#define AHEAD 2
#endif

extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) node_ends(const NodeEndsParams p)
{
    __shared__ Shared shared;
    const NodeRows &r = p.rows;
    const Lane l = this_lane(r);
    Totals sum;
    clear(sum);
    Sum bias[BS_ELEMENTS];
    load_own(p.bias, l, bias);
    const bool leads = l.vector == 0 && l.left > 0; // of the lanes of a head
    const i64 stride = stride_of(r);
    for (i64 base = first_row(r); base < r.nodes; base += AHEAD * stride) { // the same for all threads of a block
        Vector a[AHEAD], b[AHEAD], c[AHEAD];
        Sum target[AHEAD], lse[AHEAD], share[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const i64 row = min(base + l.group + u * stride, r.nodes - 1), node = row * r.heads + l.head;
            a[u] = load_part(p.x, row, r, l);
            b[u] = load_part(p.y, row, r, l);
            c[u] = zero_vector();
            if (p.above)
                c[u] = load_part(p.above, row, r, l);
            target[u] = lse[u] = share[u] = 0;
            load_if(leads && p.ends, (const Sum *)p.target + node, target[u]);
            load_if(leads && p.ends, (const Sum *)p.lse + node, lse[u]);
            load_if(leads && p.out, (const Sum *)p.share + node, share[u]);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const i64 row = base + l.group + u * stride, node = row * r.heads + l.head;
            Sum product = 0, slanted = 0;
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++) {
                product = fused(widen(a[u], i), widen(b[u], i) - bias[i], product);
                slanted = fused(widen(a[u], i), widen(c[u], i), slanted);
            }
            product = over_head(product), slanted = over_head(slanted);
            if (row >= r.nodes)
                continue;
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++)
                sum.of[0][i] += widen(a[u], i);
            if (p.laid)
                store_laid(p.laid, row, r, l, a[u]);
            if (!leads)
                continue;
            if (p.ends) {
                const Ends ends = {target[u], lse[u], product, 0};
                ((Ends *)p.ends)[node] = ends;
            }
            if (p.out)
                ((Sum *)p.out)[node] = (1 - (Sum)p.slope) * (slanted - product * share[u]);
        }
    }
    if (p.sums.out)
        over_blocks(sum, shared, r, l, p.sums);
}
