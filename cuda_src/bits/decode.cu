// Words to values: unpacking and dequantising, the reverse of bits/encode.cu. Floor: the bytes of words and values.
#include "bits/lanes.cuh"

struct DecodeParams {
    const u32 *words;
    void *out;                     // (batches, rows, cols) without gaps
    const float *scale, *offset;   // null: scale_value, offset_value
    i64 batches, rows, cols;
    i64 scale_batch, scale_row, scale_col, offset_batch, offset_row, offset_col;
    i64 width; // words of one plane of a line, or of a line of fields
    float scale_value, offset_value;
    int bits, fields, affine; // if not affine, results are the integers themselves
    u32 top;         // the integer of a code is (code ^ top) * weight - less
    int weight, less;
    int is_unsigned, is_bool, infinity, vector;
};

BS_INLINE int integer_of(u32 code, const DecodeParams &p) { return (int)((code ^ p.top) * (u32)p.weight - (u32)p.less); }

// The element that an integer is stored as.
BS_INLINE Element element_of_integer(int v, const DecodeParams &p)
{
#if BS_KIND == BS_DOUBLE
    return element_of_double(p.is_unsigned ? (double)(u32)v : (double)v);
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
    const float f = p.is_unsigned ? (float)(u32)v : (float)v;
#if BS_KIND == BS_FLOAT
    return bs_bits_of(f);
#else
    return p.infinity == 0x7c00 ? bs_float_to_f16(f) : bs_float_to_bf16(f);
#endif
#elif BS_KIND == 3
    return p.is_unsigned ? (u64)(u32)v : (u64)(i64)v;
#else
    return p.is_bool ? (Element)(v != 0) : (Element)v;
#endif
}

// The element that integer * scale + offset is stored as.
BS_INLINE Element dequantized(int v, float scale, float offset, const DecodeParams &p)
{
#if BS_KIND == BS_DOUBLE
    return element_of_double(bs_dequantd(p.is_unsigned ? (double)(u32)v : (double)v, scale, offset));
#elif BS_KIND >= BS_HALF
    const float f = bs_dequantf(p.is_unsigned ? (float)(u32)v : (float)v, scale, offset);
#if BS_KIND == BS_FLOAT
    return bs_bits_of(f);
#else
    return p.infinity == 0x7c00 ? bs_float_to_f16(f) : bs_float_to_bf16(f);
#endif
#else
    return element_of_integer(v, p);
#endif
}

BS_INLINE float scale_at(const DecodeParams &p, Index at) { return p.scale ? p.scale[at] : p.scale_value; }
BS_INLINE float offset_at(const DecodeParams &p, Index at) { return p.offset ? p.offset[at] : p.offset_value; }

// Offset of (batch, row, col) by one of the triples of strides in the parameters.
#define BS_AT(name, batch, row, col) ((batch) * (Index)p.name##_batch + (row) * (Index)p.name##_row + (col) * (Index)p.name##_col)

// ---- along the lanes
extern "C" __global__ void __launch_bounds__(128, 4) decode_rows(const DecodeParams p)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Index cols = (Index)p.cols, width = (Index)p.width, chunks = (Index)(p.batches * p.rows) * ((cols + BS_GROUP - 1) / BS_GROUP);
    const int top = (p.bits - 1) & ~3; // first plane of the last group of four
    const bool varied = p.scale_row || p.scale_batch || p.offset_row || p.offset_batch, by_col = p.scale_col || p.offset_col;
    for (Index first = ((Index)blockIdx.x * warps + warp) * BS_CHUNKS; first < chunks; first += (Index)gridDim.x * warps * BS_CHUNKS) {
        const Chunk own = chunk_at(first + (lane & 7), chunks, (Index)p.batches, (Index)p.rows, cols);
        u32 codes[32];
        if (p.fields) {
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++) {
                const u32 *from = p.words + __shfl_sync(~0u, own.line, u) * width;
                const Index at = __shfl_sync(~0u, own.first, u) / 4 + lane;
                uint4 c = make_uint4(0, 0, 0, 0);
                if (__shfl_sync(~0u, own.left, u) > 0 && at * p.bits < 8 * width)
                    c = load_quad_fields(from, at, p.bits);
                codes[4 * u] = c.x, codes[4 * u + 1] = c.y, codes[4 * u + 2] = c.z, codes[4 * u + 3] = c.w;
            }
        } else {
            const u32 *from = p.words + (own.line * p.bits * width + own.first / 32 + (lane >> 3));
#pragma unroll 1
            for (int plane = top; plane >= 0; plane -= 4) {
                u32 w[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    w[k] = own.left > 0 && plane + k < p.bits ? from[(plane + k) * width] : 0u;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (plane + k < p.bits)
                        w[k] = exchange_nibbles(w[k], lane);
                codes_of(w, plane == top, codes);
            }
        }
        const Index scales = own.left ? BS_AT(scale, own.batch, own.row, own.first) : 0;
        const Index offsets = own.left ? BS_AT(offset, own.batch, own.row, own.first) : 0;
        const float my_scale = scale_at(p, scales), my_offset = offset_at(p, offsets);
        const Index to = own.line * cols + own.first;
#pragma unroll
        for (int u = 0; u < BS_CHUNKS; u++) {
            Element *at = (Element *)p.out + (__shfl_sync(~0u, to, u) + 4 * lane);
            const int left = __shfl_sync(~0u, own.left, u) - 4 * lane;
            Element e[4];
            if (!p.affine) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    e[j] = element_of_integer(integer_of(codes[4 * u + j], p), p);
            } else if (by_col) {
                const Index first_scale = __shfl_sync(~0u, scales, u), first_offset = __shfl_sync(~0u, offsets, u);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < left)
                        e[j] = dequantized(integer_of(codes[4 * u + j], p), scale_at(p, first_scale + (4 * lane + j) * (Index)p.scale_col),
                                           offset_at(p, first_offset + (4 * lane + j) * (Index)p.offset_col), p);
            } else {
                const float scale = varied ? __shfl_sync(~0u, my_scale, u) : my_scale;
                const float offset = varied ? __shfl_sync(~0u, my_offset, u) : my_offset;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    e[j] = dequantized(integer_of(codes[4 * u + j], p), scale, offset, p);
            }
            if (p.vector && left >= 4) {
                Quad q = zero_quad();
#pragma unroll
                for (int j = 0; j < 4; j++)
                    set_element(q, j, e[j]);
                store_quad(at, q);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < left)
                        at[j] = e[j];
            }
        }
    }
}

// ---- across the lanes
extern "C" __global__ void __launch_bounds__(128) decode_columns(const DecodeParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pitch = 4 * (p.bits | 1), top = (p.bits - 1) & ~3;
    const Index rows = (Index)p.rows, cols = (Index)p.cols, pieces = (Index)p.width >> 2;
    const Index across = (cols + 31) / 32, down = (rows + BS_GROUP - 1) / BS_GROUP, units = (Index)p.batches * down * across;
    u32 *stage = (u32 *)shared;
    for (Index unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const Index upper = quotient(unit, across), col0 = 32 * (unit - upper * across), batch = quotient(upper, down);
        const Index group = upper - batch * down, row0 = BS_GROUP * group + 32 * warp, col = col0 + lane;
        for (int i = threadIdx.x; i < 32 * p.bits; i += 128) {
            const int c = i / p.bits, piece = i % p.bits;
            const Index line = batch * cols + col0 + c, at = p.fields ? group * p.bits + piece : group;
            uint4 w = make_uint4(0, 0, 0, 0);
            if (col0 + c < cols && at < pieces)
                w = ((const uint4 *)p.words)[(p.fields ? line : line * p.bits + piece) * pieces + at];
            *(uint4 *)(stage + c * pitch + 4 * piece) = w;
        }
        __syncthreads();
        const u32 *mine = stage + lane * pitch;
        u32 codes[32];
        if (p.fields) {
            get_any_fields(p.bits, mine + warp * p.bits, codes);
        } else {
#pragma unroll 1
            for (int plane = top; plane >= 0; plane -= 4) {
                u32 w[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    w[k] = plane + k < p.bits ? mine[4 * (plane + k) + warp] : 0u;
                codes_of(w, plane == top, codes);
            }
        }
        __syncthreads();
        const Index left = rows - row0;
        if (col >= cols || left <= 0)
            continue;
        Element *to = (Element *)p.out + ((batch * rows + row0) * cols + col);
        if (!p.affine) {
#pragma unroll
            for (int r = 0; r < 32; r++)
                if (r < left)
                    to[r * cols] = element_of_integer(integer_of(codes[r], p), p);
            continue;
        }
        const Index scales = BS_AT(scale, batch, row0, col);
        const Index offsets = BS_AT(offset, batch, row0, col);
        const bool by_row = p.scale_row || p.offset_row;
        const float my_scale = scale_at(p, scales), my_offset = offset_at(p, offsets);
#pragma unroll
        for (int r = 0; r < 32; r++)
            if (r < left)
                to[r * cols] = dequantized(integer_of(codes[r], p), by_row ? scale_at(p, scales + r * (Index)p.scale_row) : my_scale,
                                           by_row ? offset_at(p, offsets + r * (Index)p.offset_row) : my_offset, p);
    }
}
