// Passes over the features of all nodes: how lanes take vectors of rows, and sums over the nodes.
#ifndef BITSPARSE_EDGE_NODE_ROWS_CUH
#define BITSPARSE_EDGE_NODE_ROWS_CUH

#include "edges/vectors.cuh"

// Rows (nodes, heads, columns) in vectors of 16 bytes. Each head has vectors of its own, the last of which may be filled up.
struct NodeRows {
    i64 nodes;
    int heads, columns; // columns of a head
    int head_vectors;   // vectors of a head
    int head_lanes;     // lanes of a head, of which the last ones may have nothing to do
    int blocks;         // blocks that share the nodes of a stripe of lanes
};

// BS_BLOCKS: blocks that share a multiprocessor, which bounds the registers.
// BS_LANES threads take a stripe of a row, and a block has GROUPS rows at a time. BS_TOGETHER lanes, a power of two, have the same head.
#define GROUPS (256 / BS_LANES)

// The part of each row that belongs to a thread.
struct Lane {
    int stripe, group;
    int head, vector; // vector of the head
    int at, left;     // its first element in the row, and the head's columns from there on; 0: there is nothing to do
};

// Heads of more vectors than lanes take several rounds.
BS_INLINE Lane this_lane(const NodeRows &r, int round = 0)
{
    Lane l;
    l.stripe = blockIdx.x / r.blocks, l.group = threadIdx.x / BS_LANES;
    const int unit = l.stripe * BS_LANES + threadIdx.x % BS_LANES, head = unit / r.head_lanes;
    l.vector = unit - head * r.head_lanes + round * r.head_lanes;
    l.left = head < r.heads ? max(r.columns - l.vector * BS_ELEMENTS, 0) : 0;
    l.head = min(head, r.heads - 1);
    l.at = l.head * r.columns + l.vector * BS_ELEMENTS;
    return l;
}

// The rows of a block start here, and a group's u-th row of a step lies u strides behind its first.
BS_INLINE i64 first_row(const NodeRows &r) { return (i64)(blockIdx.x % r.blocks) * GROUPS; }
BS_INLINE i64 stride_of(const NodeRows &r) { return (i64)r.blocks * GROUPS; }

// A lane's vector of a row, with zeros behind the columns of the head. BS_RAGGED: heads are not whole vectors, or the array is not aligned.
BS_INLINE Vector load_part(const char *rows, i64 row, const NodeRows &r, const Lane &l)
{
    const Element *from = (const Element *)rows + row * (r.heads * r.columns) + l.at;
    Vector v = zero_vector();
#ifdef BS_RAGGED
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        load_if(i < l.left, from + i, v.at[i]);
#else
    load_if(l.left > 0, (const char *)from, v);
#endif
    return v;
}

// A lane's numbers of a vector (heads, columns), or zeros.
BS_INLINE void load_own(const void *vector, const Lane &l, Sum (&to)[BS_ELEMENTS])
{
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        to[i] = vector && i < l.left ? __ldg((const Sum *)vector + l.at + i) : (Sum)0;
}

// Stores a vector of a row in an array whose heads are whole vectors.
BS_INLINE void store_laid(char *laid, i64 row, const NodeRows &r, const Lane &l, const Vector &v)
{
    if (l.left > 0)
        store_vector(laid + ((row * r.heads + l.head) * r.head_vectors + l.vector) * BS_VECTOR, v);
}

#ifdef BS_TOGETHER
BS_INLINE Sum over_head(Sum x)
{
#pragma unroll
    for (int lanes = BS_TOGETHER / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}
#endif

#ifdef BS_SETS
// BS_WIDE: sums over nodes are held in float64.
#ifdef BS_WIDE
typedef double Total;
#else
typedef Sum Total;
#endif

#define TEAM (BS_LANES < 32 ? 32 : BS_LANES) // threads that add up the sums of their groups without shared memory
#define TEAMS (256 / TEAM)
#define WIDTH (BS_LANES * BS_ELEMENTS) // sums of a stripe
#define AT_ONCE (BS_ELEMENTS == 8 || BS_LANES == 1 ? 2 : 4) // blocks whose sums are loaded together

struct Totals {
    Total of[BS_SETS][BS_ELEMENTS];
};

// What the threads of a block share.
struct Shared {
    Total sums[TEAMS * WIDTH];
    bool last;
};

// Where sums over nodes go.
struct NodeSums {
    void *partial; // Total (blocks, BS_SETS, stripes, WIDTH): sums over each block's nodes
    void *out;     // Sum (BS_SETS, heads, columns): over all nodes
    int *arrived;  // how many blocks are done with each stripe: zeros before and after
};

BS_INLINE void clear(Totals &sum)
{
#pragma unroll
    for (int s = 0; s < BS_SETS; s++)
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            sum.of[s][i] = 0;
}

// Adds up the sums of a block's groups, in a tree over each warp and then team by team. They go to `partial`, rows of `padded` sums, or,
// if that is null, to `out`.
BS_INLINE void over_groups(const Totals &sum, Shared &shared, const NodeRows &r, int stripe, int padded, Total *partial, Sum *out)
{
    const int member = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
#pragma unroll
    for (int s = 0; s < BS_SETS; s++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++) {
            Total one = sum.of[s][i];
#pragma unroll
            for (int lanes = BS_LANES; lanes < 32; lanes *= 2)
                one += __shfl_xor_sync(~0u, one, lanes);
            if (member < BS_LANES)
                shared.sums[(team * BS_LANES + member) * BS_ELEMENTS + i] = one;
        }
        __syncthreads();
        for (int e = threadIdx.x; e < WIDTH; e += 256) {
            Total total = 0;
#pragma unroll
            for (int k = 0; k < TEAMS; k++)
                total += shared.sums[k * WIDTH + e];
            if (partial) {
                partial[(i64)s * padded + stripe * WIDTH + e] = total;
                continue;
            }
            const int unit = stripe * BS_LANES + e / BS_ELEMENTS, head = unit / r.head_lanes;
            const int column = (unit - head * r.head_lanes) * BS_ELEMENTS + e % BS_ELEMENTS;
            if (head < r.heads && column < r.columns)
                out[((i64)s * r.heads + head) * r.columns + column] = (Sum)total;
        }
    }
}

// Sums over all nodes from those of each thread. The last block of a stripe to finish adds up the results of all its blocks in their order,
// so that the bits do not depend on which block that is. All threads of the block call it.
BS_INLINE void over_blocks(Totals &sum, Shared &shared, const NodeRows &r, const Lane &l, const NodeSums &to)
{
    const int padded = gridDim.x / r.blocks * WIDTH, block = blockIdx.x % r.blocks;
    Total *const partial = (Total *)to.partial;
    if (r.blocks > 1) {
        over_groups(sum, shared, r, l.stripe, padded, partial + (i64)block * BS_SETS * padded, 0);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            shared.last = atomicAdd(to.arrived + l.stripe, 1) == r.blocks - 1;
        __syncthreads();
        if (!shared.last)
            return;
        __threadfence();
        if (threadIdx.x == 0)
            to.arrived[l.stripe] = 0; // for the next launch
        clear(sum);
        const Total *own = partial + l.stripe * WIDTH + threadIdx.x % BS_LANES * BS_ELEMENTS;
        for (int other = l.group; other < r.blocks; other += AT_ONCE * GROUPS) {
            Totals found[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                const Total *from = own + (i64)min(other + u * GROUPS, r.blocks - 1) * BS_SETS * padded;
#pragma unroll
                for (int s = 0; s < BS_SETS; s++)
#pragma unroll
                    for (int i = 0; i < BS_ELEMENTS; i++)
                        found[u].of[s][i] = __ldcg(from + (i64)s * padded + i);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                if (other + u * GROUPS < r.blocks)
#pragma unroll
                    for (int s = 0; s < BS_SETS; s++)
#pragma unroll
                        for (int i = 0; i < BS_ELEMENTS; i++)
                            sum.of[s][i] += found[u].of[s][i];
        }
    }
    over_groups(sum, shared, r, l.stripe, padded, 0, (Sum *)to.out);
}
#endif

#endif
