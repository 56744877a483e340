// Products over the rows of two matrices of signed bytes, without a transposition in memory: C (m, n) = A^T B, A (rows, m), B (rows, n), as
// int32 sums over pieces of the rows. Instructions want four bytes of the contraction axis in a word, but a word in memory has four columns
// of one row. So a lane loads the words of four rows and transposes four by four bytes in registers, with two instructions a word. Which
// rows make up a word does not matter, as long as they are the same in A and B.
//
// A block computes 64 BS_DOWN x 64 BS_ACROSS of C from one piece of the rows, each of its warps 64 x 64. Rows come 64 at a time through a
// ring of three stages. Blocks of the same rows follow each other, so A comes from memory once and from the L2 after that.
//
// Compile-time: BS_DOWN, BS_ACROSS (warps along the rows and the columns of C), BS_BLOCKS (resident blocks of a multiprocessor).
// Floor: the bytes of A and B at the memory's rate. (232 965 x 602)^T (232 965 x 128) on an H100: 170 MB, 55 us; as many products of bytes
// take 20 us; measured 97 us.
#include "common/ptx.cuh"

struct OverRowsParams {
    const unsigned char *a, *b; // rows are 16-byte aligned multiples of 16 bytes
    int *sums; // (pieces, m, pitch)
    long long rows;
    int a_bytes, b_bytes; // of a row
    int m, pitch; // pitch: columns of C, rounded up to a multiple of four
    int piece; // rows of a piece, a multiple of a stage's
    int down, across; // tiles
};

constexpr int kWarps = BS_DOWN * BS_ACROSS, kThreads = 32 * kWarps;
constexpr int kStages = 3, kRows = 64;
// Eight words more than needed, so that the words of rows r .. r + 3 and eight columns lie in 32 banks.
constexpr int kRowA = 64 * BS_DOWN + 32, kRowB = 64 * BS_ACROSS + 32;
constexpr int kBytesA = kRows * kRowA, kStage = kBytesA + kRows * kRowB;

// Transposes bytes: word c gets byte c of each of the four words.
BS_INLINE void turn(const u32 (&w)[4], u32 (&columns)[4])
{
    const u32 low = __byte_perm(w[0], w[1], 0x5140), low_too = __byte_perm(w[2], w[3], 0x5140);
    const u32 high = __byte_perm(w[0], w[1], 0x7362), high_too = __byte_perm(w[2], w[3], 0x7362);
    columns[0] = __byte_perm(low, low_too, 0x5410);
    columns[1] = __byte_perm(low, low_too, 0x7632);
    columns[2] = __byte_perm(high, high_too, 0x5410);
    columns[3] = __byte_perm(high, high_too, 0x7632);
}

// 32 rows of 32 columns as they are in memory: lane 4 g + t has columns 4 g .. 4 g + 3 of rows t + 4 i, and of the rows 16 further on.
struct Raw {
    u32 of[2][4];

    template <int row_bytes> __device__ __forceinline__ void load(u32 from)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            of[i >> 2][i & 3] = (u32)load_shared_word(from + 4 * i * row_bytes);
    }
};

// The same, transposed: of[c] has column 4 g + c.
struct Turned {
    u32 of[4][2];

    __device__ __forceinline__ explicit Turned(const Raw &raw)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 columns[4];
            turn(raw.of[half], columns);
#pragma unroll
            for (int c = 0; c < 4; c++)
                of[c][half] = columns[c];
        }
    }
};

struct Worker {
    const OverRowsParams &g;
    const u32 memory;
    const int row_tile, column_tile, piece;
    const long long first, last; // rows
    int acc[2][2][2][4][4]; // 32 rows of C, two instructions of 16, 32 columns, four instructions of 8

    __device__ __forceinline__ Worker(const OverRowsParams &params, u32 address)
        : g(params), memory(address), row_tile((int)blockIdx.x / params.across % params.down), column_tile((int)blockIdx.x % params.across),
          piece((int)blockIdx.x / (params.across * params.down)), first((long long)piece * params.piece),
          last(first + params.piece < params.rows ? first + params.piece : params.rows)
    {
    }

    // Copies 16 bytes a thread; writes zeros past the last row and column.
    template <int chunks, int row_bytes>
    __device__ __forceinline__ void copy(const unsigned char *from, int bytes, int begin, long long row0, u32 to) const
    {
#pragma unroll
        for (int i = 0; i < (kRows * chunks + kThreads - 1) / kThreads; i++) {
            const int at = i * kThreads + (int)threadIdx.x, row = at / chunks, chunk = at - row * chunks;
            if (kRows * chunks % kThreads == 0 || at < kRows * chunks) {
                const int byte = begin + 16 * chunk;
                const bool valid = row0 + row < last && byte < bytes;
                copy_async(to + row * row_bytes + 16 * chunk, valid ? from + (row0 + row) * bytes + byte : from, valid);
            }
        }
    }

    __device__ __forceinline__ void fetch(int stage, int slot) const
    {
        const long long row0 = first + (long long)stage * kRows;
        if (row0 < last) {
            const u32 to = memory + slot * kStage;
            copy<4 * BS_DOWN, kRowA>(g.a, g.a_bytes, row_tile * 64 * BS_DOWN, row0, to);
            copy<4 * BS_ACROSS, kRowB>(g.b, g.b_bytes, column_tile * 64 * BS_ACROSS, row0, to + kBytesA);
        }
        copy_commit();
    }

    // The next operands are loaded while the instructions run.
    __device__ __forceinline__ void multiply(u32 a, u32 b)
    {
        constexpr int steps = kRows / 32;
        Raw next_left[2], next_right;
        next_left[0].load<kRowA>(a);
        next_left[1].load<kRowA>(a + 32);
        next_right.load<kRowB>(b);
#pragma unroll
        for (int step = 0; step < steps; step++) {
            const Turned left[2] = {Turned(next_left[0]), Turned(next_left[1])};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const Turned right(next_right);
                if (j == 0) {
                    next_right.load<kRowB>(b + step * 32 * kRowB + 32);
                } else if (step + 1 < steps) {
                    next_left[0].load<kRowA>(a + (step + 1) * 32 * kRowA);
                    next_left[1].load<kRowA>(a + (step + 1) * 32 * kRowA + 32);
                    next_right.load<kRowB>(b + (step + 1) * 32 * kRowB);
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const u32(&one)[2] = left[i].of[2 * k], (&other)[2] = left[i].of[2 * k + 1];
                        const u32 rows[4] = {one[0], other[0], one[1], other[1]};
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            mma_m16n8k32_s8(acc[i][k][j][c], rows, right.of[c][0], right.of[c][1]);
                    }
            }
        }
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[i >> 2][i >> 1 & 1][i & 1][c][e] = 0;
    }

    __device__ __forceinline__ void run()
    {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const u32 lane_a = (lane & 3) * kRowA + (lane >> 2) * 4 + warp / BS_ACROSS * 64;
        const u32 lane_b = (lane & 3) * kRowB + (lane >> 2) * 4 + warp % BS_ACROSS * 64 + kBytesA;
        const int stages = (int)((last - first + kRows - 1) / kRows);
        clear();
#pragma unroll
        for (int stage = 0; stage < kStages - 1; stage++)
            fetch(stage, stage);
        int slot = 0;
#pragma unroll 1
        for (int stage = 0; stage < stages; stage++) {
            copy_wait<kStages - 2>();
            __syncthreads(); // this stage has arrived, and all warps are done with the previous one
            fetch(stage + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
            multiply(memory + slot * kStage + lane_a, memory + slot * kStage + lane_b);
            slot = slot == kStages - 1 ? 0 : slot + 1;
        }
        copy_wait_all();
        store(lane, warp);
    }

    // Instruction k of 32 rows has rows 4 g + 2 k and the next one; instruction c of 32 columns has columns 8 t + c and four further on.
    __device__ __forceinline__ void store(int lane, int warp) const
    {
        const int row0 = (row_tile * BS_DOWN + warp / BS_ACROSS) * 64 + (lane >> 2) * 4;
        const int column0 = (column_tile * BS_ACROSS + warp % BS_ACROSS) * 64 + (lane & 3) * 8;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = row0 + 32 * i + 2 * k + e / 2, column = column0 + 32 * j + e % 2 * 4;
                        const int (&four)[4][4] = acc[i][k][j];
                        if (row < g.m && column < g.pitch)
                            *(int4 *)(g.sums + ((long long)piece * g.m + row) * g.pitch + column) =
                                make_int4(four[0][e], four[1][e], four[2][e], four[3][e]);
                    }
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, BS_BLOCKS) bytes_over_rows(const OverRowsParams g)
{
    extern __shared__ __align__(16) unsigned char memory[];
    Worker me(g, shared_address(memory));
    me.run();
}
