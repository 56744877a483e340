// Sums of float32 rows over the edges of a panel of destination rows, from rows of x that are staged in shared memory:
// out[i] += factor[i] * sum of x[j] over the staged edges (i, j). The other edges have been summed into `out` before (spmm_csr).
//
// A panel has kWarps * kRows destination rows, whose sums stay in registers: a warp has kRows of them, for all columns of a slice. The rows
// of x that the panel's edges share arrive chunk by chunk in a ring of two stages, each row once, and every edge takes its row from there. A
// block walks the chunks of its items (a panel, or a piece of a panel with many edges) without a break: while sums of an item are stored,
// the first chunks of the next one arrive.
// Each warp has a stream of records (panels_build.py). A record has four words for each of BS_GROUPS groups of lanes, which hold parts of
// the same sums: offsets of rows within the stage, multiples of 16, or a negative number (no edge). Bit 0 of the first word marks the last
// record of a destination. Before the records of a chunk comes a header: a bit for each of the warp's destinations that have edges in this
// chunk, and whether the item ends with it.
// No float is added atomically and the order of additions is fixed.
//
// Floor: (edges + staged rows) * row bytes at the 128 bytes a clock of shared memory, staged rows * row bytes from the L2.
//
// Compile-time constants
//   BS_GROUPS  1, 2, 4: edges that a warp sums at once, for slices of up to 32, 16, 8 vectors of 16 bytes
//   BS_RAGGED  rows of out are not whole vectors
#include "common/ptx.cuh"

#ifndef BS_GROUPS
#define BS_GROUPS 1
#endif
#ifndef BS_RAGGED
#define BS_RAGGED 0
#endif

constexpr int kWarps = 16, kRows = 16, kLanes = 32 / BS_GROUPS;
constexpr int kLoaders = 4, kThreads = 32 * (kWarps + kLoaders);
constexpr int kSumRegisters = 112, kLoadRegisters = 32; // 16 and 4 warps share 20 times 96
// Shared memory: barriers of both stages, a vector of zeros, two lines of records for each warp, the stages.
constexpr int kStages = 2, kLine = 128;
constexpr int kEmpty = 8 * kStages, kZeros = 2 * kEmpty, kLines = 128, kRing = kLines + kWarps * 2 * kLine;
constexpr int kNone = -2147483647 - 1;

struct PanelParams {
    const float *x;
    float *out;
    float *partial; // sums of pieces (slots, vectors, 4)
    const float *factor; // of rows of out; null: 1
    const int *block_items, *block_chunks; // (blocks + 1) the first of a block
    const int *chunk_sources; // (chunks + 1) the first of a chunk's sources
    const int *sources; // rows of x
    const int *lines; // (blocks, kWarps) the first line of a warp's stream
    const u32 *records; // lines of 32 words; four more than there are
    const int *rows; // (items, kWarps, kRows) a row of out, ~(a slot), or kNone
    int row_bytes, columns; // of a row of x; of out
    int vectors, part; // of a row of x; of a slice, the last of which begins earlier if it would not be full
    int stage_rows;
};

struct PieceParams {
    float *out;
    const float *partial, *factor;
    const int *pieces; // (count, 3): a row of out, its first slot, the number of pieces
    int count, columns, vectors;
};

BS_INLINE void bulk_load(u32 to, const void *from, u32 bytes, u32 bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(bar)
                 : "memory");
}

BS_INLINE float4 row_of(u32 from)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from));
    return v;
}

BS_INLINE void add(float4 &sum, const float4 &v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

struct Ring {
    u32 full, empty, rows, bytes, stage, phase;

    __device__ __forceinline__ Ring(const PanelParams &p, u32 shared)
        : full(shared), empty(shared + kEmpty), rows(shared + kRing), bytes((u32)(p.stage_rows * p.part * 16)), stage(0), phase(0)
    {
    }

    __device__ __forceinline__ u32 base() const { return rows + stage * bytes; }

    __device__ __forceinline__ void next()
    {
        stage ^= 1;
        phase ^= stage == 0;
    }
};

// The first vector of this block's slice.
BS_INLINE int slice_start(const PanelParams &p) { return min((int)blockIdx.y * p.part, p.vectors - p.part); }

// Four loader warps take the rows of a chunk 32 at a time in turns, and run ahead as far as there is room.
BS_INLINE void load_rows(const PanelParams &p, u32 shared, int lane)
{
    Ring ring(p, shared);
    const int loader = (int)(threadIdx.x >> 5) - kWarps, first = p.block_chunks[blockIdx.x], last = p.block_chunks[blockIdx.x + 1];
    const char *x = (const char *)p.x + (u64)(unsigned)slice_start(p) * 16;
    const u32 bytes = (u32)p.part * 16;
    for (int chunk = first; chunk < last; chunk++) {
        const int *sources = p.sources + p.chunk_sources[chunk];
        const int rows = p.chunk_sources[chunk + 1] - p.chunk_sources[chunk];
        int from = 32 * loader, id = from + lane < rows ? __ldg(sources + from + lane) : 0;
        int mine = 0;
        for (int i = from; i < rows; i += 32 * kLoaders)
            mine += min(32, rows - i);
        const u32 full = ring.full + ring.stage * 8;
        barrier_wait(ring.empty + ring.stage * 8, ring.phase ^ 1);
        if (lane == 0)
            barrier_expect(full, (u32)mine * bytes);
        __syncwarp();
#pragma unroll 1
        for (; from < rows; from += 32 * kLoaders) {
            const int after = from + 32 * kLoaders + lane, more = after < rows ? __ldg(sources + after) : 0;
            if (from + lane < rows)
                bulk_load(ring.base() + (u32)(from + lane) * bytes, x + (u64)(unsigned)id * (unsigned)p.row_bytes, bytes, full);
            id = more;
        }
        ring.next();
    }
}

// A warp's stream of records. Two lines lie in shared memory and a third is on its way.
struct Stream {
    const u32 *records; // of this lane in line 0
    u32 line, slot, at, held;

    __device__ __forceinline__ Stream(const PanelParams &p, u32 first, u32 lines, int lane)
        : records(p.records + lane), line(first), slot(lines), at(0)
    {
        store_shared_word(slot + lane * 4, (int)fetch());
        store_shared_word(slot + kLine + lane * 4, (int)fetch());
        held = fetch();
        __syncwarp();
    }

    __device__ __forceinline__ u32 fetch() { return __ldg(records + (u64)line++ * 32); }

    __device__ __forceinline__ int4 take()
    {
        const int lane = threadIdx.x & 31;
        const int4 record = load_shared(slot + at + lane / kLanes * 16);
        at = (at + 16 * BS_GROUPS) & (2 * kLine - 1);
        if ((at & (kLine - 1)) == 0) {
            __syncwarp();
            store_shared_word(slot + (at ^ kLine) + lane * 4, (int)held);
            held = fetch();
            __syncwarp();
        }
        return record;
    }
};

// Where the sums of an item go: rows of the result, to which they are added, or slots of a piece.
struct Target {
    float *base; // of this lane's vector in row 0
    int pitch, left; // floats of a row; how many of them this lane has from its vector on
    bool adds;

    __device__ __forceinline__ Target(const PanelParams &p, int vector, bool piece)
        : base((piece ? p.partial : p.out) + vector * 4), pitch(piece ? p.vectors * 4 : p.columns), left(pitch - vector * 4), adds(!piece)
    {
    }

    __device__ __forceinline__ float *row(int number) const { return base + (u64)(unsigned)number * (unsigned)pitch; }
};

BS_INLINE float4 load_row(const float *from, int left)
{
#if BS_RAGGED
    return make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, left > 3 ? from[3] : 0);
#else
    return *(const float4 *)from;
#endif
}

BS_INLINE void store_row(float *to, const float4 &v, int left)
{
#if BS_RAGGED
    const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < left)
            to[j] = each[j];
#else
    *(float4 *)to = v;
#endif
}

// Stores the sums of four destinations; rows below 0 are none. What is there before is loaded together.
BS_INLINE void finish_four(const Target &target, float4 *sums, const int (&rows)[4], const float (&factors)[4])
{
    float4 made[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        made[i] = make_float4(0, 0, 0, 0);
        if (target.adds && rows[i] >= 0)
            made[i] = load_row(target.row(rows[i]), target.left);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        made[i].x += factors[i] * sums[i].x, made[i].y += factors[i] * sums[i].y;
        made[i].z += factors[i] * sums[i].z, made[i].w += factors[i] * sums[i].w;
        if (rows[i] >= 0)
            store_row(target.row(rows[i]), made[i], target.left);
        sums[i] = make_float4(0, 0, 0, 0);
    }
}

BS_INLINE void sum_rows(const PanelParams &p, u32 shared, int warp, int lane)
{
    Ring ring(p, shared);
    const int group = lane / kLanes, within = lane % kLanes, vector = slice_start(p) + within;
    const u32 place = (u32)min(within, p.part - 1) * 16;
    const int zeros = (int)(shared + kZeros);
    const bool stores = group == 0 && within < p.part && vector >= (int)blockIdx.y * p.part;
    Stream stream(p, (u32)p.lines[blockIdx.x * kWarps + warp], shared + kLines + warp * 2 * kLine, lane);
    unsigned item_row = (unsigned)p.block_items[blockIdx.x] * (kWarps * kRows) + (unsigned)(warp * kRows + lane % kRows);
    float4 sums[kRows];
#pragma unroll
    for (int k = 0; k < kRows; k++)
        sums[k] = make_float4(0, 0, 0, 0);
    int4 next = stream.take();
    const int last = p.block_chunks[blockIdx.x + 1];
#pragma unroll 1
    for (int chunk = p.block_chunks[blockIdx.x]; chunk < last; chunk++) {
        const int4 header = next;
        next = stream.take();
        const int base = (int)(ring.base() + place);
        barrier_wait(ring.full + ring.stage * 8, ring.phase);
#pragma unroll
        for (int k = 0; k < kRows; k++)
            if (header.x >> k & 1) {
                int flags;
#pragma unroll 1
                do {
                    const int4 record = next;
                    next = stream.take();
                    flags = record.x;
                    const float4 a = row_of((u32)max(base + (record.x & ~15), zeros)), b = row_of((u32)max(base + record.y, zeros));
                    const float4 c = row_of((u32)max(base + record.z, zeros)), d = row_of((u32)max(base + record.w, zeros));
                    add(sums[k], a), add(sums[k], b), add(sums[k], c), add(sums[k], d);
                } while (!(flags & 1));
            }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(ring.empty + ring.stage * 8);
        ring.next();
        if (header.y) {
            const int given = __ldg(p.rows + item_row);
            const bool piece = __any_sync(~0u, given < 0 && given != kNone);
            const int mine = given == kNone ? -1 : piece ? ~given : given;
            const float factor = mine >= 0 && !piece && p.factor ? __ldg(p.factor + mine) : 1;
            const Target target(p, vector, piece);
            item_row += kWarps * kRows;
#pragma unroll
            for (int k = 0; k < kRows; k += 4) {
                int rows[4];
                float factors[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = __shfl_sync(~0u, mine, k + i);
                    rows[i] = stores ? row : -1, factors[i] = __shfl_sync(~0u, factor, k + i);
                    float4 &sum = sums[k + i];
#pragma unroll
                    for (int o = kLanes; o < 32; o <<= 1) {
                        sum.x += __shfl_xor_sync(~0u, sum.x, o), sum.y += __shfl_xor_sync(~0u, sum.y, o);
                        sum.z += __shfl_xor_sync(~0u, sum.z, o), sum.w += __shfl_xor_sync(~0u, sum.w, o);
                    }
                }
                finish_four(target, sums + k, rows, factors);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) spmm_panels(const PanelParams p)
{
    extern __shared__ __align__(128) char memory[];
    const u32 shared = shared_address(memory);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; i++) {
            barrier_init(shared + i * 8, kLoaders);
            barrier_init(shared + kEmpty + i * 8, kWarps);
        }
        fence_barrier_init();
        store_shared(shared + kZeros, 0, 0, 0, 0);
    }
    __syncthreads();
    if (warp < kWarps) {
        registers_claim<kSumRegisters>();
        sum_rows(p, shared, warp, lane);
    } else {
        registers_release<kLoadRegisters>();
        load_rows(p, shared, lane);
    }
}

// Adds the sums of a row's pieces to the row, in order.
extern "C" __global__ void __launch_bounds__(256) add_pieces(const PieceParams p)
{
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    const int entry = (int)(index / (unsigned)p.columns), column = (int)(index % (unsigned)p.columns);
    if (entry >= p.count)
        return;
    const int row = p.pieces[entry * 3], slot = p.pieces[entry * 3 + 1], pieces = p.pieces[entry * 3 + 2];
    const u64 pitch = (u64)(unsigned)p.vectors * 4;
    const float *from = p.partial + (unsigned)slot * pitch + (unsigned)column;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < pieces; i++)
        sum += __ldg(from + (u64)(unsigned)(i * kWarps * kRows) * pitch);
    const float factor = p.factor ? __ldg(p.factor + row) : 1;
    p.out[(u64)(unsigned)row * (unsigned)p.columns + (unsigned)column] += factor * sum;
}
