// The epilogue on sums in memory: int32, int64 or float32. It is bound by memory, reading the sums and writing floats or codes. For planes,
// and for what is packed along the row index, one warp takes a strip of up to four blocks of 16 x 64 and always loads one octet ahead. For
// floats and whole integers a thread takes an octet of a row, so that narrow results leave no lane idle.
#include "finish/strips.cuh"
#include "finish/octet.cuh"

struct SumsParams {
    const void *sums; // (batches, m, n)
    bs_i64 strips; // strips of all batches, or octets of all rows, padding included
    int down, across; // strips of one matrix, or octets of a row
    int blocks; // of a strip
    int aligned; // whether four sums of a row can be loaded at once
    EpilogueParams epilogue;
};

BS_INLINE void load_four(const int *from, int *v)
{
    const int4 x = __ldcs((const int4 *)from);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}

BS_INLINE void load_four(const float *from, float *v)
{
    const float4 x = __ldcs((const float4 *)from);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}

BS_INLINE void load_four(const bs_i64 *from, bs_i64 *v)
{
    const longlong2 x = __ldcs((const longlong2 *)from), y = __ldcs((const longlong2 *)from + 1);
    v[0] = x.x, v[1] = x.y, v[2] = y.x, v[3] = y.y;
}

// The sums of a strip in memory, as finish_strip reads them.
template <class T> struct MemorySums {
    typedef T Value;
    static constexpr bool ahead = true;
    const T *first; // of the strip
    int rows, columns; // from there to the end of the matrix
    int n, aligned;

    __device__ __forceinline__ void begin(int) const {}

    template <bool down> __device__ __forceinline__ void load(T (&v)[8], int block, int turn, int row, int column, int jump) const
    {
        const int column0 = block * kBlockWidth + column;
        if constexpr (down) {
            const T *from = first + (bs_i64)row * n + min(column0 + 16 * turn, columns - 1);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = row + i < rows ? from[(bs_i64)i * n] : (T)0;
        } else {
            const T *from = first + (bs_i64)min(row + 4 * turn, rows - 1) * n;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = column0 + half * jump;
                if (aligned && at < columns) {
                    load_four(from + at, v + 4 * half);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        v[4 * half + i] = at + i < columns ? from[at + i] : (T)0;
                }
            }
        }
    }
};

// A warp finishes one strip.
template <class T> BS_INLINE void finish_sums(const SumsParams &p)
{
    const bs_i64 strip = (bs_i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (strip >= p.strips)
        return;
    const EpilogueParams &e = p.epilogue;
    const int column0 = (int)(strip % p.across) * p.blocks * kBlockWidth, row0 = (int)(strip / p.across % p.down) * kBlockHeight;
    const int batch = (int)(strip / p.across / p.down);
    const MemorySums<T> sums = {(const T *)p.sums + ((bs_i64)batch * e.m + row0) * e.n + column0, e.m - row0, e.n - column0, e.n,
                                p.aligned};
    finish_strip(e, sums, batch, row0, column0, p.blocks);
}

// A thread finishes one octet.
template <class T> BS_INLINE void finish_octets(const SumsParams &p)
{
    const bs_i64 octet = (bs_i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (octet >= p.strips)
        return;
    const EpilogueParams &e = p.epilogue;
    const bs_i64 line = p.strips >> 32 ? octet / p.across : (bs_i64)((u32)octet / (u32)p.across);
    const int column = 8 * (int)(octet - line * p.across), batch = line < e.m ? 0 : (int)(line / e.m);
    const T *from = (const T *)p.sums + line * e.n + column;
    T sum[8];
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
        if (p.aligned && column + half < e.n) {
            load_four(from + half, sum + half);
        } else {
#pragma unroll
            for (int i = half; i < half + 4; i++)
                sum[i] = column + i < e.n ? from[i] : (T)0;
        }
    }
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = (float)sum[i];
    finish_octet(e, batch, (int)(line - (bs_i64)batch * e.m), column, v);
}

extern "C" __global__ void __launch_bounds__(256, 3) octets_int32(const __grid_constant__ SumsParams p) { finish_octets<int>(p); }
extern "C" __global__ void __launch_bounds__(256, 3) octets_int64(const __grid_constant__ SumsParams p) { finish_octets<bs_i64>(p); }
extern "C" __global__ void __launch_bounds__(256, 3) octets_float32(const __grid_constant__ SumsParams p) { finish_octets<float>(p); }
extern "C" __global__ void __launch_bounds__(128, 4) epilogue_int32(const __grid_constant__ SumsParams p) { finish_sums<int>(p); }
extern "C" __global__ void __launch_bounds__(128, 4) epilogue_int64(const __grid_constant__ SumsParams p) { finish_sums<bs_i64>(p); }
extern "C" __global__ void __launch_bounds__(128, 4) epilogue_float32(const __grid_constant__ SumsParams p) { finish_sums<float>(p); }
