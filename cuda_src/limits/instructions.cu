// Rates of the matrix units: every warp repeats one instruction on operands that stay in registers or shared memory.
#include "common/wgmma.cuh"

struct LimitsParams {
    const u32 *seed; // 64 KB of random words for shared memory and registers
    int *out;
    int repeats;
};

#ifdef BS_WARPGROUP
// Two warpgroups a block, 64 x 64 BS_NB x 32 bytes an instruction; operands in shared memory.
extern "C" __global__ void __launch_bounds__(256, 1) matrix_rate(const LimitsParams p)
{
    extern __shared__ __align__(1024) u32 memory[];
    const u32 base = (shared_address(memory) + 1023u) & ~1023u, skip = (base - shared_address(memory)) / 4;
    for (int i = threadIdx.x; i < 12288; i += 256)
        memory[skip + i] = p.seed[i];
    fence_async_proxy();
    __syncthreads();
    int acc[32 * BS_NB];
#pragma unroll
    for (int i = 0; i < 32 * BS_NB; i++)
        acc[i] = 0;
    const u64 a = wgmma_descriptor(base + (threadIdx.x >> 7) * 8192), b = wgmma_descriptor(base + 16384);
    for (int repeat = 0; repeat < p.repeats; repeat++) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Wgmma<64 * BS_NB>::run(acc, a + 2 * step, b + 2 * step, 1);
        wgmma_commit();
        wgmma_wait<0>();
    }
    wgmma_pin(acc);
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 32 * BS_NB; i++)
        sum += acc[i];
    p.out[blockIdx.x * 256 + threadIdx.x] = sum;
}
#else
#ifdef BS_BYTES
#define BS_MMA "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
#else
#define BS_MMA "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
#endif
// Sixteen warps a block, 16 x 8 x 32 bytes an instruction, eight independent ones in flight; operands in registers.
extern "C" __global__ void __launch_bounds__(512, 1) matrix_rate(const LimitsParams p)
{
    u32 a[4], b[2];
    int acc[8][4];
    for (int i = 0; i < 4; i++)
        a[i] = p.seed[threadIdx.x * 8 + i];
    for (int i = 0; i < 2; i++)
        b[i] = p.seed[threadIdx.x * 8 + 4 + i];
#pragma unroll
    for (int i = 0; i < 32; i++)
        acc[i / 4][i % 4] = 0;
    for (int repeat = 0; repeat < p.repeats; repeat++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            asm volatile(BS_MMA "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+r"(acc[i][0]), "+r"(acc[i][1]), "+r"(acc[i][2]), "+r"(acc[i][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        sum += acc[i / 4][i % 4];
    p.out[blockIdx.x * 512 + threadIdx.x] = sum;
}
#endif
