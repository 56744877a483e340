// Float intrinsics, each of which is one IEEE operation.
#pragma once

// Plain operators may be contracted to fused multiply-adds, as NVRTC does; the result of a *_rn intrinsic may not.
template <class T> static __forceinline__ T emu_rounded(T x)
{
    __asm__("" : "+x"(x));
    return x;
}
static __forceinline__ float __fadd_rn(float a, float b) { return emu_rounded(a + b); }
// Adds and rounds down: the exact error of the rounded sum tells whether to step down.
static inline float __fadd_rd(float a, float b)
{
    const float r = a + b;
    if (!(__builtin_fabsf(a) <= 3.402823466e38f && __builtin_fabsf(b) <= 3.402823466e38f))
        return r;
    if (__builtin_isinf(r))
        return r > 0 ? 3.402823466e38f : r;
    if (r == 0 && a + b == 0 && a == -b)
        return (__builtin_signbit(a) == 0 && __builtin_signbit(b) == 0) ? 0.0f : -0.0f;
    const float bb = r - a, rest = (a - (r - bb)) + (b - bb);
    return rest < 0 ? __builtin_nextafterf(r, -__builtin_inff()) : r;
}
static inline float __fmaf_rd(float a, float b, float c)
{
    const float nearest = __builtin_fmaf(a, b, c);
    if (!(__builtin_fabsf(nearest) <= 3.402823466e38f))
        return nearest;
    const __float128 exact = (__float128)a * b + c;
    return (__float128)nearest > exact ? __builtin_nextafterf(nearest, -__builtin_inff()) : nearest;
}
static inline float __fmaf_ru(float a, float b, float c) { return -__fmaf_rd(-a, b, -c); }
static __forceinline__ float __fsub_rn(float a, float b) { return emu_rounded(a - b); }
static __forceinline__ float __fmul_rn(float a, float b) { return emu_rounded(emu_rounded(a) * b); }
static __forceinline__ float __fdiv_rn(float a, float b) { return emu_rounded(a / b); }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fdividef(float a, float b) { return a / b; }
static __forceinline__ double __dadd_rn(double a, double b) { return emu_rounded(a + b); }
static __forceinline__ double __dsub_rn(double a, double b) { return emu_rounded(a - b); }
static __forceinline__ double __dmul_rn(double a, double b) { return emu_rounded(emu_rounded(a) * b); }
static __forceinline__ double __ddiv_rn(double a, double b) { return emu_rounded(a / b); }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline unsigned __float_as_uint(float a) { return emu_from<unsigned>(emu_bits(a)); }
static inline int __float_as_int(float a) { return emu_from<int>(emu_bits(a)); }
static inline float __uint_as_float(unsigned a) { return emu_from<float>(emu_bits(a)); }
static inline float __int_as_float(int a) { return emu_from<float>(emu_bits(a)); }
static inline long long __double_as_longlong(double a) { return emu_from<long long>(emu_bits(a)); }
static inline double __longlong_as_double(long long a) { return emu_from<double>(emu_bits(a)); }
static inline int __double2hiint(double a) { return (int)(emu_bits(a) >> 32); }
static inline int __double2loint(double a) { return (int)emu_bits(a); }
static inline double __hiloint2double(int hi, int lo) { return emu_from<double>((unsigned long long)(unsigned)hi << 32 | (unsigned)lo); }
// Conversions saturate; NaN gives 0.
template <class I, class F> static inline I emu_saturate(F x, F lo, F hi, I least, I most)
{
    return x != x ? (I)0 : x <= lo ? least : x >= hi ? most : (I)x;
}
#define EMU_CVT(pre, F, suffix, round)                                                                                              \
    static inline int pre##2int_##suffix(F x)                                                                                       \
    {                                                                                                                               \
        return emu_saturate<int, F>(round(x), (F) - 2147483648.0, (F)2147483648.0, INT_MIN, INT_MAX);                               \
    }                                                                                                                               \
    static inline unsigned pre##2uint_##suffix(F x) { return emu_saturate<unsigned, F>(round(x), (F)0, (F)4294967296.0, 0u, ~0u); } \
    static inline long long pre##2ll_##suffix(F x)                                                                                  \
    {                                                                                                                               \
        return emu_saturate<long long, F>(round(x), (F) - 9223372036854775808.0, (F)9223372036854775808.0, LLONG_MIN, LLONG_MAX);   \
    }                                                                                                                               \
    static inline unsigned long long pre##2ull_##suffix(F x)                                                                        \
    {                                                                                                                               \
        return emu_saturate<unsigned long long, F>(round(x), (F)0, (F)18446744073709551616.0, 0ull, ~0ull);                         \
    }
EMU_CVT(__float, float, rn, __builtin_rintf)
EMU_CVT(__float, float, rd, __builtin_floorf)
EMU_CVT(__float, float, ru, __builtin_ceilf)
EMU_CVT(__float, float, rz, __builtin_truncf)
EMU_CVT(__double, double, rn, __builtin_rint)
EMU_CVT(__double, double, rd, __builtin_floor)
EMU_CVT(__double, double, ru, __builtin_ceil)
EMU_CVT(__double, double, rz, __builtin_trunc)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return (double)x; }
static inline double __uint2double_rn(unsigned x) { return (double)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
static inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __grid_constant__
// Round to fewer digits, to nearest: TF32 with ties away from zero, 16-bit floats with ties to even.
static inline unsigned emu_tf32(float x)
{
    const unsigned bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits & 0xffffe000u | (bits & 0x7fffffu ? 0x400000u : 0u) : bits + 0x1000u & 0xffffe000u;
}
static inline unsigned emu_bf16(float x)
{
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
static inline unsigned emu_f16(float x)
{
    const unsigned sign = __float_as_uint(x) >> 16 & 0x8000u;
    const float size = __builtin_fabsf(x);
    if (x != x)
        return 0x7fffu;
    if (size >= 65520.0f)
        return sign | 0x7c00u;
    if (size < 0x1p-14f)
        return sign | (unsigned)__builtin_rintf(size * 0x1p24f);
    const unsigned bits = __float_as_uint(size);
    return sign | (bits + 0xfffu + (bits >> 13 & 1u) - (112u << 23)) >> 13;
}
static inline float emu_float_of_f16(unsigned h)
{
    const unsigned sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest < 0x400u)
        return __uint_as_float(sign | __float_as_uint((float)rest * 0x1p-24f));
    return __uint_as_float(sign | (rest >= 0x7c00u ? 0x7f800000u | (rest & 0x3ffu) << 13 : (rest << 13) + (112u << 23)));
}
