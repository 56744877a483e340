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

#define BS_R8(d, i)                                                                                                                        \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define BS_R16(d, i) BS_R8(d, i), BS_R8(d, i + 8)
#define BS_R32(d, i) BS_R16(d, i), BS_R16(d, i + 16)
#define BS_P0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BS_P8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define BS_P16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define BS_P24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define BS_P32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define BS_P48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define BS_P64                                                                                                                             \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define BS_P96                                                                                                                             \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,"      \
    "%122,%123,%124,%125,%126,%127"
#define BS_FIRST32 BS_P0 BS_P8 BS_P16 BS_P24
#define BS_FIRST64 BS_FIRST32 BS_P32 BS_P48
#define BS_ASM(n, registers, a, b, keep)                                                                                                   \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\n" BS_WGMMA(n) "{" registers "}, " a ", " b ", p;\n}"

// The instruction for `columns` columns; keep == 0 overwrites D, any other value accumulates.
template <int columns> struct Wgmma;

#define BS_INSTRUCTION(n, registers, a, b, kept, ...)                                                                                      \
    template <> struct Wgmma<n> {                                                                                                          \
        static __device__ __forceinline__ void run(int (&d)[n / 2], u64 from_a, u64 from_b, int keep)                                      \
        {                                                                                                                                  \
            asm volatile(BS_ASM(n, registers, a, b, kept) : __VA_ARGS__ : "l"(from_a), "l"(from_b), "r"(keep));                            \
        }                                                                                                                                  \
    }

BS_INSTRUCTION(16, BS_P0, "%8", "%9", "%10", BS_R8(d, 0));
BS_INSTRUCTION(32, BS_P0 BS_P8, "%16", "%17", "%18", BS_R16(d, 0));
BS_INSTRUCTION(48, BS_P0 BS_P8 BS_P16, "%24", "%25", "%26", BS_R16(d, 0), BS_R8(d, 16));
BS_INSTRUCTION(64, BS_FIRST32, "%32", "%33", "%34", BS_R32(d, 0));
BS_INSTRUCTION(96, BS_FIRST32 BS_P32, "%48", "%49", "%50", BS_R32(d, 0), BS_R16(d, 32));
BS_INSTRUCTION(128, BS_FIRST64, "%64", "%65", "%66", BS_R32(d, 0), BS_R32(d, 32));
BS_INSTRUCTION(192, BS_FIRST64 BS_P64, "%96", "%97", "%98", BS_R32(d, 0), BS_R32(d, 32), BS_R32(d, 64));
BS_INSTRUCTION(256, BS_FIRST64 BS_P64 BS_P96, "%128", "%129", "%130", BS_R32(d, 0), BS_R32(d, 32), BS_R32(d, 64), BS_R32(d, 96));

#endif
