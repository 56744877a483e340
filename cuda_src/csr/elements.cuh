// Elements of features as the kernels over CSR patterns gather them: vectors of BS_BYTES bytes, widened to the type that sums are held in.
#ifndef BITSPARSE_CSR_ELEMENTS_CUH
#define BITSPARSE_CSR_ELEMENTS_CUH

#include "common/ptx.cuh"
#include "csr/streams.cuh"

// BS_KIND: integers of 1, 2, 4 or 8 bytes (signed or not), float16, float32, float64, bfloat16.
#define BS_FLOAT16 4
#define BS_FLOAT32 5
#define BS_FLOAT64 6
#define BS_BFLOAT16 7
#if BS_KIND == 0
typedef unsigned char Element;
#elif BS_KIND == 1 || BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
typedef unsigned short Element;
#elif BS_KIND == 2
typedef unsigned Element;
#elif BS_KIND == 3
typedef bs_u64 Element;
#elif BS_KIND == BS_FLOAT32
typedef float Element;
#else
typedef double Element;
#endif

// BS_ACC: sums in float, double, int32, int64.
#if BS_ACC == 0
typedef float Acc;
#elif BS_ACC == 1
typedef double Acc;
#elif BS_ACC == 2
typedef int Acc;
#else
typedef bs_i64 Acc;
#endif

#define BS_EACH (BS_BYTES / (int)sizeof(Element)) // elements of a vector

// The type that moves `bytes` bytes at once, or 16 at a time.
template <int bytes> struct Moved {
    typedef uint4 Type;
};
template <> struct Moved<8> {
    typedef uint2 Type;
};
template <> struct Moved<4> {
    typedef unsigned Type;
};
template <> struct Moved<2> {
    typedef unsigned short Type;
};
template <> struct Moved<1> {
    typedef unsigned char Type;
};

// n elements that are loaded and stored with as few instructions as possible.
template <int n, class T> struct Vector {
    static const int bytes = n * (int)sizeof(T), moves = bytes > 16 ? bytes / 16 : 1;
    typedef typename Moved<bytes / moves>::Type Move;
    typedef typename Moved<(bytes > 4 ? 4 : bytes)>::Type Word;
    union {
        Move moved[moves];
        T of[n];
        Word words[bytes > 4 ? bytes / 4 : 1];
    };
};

template <int n, class T> BS_INLINE void load_vector(Vector<n, T> &to, const void *at)
{
#pragma unroll
    for (int i = 0; i < Vector<n, T>::moves; i++)
        to.moved[i] = __ldg((const typename Vector<n, T>::Move *)at + i);
}

// Bypasses the L1, which does not see what other multiprocessors wrote.
template <int n, class T> BS_INLINE void load_fresh(Vector<n, T> &to, const void *at)
{
#pragma unroll
    for (int i = 0; i < Vector<n, T>::moves; i++)
        to.moved[i] = __ldcg((const typename Vector<n, T>::Move *)at + i);
}

template <int n, class T> BS_INLINE void store_vector(void *at, const Vector<n, T> &from)
{
#pragma unroll
    for (int i = 0; i < Vector<n, T>::moves; i++)
        ((typename Vector<n, T>::Move *)at)[i] = from.moved[i];
}

typedef Vector<BS_EACH, Element> Gathered;

#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
// The lower half of a word, or the upper one if `i` is odd, which is a constant after unrolling.
BS_INLINE float half_widened(unsigned both, int i)
{
#if BS_KIND == BS_FLOAT16
    return float_of_f16((unsigned short)(i & 1 ? both >> 16 : both));
#else
    return bs_float_of(i & 1 ? both & 0xffff0000u : both << 16);
#endif
}
#endif

// Element j, widened; j is a constant after unrolling.
BS_INLINE Acc widened(const Gathered &v, int j, bool is_signed)
{
#if (BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16) && BS_BYTES > 2
    return half_widened(v.words[j / 2], j); // in halves the compiler would shift pairs of words before it widens them
#elif BS_KIND == BS_FLOAT16
    return float_of_f16(v.of[j]);
#elif BS_KIND == BS_BFLOAT16
    return bs_bf16_to_float(v.of[j]);
#elif BS_KIND == 0
    return (Acc)(is_signed ? (int)(signed char)v.of[j] : (int)v.of[j]);
#elif BS_KIND == 1
    return (Acc)(is_signed ? (int)(short)v.of[j] : (int)v.of[j]);
#elif BS_KIND == 2
    return is_signed ? (Acc)(int)v.of[j] : (Acc)v.of[j];
#elif BS_KIND == 3
    return is_signed ? (Acc)(bs_i64)v.of[j] : (Acc)v.of[j];
#else
    return (Acc)v.of[j];
#endif
}

#endif
