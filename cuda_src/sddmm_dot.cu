// Dot products per edge and head: out[e, h] = sum over d of x[row of e, h, d] y[column of e, h, d].
//
// A result belongs to one edge, so edges, not rows, are dealt out: 32 pairs of edge and head to a warp at a time (a chunk), of which groups
// of BS_LANES lanes take one each in a step; BS_STEPS steps are a batch. All rows of y of a batch are in flight together, and those of the
// next batch before the results of this one are summed up, also across chunks. A batch mostly lies in one row or two: then rows of x stay
// in registers, and each is loaded once. Sums over the lanes of a group are made for all steps at once and leave one result to each lane.
// BS_ROUNDS: vectors of a head's part of a row to a lane, 0 if they are many. BS_FULL: every lane has so many.
// BS_THREADS: of a block; BS_BLOCKS: blocks of a multiprocessor, bounds registers.
#include "edge_chunks.cuh"

#ifndef BS_THREADS
#define BS_THREADS 256
#endif
#ifndef BS_BLOCKS
#if BS_TYPE == 3 || BS_TYPE == 5 || BS_ROUNDS == 2 || defined(BS_LARGE)
#define BS_BLOCKS 2
#elif BS_ROUNDS == 1 && !defined(BS_HEADS)
#define BS_BLOCKS 4
#else
#define BS_BLOCKS 3
#endif
#endif

#define GROUPS (32 / BS_LANES)
#define BATCHES (BS_LANES / BS_STEPS) // and so many lanes are left with one result
#define BATCH (GROUPS * BS_STEPS)     // pairs of a batch
#define INSIDE (BATCH == 32 ? ~1u : (1u << BATCH % 32) - 2)

// Adds a . b to the sums of a batch, for one vector of each; `n` different a. Vector v of lane t, if it is one of the part.
template <int n>
BS_INLINE void add_products(const Vector (&a)[n], const Vector (&b)[BS_STEPS], int v, int t, int vectors, Sum (&sum)[BS_STEPS])
{
#pragma unroll
    for (int s = 0; s < BS_STEPS; s++) {
        Sum with = sum[s];
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            with = fused(widen(a[s % n], i), widen(b[s], i), with);
#ifdef BS_FULL
        sum[s] = with;
#else
        sum[s] = t + v * BS_LANES < vectors ? with : sum[s];
#endif
    }
}

BS_INLINE Vector chosen(bool first, const Vector &a, const Vector &b)
{
    Vector v;
#if BS_VECTOR >= 4
#pragma unroll
    for (int i = 0; i < BS_VECTOR / 4; i++)
        v.word[i] = first ? a.word[i] : b.word[i];
#else
    v.raw = first ? a.raw : b.raw;
#endif
    return v;
}

BS_INLINE void bring(const char *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// The chunk that is being worked on.
struct Current {
    Index own, col; // of this lane: its row, and which part of y it meets
    int head;
    u32 changes; // lanes whose row is another than that of the lane before
};

BS_INLINE Current begin_chunk(const ChunkParams &p, ChunkWalk &walk)
{
    Current now;
    next_chunk(p, walk, now.own, now.col, now.head);
    now.changes = __ballot_sync(~0u, now.own != __shfl_up_sync(~0u, now.own, 1));
    return now;
}

// What the next chunk will read is brought to L2; where it is has arrived by now. Rows of x are read in order, a row for all lanes of it.
BS_INLINE void bring_next(const ChunkParams &p, const ChunkWalk &walk, int lane, int bytes)
{
    if (!p.ahead || !more_chunks(p, walk))
        return;
    if (p.ahead & 1) {
        const int rows = __shfl_sync(~0u, walk.next.behind, 31) + 1, whole = bytes * p.heads;
        const int all = rows * (i64)whole < 16384 ? rows * whole : 16384;
        for (int at = lane * 128; at < all; at += 32 * 128)
            bring(p.x + row_offset(walk.next.low, whole) + at);
    }
    if (p.ahead & 2) {
        Index col = walk.next.col;
#ifdef BS_HEADS
        col = col * p.heads + walk.next.head;
#endif
        for (int at = 0; at < bytes; at += 128)
            bring(p.y + row_offset(col, bytes) + at);
    }
    __syncwarp();
}

// Whether another row begins inside a batch, and whether only one does.
BS_INLINE u32 borders(const Current &now, int batch) { return now.changes >> batch * BATCH & INSIDE; }

BS_INLINE bool few_rows(const ChunkParams &p, u32 inside)
{
#ifdef BS_HEADS
    if (GROUPS % p.heads) // a group has not one head in all steps
        return false;
#endif
    return (inside & (inside - 1)) == 0;
}

// The part of x that a lane meets in a row: which one.
BS_INLINE Index part_of(const ChunkParams &p, Index row, int head)
{
#ifdef BS_HEADS
    return row * p.heads + head;
#else
    return row;
#endif
}

#if BS_ROUNDS
// What is in flight for a batch.
struct Batch {
    Vector right[BS_ROUNDS][BS_STEPS];
    Vector left[BS_ROUNDS], other[BS_ROUNDS]; // the parts of x of the row it starts in, and of the one it ends in if that is another
    Index held;                               // the row that `left` will be of afterwards, or -1
};

BS_INLINE void begin_batch(const ChunkParams &p, const Current &now, int batch, int group, const char *x, const char *y, int bytes, int more,
                           Batch &b)
{
    const int base = batch * BATCH;
#pragma unroll
    for (int s = 0; s < BS_STEPS; s++) {
        const char *from = y + row_offset(__shfl_sync(~0u, now.col, base + s * GROUPS + group), bytes);
#pragma unroll
        for (int v = 0; v < BS_ROUNDS; v++)
            b.right[v][s] = load_vector(from + (v ? more : 0));
    }
    const Index first = __shfl_sync(~0u, now.own, base), last = __shfl_sync(~0u, now.own, base + BATCH - 1);
    const u32 inside = borders(now, batch);
    const bool few = few_rows(p, inside), fresh = first != b.held;
    int head = 0;
#ifdef BS_HEADS
    head = __shfl_sync(~0u, now.head, group);
#endif
    b.held = few ? last : -1;
    const char *from = x + row_offset(part_of(p, first, head), bytes), *to = x + row_offset(part_of(p, last, head), bytes);
#pragma unroll
    for (int v = 0; v < BS_ROUNDS; v++) {
        load_if(few && fresh, from + (v ? more : 0), b.left[v]);
        b.other[v] = zero_vector();
        load_if(few && inside, to + (v ? more : 0), b.other[v]);
    }
}

BS_INLINE void end_batch(const ChunkParams &p, const Current &now, int batch, int group, int t, const char *x, int bytes, int more, Batch &b,
                         Sum (&sum)[BS_STEPS])
{
    const u32 inside = borders(now, batch);
    const int border = __ffs(inside) - 1 - group; // pairs from here on have the other row
#pragma unroll
    for (int s = 0; s < BS_STEPS; s++)
        sum[s] = 0;
    if (!few_rows(p, inside)) {
        const Index own = part_of(p, now.own, now.head);
#pragma unroll
        for (int v = 0; v < BS_ROUNDS; v++) {
            Vector each[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++)
                each[s] = load_vector(x + row_offset(__shfl_sync(~0u, own, batch * BATCH + s * GROUPS + group), bytes) + (v ? more : 0));
            add_products<BS_STEPS>(each, b.right[v], v, t, p.vectors, sum);
            b.left[v] = zero_vector();
        }
    } else if (inside) {
#pragma unroll
        for (int v = 0; v < BS_ROUNDS; v++) {
            Vector each[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++)
                each[s] = chosen(s * GROUPS < border, b.left[v], b.other[v]);
            add_products<BS_STEPS>(each, b.right[v], v, t, p.vectors, sum);
            b.left[v] = b.other[v];
        }
    } else {
#pragma unroll
        for (int v = 0; v < BS_ROUNDS; v++) {
            const Vector each[1] = {b.left[v]};
            add_products<1>(each, b.right[v], v, t, p.vectors, sum);
        }
    }
}
#else
// Rows of many vectors, one after the other.
BS_INLINE void whole_batch(const ChunkParams &p, const Current &now, int batch, int group, int t, int bytes, Sum (&sum)[BS_STEPS])
{
    const int base = batch * BATCH;
    Index row[BS_STEPS], col[BS_STEPS], own = part_of(p, now.own, now.head);
    const bool one_row = !borders(now, batch) && few_rows(p, 0);
#pragma unroll
    for (int s = 0; s < BS_STEPS; s++) {
        sum[s] = 0;
        col[s] = __shfl_sync(~0u, now.col, base + s * GROUPS + group);
        row[s] = __shfl_sync(~0u, own, base + s * GROUPS + group);
    }
#pragma unroll 1
    for (int v = t; v < p.vectors; v += BS_LANES) {
        const char *x = p.x + v * BS_VECTOR, *y = p.y + v * BS_VECTOR;
        Vector left[BS_STEPS], right[BS_STEPS];
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++)
            right[s] = load_vector(y + row_offset(col[s], bytes));
        left[0] = load_vector(x + row_offset(row[0], bytes));
        if (one_row)
            add_products<1>({left[0]}, right, 0, v, p.vectors, sum);
        else {
#pragma unroll
            for (int s = 1; s < BS_STEPS; s++)
                left[s] = load_vector(x + row_offset(row[s], bytes));
            add_products<BS_STEPS>(left, right, 0, v, p.vectors, sum);
        }
    }
    __syncwarp();
}
#endif

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) sddmm_dot(const ChunkParams p)
{
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES;
    ChunkWalk walk;
    if (!first_chunk(p, walk))
        return;
    const int bytes = p.vectors * BS_VECTOR;
    Current now = begin_chunk(p, walk);
#if BS_ROUNDS
#ifdef BS_FULL
    const int v0 = t, more = BS_LANES * BS_VECTOR;
#else
    const int v0 = min(t, p.vectors - 1), more = max(min(t + BS_LANES, p.vectors - 1) - v0, 0) * BS_VECTOR;
#endif
    const char *x = in_registers(p.x + v0 * BS_VECTOR), *y = in_registers(p.y + v0 * BS_VECTOR);
    Batch b;
    b.held = -1;
#pragma unroll
    for (int v = 0; v < BS_ROUNDS; v++)
        b.left[v] = zero_vector();
    begin_batch(p, now, 0, group, x, y, bytes, more, b);
#endif
    while (true) {
        const Chunk chunk = walk.now;
        bool last = false;
        Sum result = 0;
#pragma unroll 1
        for (int batch = 0; batch < BATCHES; batch++) {
            Sum sum[BS_STEPS];
#if BS_ROUNDS
            end_batch(p, now, batch, group, t, x, bytes, more, b, sum);
#else
            whole_batch(p, now, batch, group, t, bytes, sum);
#endif
            if (batch == 0)
                bring_next(p, walk, lane, bytes);
            const bool turn = batch + 1 == BATCHES;
            last = turn && !more_chunks(p, walk);
            if (turn && !last)
                now = begin_chunk(p, walk);
#if BS_ROUNDS
            if (!last)
                begin_batch(p, now, turn ? 0 : batch + 1, group, x, y, bytes, more, b);
#endif
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
        if (last)
            break;
    }
}
