// Words to words and to numbers: another layout, another axis, counts, pad bits. Floor: the bytes of the words.
#define BS_KIND 2
#define BS_LARGE
#include "bits.cuh"

struct WordsParams {
    const u32 *words;
    void *out;
    i64 batches, lines, length;   // lines of a batch, elements of a line
    i64 width, out_width;         // words of a plane of a line, or of a line of fields
    int bits, fields, out_fields;
};

// Bits of word `word` of a plane that stand for elements.
BS_INLINE u32 used_bits(i64 word, i64 length)
{
    const i64 left = length - 32 * word;
    return left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1u;
}

// 32 elements of a line to a thread; what stands in pad bits is left out.
extern "C" __global__ void __launch_bounds__(256) change_layout(const WordsParams p)
{
    const i64 blocks = 4 * ((p.length + BS_GROUP - 1) / BS_GROUP), items = p.batches * p.lines * blocks;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += (i64)gridDim.x * blockDim.x) {
        const i64 line = quotient(item, blocks), block = item - line * blocks;
        const u32 used = used_bits(block, p.length);
        u32 codes[32];
        if (p.fields) {
            u32 w[16];
#pragma unroll
            for (int i = 0; i < 16; i++)
                w[i] = i < p.bits && block * p.bits + i < p.width ? p.words[line * p.width + block * p.bits + i] : 0u;
            get_any_fields(p.bits, w, codes);
#pragma unroll
            for (int b = 0; b < 32; b++)
                codes[b] = used >> b & 1u ? codes[b] : 0u;
        }
        u32 *out = (u32 *)p.out;
        if (p.out_fields) {
            if (!p.fields)
#pragma unroll 1
                for (int plane = (p.bits - 1) & ~3; plane >= 0; plane -= 4) {
                    u32 w[4];
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        w[k] = plane + k < p.bits ? p.words[(line * p.bits + plane + k) * p.width + block] & used : 0u;
                    codes_of(w, plane == ((p.bits - 1) & ~3), codes);
                }
            u32 w[16];
            put_any_fields(p.bits, codes, w);
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (i < p.bits && block * p.bits + i < p.out_width)
                    out[line * p.out_width + block * p.bits + i] = w[i];
            continue;
        }
#pragma unroll 1
        for (int plane = 0; plane < p.bits; plane += 4) {
            u32 w[4];
            if (p.fields) {
                planes_of(codes, w);
                drop_planes(codes);
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (plane + k < p.bits) {
                    const i64 at = (line * p.bits + plane + k) * p.width + block;
                    out[(line * p.bits + plane + k) * p.out_width + block] = p.fields ? w[k] : p.words[at] & used;
                }
        }
    }
}

// 32 x 32 bits: bit r of lane c becomes bit c of lane r.
BS_INLINE u32 turn_bits(u32 x, int lane)
{
    u32 mask = 0x0000ffffu;
#pragma unroll
    for (int step = 16; step > 0; step /= 2, mask ^= mask << step) {
        const u32 y = __shfl_xor_sync(~0u, x, step);
        x = lane & step ? (x & ~mask) | ((y >> step) & mask) : (x & mask) | ((y << step) & ~mask);
    }
    return x;
}

// Planes packed along the other axis: a block turns 128 x 128 bits of one plane.
extern "C" __global__ void __launch_bounds__(128) turn_planes(const WordsParams p)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __shared__ uint4 stage[BS_GROUP];
    const i64 across = (p.length + BS_GROUP - 1) / BS_GROUP, down = (p.lines + BS_GROUP - 1) / BS_GROUP;
    const i64 units = p.batches * down * p.bits * across;
    for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const i64 first = quotient(unit, across), column = unit - first * across, second = quotient(first, p.bits);
        const i64 plane = first - second * p.bits, batch = quotient(second, down), row = second - batch * down;
        const i64 line = BS_GROUP * row + 32 * warp + lane, to = BS_GROUP * column + threadIdx.x;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (line < p.lines)
            w = ((const uint4 *)p.words)[((batch * p.lines + line) * p.bits + plane) * (p.width >> 2) + column];
        u32 *words = (u32 *)stage;
        words[4 * lane + warp] = turn_bits(w.x, lane);
        words[4 * (32 + lane) + warp] = turn_bits(w.y, lane);
        words[4 * (64 + lane) + warp] = turn_bits(w.z, lane);
        words[4 * (96 + lane) + warp] = turn_bits(w.w, lane);
        __syncthreads();
        if (to < p.length)
            ((uint4 *)p.out)[((batch * p.length + to) * p.bits + plane) * (p.out_width >> 2) + row] = stage[threadIdx.x];
        __syncthreads();
    }
}

// Elements whose code is not zero, added to the number at `out`. A thread looks at one word of every plane, or at a word of fields.
extern "C" __global__ void __launch_bounds__(256) count_nonzero(const WordsParams p)
{
    const i64 items = p.lines * p.width;
    u64 count = 0;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += (i64)gridDim.x * blockDim.x) {
        u32 w = 0;
        if (p.fields) {
            w = p.words[item];
            for (int step = 1; step < p.bits; step *= 2)
                w |= w >> step; // the lowest bit of a field sees all of it
            w &= p.bits == 1 ? ~0u : p.bits == 2 ? 0x55555555u : p.bits == 4 ? 0x11111111u : p.bits == 8 ? 0x01010101u : 0x00010001u;
        } else {
            const i64 line = quotient(item, p.width);
#pragma unroll 4
            for (int plane = 0; plane < p.bits; plane++)
                w |= p.words[(line * p.bits + plane) * p.width + (item - line * p.width)];
        }
        count += __popc(w);
    }
    for (int step = 16; step > 0; step /= 2)
        count += __shfl_xor_sync(~0u, count, step);
    if ((threadIdx.x & 31) == 0 && count)
        atomicAdd((u64 *)p.out, count);
}

// Sets the number at `out` if a bit from `length` on is set in one of the lines.
extern "C" __global__ void __launch_bounds__(256) find_pad_bits(const WordsParams p)
{
    const i64 first = p.length / 32, words = p.width - first, items = p.lines * words;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += (i64)gridDim.x * blockDim.x) {
        const i64 line = quotient(item, words), word = first + (item - line * words);
        if (p.words[line * p.width + word] & ~used_bits(word, p.length))
            *(int *)p.out = 1;
    }
}
