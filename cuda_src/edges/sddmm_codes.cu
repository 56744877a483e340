// Sums or products of two rows of packed integers for every edge, element by element: out[e, h, d] = x[row of e, h, d] + or * y[column of
// e, h, d]. Results are integers or, with BS_REAL, computed from the real values that the scales and offsets of both sides give.
//
// Pairs of edge and head are dealt out as in edges/sddmm_dot.cu, 32 to a warp. A lane computes BS_VECTOR bytes of results at a time, from a
// word of each row. Bound by writing the results: four bytes an element, while the rows have one byte to an eighth of one.
//
// BS_COLUMNS: a scale or an offset may depend on the column. BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.
#include "edges/ends.cuh"

#define GROUPS (32 / BS_LANES)
#define BATCHES (BS_LANES / BS_STEPS)

#ifdef BS_REAL
typedef float Value;
#else
typedef int Value;
#endif

BS_INLINE u32 load_word(const char *at)
{
    u32 word;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

// The integer of the code in the low bits of `word`, exactly.
BS_INLINE Value value_of(const CodeSide &side, u32 word)
{
    const u32 code = (word & ((1u << BS_CODES) - 1u)) << (BS_CODES == 1 ? side.shift : 0) ^ (u32)side.flip;
#ifdef BS_REAL
    return bs_float_of(0x4b000000u | code) - (8388608.0f + (float)side.minus);
#else
    return (int)code - side.minus;
#endif
}

#ifdef BS_REAL
// The real value of an integer: by the node's map, or by the scale and offset given here if they depend on the column.
BS_INLINE float real_of(const CodeSide &side, float integer, const NodeMap &map, float scale, float offset)
{
#ifdef BS_COLUMNS
    return bs_dequantf(integer, side.scale_column ? scale : map.scale, side.offset_column ? offset : map.offset);
#else
    return bs_dequantf(integer, map.scale, map.offset);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(256, BS_BLOCKS) sddmm_codes(const EdgesParams p)
{
    const int lane = threadIdx.x & 31, group = lane / BS_LANES, t = lane % BS_LANES;
    const i64 warp = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (warp >= p.warps)
        return;
    const int bytes = p.vectors * BS_VECTOR; // of the results of a pair
    const int left = (int)min((i64)32, p.edges * p.heads - 32 * warp);
    const Parts own = parts_of(p, warp);
    __syncwarp();
    char *out = p.out + 32 * warp * bytes;
#pragma unroll 1
    for (int batch = 0; batch < BATCHES; batch++) {
        const int place = batch * BS_STEPS * GROUPS + group; // of the first step
        const char *x[BS_STEPS], *y[BS_STEPS];
#ifdef BS_REAL
        NodeMap x_map[BS_STEPS], y_map[BS_STEPS];
#endif
#pragma unroll
        for (int s = 0; s < BS_STEPS; s++) {
            x[s] = p.x + row_offset(__shfl_sync(~0u, own.left, place + s * GROUPS), p.row_bytes);
            y[s] = p.y + row_offset(__shfl_sync(~0u, own.right, place + s * GROUPS), p.row_bytes);
#ifdef BS_REAL
            x_map[s] = handed(own.left_map, place + s * GROUPS);
            y_map[s] = handed(own.right_map, place + s * GROUPS);
#endif
        }
        for (int v = t; v < p.vectors; v += BS_LANES) {
            const int column = v * BS_ELEMENTS, bit = column * BS_CODES;
            u32 a[BS_STEPS], b[BS_STEPS];
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                b[s] = load_word(y[s] + bit / 32 * 4) >> bit % 32;
                a[s] = load_word(x[s] + bit / 32 * 4) >> bit % 32;
            }
            float scales[2][BS_ELEMENTS] = {}, offsets[2][BS_ELEMENTS] = {};
#ifdef BS_COLUMNS
#pragma unroll
            for (int i = 0; i < BS_ELEMENTS; i++) {
                if (p.left.scale_column)
                    scales[0][i] = __ldg(p.left.scale + (i64)(column + i) * p.left.scale_column);
                if (p.left.offset_column)
                    offsets[0][i] = __ldg(p.left.offset + (i64)(column + i) * p.left.offset_column);
                if (p.right.scale_column)
                    scales[1][i] = __ldg(p.right.scale + (i64)(column + i) * p.right.scale_column);
                if (p.right.offset_column)
                    offsets[1][i] = __ldg(p.right.offset + (i64)(column + i) * p.right.offset_column);
            }
#endif
#pragma unroll
            for (int s = 0; s < BS_STEPS; s++) {
                Vector made;
#pragma unroll
                for (int i = 0; i < BS_ELEMENTS; i++) {
                    Value l = value_of(p.left, a[s] >> i * BS_CODES), r = value_of(p.right, b[s] >> i * BS_CODES);
#ifdef BS_REAL
                    l = real_of(p.left, l, x_map[s], scales[0][i], offsets[0][i]);
                    r = real_of(p.right, r, y_map[s], scales[1][i], offsets[1][i]);
                    made.word[i] = bs_bits_of(p.op == BS_MUL ? bs_mulf(l, r) : bs_addf(l, r));
#else
                    made.word[i] = (u32)(p.op == BS_MUL ? l * r : l + r);
#endif
                }
                if (place + s * GROUPS < left)
                    store_vector(out + row_offset(place + s * GROUPS, bytes) + v * BS_VECTOR, made);
            }
        }
        __syncwarp();
    }
}
