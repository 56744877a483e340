// Exact sums of codes over the neighbours of every row of a CSR pattern, without a schedule: nothing is prepared for a pattern, so that
// patterns may change in place under a recorded graph. Rows are at most as long as a part of the graph is large, not as long as a hub's.
//
// A thread adds up eight columns of a row, with four edges in flight. Codes of 1, 2 and 4 bits are spread into bytes, codes of 8 bits into
// half words, and the sums move to 32 bits before a lane can overflow. Bytes: 4 for an entry and a row of codes for each edge, mostly from
// L2, since parts are small.
#include "common/scalar.h"

typedef bs_u8 u8;
typedef bs_u16 u16;
typedef bs_u32 u32;
typedef bs_i64 i64;

struct CodeSumParams {
    const int *indptr, *indices;
    const u8 *codes;
    int *sums;
    i64 rows;
    int columns, octets, stride; // octets: groups of eight columns; stride: bytes of a row of codes
    int bits, planes, plane;     // plane: bytes of a plane of a row
    int high, times, minus;      // codes ^ pattern `high`; sums * times - degree * minus
};

// Sums of eight columns: bytes in `lanes`, for at most LIMIT edges, then moved to `total`.
template <int BITS> struct Octet;

template <> struct Octet<1> {
    static constexpr int limit = 255;
    u32 low, high;
    __device__ __forceinline__ void clear() { low = high = 0; }
    static __device__ __forceinline__ uint2 load(const u8 *at, u32 flip) { return make_uint2(*at ^ (flip & 0xFF), 0); }
    __device__ __forceinline__ void add(uint2 v)
    {
        low += (v.x & 15) * 0x00204081u & 0x01010101u;
        high += (v.x >> 4) * 0x00204081u & 0x01010101u;
    }
    __device__ __forceinline__ void move(int (&t)[8])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            t[i] += low >> 8 * i & 255, t[4 + i] += high >> 8 * i & 255;
        clear();
    }
};

template <> struct Octet<2> {
    static constexpr int limit = 85;
    u32 low, high;
    __device__ __forceinline__ void clear() { low = high = 0; }
    static __device__ __forceinline__ uint2 load(const u8 *at, u32 flip) { return make_uint2(*(const u16 *)at ^ (flip & 0xFFFF), 0); }
    static __device__ __forceinline__ u32 spread(u32 x) { return (x | x << 6 | x << 12 | x << 18) & 0x03030303u; }
    __device__ __forceinline__ void add(uint2 v)
    {
        low += spread(v.x & 255);
        high += spread(v.x >> 8);
    }
    __device__ __forceinline__ void move(int (&t)[8])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            t[i] += low >> 8 * i & 255, t[4 + i] += high >> 8 * i & 255;
        clear();
    }
};

template <> struct Octet<4> {
    static constexpr int limit = 17;
    u32 even, odd;
    __device__ __forceinline__ void clear() { even = odd = 0; }
    static __device__ __forceinline__ uint2 load(const u8 *at, u32 flip) { return make_uint2(*(const u32 *)at ^ flip, 0); }
    __device__ __forceinline__ void add(uint2 v)
    {
        even += v.x & 0x0F0F0F0Fu;
        odd += v.x >> 4 & 0x0F0F0F0Fu;
    }
    __device__ __forceinline__ void move(int (&t)[8])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            t[2 * i] += even >> 8 * i & 255, t[2 * i + 1] += odd >> 8 * i & 255;
        clear();
    }
};

template <> struct Octet<8> {
    static constexpr int limit = 257;
    u32 lanes[4];
    __device__ __forceinline__ void clear() { lanes[0] = lanes[1] = lanes[2] = lanes[3] = 0; }
    static __device__ __forceinline__ uint2 load(const u8 *at, u32 flip)
    {
        const uint2 v = *(const uint2 *)at;
        return make_uint2(v.x ^ flip, v.y ^ flip);
    }
    __device__ __forceinline__ void add(uint2 v)
    {
        lanes[0] += v.x & 0x00FF00FFu, lanes[1] += v.x >> 8 & 0x00FF00FFu;
        lanes[2] += v.y & 0x00FF00FFu, lanes[3] += v.y >> 8 & 0x00FF00FFu;
    }
    __device__ __forceinline__ void move(int (&t)[8])
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                t[4 * i + half] += lanes[2 * i + half] & 0xFFFF;
                t[4 * i + 2 + half] += lanes[2 * i + half] >> 16;
            }
        clear();
    }
};

template <int BITS> static __device__ __forceinline__ void sum_packed(const CodeSumParams &p, int e, int end, int octet, int (&t)[8])
{
    const u8 *codes = p.codes + octet * BITS;
    Octet<BITS> lanes;
    lanes.clear();
    while (e < end) {
        const int stop = min(end, e + Octet<BITS>::limit);
        for (; e + 4 <= stop; e += 4) {
            uint2 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = Octet<BITS>::load(codes + (i64)p.indices[e + i] * p.stride, (u32)p.high);
#pragma unroll
            for (int i = 0; i < 4; i++)
                lanes.add(v[i]);
        }
        for (; e < stop; e++)
            lanes.add(Octet<BITS>::load(codes + (i64)p.indices[e] * p.stride, (u32)p.high));
        lanes.move(t);
    }
}

// Any number of bits, one plane after another; the top plane of signed codes is inverted, which adds an offset.
static __device__ __forceinline__ void sum_planes(const CodeSumParams &p, int e, int end, int octet, int (&t)[8])
{
    for (; e < end; e++) {
        const u8 *row = p.codes + (i64)p.indices[e] * p.stride + octet;
        for (int plane = 0; plane < p.bits; plane++) {
            const u32 byte = row[plane * p.plane] ^ (p.high && plane == p.bits - 1 ? 255u : 0u);
#pragma unroll
            for (int i = 0; i < 8; i++)
                t[i] += (int)((byte >> i & 1u) << plane);
        }
    }
}

static __device__ __forceinline__ void sum_halves(const CodeSumParams &p, int e, int end, int octet, int (&t)[8])
{
    for (; e < end; e++) {
        const uint4 v = *(const uint4 *)(p.codes + (i64)p.indices[e] * p.stride + 16 * octet);
        const u32 words[4] = {v.x ^ (u32)p.high, v.y ^ (u32)p.high, v.z ^ (u32)p.high, v.w ^ (u32)p.high};
#pragma unroll
        for (int i = 0; i < 4; i++)
            t[2 * i] += (int)(words[i] & 0xFFFF), t[2 * i + 1] += (int)(words[i] >> 16);
    }
}

extern "C" __global__ void __launch_bounds__(256) packet_sums(const __grid_constant__ CodeSumParams p)
{
    const i64 total = p.rows * p.octets, step = (i64)gridDim.x * 256;
    for (i64 task = (i64)blockIdx.x * 256 + threadIdx.x; task < total; task += step) {
        const i64 row = task / p.octets;
        const int octet = (int)(task - row * p.octets), begin = p.indptr[row], end = p.indptr[row + 1];
        int t[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (p.planes && p.bits > 1)
            sum_planes(p, begin, end, octet, t);
        else if (p.bits == 1)
            sum_packed<1>(p, begin, end, octet, t);
        else if (p.bits == 2)
            sum_packed<2>(p, begin, end, octet, t);
        else if (p.bits == 4)
            sum_packed<4>(p, begin, end, octet, t);
        else if (p.bits == 8)
            sum_packed<8>(p, begin, end, octet, t);
        else
            sum_halves(p, begin, end, octet, t);
        int *out = p.sums + row * p.columns + 8 * octet;
        const int less = (end - begin) * p.minus, width = min(8, p.columns - 8 * octet);
#pragma unroll
        for (int i = 0; i < 8; i++)
            t[i] = t[i] * p.times - less;
        if (width == 8 && (p.columns & 3) == 0) {
            *(int4 *)out = make_int4(t[0], t[1], t[2], t[3]);
            *(int4 *)(out + 4) = make_int4(t[4], t[5], t[6], t[7]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < width)
                    out[i] = t[i];
        }
    }
}
