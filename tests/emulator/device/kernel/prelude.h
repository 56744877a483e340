// Gives g++ what the CUDA compiler provides without an include. Included first; the translator then handles __shared__, kernels and asm.
#pragma once
#include <math.h>
#include <float.h>
#include <limits.h>
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define BITSPARSE_EMULATED 1 // threads are fibers, so a kernel cannot ask which of them are at the same place
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __managed__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))
#define warpSize 32
#define EMU_SHARED __attribute__((section("emu_shared")))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
extern "C" const volatile uint3 emu_unused;
extern "C" uint3 threadIdx, blockIdx, blockDim, gridDim;

#define EMU_V1(T, U)      \
    struct T##1 { U x; }; \
    static inline T##1 make_##T##1(U x) { return {x}; }
#define EMU_V2(T, U, A)                                  \
    struct __attribute__((aligned(A))) T##2 { U x, y; }; \
    static inline T##2 make_##T##2(U x, U y) { return {x, y}; }
#define EMU_V3(T, U)            \
    struct T##3 { U x, y, z; }; \
    static inline T##3 make_##T##3(U x, U y, U z) { return {x, y, z}; }
#define EMU_V4(T, U, A)                                        \
    struct __attribute__((aligned(A))) T##4 { U x, y, z, w; }; \
    static inline T##4 make_##T##4(U x, U y, U z, U w) { return {x, y, z, w}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
EMU_V1(char, signed char)
EMU_V2(char, signed char, 2)
EMU_V3(char, signed char)
EMU_V4(char, signed char, 4)
EMU_V1(uchar, unsigned char)
EMU_V2(uchar, unsigned char, 2)
EMU_V3(uchar, unsigned char)
EMU_V4(uchar, unsigned char, 4)
EMU_V1(short, short)
EMU_V2(short, short, 4)
EMU_V3(short, short)
EMU_V4(short, short, 8)
EMU_V1(ushort, unsigned short)
EMU_V2(ushort, unsigned short, 4)
EMU_V3(ushort, unsigned short)
EMU_V4(ushort, unsigned short, 8)
EMU_V1(int, int)
EMU_V2(int, int, 8)
EMU_V3(int, int)
EMU_V4(int, int, 16)
EMU_V1(uint, unsigned)
EMU_V2(uint, unsigned, 8)
EMU_V4(uint, unsigned, 16)
EMU_V1(longlong, long long)
EMU_V2(longlong, long long, 16)
EMU_V3(longlong, long long)
EMU_V4(longlong, long long, 16)
EMU_V1(ulonglong, unsigned long long)
EMU_V2(ulonglong, unsigned long long, 16)
EMU_V3(ulonglong, unsigned long long)
EMU_V4(ulonglong, unsigned long long, 16)
EMU_V1(long, long)
EMU_V2(long, long, 16)
EMU_V1(ulong, unsigned long)
EMU_V2(ulong, unsigned long, 16)
EMU_V1(float, float)
EMU_V2(float, float, 8)
EMU_V3(float, float)
EMU_V4(float, float, 16)
EMU_V1(double, double)
EMU_V2(double, double, 16)
EMU_V3(double, double)
EMU_V4(double, double, 16)

extern "C" int printf(const char *, ...);
extern "C" __attribute__((noreturn)) void emu_fail(const char *, ...);
extern "C" unsigned long long emu_collective(int, unsigned, unsigned long long, unsigned long long, unsigned long long);
extern "C" unsigned long long emu_barrier(int, int, int, unsigned long long);
extern "C" void emu_barrier_arrive(int, int);
extern "C" void *emu_dynamic_shared();
extern "C" unsigned long long emu_to_shared(const void *);
extern "C" void *emu_shared_at(unsigned, unsigned, unsigned);
extern "C" void *emu_shared(unsigned, unsigned);

#include "collectives.h"
#include "integers.h"
#include "memory.h"
#include "floats.h"
#include "ptx.h"
