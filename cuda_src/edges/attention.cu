// Softmax-weighted sums of gathered rows. Scores and sums come from one gather, and nothing is stored per edge.
//   graph attention:  y[i, h] = sum_j softmax_j(leaky(source[j, h] + target[i, h])) x[j, h]
//   BS_COSINE:        y[i]    = sum_j softmax_j(beta cos(x_i, x_j)) x_j
//   BS_ABOVE:         also, for the gradient, the part of y and of the weights from edges with source[j, h] + target[i, h] > 0
//   BS_TURNED:        the gradient, over the transpose (i: columns of A): with a = exp(leaky(source[i, h] + target[j, h]) - lse[j, h]),
//                     G[i, h] = sum_j a x[j, h], where x is the gradient by y; BS_ABOVE: also
//                     G'[i, h] = sum_j a leaky' x[j, h] and share[i, h] = sum_j a leaky' <x, y>[j, h]
//   BS_COMPLETED:     also, the gradient by the scores source[i, h] is <features, G'>[i, h] - share[i, h], and what they have for a gradient
//                     by the features they were computed from is added to G: neither G' nor share is stored
//   BS_DROPOUT:       each a is kept or not, by a draw that row, column and head decide alone
//   BS_INT8:          x are integers of 8 bits with one scale; results are float32
//   BS_JOINED:        the last of a row's few pieces to finish joins them; otherwise the next kernel does (attention_rows.cu)
//
// A group of BS_LANES lanes walks a stretch of rows (csr/streams.cuh), up to BS_STEPS edges of one row at a time. The columns of these
// edges were loaded while the previous edges were processed. All gathers are issued at once; the lanes that divide the edges among them
// compute the scores of their own edges; the largest score so far rescales the sums so far; weights reach the other lanes by shuffle.
// Floor: gathering rows of x, and for the gradient also 16 bytes for each edge and head. Reddit's 114.6 M edges, 4 heads of 32 in float32:
// forward 512 + 16 + 4 bytes an edge, 61 GB, 6.9 ms at 8.9 TB/s; gradient 512 + 64 + 4, 66 GB, 7.5 ms; two multiply-adds for each element
// and edge (BS_ABOVE) are 29 G, 0.9 ms. A lane has BS_PARTS vectors of a row; rows with more columns are cut into slices, one block each
// along y (not for cosines).
#include "csr/groups.cuh"
#include "csr/streams.cuh"
#include "edges/second.cuh"

struct AttentionParams {
    Streams s;
    const char *x;
    char *out;
    void *lse; // Sum (rows, heads) or null: logarithm of the sum of exp(score)
    const void *source; // Sum (cols, heads): scores, or inverses of the norms of rows of x; BS_TURNED: Ends (cols, heads)
    const void *target; // Sum (rows, heads): scores; for cosines: rows of x, where `inverse` holds the inverses of their norms
    const void *inverse;
    void *partial; // Sum, for each piece: heads maxima, heads sums of weights, the weighted sums of a row; BS_ABOVE: shares, second sums
    void *share; // Sum (rows, heads); BS_COMPLETED: the gradient by `source`
    void *above; // as out; BS_TURNED: Sum; BS_COMPLETED: null
    const void *bias; // Sum (heads, head_columns): added to the results, or null
    const char *features; // BS_COMPLETED: as out
    const void *by_target; // BS_COMPLETED: Sum (rows, heads), the gradient by the score of a row as one that attends
    const void *first, *second; // BS_COMPLETED: Sum (heads, head_columns), whose products with the features are both scores; or null
    const u64 *seed_at; // where the seed is, or null
    u64 seed;
    double kept_scale; // factor of the weights that are kept
    double factor; // slope of leaky, or beta
    double lowest; // the initial value of the largest score
    int heads, vectors; // vectors of a whole row
    int head_vectors; // of a head
    int head_columns; // columns of a head in the results; BS_RAGGED: only heads of x are padded with zeros to whole vectors
    int bounded; // no score exceeds `lowest`, except by rounding: it serves as the maximum of every row
    u32 threshold; // the least random bits with which an edge is kept
    const float *scale; // BS_INT8: the value of code 1
    const void *beta; // Sum (1): replaces `factor`, or null
    int *arrived; // BS_JOINED: how many pieces of each row are done, at the place of its first piece; zeros before and after
};

// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.

// BS_TOGETHER lanes, a power of two, have the same head.
#define SPREAD (BS_TOGETHER < BS_STEPS ? BS_TOGETHER : BS_STEPS) // lanes that divide the edges of a batch among them
#define SHARE (BS_TOGETHER / SPREAD) // lanes that have the same edges
#define OWN (BS_STEPS / SPREAD) // edges of a batch whose scores one lane computes

// The value that the lane in charge of edge u of the batch holds.
template <class T> BS_INLINE T of_edge(const T (&own)[OWN], int u)
{
    return SPREAD == 1 ? own[u / SPREAD] : __shfl_sync(~0u, own[u / SPREAD], u % SPREAD * SHARE, BS_TOGETHER);
}
#ifdef BS_INT8
struct Elements { // of a result
    Element at[BS_ELEMENTS];
};
#endif

struct Row {
    Sum most, total; // the same in all lanes; over this lane's own edges
    Sum sum[BS_PARTS * BS_ELEMENTS];
#ifdef BS_ABOVE
    Sum share, above[BS_PARTS * BS_ELEMENTS];
#endif
};

BS_INLINE void clear(Row &r, Sum lowest)
{
    r.most = lowest;
    r.total = 0;
#pragma unroll
    for (int i = 0; i < BS_PARTS * BS_ELEMENTS; i++)
        r.sum[i] = 0;
#ifdef BS_ABOVE
    r.share = 0;
#pragma unroll
    for (int i = 0; i < BS_PARTS * BS_ELEMENTS; i++)
        r.above[i] = 0;
#endif
}

// Stores a vector of a row's result, with heads adjacent, in `out`.
template <class T> BS_INLINE void store_result(const AttentionParams &p, T *out, Index row, int head, int vector, const T (&v)[BS_ELEMENTS])
{
#ifdef BS_RAGGED
    const int column = (vector - head * p.head_vectors) * BS_ELEMENTS;
    out += row_offset(row, p.heads * p.head_columns) + head * p.head_columns + column;
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        if (column + i < p.head_columns)
            out[i] = v[i];
#else
    out += row_offset(row, p.vectors * BS_ELEMENTS) + vector * BS_ELEMENTS;
#ifdef BS_INT8
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i += 4)
        *(float4 *)(out + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
#else
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        out[i] = v[i];
#endif
#endif
}

// The place of a vector's first element in a row of the results.
BS_INLINE int place_of(const AttentionParams &p, int head, int vector)
{
    return head * p.head_columns + (vector - head * p.head_vectors) * BS_ELEMENTS;
}

// How many elements of a vector are columns of its head.
BS_INLINE int columns_of(const AttentionParams &p, int head, int vector)
{
#ifdef BS_RAGGED
    return p.head_columns - (vector - head * p.head_vectors) * BS_ELEMENTS;
#else
    return BS_ELEMENTS;
#endif
}

#ifdef BS_COMPLETED
// Loads a vector of a row of the features if `valid`.
BS_INLINE void load_features(bool valid, const AttentionParams &p, Index row, int head, int vector, Vector &to)
{
    const Element *from = (const Element *)p.features + row_offset(row, p.heads * p.head_columns) + place_of(p, head, vector);
#ifdef BS_RAGGED
    const int columns = valid ? columns_of(p, head, vector) : 0;
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        load_if(i < columns, from + i, to.at[i]);
#else
    load_if(valid, (const char *)from, to);
#endif
}
#endif

// Sum over the lanes that divide the edges of a head among them.
BS_INLINE Sum over_spread(Sum x)
{
#pragma unroll
    for (int lanes = SHARE; lanes < BS_TOGETHER; lanes *= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

#ifdef BS_JOINED
// Joins `count` pieces of a row, from number `first` on, in their order.
BS_INLINE void join_pieces_of_row(const AttentionParams &p, int first, int count, int v0, int head, Row &r)
{
    const int own = 2 * p.heads + p.vectors * BS_ELEMENTS;
    const Sum *piece = (const Sum *)p.partial + (i64)first * BS_SUMS * own;
    clear(r, __ldcg(piece + head));
#pragma unroll 1
    for (int i = 0; i < count; i++, piece += BS_SUMS * own) {
        const Sum before = r.most, theirs = __ldcg(piece + head);
        r.most = larger(before, theirs);
        const Sum left = quick_exp(before - r.most), right = quick_exp(theirs - r.most);
        r.total = fused(__ldcg(piece + p.heads + head), right, r.total * left);
#ifdef BS_ABOVE
        r.share = fused(__ldcg(piece + own + p.heads + head), right, r.share * left);
#endif
#pragma unroll
        for (int j = 0; j < BS_PARTS; j++)
            if (v0 + j * BS_LANES < p.vectors)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    const int at = j * BS_ELEMENTS + i, column = 2 * p.heads + (v0 + j * BS_LANES) * BS_ELEMENTS + i;
                    r.sum[at] = fused(__ldcg(piece + column), right, r.sum[at] * left);
#ifdef BS_ABOVE
                    r.above[at] = fused(__ldcg(piece + own + column), right, r.above[at] * left);
#endif
                }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) attention(const AttentionParams p)
{
    const int lane = threadIdx.x & 31, t = lane % BS_LANES;
    const int v0 = blockIdx.y * BS_LANES * BS_PARTS + t;
    const int head = min(v0 / p.head_vectors, p.heads - 1);
    const int bytes = p.vectors * BS_VECTOR;
#ifdef BS_INT8
    const Sum worth = __ldg(p.scale);
#else
    const Sum worth = 1;
#endif
    const int own = t % BS_TOGETHER / SHARE; // edges own, own + SPREAD, ... of a batch are this lane's
    const char *x = in_registers(p.x + (i64)v0 * BS_VECTOR);
    Sum factor = p.beta ? __ldg((const Sum *)p.beta) : (Sum)p.factor, lowest = (Sum)p.lowest;
#ifdef BS_DROPOUT
    const Sum kept_scale = (Sum)p.kept_scale;
#endif
    in_register(factor);
    in_register(lowest);
#ifdef BS_TURNED
    const Ends *source = (const Ends *)p.source + head;
#else
    const Sum *source = (const Sum *)p.source + head;
#endif
#ifdef BS_DROPOUT
    const u64 seed = p.seed_at ? __ldg(p.seed_at) : p.seed;
#endif
    Stretch at;
    if (!this_stretch(p.s, at))
        at.row = at.last = 0, at.start = at.stop = 0, at.piece = -1;
    Index row = at.row, e = at.start, end = at.stop, after = at.stop;
    if (row + 1 < at.last)
        end = __ldg(p.s.indptr + row + 1), after = __ldg(p.s.indptr + row + 2);
    Index col[OWN];
#pragma unroll
    for (int k = 0; k < OWN; k++)
        col[k] = e + k * SPREAD + own < at.stop ? __ldg(p.s.indices + e + k * SPREAD + own) : 0;
    Row r;
    clear(r, lowest);
    bool fresh = true, used = false;
    Sum target = 0;
#ifdef BS_COSINE
    const char *own_rows = (const char *)p.target + (i64)v0 * BS_VECTOR;
    Vector mine[BS_PARTS];
#pragma unroll
    for (int j = 0; j < BS_PARTS; j++)
        mine[j] = zero_vector();
#endif
    while (__any_sync(~0u, row < at.last)) {
        const int n = row < at.last ? (int)min(end - e, (Index)BS_STEPS) : 0;
        // ---- loads: data of the row, of the lane's own edges, the gathered rows, and the columns of the next edges
        const bool first = fresh && n > 0;
#ifdef BS_COSINE
        load_if(first, (const Sum *)p.inverse + row, target);
#pragma unroll
        for (int j = 0; j < BS_PARTS; j++)
            load_if(first && v0 + j * BS_LANES < p.vectors, own_rows + row_offset(row, bytes) + j * BS_LANES * BS_VECTOR, mine[j]);
#else
        load_if(first, (const Sum *)p.target + row_offset(row, p.heads) + head, target);
#endif
        fresh = fresh && !first;
        Sum score[OWN];
#ifdef BS_TURNED
        Ends ends[OWN];
#endif
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            score[k] = 0;
#ifdef BS_TURNED
            ends[k].target = ends[k].lse = ends[k].product = 0;
            load_if(k * SPREAD + own < n, source + row_offset(col[k], p.heads), ends[k]);
#else
            load_if(k * SPREAD + own < n, source + row_offset(col[k], p.heads), score[k]);
#endif
        }
        Vector found[BS_STEPS][BS_PARTS];
#pragma unroll
        for (int u = 0; u < BS_STEPS; u++) {
            const char *from = x + row_offset(of_edge(col, u), bytes);
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++) {
                found[u][j] = zero_vector();
                load_if(u < n && v0 + j * BS_LANES < p.vectors, from + j * BS_LANES * BS_VECTOR, found[u][j]);
            }
        }
        const Index following = e + n;
#ifdef BS_COMPLETED
        Vector features[BS_PARTS];
        Sum by_target = 0;
        const bool last = row < at.last && following == end;
#pragma unroll
        for (int j = 0; j < BS_PARTS; j++) {
            features[j] = zero_vector();
            load_features(last && v0 + j * BS_LANES < p.vectors, p, row, head, v0 + j * BS_LANES, features[j]);
        }
        load_if(last && p.first, (const Sum *)p.by_target + row_offset(row, p.heads) + head, by_target);
#endif
#ifdef BS_DROPOUT
        bool kept[OWN];
#pragma unroll
        for (int k = 0; k < OWN; k++) {
#ifdef BS_TURNED
            kept[k] = bs_edge_kept(col[k], row, head >> 2, seed, p.threshold) >> (head & 3) & 1;
#else
            kept[k] = bs_edge_kept(row, col[k], head >> 2, seed, p.threshold) >> (head & 3) & 1;
#endif
        }
#endif
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const Index edge = following + k * SPREAD + own;
            load_if(edge < at.stop, p.s.indices + edge, col[k]);
        }
        __syncwarp(); // no instruction that waits for a load may come before another load
        // ---- scores of the lane's own edges
#ifdef BS_COSINE
#if BS_TYPE != BS_F16 && !defined(BS_INT8) // float32 holds the squares of those
        if (first) {
            // The row is scaled to near 1 by the power of two in the inverse of its norm; the inverse keeps the rest, so no product
            // overflows.
            const Sum power = power_near(target);
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    mine[j].at[i] = narrow(widen(mine[j], i) * power);
            target *= inverse_power(power);
        }
        __syncwarp();
#endif
        Sum dot[BS_STEPS];
#pragma unroll
        for (int u = 0; u < BS_STEPS; u++) {
            dot[u] = 0;
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    dot[u] = fused(widen(mine[j], i), widen(found[u][j], i), dot[u]);
        }
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            Sum some[SPREAD];
#pragma unroll
            for (int u = 0; u < SPREAD; u++)
                some[u] = dot[k * SPREAD + u];
            // The inverse of the other row's norm comes first: it brings the product of both rows back to a cosine.
            score[k] *= transposed_sum<BS_LANES, SPREAD>(some, lane);
            score[k] *= factor * target;
        }
#else
#ifdef BS_ABOVE
        bool steep[OWN];
#endif
#pragma unroll
        for (int k = 0; k < OWN; k++) {
#ifdef BS_TURNED
            const Sum s = ends[k].target + target;
            score[k] = (s < 0 ? s * factor : s) - ends[k].lse;
#else
            const Sum s = score[k] + target;
            score[k] = s < 0 ? s * factor : s;
#endif
#ifdef BS_ABOVE
            steep[k] = s > 0;
#endif
        }
#endif
        // ---- the largest so far
        Sum most = r.most;
        if (!p.bounded) {
#pragma unroll
            for (int k = 0; k < OWN; k++)
                most = k * SPREAD + own < n ? larger(most, score[k]) : most;
#pragma unroll
            for (int lanes = SHARE; lanes < BS_TOGETHER; lanes *= 2)
                most = larger(most, __shfl_xor_sync(~0u, most, lanes));
            if (__any_sync(~0u, most > r.most)) {
                const Sum shrink = quick_exp(r.most - most);
                r.total *= shrink;
#pragma unroll
                for (int i = 0; i < BS_PARTS * BS_ELEMENTS; i++)
                    r.sum[i] *= shrink;
#ifdef BS_ABOVE
                r.share *= shrink;
#pragma unroll
                for (int i = 0; i < BS_PARTS * BS_ELEMENTS; i++)
                    r.above[i] *= shrink;
#endif
                r.most = most;
            }
        }
        // ---- weights and sums
#ifdef BS_ABOVE
        Sum slanted[OWN];
#endif
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            score[k] = k * SPREAD + own < n ? quick_exp(score[k] - most) : (Sum)0;
            r.total += score[k];
#ifdef BS_ABOVE
            // For the gradient: the slopes of the leaky relu. For the sums it is computed from: whether the leaky relu is steep.
#ifdef BS_TURNED
            const Sum slant = steep[k] ? (Sum)1 : factor;
            r.share = fused(score[k] * slant, ends[k].product, r.share);
#else
            const Sum slant = steep[k] ? (Sum)1 : (Sum)0;
            r.share += score[k] * slant;
#endif
#endif
#ifdef BS_DROPOUT
            score[k] = kept[k] ? score[k] * kept_scale : (Sum)0;
#endif
#ifdef BS_ABOVE
            slanted[k] = score[k] * slant;
#endif
        }
#pragma unroll
        for (int u = 0; u < BS_STEPS; u++) {
            const Sum w = of_edge(score, u);
#ifdef BS_ABOVE
            const Sum above = of_edge(slanted, u);
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    r.above[j * BS_ELEMENTS + i] = fused(above, widen(found[u][j], i), r.above[j * BS_ELEMENTS + i]);
#endif
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    r.sum[j * BS_ELEMENTS + i] = fused(w, widen(found[u][j], i), r.sum[j * BS_ELEMENTS + i]);
        }
        used = used || n > 0;
        e = following;
        // ---- rows that are complete
        const bool complete = row < at.last && e == end;
        if (__any_sync(~0u, complete)) {
            Sum total = over_spread(r.total);
#ifdef BS_ABOVE
            Sum share = over_spread(r.share);
#endif
            bool whole = complete && at.piece < 0;
            if (complete && !whole) {
                Sum *part = (Sum *)p.partial + (i64)at.piece * BS_SUMS * (2 * p.heads + p.vectors * BS_ELEMENTS);
                if (v0 < p.vectors && v0 % p.head_vectors == 0)
                    part[head] = r.most, part[p.heads + head] = total;
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++)
                    if (v0 + j * BS_LANES < p.vectors)
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++)
                            part[2 * p.heads + (v0 + j * BS_LANES) * BS_ELEMENTS + i] = r.sum[j * BS_ELEMENTS + i] * worth;
#ifdef BS_ABOVE
                part += 2 * p.heads + p.vectors * BS_ELEMENTS;
                if (v0 < p.vectors && v0 % p.head_vectors == 0)
                    part[head] = r.most, part[p.heads + head] = share;
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++)
                    if (v0 + j * BS_LANES < p.vectors)
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++)
                            part[2 * p.heads + (v0 + j * BS_LANES) * BS_ELEMENTS + i] = r.above[j * BS_ELEMENTS + i] * worth;
#endif
#ifdef BS_JOINED
                int first_piece, pieces;
                pieces_of_row(p.s, at, first_piece, pieces);
                whole = last_of_groups(p.arrived + first_piece, pieces, t, BS_LANES);
                if (whole) {
                    join_pieces_of_row(p, first_piece, pieces, v0, head, r);
                    total = r.total;
#ifdef BS_ABOVE
                    share = r.share;
#endif
                }
#endif
            }
#ifdef BS_COMPLETED
            __syncwarp();
            Sum product = 0;
#pragma unroll
            for (int j = 0; j < BS_PARTS; j++)
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++)
                    product = fused(widen(features[j], i), r.above[j * BS_ELEMENTS + i], product);
#pragma unroll
            for (int lanes = BS_TOGETHER / 2; lanes > 0; lanes /= 2)
                product += __shfl_xor_sync(~0u, product, lanes);
            share = product - share;
#endif
            if (whole) {
#ifdef BS_TURNED
                const Sum scale = 1;
#else
                const Sum scale = used ? 1 / total : (Sum)0;
#endif
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++) {
                    const int vector = v0 + j * BS_LANES;
                    if (vector < p.vectors) {
#ifdef BS_INT8
                        Elements y;
#else
                        Vector y;
#endif
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++) {
                            Sum sum = r.sum[j * BS_ELEMENTS + i] * (scale * worth);
#ifndef BS_COSINE
                            const int place = place_of(p, head, vector) + i;
                            if (p.bias && i < columns_of(p, head, vector))
                                sum = added(sum, __ldg((const Sum *)p.bias + place));
#endif
#ifdef BS_COMPLETED
                            if (p.first && i < columns_of(p, head, vector))
                                sum = fused(share, __ldg((const Sum *)p.first + place),
                                            fused(by_target, __ldg((const Sum *)p.second + place), sum));
#endif
                            y.at[i] = narrow(sum);
                        }
#if defined(BS_RAGGED) || defined(BS_INT8)
                        store_result(p, (Element *)p.out, row, head, vector, y.at);
#else
                        store_vector(p.out + row_offset(row, bytes) + vector * BS_VECTOR, y);
#endif
                    }
                }
#ifdef BS_ABOVE
                if (v0 < p.vectors && v0 % p.head_vectors == 0)
                    ((Sum *)p.share)[row_offset(row, p.heads) + head] = share * scale;
#ifndef BS_COMPLETED
#pragma unroll
                for (int j = 0; j < BS_PARTS; j++)
                    if (v0 + j * BS_LANES < p.vectors) {
                        Second y[BS_ELEMENTS];
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++)
                            y[i] = second_of(r.above[j * BS_ELEMENTS + i] * (scale * worth));
                        store_result(p, (Second *)p.above, row, head, v0 + j * BS_LANES, y);
                    }
#endif
#endif
                if (p.lse && v0 < p.vectors && v0 % p.head_vectors == 0)
                    ((Sum *)p.lse)[row_offset(row, p.heads) + head] = r.most + logarithm(total);
            }
            if (complete) {
                row++;
                end = after;
                if (row + 1 < at.last)
                    after = __ldg(p.s.indptr + row + 2);
                clear(r, lowest);
                fresh = true, used = false;
            }
        }
    }
}
