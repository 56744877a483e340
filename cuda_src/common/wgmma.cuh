// Warpgroup matrix instructions (sm_90a): D (64 x N, int32, registers) += A (64 x 32 bytes) B^T (N x 32 bytes). A and B are in shared
// memory, in rows of 128 bytes along the contraction axis with the 128-byte swizzle. One element is one bit (AND, then population count)
// or, with BS_BYTES, one byte, signed where BS_SIGNED has a bit (1 for A, 2 for B). Either way a step takes 32 bytes of the contraction
// axis.
#ifndef BITSPARSE_WGMMA_CUH
#define BITSPARSE_WGMMA_CUH

#include "common/ptx.cuh"

#ifndef BS_SIGNED
#define BS_SIGNED 0
#endif
#if BS_SIGNED & 1
#define BS_BYTES_A ".s8"
#else
#define BS_BYTES_A ".u8"
#endif
#if BS_SIGNED & 2
#define BS_BYTES_B ".s8 "
#else
#define BS_BYTES_B ".u8 "
#endif
#ifdef BS_BYTES
#define BS_WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32" BS_BYTES_A BS_BYTES_B
#else
#define BS_WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k256.s32.b1.b1.and.popc "
#endif

BS_INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
BS_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int pending> BS_INLINE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Keeps the compiler from moving uses of an accumulator across a wait.
template <int n> BS_INLINE void wgmma_pin(int (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

// Descriptor of a swizzled tile at a 1024-byte aligned shared address: groups of 8 rows are 1024 bytes apart. Adding s * 2 moves it
// 32 bytes along the contraction axis.
BS_INLINE u64 wgmma_descriptor(u32 address)
{
    return (u64)((address & 0x3ffffu) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The first 8, 16, ... accumulators of a thread: as names in the instruction, and as operands.
#define BS_P(i0, i1, i2, i3, i4, i5, i6, i7) "%" #i0 ",%" #i1 ",%" #i2 ",%" #i3 ",%" #i4 ",%" #i5 ",%" #i6 ",%" #i7
#define BS_NAMES_8 BS_P(0, 1, 2, 3, 4, 5, 6, 7)
#define BS_NAMES_16 BS_NAMES_8 "," BS_P(8, 9, 10, 11, 12, 13, 14, 15)
#define BS_NAMES_24 BS_NAMES_16 "," BS_P(16, 17, 18, 19, 20, 21, 22, 23)
#define BS_NAMES_32 BS_NAMES_24 "," BS_P(24, 25, 26, 27, 28, 29, 30, 31)
#define BS_NAMES_40 BS_NAMES_32 "," BS_P(32, 33, 34, 35, 36, 37, 38, 39)
#define BS_NAMES_48 BS_NAMES_40 "," BS_P(40, 41, 42, 43, 44, 45, 46, 47)
#define BS_NAMES_56 BS_NAMES_48 "," BS_P(48, 49, 50, 51, 52, 53, 54, 55)
#define BS_NAMES_64 BS_NAMES_56 "," BS_P(56, 57, 58, 59, 60, 61, 62, 63)
#define BS_NAMES_72 BS_NAMES_64 "," BS_P(64, 65, 66, 67, 68, 69, 70, 71)
#define BS_NAMES_80 BS_NAMES_72 "," BS_P(72, 73, 74, 75, 76, 77, 78, 79)
#define BS_NAMES_88 BS_NAMES_80 "," BS_P(80, 81, 82, 83, 84, 85, 86, 87)
#define BS_NAMES_96 BS_NAMES_88 "," BS_P(88, 89, 90, 91, 92, 93, 94, 95)
#define BS_NAMES_104 BS_NAMES_96 "," BS_P(96, 97, 98, 99, 100, 101, 102, 103)
#define BS_NAMES_112 BS_NAMES_104 "," BS_P(104, 105, 106, 107, 108, 109, 110, 111)
#define BS_NAMES_120 BS_NAMES_112 "," BS_P(112, 113, 114, 115, 116, 117, 118, 119)
#define BS_NAMES_128 BS_NAMES_120 "," BS_P(120, 121, 122, 123, 124, 125, 126, 127)
#define BS_R8(d, i)                                                                                                                        \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define BS_SUMS_8(d) BS_R8(d, 0)
#define BS_SUMS_16(d) BS_SUMS_8(d), BS_R8(d, 8)
#define BS_SUMS_24(d) BS_SUMS_16(d), BS_R8(d, 16)
#define BS_SUMS_32(d) BS_SUMS_24(d), BS_R8(d, 24)
#define BS_SUMS_40(d) BS_SUMS_32(d), BS_R8(d, 32)
#define BS_SUMS_48(d) BS_SUMS_40(d), BS_R8(d, 40)
#define BS_SUMS_56(d) BS_SUMS_48(d), BS_R8(d, 48)
#define BS_SUMS_64(d) BS_SUMS_56(d), BS_R8(d, 56)
#define BS_SUMS_72(d) BS_SUMS_64(d), BS_R8(d, 64)
#define BS_SUMS_80(d) BS_SUMS_72(d), BS_R8(d, 72)
#define BS_SUMS_88(d) BS_SUMS_80(d), BS_R8(d, 80)
#define BS_SUMS_96(d) BS_SUMS_88(d), BS_R8(d, 88)
#define BS_SUMS_104(d) BS_SUMS_96(d), BS_R8(d, 96)
#define BS_SUMS_112(d) BS_SUMS_104(d), BS_R8(d, 104)
#define BS_SUMS_120(d) BS_SUMS_112(d), BS_R8(d, 112)
#define BS_SUMS_128(d) BS_SUMS_120(d), BS_R8(d, 120)
#define BS_ASM(n, registers, a, b, keep)                                                                                                   \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\n" BS_WGMMA(n) "{" registers "}, " a ", " b ", p;\n}"

// The instruction for `columns` columns; keep == 0 overwrites D, any other value accumulates.
template <int columns> struct Wgmma;

#define BS_INSTRUCTION(n, count, a, b, kept)                                                                                               \
    template <> struct Wgmma<n> {                                                                                                          \
        static __device__ __forceinline__ void run(int (&d)[count], u64 from_a, u64 from_b, int keep)                                      \
        {                                                                                                                                  \
            asm volatile(BS_ASM(n, BS_NAMES_##count, "%" #a, "%" #b, "%" #kept)                                                            \
                         : BS_SUMS_##count(d)                                                                                              \
                         : "l"(from_a), "l"(from_b), "r"(keep));                                                                           \
        }                                                                                                                                  \
    }

BS_INSTRUCTION(16, 8, 8, 9, 10);
BS_INSTRUCTION(32, 16, 16, 17, 18);
BS_INSTRUCTION(48, 24, 24, 25, 26);
BS_INSTRUCTION(64, 32, 32, 33, 34);
BS_INSTRUCTION(80, 40, 40, 41, 42);
BS_INSTRUCTION(96, 48, 48, 49, 50);
BS_INSTRUCTION(112, 56, 56, 57, 58);
BS_INSTRUCTION(128, 64, 64, 65, 66);
BS_INSTRUCTION(144, 72, 72, 73, 74);
BS_INSTRUCTION(160, 80, 80, 81, 82);
BS_INSTRUCTION(176, 88, 88, 89, 90);
BS_INSTRUCTION(192, 96, 96, 97, 98);
BS_INSTRUCTION(208, 104, 104, 105, 106);
BS_INSTRUCTION(224, 112, 112, 113, 114);
BS_INSTRUCTION(240, 120, 120, 121, 122);
BS_INSTRUCTION(256, 128, 128, 129, 130);

#endif
