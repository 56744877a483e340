// Gradients of attention by cosines from one pass over each direction of the pattern, or one pass in all if it is symmetric; nothing is
// stored per edge. Let u be the rows of x over their norms, a[i, j] = exp(beta <u_i, u_j> - lse[i]) the weights, and s[i, j] = a[i, j]
// (<g_i, x_j> - <g_i, y_i>) the slopes, which are the gradients by beta <u_i, u_j>. For each row i
//   BS_FORWARD: Q_i += sum_j s[i, j] u_j over the pattern, which gathers x
//   BS_TURNED:  Q_i += sum_j s[j, i] u_j and R_i = sum_j a[j, i] g_j over the transpose, which gathers x and g; this pass completes rows:
//               dx_i = R_i + beta / |x_i| (Q_i - <u_i, Q_i> u_i), and <u_i, Q_i> / 2, which adds up to the gradient by beta
// Both at once: the pattern is symmetric, so its edges are also those of the transpose.
//
// Lanes walk edges as in edges/attention.cu. Floor: for each edge a row of x, one of g, and 16 bytes of its node. Reddit's 114.6 M edges,
// 32 columns in float32: 272 bytes an edge, 31 GB, 3.5 ms at 8.9 TB/s; 160 multiply-adds for each, 0.6 ms.
//
// BS_JOINED: the last of a row's few pieces to finish joins them; otherwise cosine_vjp_pieces does.
#include "csr/groups.cuh"
#include "edges/second.cuh"

struct CosineVjpParams {
    Streams s;
    const char *x, *g; // (nodes, columns)
    const void *nodes; // Ends (nodes): `target` is the inverse of the norm of a row of x, `product` the dot product of g and the result
    const void *beta; // Sum (1), or null
    void *toward; // Sum (nodes, columns): Q of a forward pass; null if there is none
    char *out; // as x
    void *by_beta; // Sum (nodes)
    void *partial; // Sum, for each piece: Q, and R of a pass over the transpose
    int *arrived; // BS_JOINED: how many pieces of each row are done, at the place of its first piece; zeros before and after
    double factor; // beta where there is no array
    int vectors; // of a row
};

// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.
#define SPREAD (BS_LANES < BS_STEPS ? BS_LANES : BS_STEPS) // lanes that divide the edges of a batch among them
#define SHARE (BS_LANES / SPREAD) // lanes that have the same edges
#define OWN (BS_STEPS / SPREAD) // edges of a batch that belong to one lane
#define WIDTH (BS_PARTS * BS_ELEMENTS) // elements of a row that belong to one lane

template <class T> BS_INLINE T of_edge(const T (&own)[OWN], int u)
{
    return SPREAD == 1 ? own[u / SPREAD] : __shfl_sync(~0u, own[u / SPREAD], u % SPREAD * SHARE, BS_LANES);
}

BS_INLINE Sum over_group(Sum x)
{
#pragma unroll
    for (int lanes = BS_LANES / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

// Dot products of the lane's row with the rows of all edges of a batch; each ends up in the lanes that own the edge.
BS_INLINE void dots(const Sum (&mine)[WIDTH], const Vector (&found)[BS_STEPS][BS_PARTS], Sum (&own)[OWN], int lane)
{
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        Sum some[SPREAD];
#pragma unroll
        for (int u = 0; u < SPREAD; u++) {
            some[u] = 0;
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    some[u] = fused(mine[j * BS_ELEMENTS + i], widen(found[k * SPREAD + u][j], i), some[u]);
        }
        own[k] = transposed_sum<BS_LANES, SPREAD>(some, lane);
    }
}

BS_INLINE void clear(Sum (&sums)[WIDTH])
{
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        sums[i] = 0;
}

#ifdef BS_TURNED
#define KEPT 2 // sums of a piece: Q and R
#else
#define KEPT 1
#endif

#ifdef BS_JOINED
// Adds up one of the sums that the pieces of a row have stored, in their order.
BS_INLINE void add_pieces(const CosineVjpParams &p, const Sum *kept, int count, int t, Sum (&sums)[WIDTH])
{
    const int columns = p.vectors * BS_ELEMENTS;
    clear(sums);
#pragma unroll 2
    for (int piece = 0; piece < count; piece++)
#pragma unroll
        for (int j = 0; j < BS_PARTS; j++)
            if (t + j * BS_LANES < p.vectors)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    sums[j * BS_ELEMENTS + i] += __ldcg(kept + (i64)piece * KEPT * columns + (t + j * BS_LANES) * BS_ELEMENTS + i);
}
#endif

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) cosine_vjp(const CosineVjpParams p)
{
    const int lane = threadIdx.x & 31, t = lane % BS_LANES, own = t / SHARE, bytes = p.vectors * BS_VECTOR;
    const Sum beta = p.beta ? *(const Sum *)p.beta : (Sum)p.factor;
    const char *x = in_registers(p.x + t * BS_VECTOR), *g = in_registers(p.g + t * BS_VECTOR);
    const Ends *nodes = (const Ends *)p.nodes;
    Stretch at;
    if (!this_stretch(p.s, at))
        at.row = at.last = 0, at.start = at.stop = 0, at.piece = -1;
    Index row = at.row, e = at.start, end = at.stop;
    if (row + 1 < at.last)
        end = __ldg(p.s.indptr + row + 1);
    Sum unit[WIDTH], toward[WIDTH];
    clear(unit), clear(toward);
#ifdef BS_FORWARD
    Sum slope_of[WIDTH]; // the row of g
    clear(slope_of);
#endif
#ifdef BS_TURNED
    Sum sum[WIDTH];
    clear(sum);
#endif
    Ends here = {0, 0, 0, 0};
    Sum norm = 0;
    bool fresh = true;
    Index col[OWN]; // columns of the next edges
#pragma unroll
    for (int k = 0; k < OWN; k++)
        col[k] = e + k * SPREAD + own < at.stop ? __ldg(p.s.indices + e + k * SPREAD + own) : 0;
    while (__any_sync(~0u, row < at.last)) {
        const bool walking = row < at.last;
        const int n = walking ? (int)min(end - e, (Index)BS_STEPS) : 0;
        // ---- loads: the row, the nodes of its edges, the gathered rows
        const bool first = fresh && walking;
        Vector row_x[BS_PARTS], row_g[BS_PARTS];
        load_if(first, nodes + row, here);
#pragma unroll
        for (int j = 0; j < BS_PARTS; j++) {
            row_x[j] = row_g[j] = zero_vector();
            const bool there = first && t + j * BS_LANES < p.vectors;
            load_if(there, x + row_offset(row, bytes) + j * BS_LANES * BS_VECTOR, row_x[j]);
#ifdef BS_FORWARD
            load_if(there, g + row_offset(row, bytes) + j * BS_LANES * BS_VECTOR, row_g[j]);
#endif
        }
        Ends ends[OWN];
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            ends[k].target = ends[k].lse = ends[k].product = ends[k].unused = 0;
            load_if(k * SPREAD + own < n, nodes + col[k], ends[k]);
        }
        Vector found[BS_STEPS][BS_PARTS];
#ifdef BS_TURNED
        Vector found_g[BS_STEPS][BS_PARTS];
#endif
#pragma unroll
        for (int u = 0; u < BS_STEPS; u++) {
            const i64 from = row_offset(of_edge(col, u), bytes);
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++) {
                const bool there = u < n && t + j * BS_LANES < p.vectors;
                found[u][j] = zero_vector();
                load_if(there, x + from + j * BS_LANES * BS_VECTOR, found[u][j]);
#ifdef BS_TURNED
                found_g[u][j] = zero_vector();
                load_if(there, g + from + j * BS_LANES * BS_VECTOR, found_g[u][j]);
#endif
            }
        }
        e += n;
#pragma unroll
        for (int k = 0; k < OWN; k++)
            load_if(e + k * SPREAD + own < at.stop, p.s.indices + e + k * SPREAD + own, col[k]);
        __syncwarp(); // no instruction that waits for a load may come before another load
        if (first) {
            norm = here.target == 0 ? (Sum)0 : 1 / here.target;
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    unit[j * BS_ELEMENTS + i] = widen(row_x[j], i) * here.target;
#ifdef BS_FORWARD
                    slope_of[j * BS_ELEMENTS + i] = widen(row_g[j], i);
#endif
                }
        }
        fresh = fresh && !first;
        __syncwarp();
        // ---- for the lane's own edges, the coefficients of their rows of x and of g
        Sum cosine[OWN], along[OWN];
        dots(unit, found, cosine, lane);
#ifdef BS_FORWARD
        Sum of_row[OWN];
        dots(slope_of, found, of_row, lane);
#endif
#ifdef BS_TURNED
        Sum of_column[OWN], weight[OWN];
        dots(unit, found_g, of_column, lane);
#endif
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const bool there = k * SPREAD + own < n;
            const Sum score = beta * (cosine[k] * ends[k].target);
            along[k] = 0;
#ifdef BS_FORWARD
            along[k] += quick_exp(score - here.lse) * (of_row[k] - here.product);
#endif
#ifdef BS_TURNED
            weight[k] = there ? quick_exp(score - ends[k].lse) : (Sum)0;
            along[k] += weight[k] * (of_column[k] * norm - ends[k].product);
#endif
            along[k] = there ? along[k] * ends[k].target : (Sum)0;
        }
#pragma unroll
        for (int u = 0; u < BS_STEPS; u++) {
            const Sum q = of_edge(along, u);
#ifdef BS_TURNED
            const Sum w = of_edge(weight, u);
#endif
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    const int at = j * BS_ELEMENTS + i;
                    toward[at] = fused(q, widen(found[u][j], i), toward[at]);
#ifdef BS_TURNED
                    sum[at] = fused(w, widen(found_g[u][j], i), sum[at]);
#endif
                }
        }
        // ---- rows that are complete
        const bool complete = walking && e == end;
        if (__any_sync(~0u, complete)) {
            bool whole = complete && at.piece < 0;
            if (complete && !whole) {
                const int columns = p.vectors * BS_ELEMENTS;
                Sum *piece = (Sum *)p.partial + (i64)at.piece * KEPT * columns;
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++)
                    if (t + j * BS_LANES < p.vectors)
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++) {
                            const int column = (t + j * BS_LANES) * BS_ELEMENTS + i;
                            piece[column] = toward[j * BS_ELEMENTS + i];
#ifdef BS_TURNED
                            piece[columns + column] = sum[j * BS_ELEMENTS + i];
#endif
                        }
#ifdef BS_JOINED
                int first_piece, pieces;
                pieces_of_row(p.s, at, first_piece, pieces);
                whole = last_of_groups(p.arrived + first_piece, pieces, t, BS_LANES);
                if (whole) {
                    piece = (Sum *)p.partial + (i64)first_piece * KEPT * columns;
                    add_pieces(p, piece, pieces, t, toward);
#ifdef BS_TURNED
                    add_pieces(p, piece + columns, pieces, t, sum);
#endif
                }
#endif
            }
            __syncwarp();
#ifdef BS_TURNED
            if (whole && p.toward)
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++)
                    if (t + j * BS_LANES < p.vectors)
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++)
                            toward[j * BS_ELEMENTS + i] +=
                                ((const Sum *)p.toward)[row_offset(row, p.vectors * BS_ELEMENTS) + (t + j * BS_LANES) * BS_ELEMENTS + i];
            __syncwarp();
            Sum slanted = 0;
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                slanted = fused(unit[i], toward[i], slanted);
            slanted = over_group(slanted);
#endif
            if (complete) {
                const int columns = p.vectors * BS_ELEMENTS;
#ifdef BS_TURNED
                if (whole && t == 0)
                    ((Sum *)p.by_beta)[row] = slanted / 2;
#endif
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++)
                    if (t + j * BS_LANES < p.vectors) {
                        const int column = (t + j * BS_LANES) * BS_ELEMENTS;
                        Vector made;
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++) {
                            const Sum q = toward[j * BS_ELEMENTS + i];
#ifdef BS_TURNED
                            const Sum r = sum[j * BS_ELEMENTS + i], u = unit[j * BS_ELEMENTS + i];
                            made.at[i] = narrow(fused(beta * here.target, q - slanted * u, r));
#else
                            if (whole)
                                ((Sum *)p.toward)[row_offset(row, columns) + column + i] = q;
#endif
                        }
#ifdef BS_TURNED
                        if (whole)
                            store_vector(p.out + row_offset(row, bytes) + column * (int)sizeof(Element), made);
#endif
                    }
                row++;
                end = row + 1 < at.last ? __ldg(p.s.indptr + row + 1) : at.stop;
                clear(toward);
#ifdef BS_TURNED
                clear(sum);
#endif
                fresh = true;
            }
        }
    }
}

// A block for each piece; the block of a row's first piece joins the whole row, in order. A thread takes every 256th column. Compiled like
// the kernel above, except for vectors of one element.
#define BS_MOST 4 // columns of a thread
extern "C" __global__ void __launch_bounds__(256) cosine_vjp_pieces(const CosineVjpParams p)
{
    __shared__ Sum products[8];
    Stretch at;
    int first, count;
    stretch_of(p.s, blockIdx.x, at);
    pieces_of_row(p.s, at, first, count);
    if (first != at.piece)
        return;
    const Sum beta = p.beta ? *(const Sum *)p.beta : (Sum)p.factor;
    const Ends here = ((const Ends *)p.nodes)[at.row];
    const int columns = p.vectors;
    const int stride = KEPT * columns;
    const Sum *partial = (const Sum *)p.partial + (i64)first * stride;
    const Element *x = (const Element *)p.x + (i64)at.row * columns;
    Sum *const earlier = (Sum *)p.toward + (i64)at.row * columns;
    Sum toward[BS_MOST], unit[BS_MOST], slanted = 0;
#pragma unroll
    for (int k = 0; k < BS_MOST; k++) {
        const int column = threadIdx.x + k * 256;
        toward[k] = unit[k] = 0;
        if (column >= columns)
            continue;
        for (int i = 0; i < count; i++)
            toward[k] += partial[(i64)i * stride + column];
#ifdef BS_TURNED
        if (p.toward)
            toward[k] += earlier[column];
        Vector own;
        own.at[0] = x[column];
        unit[k] = widen(own, 0) * here.target;
        slanted = fused(unit[k], toward[k], slanted);
#else
        earlier[column] = toward[k];
#endif
    }
#ifdef BS_TURNED
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        slanted += __shfl_xor_sync(~0u, slanted, lanes);
    if (threadIdx.x % 32 == 0)
        products[threadIdx.x / 32] = slanted;
    __syncthreads();
    slanted = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        slanted += products[i];
    if (threadIdx.x == 0)
        ((Sum *)p.by_beta)[at.row] = slanted / 2;
#pragma unroll
    for (int k = 0; k < BS_MOST; k++) {
        const int column = threadIdx.x + k * 256;
        if (column >= columns)
            continue;
        Sum sum = 0;
        for (int i = 0; i < count; i++)
            sum += partial[(i64)i * stride + columns + column];
        ((Element *)p.out)[(i64)at.row * columns + column] = narrow(fused(beta * here.target, toward[k] - slanted * unit[k], sum));
    }
#endif
}
