// Float32 sums of gathered rows of one-bit features over the edges of a CSR pattern: y[i] = finish(sum over edges (i, j) of w q[j]).
//
// A group of 2^shift lanes walks a stretch of rows (csr/streams.cuh), or the groups of a warp share a row of many edges (csr/units.cuh). A
// lane holds BS_LANE adjacent features (4, 8, 16 or 32), and so gathers that many bits of a neighbour at once, with BS_U edges in flight.
// No bit is unpacked to a float: it flips the sign of the weight (BS_BIPOLAR), or says whether the weight is added.
//
// Floor: edges at 155 G/s (rows below 64 bytes, x in the L2), three instructions a feature and edge, and the compulsory bytes.
//
// BS_WEIGHTS: 0 none; 1 a value per edge; 2 values and factors of the columns, where given. BS_MEAN: sums are divided by the number of
// edges.
#define BS_KIND 5
#define BS_ACC 0
#define BS_BYTES 16
#include "csr/elements.cuh"
#include "csr/segments.cuh"
#include "csr/units.cuh"
#include "spmm/signs.cuh"

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
#ifndef BS_MEAN
#define BS_MEAN 0
#endif

// Lanes with less than a byte share one.
#define BS_SHARED (BS_LANE < 8)
#define BS_CODE_BYTES (BS_SHARED ? 1 : BS_LANE / 8)
// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.

struct PackedParams {
    Streams streams;
    Units units;
    const char *x; // rows of `row_bytes`, 16-byte aligned
    void *out; // rows of finish.row_bytes: float32, or signs
    const float *values; // of the edges
    const float *col_scale;
    float *partial; // (pieces, slices, BS_LANE / 4, lanes, 4)
    int *arrived; // (pieces, slices): how many pieces of a row have arrived, at its first piece; zeros before and after
    unsigned row_bytes;
    int vectors; // vectors of BS_LANE features in a row
    int slices; // each of as many vectors as a group has lanes
    int aligned; // whether four floats of the result can be stored at once
    Finish finish;
};

#if BS_CODE_BYTES == 4
typedef Vector<1, unsigned> Codes;
#elif BS_CODE_BYTES == 2
typedef Vector<1, unsigned short> Codes;
#else
typedef Vector<1, unsigned char> Codes;
#endif

struct PackedSums {
    const PackedParams &p;
    const Stretch &at;
    const char *x; // row 0, at this lane's codes
    int lane, lanes, slice;
    unsigned vector; // this lane's vector of a row
    int upper = 0; // where the lane's bits begin in their byte, if lanes share bytes
    Codes codes[BS_U];
    float w[BS_U], sums[BS_LANE];
#if BS_SIGNS
    Limits<BS_LANE> limits;
#endif
    bool strange = false; // a NaN would have become a sign

    __device__ __forceinline__ PackedSums(const PackedParams &params, const Stretch &stretch) : p(params), at(stretch)
    {
        lanes = 1 << p.streams.shift;
        lane = group_lane(p.streams);
        slice = (int)(blockIdx.z * gridDim.y + blockIdx.y);
        vector = (unsigned)(slice * lanes + lane);
        // Lanes past the end of the row read its last codes too and store nothing.
        const unsigned mine = min(vector, (unsigned)p.vectors - 1);
        x = kept(p.x + (BS_SHARED ? mine / 2 : mine * BS_CODE_BYTES));
#if BS_SHARED
        upper = (int)(mine & 1) * 4;
#endif
        clear();
#if BS_SIGNS
        limits.load(p.finish, (int)min(vector, (unsigned)p.vectors - 1) * BS_LANE);
#endif
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < BS_LANE; j++)
            sums[j] = 0.0f;
    }

    __device__ __forceinline__ void batch(Index base, int left)
    {
#if BS_WEIGHTS == 1
        load_run(w, p.values + base, left);
#endif
    }

    __device__ __forceinline__ void gather(int u, Index column, Index edge)
    {
        load_vector(codes[u], row_address(x, column, p.row_bytes));
#if BS_WEIGHTS == 2
        const float weight = p.values ? __ldg(p.values + edge) : 1.0f;
        w[u] = p.col_scale ? bs_mulf(weight, __ldg(p.col_scale + column)) : weight;
#endif
    }

    __device__ __forceinline__ void add(int u, Index)
    {
        const float weight = BS_WEIGHTS ? w[u] : 1.0f;
        const unsigned word = (unsigned)codes[u].of[0] << (32 - BS_LANE - upper); // the bit of the last feature becomes the highest one
#pragma unroll
        for (int j = 0; j < BS_LANE; j++) {
#if BS_BIPOLAR
            sums[j] += bs_float_of(bs_bits_of(weight) ^ (~(word << (BS_LANE - 1 - j)) & 0x80000000u));
#else
            sums[j] += (int)(word << (BS_LANE - 1 - j)) < 0 ? weight : 0.0f;
#endif
        }
    }

    // Finishes a complete row. Called by all lanes of the group together.
    __device__ __forceinline__ void finish(Index row, Index count)
    {
        char *const out = (char *)row_address((char *)p.out, row, (unsigned)p.finish.row_bytes);
        const int column = (int)min(vector, (unsigned)p.vectors - 1) * BS_LANE;
#if BS_FINISH != 2
#pragma unroll 1
        for (int c = 0; c < BS_LANE; c += 4) { // a loop: the code of the chain appears once
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = sums[j];
#pragma unroll
            for (int j = 0; j < BS_LANE - 4; j++)
                sums[j] = sums[j + 4];
            finish_sums(p.finish, row, count, BS_MEAN, column + c, v);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[BS_LANE - 4 + j] = v[j];
#if !BS_SIGNS
            float *to = (float *)out + column + c;
            const int there = vector < (unsigned)p.vectors ? p.finish.columns - column - c : 0;
            if (p.aligned && there >= 4) {
                *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < there)
                        to[j] = v[j];
            }
#endif
        }
#endif
#if BS_SIGNS
        const int there = p.finish.columns - (int)vector * BS_LANE; // features of the row from this lane's first on
        if (there < BS_LANE)
#pragma unroll
            for (int j = 0; j < BS_LANE; j++) // past the end of the row the sums are meaningless
                sums[j] = j < there ? sums[j] : 0.0f;
        unsigned bits = signs_of(limits, sums, strange);
        if (there < BS_LANE)
            bits = there > 0 ? bits & ((1u << there) - 1) : 0;
        const bool last = slice == p.slices - 1;
        if constexpr (BS_LANE < 8)
            store_signs<BS_LANE>(out, bits, (unsigned)(slice * lanes), lane, lanes, p.finish.row_bytes, last);
        else
            store_sign_words<BS_LANE>(out, bits, (unsigned)(slice * lanes), lane, lanes, p.finish.row_bytes, last);
#endif
    }

    __device__ __forceinline__ void flush(Index row, Index begin, Index end)
    {
        finish(row, end - begin);
        clear();
    }

    __device__ __forceinline__ void done(Index, int, int) {}

    // Finishes a row, or a piece of one, that the groups of a warp have shared. Called by all lanes.
    __device__ __forceinline__ void shared()
    {
        for (int o = lanes; o < 32; o <<= 1)
#pragma unroll
            for (int j = 0; j < BS_LANE; j++)
                sums[j] += __shfl_xor_sync(~0u, sums[j], o);
        if (((int)threadIdx.x & 31) >= lanes)
            return;
        Index begin = at.start, end = at.stop;
        if (at.piece >= 0) {
            if (!piece(at.row))
                return;
            begin = p.streams.indptr[at.row], end = p.streams.indptr[at.row + 1];
        }
        flush(at.row, begin, end);
    }

    // The sums of a piece wait in its slot; the last piece to arrive adds up all of them, in order. False for all others.
    __device__ __forceinline__ bool piece(Index row)
    {
        int from, count;
        pieces_of_row(p.streams, at, from, count);
        const bs_u64 part = (unsigned)lanes, step = (bs_u64)(unsigned)p.slices * part * (BS_LANE / 4); // in units of four floats
        float4 *const slots = (float4 *)p.partial + (bs_u64)(unsigned)slice * part * (BS_LANE / 4) + (unsigned)lane;
#pragma unroll
        for (int c = 0; c < BS_LANE / 4; c++)
            slots[(unsigned)at.piece * step + c * part] = make_float4(sums[4 * c], sums[4 * c + 1], sums[4 * c + 2], sums[4 * c + 3]);
        __threadfence();
        if (!last_of_groups(p.arrived + (bs_u64)(unsigned)from * (unsigned)p.slices + (unsigned)slice, count, lane, lanes))
            return false;
        clear();
#pragma unroll 1
        for (int i = 0; i < count; i++)
#pragma unroll
            for (int c = 0; c < BS_LANE / 4; c++) {
                const float4 more = __ldcg(slots + (unsigned)(from + i) * step + c * part);
                sums[4 * c] += more.x;
                sums[4 * c + 1] += more.y;
                sums[4 * c + 2] += more.z;
                sums[4 * c + 3] += more.w;
            }
        return true;
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) spmm_packed(const PackedParams p)
{
    Stretch at;
    PackedSums sums(p, at);
    if (sums.slice >= p.slices)
        return;
    take_unit<BS_U, false>(p.units, p.streams, at, sums, [&] { walk_segments<BS_U>(p.streams, at, sums); });
#if BS_SIGNS
    if (sums.strange)
        *p.finish.nan = 1;
#endif
}
