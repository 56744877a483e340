// Vectors of feature elements: loading, widening to the type that sums are held in, rounding back and storing.
#ifndef BITSPARSE_EDGE_VECTORS_CUH
#define BITSPARSE_EDGE_VECTORS_CUH

#include "common/ptx.cuh"
#include "csr/streams.cuh"

typedef bs_u16 u16;
typedef bs_u32 u32;
typedef bs_i64 i64;

// BS_TYPE: float32, float16, bfloat16, float64, int32, int64.
#define BS_F16 1
#define BS_BF16 2
#if BS_TYPE == 0
typedef float Element;
typedef float Sum;
#elif BS_TYPE == BS_F16 || BS_TYPE == BS_BF16
typedef u16 Element;
typedef float Sum;
#elif BS_TYPE == 3
typedef double Element;
typedef double Sum;
#elif BS_TYPE == 4
typedef int Element;
typedef int Sum;
#else
typedef i64 Element;
typedef i64 Sum;
#endif

// BS_VECTOR: bytes of a vector; rows and addresses are aligned to as many.
#if BS_VECTOR == 16
typedef uint4 Raw;
#elif BS_VECTOR == 8
typedef uint2 Raw;
#elif BS_VECTOR == 4
typedef u32 Raw;
#else
typedef u16 Raw;
#endif
// BS_INT8: 8-bit integers are loaded and become elements of BS_TYPE (float32).
#ifdef BS_INT8
typedef signed char Loaded;
#else
typedef Element Loaded;
#endif
#define BS_ELEMENTS (BS_VECTOR / (int)sizeof(Loaded))

struct Vector {
    union {
        Raw raw;
        Loaded at[BS_ELEMENTS];
#if BS_VECTOR >= 4
        u32 word[BS_VECTOR / 4];
#endif
    };
};

// Offset in bytes of row `row`, with `bytes` bytes to a row; the product always has 64 bits. Written in PTX, since the compiler makes four
// instructions of a product whose second factor it has widened before a loop.
BS_INLINE i64 row_offset(Index row, int bytes)
{
#ifdef BS_LARGE
    return row * bytes;
#else
    i64 offset;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(row), "r"(bytes));
    return offset;
#endif
}

// The same pointer, kept in registers; otherwise the compiler adds its parts again for every row, three instructions in place of one.
BS_INLINE const char *in_registers(const char *p)
{
    asm volatile("" : "+l"(p));
    return p;
}

#if BS_TYPE == 3
BS_INLINE void in_register(Sum &x) { asm volatile("" : "+d"(x)); }
#elif BS_TYPE < 3
BS_INLINE void in_register(Sum &x) { asm volatile("" : "+f"(x)); }
#endif

// A load that stays where it is written, ahead of the loads after it. The assembler moves ordinary loads down to their first use, and then
// one gather waits for another.
BS_INLINE Vector load_vector(const char *at)
{
    Vector v;
#if BS_VECTOR == 16
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.raw.x), "=r"(v.raw.y), "=r"(v.raw.z), "=r"(v.raw.w)
                 : "l"(at)
                 : "memory");
#elif BS_VECTOR == 8
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.raw.x), "=r"(v.raw.y) : "l"(at) : "memory");
#elif BS_VECTOR == 4
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v.raw) : "l"(at) : "memory");
#else
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v.raw) : "l"(at) : "memory");
#endif
    return v;
}

// Loads only if `valid`; otherwise `to` keeps its value and `at` is not read. This is one predicated instruction, which also stays in its
// place; a branch would end in copies that wait for the loaded value.
#define BS_LOAD_IF(type, constraint, to, valid, at)                                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global." type " %0, [%1];\n}"                                             \
                 : constraint(to)                                                                                                          \
                 : "l"(at), "r"((u32)(valid))                                                                                              \
                 : "memory")

BS_INLINE void load_if(bool valid, const char *at, Vector &v)
{
#if BS_VECTOR == 16
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(v.raw.x), "+r"(v.raw.y), "+r"(v.raw.z), "+r"(v.raw.w)
                 : "l"(at), "r"((u32)valid)
                 : "memory");
#elif BS_VECTOR == 8
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.global.v2.u32 {%0, %1}, [%2];\n}"
                 : "+r"(v.raw.x), "+r"(v.raw.y)
                 : "l"(at), "r"((u32)valid)
                 : "memory");
#elif BS_VECTOR == 4
    BS_LOAD_IF("u32", "+r", v.raw, valid, at);
#else
    BS_LOAD_IF("u16", "+h", v.raw, valid, at);
#endif
}

BS_INLINE void load_if(bool valid, const Index *at, Index &to)
{
#ifdef BS_LARGE
    BS_LOAD_IF("s64", "+l", to, valid, at);
#else
    BS_LOAD_IF("s32", "+r", to, valid, at);
#endif
}

#if BS_TYPE == 3
BS_INLINE void load_if(bool valid, const Sum *at, Sum &to) { BS_LOAD_IF("f64", "+d", to, valid, at); }
#elif BS_TYPE < 3
BS_INLINE void load_if(bool valid, const Sum *at, Sum &to) { BS_LOAD_IF("f32", "+f", to, valid, at); }
#endif
#if BS_TYPE == BS_F16 || BS_TYPE == BS_BF16
BS_INLINE void load_if(bool valid, const u16 *at, u16 &to) { BS_LOAD_IF("u16", "+h", to, valid, at); }
#endif

BS_INLINE Vector zero_vector()
{
    Vector v;
#pragma unroll
    for (int i = 0; i < BS_ELEMENTS; i++)
        v.at[i] = 0;
    return v;
}

BS_INLINE void store_vector(char *at, const Vector &v) { *(Raw *)at = v.raw; }

BS_INLINE Sum widen(const Vector &v, int i)
{
#ifdef BS_INT8
    // The byte plus 128 becomes the fraction of 2^23.
    return bs_float_of(__byte_perm(v.word[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7440u + (unsigned)(i % 4))) - 8388736.0f;
#elif BS_TYPE == BS_F16
    return float_of_f16(v.at[i]);
#elif BS_TYPE == BS_BF16 && BS_VECTOR >= 4
    const u32 w = v.word[i / 2];
    return bs_float_of(i & 1 ? w & 0xffff0000u : w << 16);
#elif BS_TYPE == BS_BF16
    return bs_bf16_to_float(v.at[i]);
#else
    return v.at[i];
#endif
}

BS_INLINE Element narrow(Sum s)
{
#if BS_TYPE == BS_F16
    return (u16)f16x2_of(s, 0.0f);
#elif BS_TYPE == BS_BF16
    return (u16)bf16x2_of(s, 0.0f);
#else
    return s;
#endif
}

// a b + c, fused for floats.
#if BS_TYPE < 3
BS_INLINE Sum fused(Sum a, Sum b, Sum c) { return fmaf(a, b, c); }
#elif BS_TYPE == 3
BS_INLINE Sum fused(Sum a, Sum b, Sum c) { return fma(a, b, c); }
#else
BS_INLINE Sum fused(Sum a, Sum b, Sum c) { return a * b + c; }
#endif

// a + b, not fused with the product that a may be.
#if BS_TYPE < 3
BS_INLINE Sum added(Sum a, Sum b) { return bs_addf(a, b); }
#elif BS_TYPE == 3
BS_INLINE Sum added(Sum a, Sum b) { return bs_addd(a, b); }
#endif

// ---- exponentials; quick_exp is off by at most (|x| + 3) units in the last place of float32
#if BS_TYPE == 3
#define BS_LOWEST (-1.7976931348623157e308)
// If the sum of squares lies between these, no square was too large, and none that matters was too small.
#define BS_SMALL_SQUARES 1e-250
#define BS_LARGE_SQUARES 1e300
BS_INLINE Sum quick_exp(Sum x) { return exp(x); }
BS_INLINE Sum exact_exp(Sum x) { return exp(x); }
BS_INLINE Sum logarithm(Sum x) { return log(x); }
BS_INLINE Sum larger(Sum x, Sum y) { return fmax(x, y); }
BS_INLINE Sum magnitude(Sum x) { return fabs(x); }
// A power of two near x >= 0 that has an inverse, and that inverse.
BS_INLINE Sum power_near(Sum x) { return __hiloint2double(min(max(__double2hiint(x) & 0x7ff00000, 1 << 20), 2045 << 20), 0); }
BS_INLINE Sum inverse_power(Sum power) { return __hiloint2double((2046 << 20) - __double2hiint(power), 0); }
#elif BS_TYPE < 3
#define BS_LOWEST (-3.402823466e38f)
#define BS_SMALL_SQUARES 1e-25f
#define BS_LARGE_SQUARES 1e37f
BS_INLINE Sum quick_exp(Sum x) { return __expf(x); }
BS_INLINE Sum exact_exp(Sum x) { return expf(x); }
BS_INLINE Sum logarithm(Sum x) { return logf(x); }
BS_INLINE Sum larger(Sum x, Sum y) { return fmaxf(x, y); }
BS_INLINE Sum magnitude(Sum x) { return fabsf(x); }
BS_INLINE Sum power_near(Sum x) { return __int_as_float(min(max(__float_as_int(x) & 0x7f800000, 1 << 23), 253 << 23)); }
BS_INLINE Sum inverse_power(Sum power) { return __int_as_float((254 << 23) - __float_as_int(power)); }
#endif

// ---- sums over the lanes of a group
// Every lane of a group of `lanes` holds a partial sum of each of `count` (a power of two, no more than lanes) things. Afterwards lane t
// holds the sum over the group of thing t / (lanes / count): count - 1 shuffles and log2(lanes / count), not count log2(lanes).
template <int lanes, int count, class T> BS_INLINE T transposed_sum(T (&part)[count], int lane)
{
#pragma unroll
    for (int half = count / 2, offset = lanes / 2; half > 0; half /= 2, offset /= 2) {
        const bool upper = lane & offset;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const T give = upper ? part[i] : part[half + i], keep = upper ? part[half + i] : part[i];
            part[i] = keep + __shfl_xor_sync(~0u, give, offset);
        }
    }
    T sum = part[0];
#pragma unroll
    for (int offset = lanes / count / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
    return sum;
}

#endif
