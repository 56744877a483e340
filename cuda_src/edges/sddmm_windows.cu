// A dot product of float32 rows for each edge, out[e] = sum over d of x[row of e, d] y[column of e, d], over the windows of eight rows of
// spmm/windows.cuh: for patterns whose neighbouring rows share columns.
//
// A warp takes a window, or a part of one, and keeps its rows of x in shared memory. Each group of BS_LANES lanes takes four columns of the
// window at a time: it loads these rows of y once each, multiplies them by all eight rows of x, sums all products over its lanes at once,
// and keeps the products that are edges. The edges of a row are in the order of their columns, so those of a window are adjacent in the
// result; a bit mask for each row gives their places.
//
// Floor: entries * row bytes of y from the L2, and 8 * entries * row length multiplications.
//
// BS_FULL: the number of vectors of a row is a multiple of the lanes.
#include "spmm/windows.cuh"

#define BS_THREADS 256
#if BS_LANES == 8 || (defined(BS_FULL) && __CUDA_ARCH__ < 1200)
#define BLOCKS 3
#else
#define BLOCKS 2 // the 80 registers that three blocks leave are too few
#endif
#define EACH 4 // columns that a group takes at a time
#define GROUPS (32 / BS_LANES)
#define COLUMNS (GROUPS * EACH) // that a warp takes at a time: 16 or 32
#define MINE (BS_ROWS / BS_LANES) // rows whose sums a lane ends up with
#define TURNS (BS_ROWS * COLUMNS / 32)

struct DotWindowsParams {
    const char *x, *y; // rows of row_bytes, a multiple of 16, at 16-byte aligned addresses
    float *out; // (edges,)
    const WindowUnit *units;
    const WindowEntry *entries;
    const bs_u32 *places; // (units, 8): where the edges of each row of a unit begin
    bs_i64 rows;
    unsigned row_bytes, vectors; // of a row: bytes, and 16-byte vectors
    int count;
};

// A load that stays where it is written, before the products; the assembler moves ordinary loads down to their first use.
BS_INLINE float4 load_here(const char *at)
{
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
    return v;
}

BS_INLINE float add_products(const float4 &a, const float4 &b, float sum)
{
    return bs_fmaf(a.w, b.w, bs_fmaf(a.z, b.z, bs_fmaf(a.y, b.y, bs_fmaf(a.x, b.x, sum))));
}

// Sums over the lanes of a group. Every lane holds partial sums of all rows, EACH adjacent columns for each row, but lane t has row i ^ t *
// MINE at place i. So two lanes exchange halves that are at the same places, and no selection is needed. In the end the first places of
// lane t hold the sums of rows t * MINE, t * MINE + 1, ... (A recursion, since the compiler would keep them in memory in a loop.)
template <int lanes, int count, int size> BS_INLINE void folded(float (&part)[size])
{
#pragma unroll
    for (int i = 0; i < count / 2; i++)
        part[i] += __shfl_xor_sync(~0u, part[count / 2 + i], lanes / 2);
    if constexpr (lanes > 2)
        folded<lanes / 2, count / 2>(part);
}

BS_INLINE void store_if(bool valid, float *at, float value)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}" ::"l"(at), "f"(value), "r"((bs_u32)valid)
                 : "memory");
}

BS_INLINE void stage_if(bs_u32 valid, float *at, float value)
{
    const bs_u32 address = (bs_u32)__cvta_generic_to_shared(at);
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.shared.f32 [%0], %1;\n}" ::"r"(address), "f"(value), "r"(valid)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(BS_THREADS, BLOCKS) sddmm_windows(const DotWindowsParams p)
{
    extern __shared__ float4 shared[];
    __shared__ float staged[BS_THREADS / 32][BS_ROWS][COLUMNS + 1];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = lane / BS_LANES, t = lane % BS_LANES;
    const int index = (int)blockIdx.x * (BS_THREADS / 32) + warp;
    if (index >= p.count)
        return;
    const WindowUnit unit = p.units[index];
    const int steps = (int)(p.vectors + BS_LANES - 1) / BS_LANES, room = steps * BS_ROWS * BS_LANES, count = (int)unit.batches * BS_BATCH;
    float4 *own = shared + warp * room; // for each step, the rows in the order in which each lane needs them
    const int rows = (int)min((bs_i64)BS_ROWS, p.rows - (bs_i64)unit.window * BS_ROWS);
    const char *x = p.x + (bs_u64)unit.window * BS_ROWS * p.row_bytes;
    for (int i = lane; i < room; i += 32) {
        const int row = i / BS_LANES % BS_ROWS ^ i % BS_LANES * MINE, vector = i / (BS_LANES * BS_ROWS) * BS_LANES + i % BS_LANES;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < rows && vector < (int)p.vectors)
            v = load_here(x + (bs_u64)(unsigned)row * p.row_bytes + (unsigned)vector * 16u);
        own[i] = v;
    }
    bs_u32 place[MINE];
#pragma unroll
    for (int m = 0; m < MINE; m++)
        place[m] = p.places[(bs_i64)index * BS_ROWS + t * MINE + m];
    __syncwarp();
    for (int base = 0; base < count; base += COLUMNS) {
        bs_u32 column[EACH], mask[EACH], bits[MINE] = {};
#pragma unroll
        for (int c = 0; c < EACH; c += 2) {
            const int at = base + group * EACH + c;
            uint4 pair = make_uint4(0, 0, 0, 0);
            if (at < count)
                pair = __ldg((const uint4 *)(p.entries + unit.entry + at));
            column[c] = pair.x;
            column[c + 1] = pair.z;
            mask[c] = pair.y;
            mask[c + 1] = pair.w;
        }
#pragma unroll
        for (int c = 0; c < EACH; c++)
#pragma unroll
            for (int m = 0; m < MINE; m++)
                bits[m] |= (mask[c] >> (t * MINE + m) & 1) << (group * EACH + c);
        float sum[BS_ROWS * EACH];
#pragma unroll
        for (int i = 0; i < BS_ROWS * EACH; i++)
            sum[i] = 0.0f;
        const char *from = p.y + t * 16;
        const float4 *left_at = own + t;
#pragma unroll 1
        for (int k = 0; k < steps; k++) {
            float4 right[EACH];
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                bs_u64 offset;
                asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(column[c]), "r"(p.row_bytes));
#ifdef BS_FULL
                right[c] = load_here(from + offset);
#else
                right[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (k * BS_LANES + t < (int)p.vectors)
                    right[c] = load_here(from + offset);
#endif
            }
#pragma unroll
            for (int i = 0; i < BS_ROWS; i++) {
                const float4 left = left_at[i * BS_LANES];
#pragma unroll
                for (int c = 0; c < EACH; c++)
                    sum[i * EACH + c] = add_products(left, right[c], sum[i * EACH + c]);
            }
            from += BS_LANES * 16;
            left_at += BS_ROWS * BS_LANES;
        }
        folded<BS_LANES, BS_ROWS * EACH>(sum);
        bs_u32 all[MINE];
#pragma unroll
        for (int m = 0; m < MINE; m++) {
            all[m] = bits[m];
            for (int offset = BS_LANES; offset < 32; offset *= 2)
                all[m] |= __shfl_xor_sync(~0u, all[m], offset);
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                const int bit = group * EACH + c;
                stage_if(bits[m] >> bit & 1, &staged[warp][t * MINE + m][__popc(all[m] & ((1u << bit) - 1))], sum[m * EACH + c]);
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int row = COLUMNS == 32 ? i : 2 * i + lane / 16, number = lane % COLUMNS, m = MINE == 1 ? 0 : i % MINE;
            const int edges = __shfl_sync(~0u, __popc(all[m]), row / MINE);
            const bs_u32 first = __shfl_sync(~0u, place[m], row / MINE);
            store_if(number < edges, p.out + first + number, staged[warp][row][number]);
        }
#pragma unroll
        for (int m = 0; m < MINE; m++)
            place[m] += __popc(all[m]);
        __syncwarp();
    }
}
