// float32 and 16-bit floats to planes of up to four bits, rounded down or to nearest, where offset and divisor are the same all along a
// word. The kernels are those of bits/encode.cu with less arithmetic (bits/quick.cuh). Floor: the bytes of values and words.
#define BS_STEPS 0
#ifndef BS_QUICK_BLOCKS
#define BS_QUICK_BLOCKS 8
#endif
#include "common/ptx.cuh"

#include "bits/quick.cuh"

BS_INLINE void add_points(const Quad &q, int u, float rate, float shift, const EncodeParams &p, u32 (&points)[32], u32 &least)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        points[4 * u + j] = point_of(real_of(element_of(q, j), p.infinity), rate, shift, p.range, p.base);
        least = least_half(least, points[4 * u + j]);
    }
}

// ---- along the lanes: whole chunks without gaps between them
extern "C" __global__ void __launch_bounds__(128, BS_QUICK_BLOCKS) quick_rows(const EncodeParams p)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Index groups = (Index)p.cols / BS_GROUP, lines = (Index)(p.batches * p.rows), chunks = lines * groups, width = (Index)p.width;
    const Element *x = (const Element *)p.x;
    const bool varied = p.offset_row || p.offset_batch || p.divisor_row || p.divisor_batch;
    for (Index first = ((Index)blockIdx.x * warps + warp) * BS_CHUNKS; first < chunks; first += (Index)gridDim.x * warps * BS_CHUNKS) {
        Quad quads[BS_CHUNKS];
#pragma unroll
        for (int u = 0; u < BS_CHUNKS; u++)
            quads[u] = load_quad(x + (min(first + u, chunks - 1) * BS_GROUP + 4 * lane));
        const Index mine = min(first + (lane & 7), chunks - 1); // lanes beyond the last chunk repeat it and store nothing
        const Index line = quotient(mine, groups), group = mine - line * groups;
        Index row = line, batch = 0;
        if (p.batches > 1) {
            batch = quotient(line, (Index)p.rows);
            row = line - batch * (Index)p.rows;
        }
        const float offset = offset_at(p, BS_AT(offset, batch, row, 0)), divisor = divisor_at(p, BS_AT(divisor, batch, row, 0));
        const Quick quick = quick_of(offset, divisor, p);
        if (p.flag) {
            float odd = 0.0f;
#pragma unroll
            for (int b = 0; b < 32; b++)
                odd = bs_fmaf(real_of(element_of(quads[b / 4], b % 4), p.infinity), 0.0f, odd);
            if (odd != 0.0f)
                *p.flag = 1;
        }
        u32 points[32], least = ~0u, w[4];
#pragma unroll
        for (int u = 0; u < BS_CHUNKS; u++)
            add_points(quads[u], u, varied ? __shfl_sync(~0u, quick.rate, u) : quick.rate,
                       varied ? __shfl_sync(~0u, quick.shift, u) : quick.shift, p, points, least);
        nibbles_of(points, w);
        if (__any_sync(~0u, in_doubt(least) || !quick.usable)) {
#pragma unroll 1
            for (int u = 0; u < BS_CHUNKS; u++) {
                const Quad q = load_quad(x + (min(first + u, chunks - 1) * BS_GROUP + 4 * lane));
                const float rate = __shfl_sync(~0u, quick.rate, u), shift = __shfl_sync(~0u, quick.shift, u);
                const float by_offset = __shfl_sync(~0u, offset, u), by_divisor = __shfl_sync(~0u, divisor, u);
                u32 smallest = ~0u, codes[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    smallest = least_half(smallest, point_of(real_of(element_of(q, j), p.infinity), rate, shift, p.range, p.base));
                if (!__any_sync(~0u, in_doubt(smallest) || (!quick.usable && (lane & 7) == u)))
                    continue;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    codes[j] = exact_code(real_of(element_of(q, j), p.infinity), by_offset, by_divisor, p, 0);
                replace_nibbles(w, u, codes);
            }
        }
        turn_nibbles(w);
        u32 *to = p.words + (line * width * p.bits + group * (BS_GROUP / 32) + (lane >> 3));
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < p.bits) {
                const u32 word = exchange_nibbles(w[k], lane);
                if (first + (lane & 7) < chunks)
                    to[k * width] = word;
            }
    }
}

// ---- across the lanes
extern "C" __global__ void __launch_bounds__(128, BS_QUICK_BLOCKS) quick_columns(const EncodeParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Index rows = (Index)p.rows, cols = (Index)p.cols, pieces = (Index)p.width >> 2, step = (Index)p.x_row;
    const Index across = (cols + 31) / 32, down = (rows + BS_GROUP - 1) / BS_GROUP, units = (Index)p.batches * down * across;
    u32 *stage = (u32 *)shared;
    const int pitch = 4 * (p.bits | 1); // an odd number of 16-byte pieces, so that lanes rarely conflict in banks
    for (Index unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const Index upper = quotient(unit, across), col0 = 32 * (unit - upper * across), batch = quotient(upper, down);
        const Index group = upper - batch * down, row0 = BS_GROUP * group + 32 * warp;
        const Index col = min(col0 + lane, cols - 1); // lanes beyond the last column repeat it and store nothing
        const Index rest = rows - row0;
        const bool whole = rest >= 32, some = rest > 0; // compared separately, see encode_columns
        const int left = whole ? 32 : some ? (int)rest : 0;
        const Element *from = (const Element *)p.x + BS_AT(x, batch, row0, col);
        Element e[32];
        if (whole) {
#pragma unroll
            for (int r = 0; r < 32; r++)
                e[r] = from[r * step];
        } else {
#pragma unroll
            for (int r = 0; r < 32; r++)
                e[r] = r < left ? from[r * step] : (Element)0;
        }
        const float offset = offset_at(p, BS_AT(offset, batch, 0, col)), divisor = divisor_at(p, BS_AT(divisor, batch, 0, col));
        const Quick quick = quick_of(offset, divisor, p);
        if (p.flag) {
            float odd = 0.0f;
#pragma unroll
            for (int r = 0; r < 32; r++)
                odd = bs_fmaf(real_of(e[r], p.infinity), 0.0f, odd);
            if (odd != 0.0f)
                *p.flag = 1;
        }
        u32 points[32], least = ~0u, w[4];
#pragma unroll
        for (int r = 0; r < 32; r++) {
            points[r] = point_of(real_of(e[r], p.infinity), quick.rate, quick.shift, p.range, p.base);
            least = least_half(least, points[r]);
        }
        nibbles_of(points, w);
        if (__any_sync(~0u, in_doubt(least) || !quick.usable)) {
#pragma unroll 1
            for (int u = 0; u < 8; u++) {
                float v[4];
                u32 smallest = ~0u, codes[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    v[j] = 4 * u + j < left ? real_of(from[(4 * u + j) * step], p.infinity) : 0.0f;
                    smallest = least_half(smallest, point_of(v[j], quick.rate, quick.shift, p.range, p.base));
                }
                if (!__any_sync(~0u, in_doubt(smallest) || !quick.usable))
                    continue;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    codes[j] = exact_code(v[j], offset, divisor, p, 0);
                replace_nibbles(w, u, codes);
            }
        }
        turn_nibbles(w);
        const u32 valid = whole ? ~0u : (1u << left) - 1u;
        u32 *mine = stage + lane * pitch;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < p.bits)
                mine[4 * k + warp] = w[k] & valid;
        __syncthreads();
        for (int i = threadIdx.x; i < 32 * p.bits; i += 128) {
            const int c = i / p.bits, plane = i % p.bits;
            if (col0 + c < cols && group < pieces)
                ((uint4 *)p.words)[((batch * cols + col0 + c) * p.bits + plane) * pieces + group] =
                    *(const uint4 *)(stage + c * pitch + 4 * plane);
        }
        __syncthreads();
    }
}
