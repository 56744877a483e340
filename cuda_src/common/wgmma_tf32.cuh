// Warpgroup matrix instructions of TF32 (sm_90a): D (64 x N, float32, registers) += A (64 x 8, registers) B^T (N x 8, shared memory as in
// common/wgmma.cuh). A lane holds words t and t + 4 of rows g and g + 8 of its warp's 16 rows of A, as in mma_m16n8k8_tf32.
#ifndef BITSPARSE_WGMMA_TF32_CUH
#define BITSPARSE_WGMMA_TF32_CUH

#include "common/wgmma.cuh"

#define BS_F8(d, i)                                                                                                                        \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define BS_FLOATS_8(d) BS_F8(d, 0)
#define BS_FLOATS_16(d) BS_FLOATS_8(d), BS_F8(d, 8)
#define BS_FLOATS_24(d) BS_FLOATS_16(d), BS_F8(d, 16)
#define BS_FLOATS_32(d) BS_FLOATS_24(d), BS_F8(d, 24)
#define BS_FLOATS_40(d) BS_FLOATS_32(d), BS_F8(d, 32)
#define BS_FLOATS_48(d) BS_FLOATS_40(d), BS_F8(d, 40)
#define BS_FLOATS_56(d) BS_FLOATS_48(d), BS_F8(d, 48)
#define BS_FLOATS_64(d) BS_FLOATS_56(d), BS_F8(d, 56)

// The instruction for `columns` columns; keep == 0 overwrites D, any other value accumulates.
template <int columns> struct WgmmaTf32;

#define BS_TF32(n, count, a0, a1, a2, a3, b, kept)                                                                                         \
    template <> struct WgmmaTf32<n> {                                                                                                      \
        static __device__ __forceinline__ void run(float (&d)[count], const u32 (&a)[4], u64 from_b, int keep)                             \
        {                                                                                                                                  \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #kept ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 "       \
                         "{" BS_NAMES_##count "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1;\n}"                          \
                         : BS_FLOATS_##count(d)                                                                                            \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from_b), "r"(keep));                                            \
        }                                                                                                                                  \
    }

BS_TF32(16, 8, 8, 9, 10, 11, 12, 13);
BS_TF32(32, 16, 16, 17, 18, 19, 20, 21);
BS_TF32(48, 24, 24, 25, 26, 27, 28, 29);
BS_TF32(64, 32, 32, 33, 34, 35, 36, 37);
BS_TF32(80, 40, 40, 41, 42, 43, 44, 45);
BS_TF32(96, 48, 48, 49, 50, 51, 52, 53);
BS_TF32(112, 56, 56, 57, 58, 59, 60, 61);
BS_TF32(128, 64, 64, 65, 66, 67, 68, 69);

template <int n> BS_INLINE void wgmma_pin(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#endif
