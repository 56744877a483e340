// Words to words and to numbers: another layout, another axis, counts, padding bits. Floor: the bytes of the words.
#define BS_KIND 2
#define BS_LARGE
#include "bits/lanes.cuh"

struct WordsParams {
    const u32 *words;
    void *out;
    i64 batches, lines, length;   // lines of a batch, elements of a line
    i64 width, out_width;         // words of a plane of a line, or of a line of fields
    i64 across, down;             // turn_planes: blocks along a line, along the lines of a batch
    int bits, fields, out_fields;
    int lanes_log, pitch; // turn_planes: a block takes 1 << lanes_log words of a line, 4 to 32
};

// The bits of word `word` of a plane that stand for elements.
BS_INLINE u32 used_bits(i64 word, i64 length)
{
    const i64 left = length - 32 * word;
    return left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1u;
}

// A thread takes 32 elements of a line; the contents of padding bits are dropped.
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

// 32 x 32 bits: bit r of word c becomes bit c of word r.
BS_INLINE void turn_words(u32 (&w)[32])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const u32 a = w[i], b = w[i + 16];
        w[i] = __byte_perm(a, b, 0x5410), w[i + 16] = __byte_perm(a, b, 0x7632);
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (!(i & 8)) {
            const u32 a = w[i], b = w[i + 8];
            w[i] = __byte_perm(a, b, 0x6240), w[i + 8] = __byte_perm(a, b, 0x7351);
        }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
        const u32 mask = step == 4 ? 0x0f0f0f0fu : step == 2 ? 0x33333333u : 0x55555555u;
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (!(i & step)) {
                const u32 a = w[i], b = w[i + step];
                w[i] = (a & mask) | (b << step & ~mask), w[i + step] = (a >> step & mask) | (b & ~mask);
            }
    }
}

#define BS_TURN_THREADS 512
#define BS_TURN_BLOCKS (__CUDA_ARCH__ >= 1200 ? 1 : 2) // resident blocks of a multiprocessor; with two, sm_120 would spill registers

// Packs planes along the other axis. A thread takes one word of each of 32 lines and transposes the bits in its registers. The threads of a
// block form groups; each group takes neighbouring words of its own 32 lines, so reads are as wide as a group and writes as wide as there
// are groups. Words change places in shared memory, whose rows are padded so that neither side conflicts in banks.
extern "C" __global__ void __launch_bounds__(BS_TURN_THREADS, BS_TURN_BLOCKS) turn_planes(const WordsParams p)
{
    extern __shared__ uint4 shared[];
    u32 *stage = (u32 *)shared; // (bit of the word, group, word)
    const int lanes_log = p.lanes_log, groups_log = 9 - lanes_log, groups = 1 << groups_log;
    const i64 units = p.batches * p.bits * p.down * p.across, step = p.bits * p.width, out_step = p.bits * p.out_width;
#pragma unroll 1
    for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const i64 upper = quotient(unit, p.across), column = (unit - upper * p.across) << lanes_log;
        const i64 second = quotient(upper, p.down), row = (upper - second * p.down) << groups_log;
        const i64 batch = quotient(second, p.bits), plane = second - batch * p.bits;
        const int word = threadIdx.x & ((1 << lanes_log) - 1), own = threadIdx.x >> lanes_log;
        const i64 line = 32 * (row + own), left = column + word < p.width ? p.lines - line : 0;
        const u32 *from = p.words + ((batch * p.lines + line) * p.bits + plane) * p.width + column + word;
        u32 w[32];
        if (left >= 32) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                w[i] = from[i * step];
        } else {
#pragma unroll
            for (int i = 0; i < 32; i++)
                w[i] = i < left ? from[i * step] : 0u;
        }
        turn_words(w);
#pragma unroll
        for (int i = 0; i < 32; i++)
            stage[(i * groups + own) * p.pitch + word] = w[i];
        __syncthreads();
        // Neighbouring threads take the groups of a line first, then the words of a bit.
        const int group = threadIdx.x & (groups - 1), first = threadIdx.x >> groups_log;
        const i64 to = 32 * (column + first);
        u32 *out = (u32 *)p.out + ((batch * p.length + to) * p.bits + plane) * p.out_width + row + group;
        if (row + group < p.out_width) {
#pragma unroll 8
            for (int i = 0; i < 32; i++)
                if (to + i < p.length)
                    out[i * out_step] = stage[(i * groups + group) * p.pitch + first];
        }
        __syncthreads();
    }
}

// Adds the number of elements with a nonzero code to the number at `out`. A thread examines one word of every plane, or one word of fields.
extern "C" __global__ void __launch_bounds__(256) count_nonzero(const WordsParams p)
{
    const i64 items = p.lines * p.width;
    u64 count = 0;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += (i64)gridDim.x * blockDim.x) {
        u32 w = 0;
        if (p.fields) {
            w = p.words[item];
            for (int step = 1; step < p.bits; step *= 2)
                w |= w >> step; // the lowest bit of a field becomes the OR of all its bits
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
