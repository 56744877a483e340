// Opens a packet of subgraphs (bitsparse/graph/packets.py) where it arrives: a CSR pattern, the factors of its nodes, and the words of the
// features. All sizes are read from the packet, so that one recorded graph serves every packet that fits.
//
// Bytes: reads the packet once; writes 4 for each entry, 16 for each node, and the padded features. A thread takes a row and adds up its
// gaps one after another, which is short compared with copying the packet over PCIe (a byte an entry at 50 GB/s, 25 entries in the time of
// one gap).
#include "common/scalar.h"
#include "common/warps.cuh"

typedef bs_u8 u8;
typedef bs_u32 u32;
typedef bs_i64 i64;

struct PacketParams {
    const u8 *packet;
    int *indptr, *indices, *degrees;
    float *left, *term;
    u8 *words;
    const int *order;
    const float *table, *logits;
    float *out;
    i64 room; // nodes that the arrays hold
    i64 low;  // the packet's first node in the whole graph's new order
    int runs, used, stride, width;
};

enum { HEAD_NODES, HEAD_CHUNKS, HEAD_ENTRIES, HEAD_TABLE, HEAD_STREAM, HEAD_FEATURES, HEAD_BYTES, HEAD_FLAGS };
enum { CHUNK_ROW, CHUNK_COLUMN, CHUNK_ENTRY, CHUNK_PLACE, CHUNK_SPAN, CHUNK_WORDS };

// The possible units: 3, 4, 5, 6, 7, 8, 12, 16 bits.
static __device__ __forceinline__ int unit_bits(u32 code) { return code < 6 ? 3 + code : code == 6 ? 12 : 16; }

static __device__ __forceinline__ u32 unit_at(const u8 *from, i64 index, int bits)
{
    const i64 bit = index * bits;
    const u8 *at = from + (bit >> 3);
    const int low = (int)bit & 7;
    u32 value = at[0];
    for (int i = 1; 8 * i < low + bits; i++) // a length of 32 bits begins at a whole byte
        value |= (u32)at[i] << 8 * i;
    return value >> low & (0xFFFFFFFFu >> (32 - bits));
}

// The sum over the threads before this one; `room` holds 33 integers. All 256 threads of the block call it.
static __device__ __forceinline__ u32 sum_before(u32 value, u32 *room)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 sum = sum_up_to_lane(value);
    __syncthreads(); // earlier values in the room may still be read
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    u32 before = 0;
    for (int i = 0; i < warp; i++)
        before += room[i];
    return before + sum - value;
}

// Rows beyond the packet's are empty.
extern "C" __global__ void __launch_bounds__(256) packet_start(const __grid_constant__ PacketParams p)
{
    const u32 *head = (const u32 *)p.packet;
    const i64 nodes = head[HEAD_NODES], step = (i64)gridDim.x * 256;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i <= p.room; i += step) {
        if (i >= nodes)
            p.indptr[i] = (int)head[HEAD_ENTRIES];
        if (i >= nodes && i < p.room)
            p.degrees[i] = 0;
    }
}

// A block decodes one chunk of rows at a time, and a thread one row.
extern "C" __global__ void __launch_bounds__(256) packet_rows(const __grid_constant__ PacketParams p)
{
    __shared__ u32 room[33];
    const u32 *head = (const u32 *)p.packet;
    const int loops = head[HEAD_FLAGS] & 1;
    for (u32 c = blockIdx.x; c < head[HEAD_CHUNKS]; c += gridDim.x) {
        const u32 *chunk = (const u32 *)(p.packet + head[HEAD_TABLE]) + CHUNK_WORDS * c;
        const int row0 = (int)chunk[CHUNK_ROW], rows = (int)chunk[CHUNK_WORDS + CHUNK_ROW] - row0, column0 = (int)chunk[CHUNK_COLUMN];
        const int bits = unit_bits(chunk[CHUNK_PLACE] & 7), length_bits = 4 << (chunk[CHUNK_PLACE] >> 3 & 3), r = threadIdx.x;
        const u32 full = (1u << bits) - 1u;
        const u8 *lengths = p.packet + head[HEAD_STREAM] + 4 * (i64)(chunk[CHUNK_PLACE] >> 5);
        const u8 *units = lengths + ((i64)rows * length_bits + 7) / 8;
        const u32 length = r < rows ? unit_at(lengths, r, length_bits) : 0;
        const i64 first = sum_before(length, room);
        u32 count = r < rows ? loops : 0;
        for (u32 u = 0; u < length; u++)
            count += unit_at(units, first + u, bits) != full;
        const u32 before = sum_before(count, room);
        if (r >= rows)
            continue;
        int entry = (int)(chunk[CHUNK_ENTRY] + before);
        const int row = row0 + r;
        p.indptr[row] = entry;
        p.degrees[row] = (int)count;
        if (loops)
            p.indices[entry++] = row;
        int column = max(column0, row + 1 - (int)chunk[CHUNK_SPAN]);
        for (u32 u = 0; u < length; u++) {
            const u32 gap = unit_at(units, first + u, bits);
            column += (int)gap;
            if (gap != full)
                p.indices[entry++] = column++;
        }
    }
}

// The factors of the rows, from a table by degree that the host has computed, so that the bits are the same on both; without a table there
// are none. Also `term`, what a constant addend of every code contributes to a row: its degree times its factor.
extern "C" __global__ void __launch_bounds__(256) packet_factors(const __grid_constant__ PacketParams p)
{
    const i64 step = (i64)gridDim.x * 256;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < p.room; i += step) {
        const int degree = p.degrees[i];
        const float factor = p.table ? p.table[degree] : 1.0f;
        p.term[i] = (float)bs_muld((double)degree, (double)factor);
        if (p.table)
            p.left[i] = factor;
    }
}

// Copies runs of `used` bytes to runs of `stride` bytes; rows beyond the packet's become zero.
extern "C" __global__ void __launch_bounds__(256) packet_features(const __grid_constant__ PacketParams p)
{
    const u32 *head = (const u32 *)p.packet;
    const u8 *from = p.packet + head[HEAD_FEATURES];
    const int words = p.stride / 4;
    const i64 filled = (i64)head[HEAD_NODES] * p.runs, total = p.room * p.runs * words, step = (i64)gridDim.x * 256;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
        const i64 run = i / words;
        const int at = 4 * (int)(i - run * words);
        u32 value = 0;
        if (run < filled) {
            const u8 *bytes = from + run * p.used + at;
#pragma unroll
            for (int b = 0; b < 4; b++)
                if (at + b < p.used)
                    value |= (u32)bytes[b] << 8 * b;
        }
        ((u32 *)p.words)[i] = value;
    }
}

// Copies the logits of the packet's nodes to their places in the whole graph.
extern "C" __global__ void __launch_bounds__(256) packet_scatter(const __grid_constant__ PacketParams p)
{
    const i64 total = (i64)((const u32 *)p.packet)[HEAD_NODES] * p.width, step = (i64)gridDim.x * 256;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
        const i64 row = i / p.width;
        p.out[(i64)p.order[p.low + row] * p.width + (i - row * p.width)] = p.logits[i];
    }
}
