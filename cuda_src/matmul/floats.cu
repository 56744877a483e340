// out = x W^T for a tall matrix x of float32 and a small W, each float in two parts of TF32 (matmul/split_floats.cuh). On the way to memory the
// rows may be scaled, a bias or what `out` holds is added, and relu applied. The product may also be a sum of two, x W^T + x2 W2^T.
//
// A block takes tiles of 128 rows and WIDTH columns of the result, one after another. A warp has 16 of the rows: it copies their part of x
// into a ring of its own, 32 columns at a time, and takes its first factor from there, so that warps do not wait for each other. The parts of
// W are made once (matmul/floats_ends.cu), in the order in which the matrix units read them: they stay in shared memory (BS_RESIDENT), or
// pass through a ring that all warps share. Of every eight columns, a lane takes 2 t and 2 t + 1 as its words t and t + 4: the order does not
// matter to a sum, as long as both factors agree, and two words next to each other are one load. The columns of x2 follow those of x, from the
// next multiple of four on, so that a stage may have some of both.
//
// Floor: x and the result from and to memory once; three products of TF32 for each product.
#include "matmul/split_floats.cuh"

#define THREADS 256
#define ROWS (16 * THREADS / 32) // of a tile
#define PITCH 40 // words of a row of a stage: rows begin in different banks
#define RING_BYTES (BS_STAGES * 16 * PITCH * 4) // of a warp
#define WEIGHT_BYTES (2 * TILE_BYTES) // of a stage

struct Factors {
    const float *x; // (rows, columns of the weights), rows `pitch` apart
    i64 pitch;
    SmallMatrix weights;
};

struct FloatsParams {
    Factors first, second; // the weights of `second` have no columns if there is only one product
    const uint4 *parts; // of the weights: see split_weights
    const float *scale; // (rows,), or null
    const float *bias; // (columns,), with BS_BEHIND 1
    float *out; // (rows, columns), rows out_pitch apart
    i64 rows, out_pitch;
    int columns, second_at, relu; // second_at: columns of `first`, rounded up to a multiple of four
};

// Copies the part of the warp's 16 rows from `row` on that begins at `column`.
BS_INLINE void load_rows(u32 to, i64 row, int column, const FloatsParams &p)
{
    const int lane = threadIdx.x & 31, place = 4 * (lane & 7), behind = column + place - p.second_at;
    const bool second = behind >= 0;
    const int c = second ? behind : column + place, count = (second ? p.second.weights.depth : p.first.weights.depth) - c;
    const i64 pitch = second ? p.second.pitch : p.first.pitch;
    const float *from = (second ? p.second.x : p.first.x) + (row + lane / 8) * pitch + c;
    to += (lane / 8 * PITCH + place) * 4;
    const i64 left = p.rows - row - lane / 8;
#pragma unroll
    for (int i = 0; i < 16; i += 4, from += 4 * pitch, to += 4 * PITCH * 4) {
        const int own = i < left ? count : 0;
        copy_words(to, own > 0 ? from : p.first.x, own, BS_WHOLE);
    }
}

BS_INLINE void load_weights(u32 to, const uint4 *parts)
{
    for (int i = threadIdx.x; i < WEIGHT_BYTES / 16; i += THREADS)
        copy_async(to + 16 * i, parts + i, true);
}

BS_INLINE void take_fragments(Fragments &to, u32 rows)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int2 pair = load_shared_pair(rows + (8 * half * PITCH + 8 * step) * 4);
            split_float((u32)pair.x, to.high[step][half], to.low[step][half]);
            split_float((u32)pair.y, to.high[step][2 + half], to.low[step][2 + half]);
        }
}

// The bits of the sums of a thread that are not finite and belong to the result.
BS_INLINE u64 find_odd(const float (&total)[SUMS], i64 row, int column, const FloatsParams &p)
{
    float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        zeros[i % 4] = fmaf(total[i], 0.0f, zeros[i % 4]);
    u64 odd = 0;
    if (is_odd(zeros[0] + zeros[1] + (zeros[2] + zeros[3])))
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            if (is_odd(total[i]) && row + i % 4 / 2 * 8 < p.rows && column + i / 4 * 8 + i % 2 < p.columns)
                odd |= 1ull << i;
    return odd;
}

BS_INLINE void add_bias(float (&total)[SUMS], int column, const FloatsParams &p)
{
    const float *const bias = p.bias + column;
#pragma unroll
    for (int c = 0; c < WIDTH; c += 8)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float own = column + c + e < p.columns ? bias[c + e] : 0.0f;
            total[c / 2 + e] = __fadd_rn(total[c / 2 + e], own);
            total[c / 2 + 2 + e] = __fadd_rn(total[c / 2 + 2 + e], own);
        }
}

// Adds what `out` holds to the sums of a thread: all of it is loaded before the first of it arrives.
BS_INLINE void add_result(float (&total)[SUMS], i64 row, int column, const FloatsParams &p)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const i64 r = row + 8 * half;
        const float *const from = p.out + r * p.out_pitch + column;
        const int count = r < p.rows ? p.columns - column : 0;
#pragma unroll
        for (int c = 0; c < WIDTH; c += 8)
#pragma unroll
            for (int e = 0; e < 2; e++)
                total[c / 2 + 2 * half + e] = __fadd_rn(total[c / 2 + 2 * half + e], c + e < count ? from[c + e] : 0.0f);
    }
}

// Makes results of the sums of a thread.
BS_INLINE void finish(float (&total)[SUMS], i64 row, int column, const FloatsParams &p)
{
    if (p.scale)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float scale = row + 8 * half < p.rows ? p.scale[row + 8 * half] : 0.0f;
#pragma unroll
            for (int i = 2 * half; i < SUMS; i += 4) {
                total[i] = __fmul_rn(total[i], scale);
                total[i + 1] = __fmul_rn(total[i + 1], scale);
            }
        }
    if (BS_BEHIND == 1)
        add_bias(total, column, p);
    if (BS_BEHIND == 2)
        add_result(total, row, column, p);
    if (p.relu)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            total[i] = where_positive(total[i], total[i]);
}

// Stores the results of a warp, which begin at `row`, by way of shared memory at `stage`, where nothing else lies: 32 columns at a time,
// so that neighbours write whole lines of a row. Registers hold pairs of eight rows, which would be eight writes of a sector each.
BS_INLINE void store_rows(const float (&total)[SUMS], u32 stage, i64 row, int column, const FloatsParams &p)
{
    const int lane = threadIdx.x & 31, g = lane / 4, t = lane & 3, place = 4 * (lane & 7);
    const bool vectors = ((u64)p.out | (u64)p.out_pitch * 4 | (u64)p.columns * 4) % 16 == 0;
    const int rows = (int)min(p.rows - row, (i64)16);
#pragma unroll
    for (int c = 0; c < WIDTH; c += 32) {
        __syncwarp(); // what lay there has been read
#pragma unroll
        for (int i = 0; i < min(WIDTH - c, 32) / 8; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = (c + 8 * i) / 2 + 2 * half;
                store_shared(stage + ((g + 8 * half) * PITCH + 8 * i + 2 * t) * 4, __float_as_int(total[at]),
                             __float_as_int(total[at + 1]));
            }
        __syncwarp();
        const int left = min(p.columns - column - c, min(WIDTH - c, 32)); // columns to store
        if (vectors) {
#pragma unroll
            for (int r = lane / 8; r < 16; r += 4) {
                const int4 four = load_shared(stage + (r * PITCH + place) * 4);
                if (r < rows && place < left)
                    *(int4 *)(p.out + (row + r) * p.out_pitch + column + c + place) = four;
            }
        } else if (lane < left) {
#pragma unroll
            for (int r = 0; r < 16; r++)
                if (r < rows)
                    p.out[(row + r) * p.out_pitch + column + c + lane] = __int_as_float(load_shared_word(stage + (r * PITCH + lane) * 4));
        }
    }
}

// Stores the results of a thread but for those with a bit in `odd`.
BS_INLINE void store(const float (&total)[SUMS], u64 odd, i64 row, int column, const FloatsParams &p)
{
    const bool pairs = ((u64)p.out | (u64)p.out_pitch * 4) % 8 == 0 && !odd;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const i64 r = row + 8 * half;
        float *const to = p.out + r * p.out_pitch + column;
        const int count = r < p.rows ? p.columns - column : 0;
#pragma unroll
        for (int c = 0; c < WIDTH; c += 8) {
            const int i = c / 2 + 2 * half;
            if (pairs && c + 1 < count)
                *(float2 *)(to + c) = make_float2(total[i], total[i + 1]);
            else {
                if (c < count && !(odd >> i & 1))
                    to[c] = total[i];
                if (c + 1 < count && !(odd >> i & 2))
                    to[c + 1] = total[i + 1];
            }
        }
    }
}

BS_INLINE float add_products(float sum, i64 row, int column, const Factors &of)
{
    for (int k = 0; k < of.weights.depth; k++)
        sum = fmaf(of.x[row * of.pitch + k], of.weights.w[column * of.weights.across + k * of.weights.along], sum);
    return sum;
}

// Computes the sums that `store` left out once more, in float32 and one product after the other.
static __device__ __noinline__ void mend(u64 odd, i64 row, int column, const FloatsParams p)
{
    for (; odd; odd &= odd - 1) {
        const int i = __ffsll((i64)odd) - 1, c = column + i / 4 * 8 + i % 2;
        const i64 r = row + i % 4 / 2 * 8;
        float *const to = p.out + r * p.out_pitch + c;
        float sum = add_products(add_products(0.0f, r, c, p.first), r, c, p.second);
        if (p.scale)
            sum = __fmul_rn(sum, p.scale[r]);
        if (BS_BEHIND)
            sum = __fadd_rn(sum, BS_BEHIND == 1 ? p.bias[c] : *to);
        *to = p.relu ? where_positive(sum, sum) : sum;
    }
}

// A stage of a tile; blocks take every gridDim.x-th tile.
struct Place {
    i64 row;
    int stage;
};

BS_INLINE void advance(Place &at, int stages)
{
    if (++at.stage == stages) {
        at.stage = 0;
        at.row += (i64)gridDim.x * ROWS;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) float_products(const FloatsParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane & 3;
    const int stages = (p.second_at + p.second.weights.depth + DEPTH - 1) / DEPTH;
    const i64 tiles = (p.rows + ROWS - 1) / ROWS, count = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x * stages;
    const uint4 *const parts = p.parts + (i64)blockIdx.y * stages * (WEIGHT_BYTES / 16);
    const u32 weights = (shared_address(shared) + 1023u) & ~1023u;
#ifdef BS_RESIDENT
    const u32 ring = weights + stages * WEIGHT_BYTES + warp * RING_BYTES;
    for (int stage = 0; stage < stages; stage++)
        load_weights(weights + stage * WEIGHT_BYTES, parts + stage * (WEIGHT_BYTES / 16));
    copy_wait_all();
    fence_async_proxy();
    __syncthreads();
#else
    const u32 ring = weights + BS_STAGES * WEIGHT_BYTES + warp * RING_BYTES;
#endif
    Place coming = {(i64)blockIdx.x * ROWS + 16 * warp, 0}, now = coming;
    i64 left = count; // stages to load
    int slot_in = 0, slot = 0;
    const auto load = [&]() {
        if (left > 0) {
            left--;
            load_rows(ring + slot_in * (16 * PITCH * 4), coming.row, coming.stage * DEPTH, p);
#ifndef BS_RESIDENT
            load_weights(weights + slot_in * WEIGHT_BYTES, parts + coming.stage * (WEIGHT_BYTES / 16));
#endif
            advance(coming, stages);
        }
        copy_commit();
        slot_in = following<BS_STAGES>(slot_in);
    };
#pragma unroll 1
    for (int i = 0; i < BS_STAGES - 1; i++)
        load();
    const int column = (int)blockIdx.y * WIDTH + 2 * t;
    float sum[SUMS], total[SUMS];
    clear(total);
#pragma unroll 1
    for (i64 at = 0; at < count; at++) {
        copy_wait<BS_STAGES - 2>();
#ifdef BS_RESIDENT
        __syncwarp(); // all copies of the warp have arrived, and nobody reads the stage that is filled next
        const u32 of_stage = weights + now.stage * WEIGHT_BYTES;
#else
        fence_async_proxy();
        __syncthreads();
        const u32 of_stage = weights + slot * WEIGHT_BYTES;
#endif
        const u32 used = ring + slot * (16 * PITCH * 4); // free until the next stage is loaded
        Fragments a;
        take_fragments(a, used + (g * PITCH + 2 * t) * 4);
        start_products(sum, a, of_stage, 0, STEPS);
        load();
        slot = following<BS_STAGES>(slot);
        finish_products(total, sum);
        if (now.stage + 1 == stages) {
            const i64 row = now.row + g;
            const u64 odd = find_odd(total, row, column, p);
            finish(total, row, column, p);
            if (__any_sync(~0u, odd != 0)) {
                store(total, odd, row, column, p);
                mend(odd, row, column, p);
            } else
                store_rows(total, used, now.row, column - 2 * t, p);
            clear(total);
        }
        advance(now, stages);
    }
}
