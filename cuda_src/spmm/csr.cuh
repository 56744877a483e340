// Parameters of products of CSR patterns with dense features on the CUDA cores, and how the sum of a row becomes its result.
#ifndef BITSPARSE_SPMM_CSR_CUH
#define BITSPARSE_SPMM_CSR_CUH

#include "common/reductions.h"
#include "csr/elements.cuh"
#include "csr/segments.cuh"
#include "csr/units.cuh"
#include "spmm/signs.cuh"

// BS_ROW_SCALE: sums and means of floats are multiplied by a scale of the row.
// BS_AFTER: sums and means in float32 take the steps of `add_after` before they are stored, behind the multiplication by the row's scale, and
// before those of 16-bit features are rounded to 16 bits.
#ifndef BS_AFTER
#define BS_AFTER 0
#endif
// BS_RAGGED: rows of x are padded with zeros to whole vectors, rows of the result are not.
#ifndef BS_RAGGED
#define BS_RAGGED 0
#endif
// BS_FETCHED: edges to rows of zeros are left out if there are many.
#ifndef BS_FETCHED
#define BS_FETCHED 0
#endif
#if BS_FETCHED
#include "csr/fetched.cuh"
#endif
struct Fetching;
#define BS_RUN (BS_EACH < 4 ? BS_EACH : 4) // sums that go through the epilogue together

struct SpmmParams {
    Streams streams;
    Units units;
    const void *x;      // (columns of the pattern, vectors * BS_EACH), rows contiguous
    void *out;          // (rows, columns) Out
    const void *values; // of the edges, (edges,) or (edges, heads); with BS_VALUE16 elements as those of x
    const float *row_scale, *col_scale;
    // BS_FETCHED: whether and which edges are fetched (csr/fetched.cu)
    const Fetching *fetching;
    const unsigned *fetched;
    // BS_AFTER: + *own_scale * own[row] + bias, then max(0, .) if `relu`; null: there is no such term, or its factor is 1
    const void *own; // elements as those of x
    const float *own_scale, *bias;
    unsigned own_bytes; // from a row of `own` to the next one; rows start at multiples of BS_BYTES, except with BS_RAGGED
    int relu;
    Acc *partial;  // (pieces, slices, BS_V, lanes, BS_EACH)
    int *arrived;  // (pieces, slices, lanes): how many pieces of a row are summed, at its first piece's place; zeros before and after
    unsigned vectors;   // of a row of x
    unsigned columns;   // of the result
    unsigned row_bytes, out_bytes; // of a row of x, of the result
    int slices;         // of BS_V * lanes vectors
    int heads, width;   // elements of a head
    int is_signed;
#if BS_FINISH
    Finish finish;
#endif
};

// Sums of 16-bit floats are rounded to 16 bits unless an epilogue follows; means of integers are float32.
#if BS_FINISH
typedef float Out;
#elif BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
typedef unsigned short Out;
#elif BS_REDUCE == BS_REDUCE_MEAN && BS_ACC >= 2
typedef float Out;
#else
typedef Acc Out;
#endif

typedef Vector<BS_EACH, Acc> Sums;

// The value that a reduction starts with.
BS_INLINE Acc nothing_yet()
{
#if !BS_SELECTS(BS_REDUCE)
    return 0;
#elif BS_ACC == 0
    return bs_float_of(BS_BEGINS_LOW(BS_REDUCE) ? 0xff800000u : 0x7f800000u);
#elif BS_ACC == 1
    return __longlong_as_double((bs_i64)(BS_BEGINS_LOW(BS_REDUCE) ? 0xfff0000000000000ull : 0x7ff0000000000000ull));
#elif BS_ACC == 2
    return (Acc)(BS_BEGINS_LOW(BS_REDUCE) ? 0x80000000u : 0x7fffffffu);
#else
    return (Acc)(BS_BEGINS_LOW(BS_REDUCE) ? 0x8000000000000000ull : 0x7fffffffffffffffull);
#endif
}

BS_INLINE Acc joined(Acc have, Acc term)
{
#if BS_SELECTS(BS_REDUCE)
    return BS_TAKES(BS_REDUCE, term, have) || term != term ? term : have;
#else
    return have + term;
#endif
}

BS_INLINE Acc times(Acc a, Acc b)
{
#if BS_ACC == 0
    return bs_mulf(a, b);
#elif BS_ACC == 1
    return bs_muld(a, b);
#else
    return a * b;
#endif
}

// Store vector number `vector` of a row's result at `out`.
template <class T> BS_INLINE void store_result(const SpmmParams &p, unsigned vector, char *out, const Vector<BS_EACH, T> &v)
{
#if BS_RAGGED
    const unsigned left = p.columns - vector * BS_EACH;
#pragma unroll
    for (int j = 0; j < BS_EACH; j++)
        if ((unsigned)j < left)
            ((T *)out)[j] = v.of[j];
#else
    store_vector(out, v);
#endif
}

#if BS_AFTER
// What follows a row's sums: its own features times a factor, a bias and a relu, each where there is one and with one rounding to float32 for
// each step.
// `r` is vector number `vector` of the row. The branches are the same for all rows.
BS_INLINE void add_after(const SpmmParams &p, Index row, unsigned vector, float (&r)[BS_EACH])
{
    const unsigned column = vector * BS_EACH;
    const unsigned left = BS_RAGGED ? p.columns - column : BS_EACH;
    if (p.own) {
        const float factor = p.own_scale ? __ldg(p.own_scale) : 1.0f;
        const Element *const from = (const Element *)row_address((const char *)p.own, row, p.own_bytes) + column;
        Gathered own;
#if BS_RAGGED
#pragma unroll
        for (int j = 0; j < BS_EACH; j++)
            own.of[j] = (unsigned)j < left ? __ldg(from + j) : (Element)0;
#else
        load_vector(own, from);
#endif
#pragma unroll
        for (int j = 0; j < BS_EACH; j++)
            r[j] = bs_addf(r[j], bs_mulf(factor, widened(own, j, false)));
    }
    if (p.bias) {
        const float *const from = p.bias + column;
#pragma unroll
        for (int j = 0; j < BS_EACH; j++)
            r[j] = bs_addf(r[j], (unsigned)j < left ? __ldg(from + j) : 0.0f);
    }
    if (p.relu) {
#pragma unroll
        for (int j = 0; j < BS_EACH; j++)
            r[j] = r[j] <= 0.0f ? 0.0f : r[j]; // NaN stays
    }
}
#endif

// Compute the result of a row of `count` edges from its sums, and store vector number `vector` of it at `out`.
BS_INLINE void finish_row(const SpmmParams &p, Index row, Index count, const Sums &sums, unsigned vector, char *out)
{
    Vector<BS_EACH, Out> v;
#if BS_ROW_SCALE
    const Acc scale = (Acc)__ldg(p.row_scale + row);
#endif
#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
    float r[BS_EACH];
#else
    Out(&r)[BS_EACH] = v.of;
#endif
#pragma unroll
    for (int j = 0; j < BS_EACH; j++) {
#if BS_SELECTS(BS_REDUCE)
        r[j] = count ? sums.of[j] : (Acc)0;
#elif BS_REDUCE == BS_REDUCE_MEAN && BS_ACC == 1
        r[j] = bs_divd(sums.of[j], (double)(float)max(count, (Index)1));
#elif BS_REDUCE == BS_REDUCE_MEAN
        r[j] = bs_divf((float)sums.of[j], (float)max(count, (Index)1));
#else
        r[j] = sums.of[j];
#endif
#if BS_ROW_SCALE
        r[j] = times(r[j], scale);
#endif
    }
#if BS_AFTER
    add_after(p, row, vector, r);
#endif
#if BS_KIND == BS_FLOAT16 || BS_KIND == BS_BFLOAT16
#pragma unroll
    for (int j = 0; j < BS_EACH; j += 2) {
        const float high = j + 1 < BS_EACH ? r[j + 1 < BS_EACH ? j + 1 : j] : 0.0f;
        const unsigned both = BS_KIND == BS_FLOAT16 ? f16x2_of(r[j], high) : bf16x2_of(r[j], high);
        v.of[j] = (unsigned short)both;
        if (j + 1 < BS_EACH)
            v.of[j + 1 < BS_EACH ? j + 1 : j] = (unsigned short)(both >> 16);
    }
#endif
    store_result(p, vector, out, v);
}

#if BS_FINISH
// The same with an epilogue, or for results that are signs: the BS_EACH sums of vector `start` + lane. All lanes of a group must call it;
// those with a vector number of `p.vectors` or more are beyond the row.
BS_INLINE void finish_vector(const SpmmParams &p, Index row, Index count, const Sums &sums, const Limits<BS_EACH> &limits, char *out,
                             unsigned start, int lane, int lanes, bool last, bool &strange)
{
    const unsigned vector = start + (unsigned)lane;
    float v[BS_EACH];
#pragma unroll
    for (int j = 0; j < BS_EACH; j++)
        v[j] = sums.of[j];
#pragma unroll
    for (int j = 0; j < BS_EACH; j += BS_RUN) {
        float run[BS_RUN];
#pragma unroll
        for (int i = 0; i < BS_RUN; i++)
            run[i] = v[j + i];
        finish_sums(p.finish, row, count, BS_REDUCE == BS_REDUCE_MEAN, (int)(min(vector, p.vectors - 1) * BS_EACH) + j, run);
#pragma unroll
        for (int i = 0; i < BS_RUN; i++)
            v[j + i] = run[i];
    }
#if BS_SIGNS
    const unsigned bits = signs_of(limits, v, strange);
    store_signs<BS_EACH>(out, vector < p.vectors ? bits : 0u, start, lane, lanes, p.finish.row_bytes, last);
#else
    Vector<BS_EACH, float> stored;
#pragma unroll
    for (int j = 0; j < BS_EACH; j++)
        stored.of[j] = v[j];
    if (vector < p.vectors)
        store_result(p, vector, out, stored);
#endif
}
#endif

#endif
