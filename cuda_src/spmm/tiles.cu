// Sparse times dense on the matrix units of a warp: for each window of 16 BS_M rows, the rows of the features are read once.
// A warp takes one piece of a window and BS_SLICE columns. No shared memory is used: warps of a block take neighbouring windows and find
// each other's rows in the L1. Floor: features, results, 4 bytes a column of each window and BS_K / 4 bytes a row of a tile from memory,
// and the rows of all windows' columns from the L2.
#include "spmm/tiles_steps.cuh"

// The sum of a row in its stored form: a mean, scaled.
BS_INLINE float finished(float sum, i64 row, const TilesParams &p)
{
    if (p.counts != nullptr)
        sum = __fdiv_rn(sum, __ldg(p.counts + row));
    return p.row_scale == nullptr ? sum : sum * __ldg(p.row_scale + row);
}

// Stores BS_VEC neighbours of one row.
BS_INLINE void store_run(const float (&f)[BS_VEC], i64 row, int local, int column, const Piece &piece, const TilesParams &p)
{
    if (piece.slot >= 0) {
        float *to = p.partial + ((i64)piece.slot * (16 * BS_M) + local) * p.columns + column;
#pragma unroll
        for (int i = 0; i < BS_VEC; i += BS_VEC < 4 ? BS_VEC : 4)
            if (BS_VEC >= 4)
                *(float4 *)(to + i) = make_float4(f[i], f[BS_VEC > 1 ? i + 1 : 0], f[BS_VEC > 2 ? i + 2 : 0], f[BS_VEC > 3 ? i + 3 : 0]);
            else if (BS_VEC == 2)
                *(float2 *)to = make_float2(f[0], f[BS_VEC > 1 ? 1 : 0]);
            else
                *to = f[0];
        return;
    }
    if (row >= p.rows)
        return;
    Element *to = (Element *)p.y + row * p.columns + column;
    union {
        u32 w[BS_VEC];
        Element e[BS_VEC];
        float4 four;
        float2 two;
        u32 one;
    } run;
#if BS_TYPE == BS_FLOAT
#pragma unroll
    for (int i = 0; i < BS_VEC; i++)
        run.e[i] = finished(f[i], row, p);
#else
#pragma unroll
    for (int i = 0; i < BS_VEC; i += 2)
        run.w[i / 2] = rounded(finished(f[i], row, p), BS_VEC > 1 ? finished(f[BS_VEC > 1 ? i + 1 : 0], row, p) : 0.0f);
#endif
    switch (sizeof(Element) * BS_VEC) {
    case 16: __stcs((float4 *)to, run.four); break;
    case 8: __stcs((float2 *)to, run.two); break;
    case 4: __stcs((u32 *)to, run.one); break;
    default: *to = run.e[0];
    }
}

// The products of a tile also multiply zeros, so infinities and NaN would spread to rows without such a neighbour. If a sum is not finite,
// the window is computed again, edge by edge and without rounding its inputs.
BS_INLINE void sum_edges(i64 at, int start, int limit, const TilesParams &p)
{
    const volatile Piece &kept = p.pieces[at]; // read again, so that no registers hold it until here
    const Piece piece = {kept.tile, kept.edge, kept.window, kept.tiles, kept.slot, 0};
    const int lane = threadIdx.x & 31, head = start / p.width;
#pragma unroll 1
    for (int local = 0; local < 16 * BS_M; local++) {
        const int m = local / 16, g = local % 8, q = BS_BITS * 4 * g / 32, upper = local / 8 % 2;
        const i64 row = (i64)piece.window * (16 * BS_M) + local;
        if (row >= p.rows)
            break;
#pragma unroll 1
        for (int column = start + lane; column < limit; column += 32) {
            float sum = 0;
            u32 next = BS_WEIGHTS == BS_CSR ? p.row_offsets[at * (16 * BS_M) + local] : 0;
#pragma unroll 1
            for (i64 tile = piece.tile; tile < piece.tile + piece.tiles; tile++) {
                const i64 place = (tile * BS_WORDS + q) * BS_M + m;
                const u32 word = p.bits[place];
#pragma unroll 1
                for (int k = 0; k < BS_K; k++) {
                    const int bit = (BS_BITS * (4 * g + k / BS_ROWS) & 31) + BS_ROWS * upper + k % BS_ROWS;
                    if (!(word >> bit & 1))
                        continue;
                    const u32 col = p.cols[tile * BS_K + k];
                    float weight = 1.0f;
#if BS_WEIGHTS >= BS_TILED
                    u32 edge = next++;
                    if (BS_WEIGHTS == BS_TILED)
                        edge = p.offsets[place] + __popc(word & ((1u << bit) - 1));
                    weight = p.values[head * p.value_head + (piece.edge + edge) * (p.value_bytes / 4)];
#endif
                    if (BS_SCALED)
                        weight *= p.col_scale[col];
                    const float x = float_of(*((const Element *)((const char *)p.x + (u64)col * p.row_bytes) + column));
                    sum = BS_WEIGHTS == BS_ONES ? sum + x : fmaf(weight, x, sum);
                }
            }
            if (piece.slot >= 0)
                p.partial[((i64)piece.slot * (16 * BS_M) + local) * p.columns + column] = sum;
            else
                ((Element *)p.y)[row * p.columns + column] = element_of(finished(sum, row, p));
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * BS_WARPS, BS_BLOCKS) spmm_tiles(const TilesParams p)
{
    const u32 lane = threadIdx.x & 31;
    const u32 slice = blockIdx.x % (u32)p.slices, group = blockIdx.x / (u32)p.slices;
    const i64 at = (i64)group * BS_WARPS + (threadIdx.x >> 5);
    if (at >= p.piece_count)
        return;
    const Piece piece = load_piece(p.pieces + at);
    // The last slice of a head begins earlier instead of being narrower.
    const int head = (int)slice / p.head_slices, over = p.width - BS_SLICE, within = ((int)slice - head * p.head_slices) * BS_SLICE;
    const int start = head * p.width + (BS_NARROW ? 0 : min(within, over)), limit = start + (BS_NARROW ? p.width : BS_SLICE);
    Lane l;
    l.g = lane / 4, l.t = lane % 4, l.q = lane * BS_BITS / 32;
    l.cols = p.cols + piece.tile * BS_K + BS_ROWS * l.t;
    l.bits = p.bits + (piece.tile * BS_WORDS + l.q) * BS_M;
    // The rest of the window's columns and bits are prefetched while the first ones are waited for.
    if ((int)lane * 32 < piece.tiles * BS_K)
        prefetch_l2(p.cols + piece.tile * BS_K + lane * 32);
    if ((int)lane * 32 < piece.tiles * BS_WORDS * BS_M)
        prefetch_l2(p.bits + piece.tile * (BS_WORDS * BS_M) + lane * 32);
    l.x = (const Element *)p.x + start;
    const int place = (l.g / 2 + 4 * (l.g % 2)) * BS_VEC; // so that a row's stores fill sectors
#pragma unroll
    for (int v = 0; v < BS_VECTORS; v++)
        l.run[v] = v * 8 * BS_VEC;
    if (BS_NARROW) {
#pragma unroll
        for (int v = 0; v < BS_VECTORS; v++) // columns past the last one are not stored
            l.run[v] = min(l.run[v] + place, p.width - BS_VEC);
    } else {
        l.x += place;
    }
#if BS_WEIGHTS >= BS_TILED
    l.step = p.value_bytes;
    l.values = p.values + head * p.value_head + piece.edge * (p.value_bytes / 4);
    asm("" : "+l"(l.values)); // otherwise every load would compute the sum again
#endif
#if BS_WEIGHTS == BS_TILED
    l.below = (1u << (lane * BS_BITS & 31)) - 1;
    l.offsets = p.offsets + (piece.tile * BS_WORDS + l.q) * BS_M;
#elif BS_WEIGHTS == BS_CSR
    follow_rows(l, p.row_offsets + at * (16 * BS_M));
#endif

    float sum[BS_M][BS_WIDTH][4];
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int j = 0; j < BS_WIDTH; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[m][j][i] = 0.0f;

    // BS_STAGES tiles of features are in flight, and so are the columns of the next BS_STAGES tiles.
    const int tiles = piece.tiles;
    Index index[BS_STAGES];
    Gathered gathered[BS_STAGES];
#pragma unroll
    for (int s = 0; s < BS_STAGES; s++)
        if (s < tiles)
            load_index(index[s], l, s);
#pragma unroll
    for (int s = 0; s < BS_STAGES; s++)
        if (s < tiles) {
            gather(gathered[s], index[s], l, p);
            if (s + BS_STAGES < tiles)
                load_index(index[s], l, s + BS_STAGES);
        }
    int left = tiles;
#pragma unroll 1
    for (; left > 0; left -= BS_STAGES, advance(l, BS_STAGES))
#pragma unroll
        for (int s = 0; s < BS_STAGES; s++) {
            if (s >= left)
                break;
            multiply(sum, gathered[s], l);
            if (s + BS_STAGES < left) {
                gather(gathered[s], index[s], l, p);
                if (s + 2 * BS_STAGES < left)
                    load_index(index[s], l, s + 2 * BS_STAGES);
            }
        }

    bool odd = false;
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int j = 0; j < BS_WIDTH; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                odd |= !(fabsf(sum[m][j][i]) <= 3.402823466e38f);
    if (__any_sync(~0u, odd)) {
        sum_edges(at, start, limit, p);
        return;
    }
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const int local = 16 * m + 8 * upper + l.g;
#pragma unroll
            for (int v = 0; v < BS_VECTORS; v++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int column = start + v * 8 * BS_VEC + (l.t + 4 * e) * BS_VEC;
                    float f[BS_VEC];
#pragma unroll
                    for (int i = 0; i < BS_VEC; i++)
                        f[i] = sum[m][v * BS_VEC + i][2 * upper + e];
                    if (!BS_NARROW || column < limit)
                        store_run(f, (i64)piece.window * (16 * BS_M) + local, local, column, piece, p);
                }
        }
}

// Adds the slots of a window, in order; a block takes one of its rows. `pieces` lists the windows that have several slots.
extern "C" __global__ void __launch_bounds__(128) add_slots(const TilesParams p)
{
    const u32 which = blockIdx.x / (16 * BS_M);
    const int local = blockIdx.x % (16 * BS_M);
    const Piece piece = load_piece(p.pieces + which);
    const i64 row = (i64)piece.window * (16 * BS_M) + local, step = (i64)(16 * BS_M) * p.columns;
    if (row >= p.rows)
        return;
    for (int column = threadIdx.x; column < p.columns; column += 128) {
        const float *from = p.partial + (i64)piece.slot * step + (i64)local * p.columns + column;
        float sum = from[0];
#pragma unroll 4
        for (int i = 1; i < piece.split; i++)
            sum += from[i * step];
        ((Element *)p.y)[row * p.columns + column] = element_of(finished(sum, row, p));
    }
}
