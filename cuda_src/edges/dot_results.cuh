// The results of dot products over tiles (edges/sddmm_tiles.cu): how many there are in each row, where they wait in shared memory, and how
// they get to their places in the pattern.
#ifndef BITSPARSE_EDGES_DOT_RESULTS_CUH
#define BITSPARSE_EDGES_DOT_RESULTS_CUH

// Multiprocessors with 100 KB of shared memory have room for three blocks only if rows hold results of 16 columns, not of 32.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
#define HELD_COLUMNS (BS_JOIN * BS_K)
#else
#define HELD_COLUMNS 32
#endif
#define HELD_STEPS (HELD_COLUMNS / (BS_JOIN * BS_K)) // products of BS_JOIN tiles whose results a warp holds
#define ROW_ROOM (HELD_COLUMNS + 4) // results of a row in shared memory; 4 more than there may be, so that rows lie in different banks
#define ROOM (BS_TEAM * HEIGHT * ROW_ROOM)
#define SIZE ((u32)sizeof(Element))

// Rounding to fewer digits may overflow float32, and splitting cannot handle infinities and NaN: such products are computed again.
BS_INLINE float dot_again(const char *x, const char *y, int vectors)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 4 * vectors; i++)
        sum = fmaf(((const float *)x)[i], ((const float *)y)[i], sum);
    return sum;
}

// The sum of row g or g + 8 for column i of the two or four columns that a lane has of a tile.
BS_INLINE float sum_of(const float (&sum)[BS_M][NEIGHBOURS][4], int j, int m, int upper, int i)
{
    return sum[m][j * EACH + i / 2][2 * upper + i % 2];
}

BS_INLINE void store_shared_element(u32 to, Element value)
{
#if BS_TYPE == BS_FLOAT
    store_shared_word(to, __float_as_int(value));
#else
    store_shared_half(to, value);
#endif
}

// Puts the sums of BS_JOIN tiles into shared memory. There `next` is the address of each row's next result.
BS_INLINE void hold_tiles(const float (&sum)[BS_M][NEIGHBOURS][4], const u32 (&word)[BS_JOIN][BS_M], Lane &l)
{
#pragma unroll
    for (int j = 0; j < BS_JOIN; j++)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const u32 bits = bits_of(word[j][m], l);
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                u32 at = l.next[m][upper] + __popc(word[j][m] & l.row_below[upper]) * SIZE;
                l.next[m][upper] += __popc(word[j][m] & l.row[upper]) * SIZE;
#pragma unroll
                for (int i = 0; i < BS_ROWS; i++) {
                    const u32 there = bits >> (BS_ROWS * upper + i) & 1;
                    if (there)
                        store_shared_element(at, element_of(sum_of(sum, j, m, upper, i)));
                    at += there * SIZE;
                }
            }
        }
}

// Recomputes those sums just put there that are not finite.
BS_INLINE void mend_tiles(const u32 (&word)[BS_JOIN][BS_M], const char *x, const char *y, const u32 *cols, const Lane &l,
                          const DotTilesParams &p)
{
    u32 behind[BS_M][2];
#pragma unroll
    for (int m = 0; m < BS_M; m++)
        behind[m][0] = l.next[m][0], behind[m][1] = l.next[m][1];
#pragma unroll
    for (int j = BS_JOIN - 1; j >= 0; j--)
#pragma unroll
        for (int m = 0; m < BS_M; m++) {
            const u32 bits = bits_of(word[j][m], l);
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                behind[m][upper] -= __popc(word[j][m] & l.row[upper]) * SIZE;
                u32 at = behind[m][upper] + __popc(word[j][m] & l.row_below[upper]) * SIZE;
#pragma unroll 1
                for (int i = 0; i < BS_ROWS; i++) {
                    if (!(bits >> (BS_ROWS * upper + i) & 1))
                        continue;
                    if (!(fabsf(__int_as_float(load_shared_word(at))) <= 3.402823466e38f))
                        store_shared_element(
                            at, element_of(dot_again(x + (u64)(unsigned)(16 * m + 8 * upper + l.g) * p.row_bytes,
                                                     y + (u64)__ldg(cols + j * BS_K + BS_ROWS * l.t + i) * p.row_bytes, p.vectors)));
                    at += SIZE;
                }
            }
        }
}

// Counts the edges of each row in the warp's tiles.
BS_INLINE void count_edges(u32 *counts, const u32 *bits, int begin, int end, const Lane &l)
{
    u32 count[BS_M][2] = {};
#pragma unroll 2
    for (int i = begin + l.t; i < end; i += 4) {
        u32 word[BS_M];
        load_words(word, bits + (i * BS_WORDS + l.q) * BS_M);
#pragma unroll
        for (int m = 0; m < BS_M; m++)
            count[m][0] += __popc(word[m] & l.row[0]), count[m][1] += __popc(word[m] & l.row[1]);
    }
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            count[m][upper] += __shfl_xor_sync(~0u, count[m][upper], 1);
            count[m][upper] += __shfl_xor_sync(~0u, count[m][upper], 2);
            if (l.t == 0)
                counts[16 * m + 8 * upper + l.g] = count[m][upper];
        }
}

// A row of the window per lane: edges in the piece, those in the tiles of previous warps, those of all previous rows in the piece.
struct RowEdges {
    u32 own, before, above;
};

BS_INLINE RowEdges edges_of_row(const u32 (&counts)[BS_TEAM][HEIGHT], int warp, int lane)
{
    RowEdges r = {};
#pragma unroll
    for (int w = 0; w < BS_TEAM; w++) {
        const u32 count = lane < HEIGHT ? counts[w][lane] : 0;
        r.own += count, r.before += w < warp ? count : 0;
    }
    r.above = sum_up_to_lane(r.own) - r.own;
    return r;
}

// What each lane needs of the rows that it follows, given a value per row and lane.
BS_INLINE void follow(Lane &l, u32 of_row)
{
#pragma unroll
    for (int m = 0; m < BS_M; m++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++)
            l.next[m][upper] = __shfl_sync(~0u, of_row, 16 * m + 8 * upper + l.g);
}

// Copies the results that the warp holds, whose rows begin at multiples of ROW_ROOM, each row to its place, a row per lane.
BS_INLINE void copy_held(const Element *held, u32 start, Element *&place, Lane &l, const DotTilesParams &p)
{
    const unsigned lane = threadIdx.x & 31;
    u32 count = 0;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const u32 end = __shfl_sync(~0u, l.next[half / 2][half % 2], 4 * (lane % 8));
        count = lane / 8 == half ? (end - start) / SIZE : count;
    }
    __syncwarp();
    const u64 own = (u64)lane * (unsigned)p.heads;
#pragma unroll 8
    for (int row = 0; row < HEIGHT; row++) {
        Element *const to = (Element *)__shfl_sync(~0u, (u64)place, row);
        if (lane < __shfl_sync(~0u, count, row))
            to[own] = held[row * ROW_ROOM + lane];
    }
    __syncwarp();
    place += (u64)count * (unsigned)p.heads;
    follow(l, start);
}

#define AT_ONCE 4

// Copies the results of the whole piece, which lie one after another.
BS_INLINE void copy_piece(Element *out, const Element *held, const RowEdges &r, bool whole, const u32 *row_offsets, const DotTilesParams &p)
{
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (whole) {
        const u32 count = __shfl_sync(~0u, r.above + r.own, 31);
#pragma unroll 1
        for (u32 first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
            Element v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + i * THREADS < count)
                    v[i] = held[first + i * THREADS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + i * THREADS < count)
                    out[(u64)(first + i * THREADS) * (unsigned)p.heads] = v[i];
        }
        return;
    }
    const u32 place = lane < HEIGHT ? __ldg(row_offsets + lane) : 0;
#pragma unroll 1
    for (int row = warp; row < HEIGHT; row += BS_TEAM) {
        const u32 from = __shfl_sync(~0u, r.above, row), to = __shfl_sync(~0u, place, row), many = __shfl_sync(~0u, r.own, row);
#pragma unroll 1
        for (u32 i = lane; i < many; i += 32)
            out[(u64)(to + i) * (unsigned)p.heads] = held[from + i];
    }
}

#endif
