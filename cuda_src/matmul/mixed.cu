// Mixed-input product for small results: rows of bytes times columns of packed planes, which every warp unpacks in its registers just
// before the matrix instructions (mma.sync, sm_80 and later). It takes one launch, where a product of bytes needs another one before it.
//
// A block computes 8 BS_MI rows by 16 BS_NJ BS_WN columns. The contraction axis is divided among BS_WK groups of BS_WN warps, and among the
// blocks of a cluster; each group has its own ring and waits for no other group until the sums are added up. A lane takes one word of each
// plane of its column, 32 elements, and transposes them into the operands of four instructions. The bytes are in the order of this
// transposition (bits/octet_turn.cuh), and so are those of the rows, so no byte moves from lane to lane. Columns of the result are the rows
// of the instruction; so one load of a lane from the rows gives whole operands.
//
// Compile-time: BS_WN, BS_WK, BS_MI, BS_NJ, BS_SPAN (blocks of 128 elements in a stage), BS_STAGES, BS_PLANES (of the columns, up to 8),
// BS_EXTEND (the last plane is a sign, repeated up to the sign bit of the byte), BS_SIGNED (1: bytes of rows, 2: of columns).
// Floor: a launch and the latency from a load to the result; then the bytes that reach a multiprocessor, some 40 a clock. See
// docs/kernels/matmul.md.
#include "bits/octet_turn.cuh"
#include "matmul/passes.cuh"

#ifndef BS_SIGNED
#define BS_SIGNED 0
#endif

constexpr int kGroup = 32 * BS_WN, kThreads = kGroup * BS_WK;
constexpr int kRows = 8 * BS_MI, kColumns = 16 * BS_NJ * BS_WN;
#ifdef BS_EXTEND
constexpr int kFilled = 8;
#else
constexpr int kFilled = BS_PLANES;
#endif
constexpr int kPieceBytes = 16; // of a column's plane in a block of the contraction axis
constexpr int kBytesA = kRows * kRowBytes, kBytesB = BS_PLANES * kColumns * kPieceBytes;
constexpr int kBytesStage = BS_SPAN * (kBytesA + kBytesB);
constexpr int kQuads = kColumns / 4, kSumsPitch = 4 * (kColumns + 4); // of a row of sums, so that fragments do not conflict in banks
constexpr int kRing = BS_STAGES * kBytesStage > kRows *kSumsPitch ? BS_STAGES * kBytesStage : kRows * kSumsPitch; // has room for either

struct MixedParams {
    const unsigned char *a; // (batches, m, blocks, 128)
    const u32 *b; // (batches, n, planes, 4 blocks)
    int *out;
    const int *row_term, *col_term; // added to every row, column; may be null
    const int2 *batch_indices; // batch -> index into a, b; null: the batch itself
    int m, n, blocks;
    int weight; // of a product of bytes
    int parts_log; // of the contraction axis, one for each block of a cluster
    int early; // whether no kernel that may still be running computes a
};

typedef int Sums[BS_MI][BS_NJ][4];

BS_INLINE void multiply_bytes(int (&d)[4], const u32 (&columns)[4], int rows0, int rows1)
{
#if BS_SIGNED == 0
    mma_m16n8k32_u8(d, columns, rows0, rows1);
#elif BS_SIGNED == 1
    mma_m16n8k32_u8s8(d, columns, rows0, rows1);
#elif BS_SIGNED == 2
    mma_m16n8k32_s8u8(d, columns, rows0, rows1);
#else
    mma_m16n8k32_s8(d, columns, rows0, rows1);
#endif
}

// The part of one group among all groups; their number is a power of two, so no division is needed.
BS_INLINE Range spans_of(const MixedParams &g, int worker)
{
    const int spans = (g.blocks + BS_SPAN - 1) / BS_SPAN;
    return {(spans * worker / BS_WK) >> g.parts_log, (spans * (worker + 1) / BS_WK) >> g.parts_log};
}

// One group of warps and its ring. Rows of a stage are 128 bytes, with 16-byte chunk c at c ^ (row % 8), so that neither copies nor loads
// conflict in banks. The columns follow, plane by plane, 16 bytes each.
struct Group {
    const MixedParams &g;
    const unsigned char *a, *b; // this thread's first copies of block 0
    int rows; // rows of the result from the first one on that this thread copies
    int plane, span; // of the columns: the first plane that this thread copies, and the block of a stage that it copies
    // Addresses in stage 0.
    bool has_column;
    u32 to_a, to_b; // where this thread copies to
    u32 first, second, at_b; // where this lane reads: both halves of its words of rows, and the columns

    static constexpr int kStride = kGroup / 8; // rows from one copy of a thread to its next
    static constexpr int kPlaneStride = kGroup / (BS_SPAN * kColumns); // planes from one copy of a thread to its next
    static_assert(kRows % kStride == 0, "every thread copies the same chunk of each row");
    static_assert(kPlaneStride >= 1, "every thread copies one column");

    __device__ __forceinline__ Group(const MixedParams &params, u32 rings, int row0, int column0, int2 operand) : g(params)
    {
        const int member = (int)threadIdx.x % kGroup, lane = member & 31, t = lane & 3, r = lane >> 2;
        const u32 ring = rings + (int)threadIdx.x / kGroup * kRing, columns_at = ring + BS_SPAN * kBytesA;
        first = ring + r * kRowBytes + (((2 * t) ^ r) << 4);
        second = ring + r * kRowBytes + (((2 * t + 1) ^ r) << 4);
        at_b = columns_at + ((member >> 5) * 16 * BS_NJ + r) * kPieceBytes + 4 * t;

        const int chunk = member & 7, row = row0 + (member >> 3);
        rows = g.m - row;
        a = g.a + ((long long)operand.x * g.m + row) * g.blocks * kRowBytes + chunk * 16;
        to_a = ring + (member >> 3) * kRowBytes + ((chunk ^ (member >> 3 & 7)) << 4);

        // Blocks of one column and plane are adjacent, and so are the threads that copy them.
        const int column = member / BS_SPAN % kColumns;
        span = member % BS_SPAN, plane = member / (BS_SPAN * kColumns);
        has_column = column0 + column < g.n;
        b = (const unsigned char *)g.b +
            ((((long long)operand.y * g.n + column0 + column) * BS_PLANES + plane) * g.blocks + span) * kPieceBytes;
        to_b = columns_at + ((span * BS_PLANES + plane) * kColumns + column) * kPieceBytes;
    }

    __device__ __forceinline__ void meet() const
    {
        if (BS_WN == 1)
            __syncwarp();
        else if (BS_WK == 1)
            __syncthreads();
        else
            named_barrier(1 + (int)threadIdx.x / kGroup, kGroup);
    }

    // Copies the rows of the blocks from `block` on, and zeros where there are none.
    __device__ __forceinline__ void copy_rows(int stage, int block) const
    {
        const unsigned char *from = a + block * kRowBytes;
        const long long step = (long long)kStride * g.blocks * kRowBytes;
        const u32 to = to_a + stage * kBytesStage;
#pragma unroll
        for (int i = 0; i < kRows / kStride; i++, from += step)
#pragma unroll
            for (int s = 0; s < BS_SPAN; s++) {
                const bool valid = i * kStride < rows && (s == 0 || block + s < g.blocks);
                copy_async((to + s * kBytesA + i * (kStride * kRowBytes)) ^ ((i * kStride & 7) << 4), from + s * kRowBytes, valid);
            }
    }

    // Copies the planes of the columns for the same blocks.
    __device__ __forceinline__ void copy_columns(int stage, int block) const
    {
        const unsigned char *from = b + block * kPieceBytes;
        const long long step = (long long)kPlaneStride * g.blocks * kPieceBytes;
        const u32 to = to_b + stage * kBytesStage;
        const bool valid = has_column && (BS_SPAN == 1 || block + span < g.blocks);
#pragma unroll
        for (int i = 0; i < (BS_PLANES + kPlaneStride - 1) / kPlaneStride; i++, from += step)
            if ((i + 1) * kPlaneStride <= BS_PLANES || plane + i * kPlaneStride < BS_PLANES)
                copy_async(to + i * kPlaneStride * kColumns * kPieceBytes, from, valid);
    }

    // Unpacks one block of the columns and multiplies it by all rows of the tile.
    __device__ __forceinline__ void multiply_block(Sums &acc, u32 offset_a, u32 offset_b) const
    {
        u32 columns[BS_NJ][4][4]; // operands of the four instructions
#pragma unroll
        for (int j = 0; j < BS_NJ; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 w[8];
#pragma unroll
                for (int p = 0; p < 8; p++)
                    if (p < BS_PLANES)
                        w[p] = (u32)load_shared_word(at_b + offset_b + (p * kColumns + 16 * j + 8 * half) * kPieceBytes);
                    else
                        w[p] = kFilled == 8 ? w[BS_PLANES - 1] : 0;
                turn_octets<kFilled>(w);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    columns[j][e / 2][half + 2 * (e & 1)] = w[e];
            }
#pragma unroll
        for (int i = 0; i < BS_MI; i++) {
            const u32 down = offset_a + i * (8 * kRowBytes);
            const int4 x = load_shared(first + down), y = load_shared(second + down);
#pragma unroll
            for (int j = 0; j < BS_NJ; j++) {
                multiply_bytes(acc[i][j], columns[j][0], x.x, x.y);
                multiply_bytes(acc[i][j], columns[j][1], x.z, x.w);
                multiply_bytes(acc[i][j], columns[j][2], y.x, y.y);
                multiply_bytes(acc[i][j], columns[j][3], y.z, y.w);
            }
        }
    }

    __device__ __forceinline__ void multiply_stage(Sums &acc, int stage, int block) const
    {
        const u32 offset = stage * kBytesStage;
#pragma unroll
        for (int s = 0; s < BS_SPAN; s++)
            if (s == 0 || block + s < g.blocks)
                multiply_block(acc, offset + s * kBytesA, offset + s * kBytesB);
    }
};

// Puts the sums of a group into its own part of shared memory (which may be that of the rings): lane 4 r + t has rows 2 t and 2 t + 1 of
// columns r and r + 8 of a fragment.
BS_INLINE void put_sums(const Sums &acc, u32 slots)
{
    const int lane = threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const u32 to = slots + (warp / BS_WN * kRows + 2 * (lane & 3)) * kSumsPitch + ((warp % BS_WN) * BS_NJ * 16 + (lane >> 2)) * 4;
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BS_MI; i++)
#pragma unroll
        for (int j = 0; j < BS_NJ; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_shared_word(to + (8 * i + (e & 1)) * kSumsPitch + 64 * j + 32 * (e >> 1), acc[i][j][e]);
    __syncthreads();
}

// Four neighbouring sums of a row of the tile, added up over all groups.
BS_INLINE int4 quad_of(u32 slots, int row, int quad)
{
    int4 sum = load_shared(slots + row * kSumsPitch + quad * 16);
#pragma unroll
    for (int group = 1; group < BS_WK; group++) {
        const int4 v = load_shared(slots + (group * kRows + row) * kSumsPitch + quad * 16);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    return sum;
}

BS_INLINE void store_quad(const MixedParams &g, const int4 &sum, int batch, int2 operand, int row, int column)
{
    if (row >= g.m || column >= g.n)
        return;
    const int here = g.row_term ? g.row_term[(long long)operand.x * g.m + row] : 0;
    int v[4] = {sum.x, sum.y, sum.z, sum.w}, *to = g.out + ((long long)batch * g.m + row) * g.n + column;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = v[i] * g.weight + here;
    if (g.col_term)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] += column + i < g.n ? g.col_term[(long long)operand.y * g.n + column + i] : 0;
    if (g.n % 4 == 0 && ((size_t)g.out & 15) == 0) {
        *(int4 *)to = make_int4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (column + i < g.n)
                to[i] = v[i];
    }
}

#if __CUDA_ARCH__ >= 900
// Each block of a cluster has a part of the contraction axis and owns an equal share of the tile's rows. It sends the other blocks their
// rows, and adds up what it receives.
struct Parts {
    const int log, rank;
    const u32 slots, barrier;

    __device__ __forceinline__ int count() const { return 1 << log; }
    __device__ __forceinline__ int rows() const { return kRows >> log; }

    __device__ __forceinline__ void begin() const
    {
        barrier_init(barrier, 1);
        barrier_expect(barrier, (count() - 1) * rows() * kColumns * 4);
        fence_barrier_init();
    }

    // Where a quad from another block lies; rows are counted from the first one that the block owns.
    __device__ __forceinline__ u32 slot(int from, int owner, int row, int quad) const
    {
        return slots + (((from - (from > owner)) * rows() + row) * kQuads + quad) * 16;
    }

    // Sends the sums that other blocks own, and waits for those from the others.
    __device__ __forceinline__ void send(u32 sums) const
    {
#pragma unroll 1
        for (int item = threadIdx.x; item < kRows * kQuads; item += kThreads) {
            const int row = item / kQuads, quad = item % kQuads, owner = (row << log) / kRows;
            if (owner == rank)
                continue;
            const int4 v = quad_of(sums, row, quad);
            store_remote(remote_address(slot(rank, owner, row - owner * rows(), quad), owner), v.x, v.y, v.z, v.w,
                         remote_address(barrier, owner));
        }
        barrier_wait(barrier, 0);
    }

    // Adds what the other blocks have sent for this quad.
    __device__ __forceinline__ void add(int4 &sum, int row, int quad) const
    {
#pragma unroll 1
        for (int other = 0; other < count(); other++)
            if (other != rank) {
                const int4 v = load_shared(slot(other, rank, row, quad));
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
    }
};
#endif

// Grid: (row tiles times parts, column tiles, batches), clusters of all parts of a tile.
extern "C" __global__ void __launch_bounds__(kThreads) matmul_mixed(const __grid_constant__ MixedParams g)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 rings = (shared_address(memory) + 127u) & ~127u;
    const int parts = 1 << g.parts_log, part = (int)blockIdx.x & (parts - 1), batch = blockIdx.z, worker = (int)threadIdx.x / kGroup;
    const int row0 = ((int)blockIdx.x >> g.parts_log) * kRows, column0 = (int)blockIdx.y * kColumns;
    const int2 operand = operands_of(g.batch_indices, batch);
    const Group group(g, rings, row0, column0, operand);
    const Range spans = spans_of(g, part * BS_WK + worker);
#if __CUDA_ARCH__ >= 900
    __shared__ alignas(8) u64 barrier;
    const Parts among = {g.parts_log, part, rings + BS_WK * kRing, shared_address(&barrier)};
    let_next_kernel_start(); // starting it takes as long as a small product
    if (!g.early)
        wait_for_previous_kernel();
#endif
#pragma unroll 1
    for (int i = 0; i < BS_STAGES - 1; i++)
        if (spans.begin + i < spans.end)
            group.copy_rows(i, (spans.begin + i) * BS_SPAN);
#if __CUDA_ARCH__ >= 900
    if (parts > 1) {
        if (threadIdx.x == 0)
            among.begin();
        cluster_meet();
    }
    wait_for_previous_kernel();
#endif
#pragma unroll 1
    for (int i = 0; i < BS_STAGES - 1; i++) {
        if (spans.begin + i < spans.end)
            group.copy_columns(i, (spans.begin + i) * BS_SPAN);
        copy_commit();
    }
    Sums acc;
#pragma unroll
    for (int i = 0; i < BS_MI; i++)
#pragma unroll
        for (int j = 0; j < BS_NJ; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][j][e] = 0;
    int stage = 0;
#pragma unroll 1
    for (int span = spans.begin; span < spans.end; span++) {
        copy_wait<BS_STAGES - 2>();
        group.meet();
        const int ahead = span + BS_STAGES - 1;
        if (ahead < spans.end) {
            const int free = stage == 0 ? BS_STAGES - 1 : stage - 1;
            group.copy_rows(free, ahead * BS_SPAN);
            group.copy_columns(free, ahead * BS_SPAN);
        }
        copy_commit();
        group.multiply_stage(acc, stage, span * BS_SPAN);
        stage = stage == BS_STAGES - 1 ? 0 : stage + 1;
    }
    put_sums(acc, rings);
    int owned = kRows, from = 0;
#if __CUDA_ARCH__ >= 900
    if (parts > 1) {
        among.send(rings);
        owned = among.rows(), from = part * owned;
    }
#endif
#pragma unroll 2
    for (int item = threadIdx.x; item < owned * kQuads; item += kThreads) {
        const int row = item / kQuads, quad = item % kQuads;
        int4 sum = quad_of(rings, from + row, quad);
#if __CUDA_ARCH__ >= 900
        if (parts > 1)
            among.add(sum, row, quad);
#endif
        store_quad(g, sum, batch, operand, row0 + from + row, column0 + 4 * quad);
    }
}
