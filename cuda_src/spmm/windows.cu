// Sums of gathered float32 rows over windows of eight rows, on the CUDA cores: y[i] = sum of a[i, j] x[j], each sum in the order of
// columns.
//
// A group of 2^shift lanes takes a window; lane l holds four columns of x in a slice, for all eight rows. It loads a row of x once for all
// rows of the window that need it, with four rows of x in flight, and adds it where the entry's mask says so. Rows without an edge are
// never multiplied, so NaN and infinity do not spread. Windows of many columns come in parts, and the last part to arrive adds up their
// sums.
//
// Floor: entries * row bytes at 9 TB/s (the edges over their reuse), 40 issue slots an entry and 128 columns of x, the compulsory bytes.
//
// BS_WEIGHTS: 0 none, 1 a factor per entry (that of the column), 2 a value per edge, stored for all eight rows of an entry.
#include "spmm/signs.cuh"
#include "spmm/windows.cuh"

#define BS_THREADS 256

struct WindowsParams {
    const char *x; // rows of row_bytes, a multiple of 16, at a 16-byte aligned address
    char *out; // rows of the same length
    const WindowUnit *units;
    const WindowEntry *entries;
    const float *weights; // (entries,), or (entries, 8)
    const float *row_scale; // of the rows, or null
    const float *counts; // divisors of the sums, or null
    float4 *partial; // (slots, 8, slices, lanes)
    int *arrived; // (slots, slices, lanes), at a window's first slot: how many parts have arrived; zeros before and after
    bs_i64 rows;
    unsigned row_bytes, vectors; // of a row: bytes, and 16-byte vectors
    int count, shift, slices;
#if BS_FINISH
    Finish finish;
#endif
};

BS_INLINE void add_vector(float4 &sum, const float4 &v)
{
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
}

BS_INLINE void add_product(float4 &sum, float w, const float4 &v)
{
    sum.x = bs_fmaf(w, v.x, sum.x);
    sum.y = bs_fmaf(w, v.y, sum.y);
    sum.z = bs_fmaf(w, v.z, sum.z);
    sum.w = bs_fmaf(w, v.w, sum.w);
}

// A load that stays where it is written, ahead of the additions; the assembler moves ordinary loads down to their first use.
BS_INLINE float4 load_here(const void *at)
{
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
    return v;
}

BS_INLINE void store_row(const WindowsParams &p, bs_i64 row, unsigned vector, float4 sum)
{
    if (row >= p.rows)
        return;
    if (p.counts) {
        const float count = __ldg(p.counts + row);
        sum = make_float4(bs_divf(sum.x, count), bs_divf(sum.y, count), bs_divf(sum.z, count), bs_divf(sum.w, count));
    }
    if (p.row_scale) {
        const float scale = __ldg(p.row_scale + row);
        sum = make_float4(bs_mulf(sum.x, scale), bs_mulf(sum.y, scale), bs_mulf(sum.z, scale), bs_mulf(sum.w, scale));
    }
    *(float4 *)(p.out + (bs_u64)row * p.row_bytes + (bs_u64)vector * 16) = sum;
}

// Stores the eight rows of a window. Called by all lanes of a group together; vectors from p.vectors on are past the end of the rows.
BS_INLINE void store_rows(const WindowsParams &p, bs_i64 row, unsigned start, int lane, int lanes, const float4 (&sum)[BS_ROWS])
{
    const unsigned vector = start + (unsigned)lane;
#if BS_FINISH == 0
#pragma unroll
    for (int r = 0; r < BS_ROWS; r++)
        if (vector < p.vectors)
            store_row(p, row + r, vector, sum[r]);
#else
    float s[BS_ROWS][4];
#pragma unroll
    for (int r = 0; r < BS_ROWS; r++)
        s[r][0] = sum[r].x, s[r][1] = sum[r].y, s[r][2] = sum[r].z, s[r][3] = sum[r].w;
    const int column = (int)min(vector, p.vectors - 1) * 4;
    bool strange = false;
#pragma unroll 1
    for (int r = 0; r < BS_ROWS && row + r < p.rows; r++) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = s[0][j];
#pragma unroll
        for (int q = 0; q < BS_ROWS - 1; q++) // rotating: the code of the chain appears once
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[q][j] = s[q + 1][j];
        if (BS_FINISH != 2 && p.counts)
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = bs_divf(v[j], __ldg(p.counts + row + r));
        finish_sums(p.finish, (Index)(row + r), 1, false, column, v);
        char *const out = p.out + (bs_u64)(row + r) * (unsigned)p.finish.row_bytes;
#if BS_SIGNS
        Limits<4> limits;
        limits.load(p.finish, column);
        const unsigned bits = vector < p.vectors ? signs_of(limits, v, strange) : 0u;
        store_signs<4>(out, bits, start, lane, lanes, p.finish.row_bytes, start + (unsigned)lanes >= p.vectors);
#else
        if (vector < p.vectors)
            *(float4 *)(out + (bs_u64)vector * 16) = make_float4(v[0], v[1], v[2], v[3]);
#endif
    }
    if (BS_SIGNS && strange)
        *p.finish.nan = 1;
#endif
}

// Resident blocks of a multiprocessor: as many as the registers allow without spilling.
#if BS_WEIGHTS || (BS_FINISH % 2 && __CUDA_ARCH__ != 900)
#define BS_BLOCKS 2
#else
#define BS_BLOCKS 3
#endif

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) spmm_windows(const WindowsParams p)
{
    const int lanes = 1 << p.shift, lane = (int)threadIdx.x & (lanes - 1), slice = (int)blockIdx.y;
    const bs_i64 index = (bs_i64)blockIdx.x * (BS_THREADS >> p.shift) + (threadIdx.x >> p.shift);
    if (index >= p.count)
        return;
    const WindowUnit unit = p.units[index];
    const unsigned vector = (unsigned)(slice * lanes + lane);
    const char *x = p.x + (bs_u64)min(vector, p.vectors - 1) * 16; // lanes past the end of the row read its last vector too
    const uint4 *entry = (const uint4 *)(p.entries + unit.entry); // two to a vector; a spare batch follows the last one
    float4 sum[BS_ROWS];
#pragma unroll
    for (int r = 0; r < BS_ROWS; r++)
        sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    uint4 pair[BS_BATCH / 2];
#pragma unroll
    for (int i = 0; i < BS_BATCH / 2; i++)
        pair[i] = __ldg(entry + i);
    for (unsigned batch = 0; batch < unit.batches; batch++) {
        float4 v[BS_BATCH];
        bs_u32 mask[BS_BATCH];
#pragma unroll
        for (int u = 0; u < BS_BATCH; u++) {
            mask[u] = u % 2 ? pair[u / 2].w : pair[u / 2].y;
            v[u] = load_here(x + (bs_u64)(u % 2 ? pair[u / 2].z : pair[u / 2].x) * p.row_bytes);
        }
#if BS_WEIGHTS == 1
        const float4 scales = load_here((const float4 *)(p.weights + unit.entry) + batch);
#elif BS_WEIGHTS == 2
        float4 values[2 * BS_BATCH];
#pragma unroll
        for (int i = 0; i < 2 * BS_BATCH; i++)
            values[i] = load_here((const float4 *)p.weights + ((bs_u64)unit.entry + (bs_u64)batch * BS_BATCH) * 2 + i);
#endif
        entry += BS_BATCH / 2;
        if (batch + 1 < unit.batches)
#pragma unroll
            for (int i = 0; i < BS_BATCH / 2; i++)
                pair[i] = __ldg(entry + i);
#pragma unroll
        for (int u = 0; u < BS_BATCH; u++) {
#if BS_WEIGHTS == 1
            const float s = u == 0 ? scales.x : u == 1 ? scales.y : u == 2 ? scales.z : scales.w;
#elif BS_WEIGHTS == 2
            const float4 low = values[2 * u], high = values[2 * u + 1];
            const float w[BS_ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#endif
#pragma unroll
            for (int r = 0; r < BS_ROWS; r++)
                if (mask[u] >> r & 1) {
#if BS_WEIGHTS == 0
                    add_vector(sum[r], v[u]);
#elif BS_WEIGHTS == 1
                    add_product(sum[r], s, v[u]);
#else
                    add_product(sum[r], w[r], v[u]);
#endif
                }
        }
    }
    const bs_i64 row = (bs_i64)unit.window * BS_ROWS;
    const bs_u64 step = (bs_u64)p.slices * (unsigned)lanes; // vectors of one row of a slot
    if (unit.slot < 0) {
        store_rows(p, row, vector - (unsigned)lane, lane, lanes, sum);
        return;
    }
    float4 *slot = p.partial + (bs_u64)(unsigned)unit.slot * BS_ROWS * step + vector;
#pragma unroll
    for (int r = 0; r < BS_ROWS; r++)
        slot[r * step] = sum[r];
    __threadfence();
    const int first = unit.slot - unit.part;
    int *arrived = p.arrived + (bs_u64)(unsigned)first * step + vector;
#if BS_SIGNS
    if (!last_of_groups(arrived - lane, unit.parts, lane, lanes)) // the lanes that share a byte must arrive together
        return;
#else
    if (atomicAdd(arrived, 1) != unit.parts - 1)
        return;
    __threadfence();
    *arrived = 0; // for the next launch
#endif
    // Part by part, with all rows of a part loaded at once: one load after another would take a microsecond each.
    slot = p.partial + (bs_u64)(unsigned)first * BS_ROWS * step + vector;
#pragma unroll
    for (int r = 0; r < BS_ROWS; r++)
        sum[r] = __ldcg(slot + r * step);
#pragma unroll 1
    for (int i = 1; i < unit.parts; i++) {
        float4 more[BS_ROWS];
#pragma unroll
        for (int r = 0; r < BS_ROWS; r++)
            more[r] = __ldcg(slot + ((bs_u64)(unsigned)i * BS_ROWS + r) * step);
#pragma unroll
        for (int r = 0; r < BS_ROWS; r++)
            add_vector(sum[r], more[r]);
    }
    store_rows(p, row, vector - (unsigned)lane, lane, lanes, sum);
}
