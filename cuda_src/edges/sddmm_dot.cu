// Dot products per edge and head: out[e, h] = sum over d of x[row of e, h, d] y[column of e, h, d].
//
// A result belongs to one edge, so edges, not rows, are dealt out: a warp takes 32 pairs of edge and head and then ends, since the card
// starts a new warp sooner than a warp can move on. Groups of BS_LANES lanes take one pair each in a step, and BS_STEPS steps are a batch.
// All rows of y of a batch are in flight together, and so are the rows of x that differ from the previous pair's. Sums over the lanes of a
// group are computed for all steps at once, which leaves one result in each lane.
//
// Floor: gathering y at the rate of the L2, and reading x and the indices and writing the result once from or to memory.
//
// Rows may be packed integers of 1 to 8 bits (BS_CODES, edges/codes.cuh), whose bytes or bits are multiplied as they are.
//
// BS_ROUNDS: vectors of a head's part of a row per lane, 0 if they are many. BS_FULL: every lane has that many.
// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.
#include "edges/ends.cuh"

#define BS_THREADS 128
#define GROUPS (32 / BS_LANES)
#define BATCH (GROUPS * BS_STEPS) // pairs of a batch
#define BATCHES (32 / BATCH) // as many as there are lanes that hold the same result
#define ROUNDS (BS_ROUNDS ? BS_ROUNDS : 1)

// Which pair of edge and head a lane of a group takes in a step of a batch: without heads adjacent ones, so that they share rows of x.
BS_INLINE int place_of(int step, int group)
{
#ifdef BS_HEADS
    return step * GROUPS + group;
#else
    return group * BS_STEPS + step;
#endif
}

// Loads a row of x if it differs from the previous one; otherwise the result is undefined.
BS_INLINE Vector load_fresh(bool fresh, const char *at)
{
    Vector v;
#if BS_VECTOR == 16
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.raw.x), "=r"(v.raw.y), "=r"(v.raw.z), "=r"(v.raw.w)
                 : "l"(at), "r"((u32)fresh)
                 : "memory");
#else
    v = zero_vector();
    load_if(fresh, at, v);
#endif
    return v;
}

BS_INLINE void take_if(bool fresh, const Vector &from, Vector &to)
{
#if BS_VECTOR >= 4
#pragma unroll
    for (int i = 0; i < BS_VECTOR / 4; i++)
        to.word[i] = fresh ? from.word[i] : to.word[i];
#else
    to.raw = fresh ? from.raw : to.raw;
#endif
}

#ifndef BS_CODES
typedef Sum Sums; // sum over the products of a pair; for codes see edges/codes.cuh

BS_INLINE Sums no_sums() { return 0; }

BS_INLINE Sum add_products(const Vector &a, const Vector &b, bool inside, Sum sum)
{
    Sum with = sum;
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        with = fused(widen(a, i), widen(b, i), with);
    return inside ? with : sum;
}

template <int lanes, int count> BS_INLINE Sums sums_of_lanes(Sums (&part)[count], int lane)
{
    return transposed_sum<lanes, count>(part, lane);
}
#endif

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) sddmm_edges(const EdgesParams p)
{
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES, bytes = p.vectors * BS_VECTOR;
    const i64 warp = (i64)blockIdx.x * (BS_THREADS / 32) + threadIdx.x / 32;
    if (warp >= p.warps)
        return;
#if BS_ROUNDS
    // Lanes past the end of the part read its last vector too.
    int at[ROUNDS];
#pragma unroll
    for (int v = 0; v < ROUNDS; v++)
#ifdef BS_FULL
        at[v] = v * BS_LANES * BS_VECTOR;
#else
        at[v] = (min(t + v * BS_LANES, p.vectors - 1) - t) * BS_VECTOR;
#endif
    const char *x = in_registers(p.x + t * BS_VECTOR), *y = in_registers(p.y + t * BS_VECTOR);
    Vector left[ROUNDS];
#pragma unroll
    for (int v = 0; v < ROUNDS; v++)
        left[v] = zero_vector();
    Index held = -1;
#endif
    const Parts own = parts_of(p, warp);
    __syncwarp();
    Sums result = no_sums();
#pragma unroll 1
    for (int batch = 0; batch < BATCHES; batch++) {
        Sums sum[BS_STEPS];
        Index row[BS_STEPS], col[BS_STEPS];
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
            const int from = batch * BATCH + place_of(s, group);
            row[s] = __shfl_sync(~0u, own.left, from);
            col[s] = __shfl_sync(~0u, own.right, from);
            sum[s] = no_sums();
        }
#if BS_ROUNDS
        Vector right[BS_STEPS][ROUNDS], fresh[BS_STEPS][ROUNDS];
        bool other[BS_STEPS];
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
            other[s] = row[s] != (s ? row[s ? s - 1 : 0] : held);
            const char *from = y + row_offset(col[s], bytes), *to = x + row_offset(row[s], bytes);
#pragma unroll
            for (int v = 0; v < ROUNDS; v++)
                right[s][v] = load_vector(from + at[v]);
#pragma unroll
            for (int v = 0; v < ROUNDS; v++)
                fresh[s][v] = load_fresh(other[s], to + at[v]);
        }
        held = row[BS_STEPS - 1];
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++)
#pragma unroll
            for (int v = 0; v < ROUNDS; v++) {
                take_if(other[s], fresh[s][v], left[v]);
#ifdef BS_FULL
                sum[s] = add_products(left[v], right[s][v], true, sum[s]);
#else
                sum[s] = add_products(left[v], right[s][v], t + v * BS_LANES < p.vectors, sum[s]);
#endif
            }
#else
#pragma unroll 1
        for (int v = t; v < p.vectors; v += BS_LANES) {
            const char *x = p.x + v * BS_VECTOR, *y = p.y + v * BS_VECTOR;
            Vector left[BS_STEPS], right[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++)
                right[s] = load_vector(y + row_offset(col[s], bytes));
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++)
                left[s] = load_fresh(s == 0 || row[s] != row[s ? s - 1 : 0], x + row_offset(row[s], bytes));
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                if (s)
                    take_if(row[s] == row[s ? s - 1 : 0], left[s ? s - 1 : 0], left[s]);
                sum[s] = add_products(left[s], right[s], true, sum[s]);
            }
        }
        __syncwarp();
#endif
        const Sums made = sums_of_lanes<BS_LANES, BS_STEPS>(sum, lane);
        result = t % BATCHES == batch ? made : result;
    }
    // Lane t was left with the result of step t / BATCHES of batch t % BATCHES.
    const int place = t % BATCHES * BATCH + place_of(t / BATCHES, group);
#ifdef BS_CODES
    complete(result, p.columns);
#ifdef BS_REAL
    const Element made = (Element)bs_bits_of(real_dot(result, handed(own.left_map, place), handed(own.right_map, place), p.columns));
#else
    const Element made = result.dot;
#endif
#else
    const Element made = narrow(result);
#endif
#ifdef BS_HEADS
    const i64 pair = 32 * warp + place, pairs = p.edges * p.heads;
#else
    const Index pair = (Index)(32 * warp) + place, pairs = (Index)p.edges;
#endif
    if (pair < pairs)
        ((Element *)p.out)[pair] = made;
}
