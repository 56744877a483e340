// Graph attention of the second kind (GATv2): scores of edges, and the sums over rows that its gradient needs. No array of edges times
// features exists.
//   gatv2_scores:  out[e, h] = sum over d of a[h, d] leaky(x[row of e, h, d] + y[column of e, h, d])
//   steep_sums:    out[i, h, d] = sum over the edges e of row i of w[e, h] (x[i, h, d] + y[column of e, h, d] > 0 ? 1 : slope)
//
// Scores deal out edges as edges/sddmm_combine.cu does, 32 to a warp. Sums walk stretches of rows (csr/streams.cuh); a lane takes one
// vector of a row, and rows with more columns are cut into slices, one block each along y. Floor of both: gathering rows of y.
#include "edges/ends.cuh"

struct Gatv2ScoresParams {
    EdgesParams ends;
    const Sum *weights; // (heads, width)
    double slope;
    int heads; // ends.vectors is the width of one of these heads
};

struct SteepParams {
    Streams s;
    const char *x, *y;
    const Sum *weights; // (edges, heads)
    char *out;
    Sum *partial; // a row of sums for each piece
    double slope;
    int heads, vectors; // vectors of a whole row
    int head_vectors; // of a head
};

#define GROUPS (32 / BS_LANES)
#define BATCHES (BS_LANES / BS_STEPS)

BS_INLINE Sum leaky(Sum z, Sum slope) { return z < 0 ? z * slope : z; }

// Three resident blocks: without this bound the compiler takes fewer registers than it needs for float64, and spills.
extern "C" __global__ void __launch_bounds__(256, 3) gatv2_scores(const Gatv2ScoresParams q)
{
    const EdgesParams &p = q.ends;
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES;
    const i64 warp = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (warp >= p.warps)
        return;
    const int bytes = q.heads * p.vectors * BS_VECTOR;
    const Sum slope = (Sum)q.slope;
    const Index first = 32 * (Index)warp;
    const int left = (int)min((Index)32, (Index)p.edges - first);
    const Index edge = first + min(lane, left - 1);
    const Ends ends = load_ends(p, edge);
    const Index own = row_of(p, edge, ends);
    __syncwarp();
#pragma unroll 1
    for (int batch = 0; batch < BATCHES; batch++) {
        const int place = batch * BS_STEPS * GROUPS + group; // of the first step
        Index row[BS_STEPS], col[BS_STEPS];
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
            col[s] = __shfl_sync(~0u, ends.col, place + s * GROUPS);
            row[s] = __shfl_sync(~0u, own, place + s * GROUPS);
        }
        for (int head = 0; head < q.heads; head++) {
            Sum sum[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++)
                sum[s] = 0;
            for (int v = t; v < p.vectors; v += BS_LANES) {
                const int at = head * p.vectors + v;
                Vector a[BS_STEPS], b[BS_STEPS];
#pragma unroll
                for (int s = 0; s < BS_STEPS; s++) {
                    b[s] = load_vector(p.y + row_offset(col[s], bytes) + at * BS_VECTOR);
                    a[s] = load_vector(p.x + row_offset(row[s], bytes) + at * BS_VECTOR);
                }
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    const Sum weight = __ldg(q.weights + at * BS_ELEMENTS + i);
#pragma unroll
                    for (int s = 0; s < BS_STEPS; s++)
                        sum[s] = fused(weight, leaky(widen(a[s], i) + widen(b[s], i), slope), sum[s]);
                }
            }
            __syncwarp();
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
#pragma unroll
                for (int lanes = BS_LANES / 2; lanes > 0; lanes /= 2)
                    sum[s] += __shfl_xor_sync(~0u, sum[s], lanes);
                if (t == 0 && place + s * GROUPS < left)
                    ((Sum *)p.out)[(i64)(first + place + s * GROUPS) * q.heads + head] = sum[s];
            }
        }
    }
}

// The sums of one lane, as a body for walk() in csr/streams.cuh.
struct Steep {
    const SteepParams &p;
    const int vector, head, bytes, slot; // this lane's vector of a row and its head; bytes of a row; number of the piece
    Vector mine, found[BS_STEPS];
    Sum weight[BS_STEPS], sum[BS_ELEMENTS];
    Index held;

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            sum[i] = 0;
    }
    __device__ __forceinline__ void batch(Index, int) {}
    __device__ __forceinline__ void done(Index, int, int) {}
    __device__ __forceinline__ void gather(int u, Index column, Index edge)
    {
        found[u] = load_vector(p.y + row_offset(column, bytes) + vector * BS_VECTOR);
        weight[u] = __ldg(p.weights + (i64)edge * p.heads + head);
    }
    __device__ __forceinline__ void add(int u, Index row)
    {
        if (row != held) {
            mine = load_vector(p.x + row_offset(row, bytes) + vector * BS_VECTOR);
            held = row;
        }
        const Sum flat = weight[u] * (Sum)p.slope;
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            sum[i] += widen(mine, i) + widen(found[u], i) > 0 ? weight[u] : flat;
    }
    __device__ __forceinline__ void store(char *to)
    {
        Vector made;
#pragma unroll
        for (int i = 0; i < BS_ELEMENTS; i++)
            made.at[i] = narrow(sum[i]);
        store_vector(to + vector * BS_VECTOR, made);
        clear();
    }
    __device__ __forceinline__ void flush(Index row, Index, Index) { store(p.out + row_offset(row, bytes)); }
    __device__ __forceinline__ void piece(Index) { store((char *)p.partial + (i64)slot * bytes); }
};

extern "C" __global__ void __launch_bounds__(256) steep_sums(const SteepParams p)
{
    const int vector = blockIdx.y * BS_LANES + threadIdx.x % BS_LANES;
    Stretch at;
    if (vector >= p.vectors || !this_stretch(p.s, at))
        return;
    Steep body = {p, vector, vector / p.head_vectors, p.vectors * BS_VECTOR, at.piece};
    body.held = -1;
    body.clear();
    walk<BS_STEPS>(p.s, at, body);
}

// A block for each piece; the block of a row's first piece adds up the whole row, in order. A thread takes one column.
extern "C" __global__ void __launch_bounds__(256) join_sums(const SteepParams p)
{
    Stretch at;
    int first, count;
    stretch_of(p.s, blockIdx.x, at);
    pieces_of_row(p.s, at, first, count);
    if (first != at.piece)
        return;
    const int cols = p.vectors * BS_ELEMENTS;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        Sum sum = p.partial[(i64)first * cols + col];
#pragma unroll 4
        for (int i = 1; i < count; i++)
            sum += p.partial[(i64)(first + i) * cols + col];
        ((Sum *)p.out)[(i64)at.row * cols + col] = sum;
    }
}
