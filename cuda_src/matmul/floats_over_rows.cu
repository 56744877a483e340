// out = A^T B for tall matrices of float32 with the same rows, each float in two parts of TF32 (matmul/split_floats.cuh): the gradient by the
// weights of a layer. And, with BS_SUMS, the sums of the columns of A, the gradient by its bias. With BS_MASKED, elements of A count as 0 where
// those of a mask are not positive: A is the gradient of relu's result, and the mask that result.
//
// A block takes a piece of the rows for one tile of the result, of 64 BS_HALVES rows and WIDTH columns. Both matrices, and the mask, pass
// through a ring of stages of 32 rows, B one stage ahead. The contraction is along the rows, so B has to be turned: all threads split it and
// write it as the matrix units read it, while those multiply the stage before. A is masked, summed and split in registers: a warp takes 16 of
// its columns, of which a lane has 2 g and 2 g + 1 as rows g and g + 8 of the first factor. The two warpgroups have different columns of A
// (BS_HALVES 2), or take turns at the rows of a stage.
//
// Sums of all pieces are then added in their order (matmul/floats_ends.cu), so that the same input gives the same bits in every run.
//
// Floor: A, the mask and B from memory once for each tile of the result; three products of TF32 for each product.
#include "matmul/split_floats.cuh"

#define THREADS 256
#define GROUPS (2 / BS_HALVES)
#define OWN_STEPS (STEPS / GROUPS) // of a warpgroup in a stage
#define HEIGHT (64 * BS_HALVES)
#define A_PITCH (HEIGHT + 4) // words of a row of a stage: rows 0, 2, 4 and 6 begin in different banks
#define B_PITCH WIDTH
#define A_BYTES (DEPTH * A_PITCH * 4)
#ifdef BS_MASKED
#define B_AT (2 * A_BYTES) // behind the mask
#else
#define B_AT A_BYTES
#endif
#define STAGE_BYTES (B_AT + DEPTH * B_PITCH * 4)
#ifdef BS_SUMS
#define EXTRA 1 // columns of the sums of pieces
#else
#define EXTRA 0
#endif

struct FloatsOverRowsParams {
    const float *a, *b; // (rows, m) and (rows, n), rows a_pitch and b_pitch apart
    const float *mask; // (rows, m), rows mask_pitch apart, with BS_MASKED
    float *pieces; // (pieces, GROUPS, m, n) sums; with BS_SUMS one more column for the sums of A
    i64 rows, a_pitch, b_pitch, mask_pitch, piece; // piece: rows of a piece, a multiple of DEPTH
    int m, n;
};

// Loads `most` columns from `column` on of a stage of a matrix; those that it does not have, and rows from `end` on, are zeros.
template <int most, int pitch, bool whole>
BS_INLINE void load_columns(u32 to, const float *from, i64 from_pitch, i64 row, i64 end, int column, int columns)
{
    constexpr int vectors = most / 4;
#pragma unroll
    for (int first = 0; first < DEPTH * vectors; first += THREADS) {
        const int item = first + (int)threadIdx.x, r = item / vectors, c = 4 * (item % vectors);
        if (DEPTH * vectors % THREADS && r >= DEPTH)
            break;
        const int count = row + r < end ? columns - column - c : 0;
        copy_words(to + (r * pitch + c) * 4, count > 0 ? from + (row + r) * from_pitch + column + c : from, count, whole);
    }
}

// Turns a stage of B. A thread takes four rows of a column at a time: their parts are a vector of each tile, in the place of the swizzle. Of
// every eight rows, words t and t + 4 are rows 2 t and 2 t + 1, as in `take_fragments`: word w of eight is row 2 (w % 4) + w / 4.
BS_INLINE void turn(u32 tiles, u32 from)
{
#pragma unroll
    for (int first = 0; first < WIDTH * (DEPTH / 4); first += THREADS) {
        const int item = first + (int)threadIdx.x, c = item % WIDTH, vector = item / WIDTH;
        if (WIDTH * (DEPTH / 4) % THREADS && vector >= DEPTH / 4)
            break;
        u32 high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            split_float((u32)load_shared_word(from + ((8 * (vector / 2) + 2 * i + vector % 2) * B_PITCH + c) * 4), high[i], low[i]);
        const u32 to = tiles + c * 128 + ((vector ^ (c & 7)) * 16);
        store_shared(to, (int)high[0], (int)high[1], (int)high[2], (int)high[3]);
        store_shared(to + TILE_BYTES, (int)low[0], (int)low[1], (int)low[2], (int)low[3]);
    }
}

// Takes a lane's columns of A from a stage, and adds them to `sums`.
BS_INLINE void take_fragments(Fragments &to, float (&sums)[2], u32 from, int group)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (GROUPS == 2 && step / OWN_STEPS != group)
            continue;
#pragma unroll
        for (int word = 0; word < 2; word++) { // rows 2 t and 2 t + 1 of eight are words t and t + 4
            const u32 at = from + (8 * step + word) * A_PITCH * 4;
            const int2 pair = load_shared_pair(at);
            float one = __int_as_float(pair.x), other = __int_as_float(pair.y);
#ifdef BS_MASKED
            const int2 mask = load_shared_pair(at + A_BYTES);
            one = where_positive(one, __int_as_float(mask.x)), other = where_positive(other, __int_as_float(mask.y));
#endif
            sums[0] += one, sums[1] += other;
            split_float(__float_as_uint(one), to.high[step][2 * word], to.low[step][2 * word]);
            split_float(__float_as_uint(other), to.high[step][2 * word + 1], to.low[step][2 * word + 1]);
        }
    }
}

BS_INLINE float element_of_a(i64 row, int column, const FloatsOverRowsParams &p)
{
    const float own = p.a[row * p.a_pitch + column];
#ifdef BS_MASKED
    return where_positive(own, p.mask[row * p.mask_pitch + column]);
#else
    return own;
#endif
}

// Computes sums of a thread once more, in float32 and one product after the other: those with a bit in `odd`. The group has rows `own` to
// `own` + 8 OWN_STEPS of each stage.
static __device__ __noinline__ void mend(u64 odd, i64 begin, i64 end, int own, int row, int column, float *out,
                                         const FloatsOverRowsParams p)
{
    for (; odd; odd &= odd - 1) {
        const int i = __ffsll((i64)odd) - 1, r = row + i % 4 / 2, c = column + i / 4 * 8 + i % 2;
        float sum = 0.0f;
        for (i64 first = begin + own; first < end; first += DEPTH)
            for (i64 k = first; k < min(first + 8 * OWN_STEPS, end); k++)
                sum = fmaf(element_of_a(k, r, p), p.b[k * p.b_pitch + c], sum);
        out[(i64)r * (p.n + EXTRA) + c] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) floats_over_rows(const FloatsOverRowsParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane & 3;
    const int group = GROUPS == 2 ? warp / 4 : 0, first = 16 * (GROUPS == 2 ? warp % 4 : warp); // first: of the warp's columns of A
    const int row0 = (int)blockIdx.y * HEIGHT, column0 = (int)blockIdx.z * WIDTH;
    const i64 begin = (i64)blockIdx.x * p.piece, end = min(begin + p.piece, p.rows);
    const int count = (int)((end - begin + DEPTH - 1) / DEPTH);
    const u32 turned = (shared_address(shared) + 1023u) & ~1023u, ring = turned + 4 * TILE_BYTES; // B twice: two tiles each
    i64 coming = begin; // rows of A to load; B is one stage ahead
    int slot_in = 0, slot = 0;
    const auto load_b = [&](i64 from, int to) {
        if (from < end)
            load_columns<WIDTH, B_PITCH, BS_WHOLE_B>(ring + to * STAGE_BYTES + B_AT, p.b, p.b_pitch, from, end, column0, p.n);
    };
    const auto load = [&]() {
        if (coming < end) {
            const u32 to = ring + slot_in * STAGE_BYTES;
            load_columns<HEIGHT, A_PITCH, BS_WHOLE_A>(to, p.a, p.a_pitch, coming, end, row0, p.m);
#ifdef BS_MASKED
            load_columns<HEIGHT, A_PITCH, BS_WHOLE_A>(to + A_BYTES, p.mask, p.mask_pitch, coming, end, row0, p.m);
#endif
        }
        coming += DEPTH;
        slot_in = following<BS_STAGES>(slot_in);
        load_b(coming, slot_in);
        copy_commit();
    };
    load_b(begin, 0);
#pragma unroll 1
    for (int i = 0; i < BS_STAGES - 1; i++)
        load();
    copy_wait<BS_STAGES - 2>();
    __syncthreads();
    turn(turned, ring + B_AT);
    fence_async_proxy();
    float sum[SUMS], total[SUMS], of_columns[2] = {0.0f, 0.0f};
    clear(total);
#pragma unroll 1
    for (int at = 0; at < count; at++) {
        copy_wait<BS_STAGES - 2>();
        __syncthreads(); // this stage is turned, its rows of A and the next ones of B have arrived, and those before are used up
        const u32 stage = ring + slot * STAGE_BYTES;
        slot = following<BS_STAGES>(slot);
        Fragments a;
        take_fragments(a, of_columns, stage + (2 * t * A_PITCH + first + 2 * g) * 4, group);
        const u32 tiles = turned + at % 2 * (2 * TILE_BYTES);
        if (GROUPS == 1)
            start_products(sum, a, tiles, 0, STEPS);
        else if (group == 0)
            start_products(sum, a, tiles, 0, OWN_STEPS);
        else
            start_products(sum, a, tiles, OWN_STEPS, OWN_STEPS);
        if (at + 1 < count)
            turn(turned + (at + 1) % 2 * (2 * TILE_BYTES), ring + slot * STAGE_BYTES + B_AT);
        fence_async_proxy(); // the matrix units will read what this thread turned
        load(); // last, as turning would wait behind it for the units that load
        finish_products(total, sum);
    }

    const int row = row0 + first + 2 * g, column = column0 + 2 * t, pitch = p.n + EXTRA;
    float *const out = p.pieces + ((i64)blockIdx.x * GROUPS + group) * p.m * pitch;
    u64 odd = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = row + i % 4 / 2, c = column + i / 4 * 8 + i % 2;
        if (r >= p.m || c >= p.n)
            continue;
        if (is_odd(total[i]))
            odd |= 1ull << i;
        else
            out[(i64)r * pitch + c] = total[i];
    }
    if (odd)
        mend(odd, begin, end, 8 * OWN_STEPS * group, row, column, out, p);
#ifdef BS_SUMS
#pragma unroll
    for (int i = 0; i < 2; i++) {
        of_columns[i] += __shfl_xor_sync(~0u, of_columns[i], 1);
        of_columns[i] += __shfl_xor_sync(~0u, of_columns[i], 2);
        if (blockIdx.z == 0 && t == 0 && row + i < p.m)
            out[(i64)(row + i) * pitch + p.n] = of_columns[i];
    }
#endif
}
