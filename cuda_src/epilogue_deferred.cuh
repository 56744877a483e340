// The way out of epilogue_fragments.cuh put off until the matrix units are busy with the next tile. A warp leaves its sums, 16 bits each, in
// shared memory of its own and takes up half a block of 16 x 64 at a time, whenever it would otherwise wait for products. For several tiles a
// block, sums of at most 16 bits, vectors of the chain's own and quotients that are known to be small.
//
// Half h of block b is turn 2 b + h and has 1 KB: first 32 bytes of sums for each lane, which nobody but this lane reads, and in place of
// them two words of codes a lane. Those of all turns leave together, since whole sectors are written four times as fast as their quarters.
#ifndef BITSPARSE_EPILOGUE_DEFERRED_CUH
#define BITSPARSE_EPILOGUE_DEFERRED_CUH

#include "epilogue_fragments.cuh"

// Scales and biases of the columns that a lane has in half a block: two neighbours of every eight. Asked for well before they are used.
struct HalfVectors {
    float2 scale[4], bias[4];

    static __device__ __forceinline__ void load(const EpilogueVector &v, int batch, int column, float neutral, float2 (&x)[4])
    {
        if (v.at == nullptr) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = make_float2(neutral, neutral);
            return;
        }
        const float2 *from = (const float2 *)(v.at + (bs_i64)batch * v.batch_step + column);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = __ldg(from + 4 * i);
    }

    __device__ __forceinline__ void load(const EpilogueParams &e, int batch, int column)
    {
        load(e.col_scale[0], batch, column, 1.0f, scale);
        load(e.bias, batch, column, -0.0f, bias);
    }
};

// The sums of a warp that wait: those of 16 rows and up to `held` blocks of columns.
template <int held> struct DeferredSums {
    static constexpr int kBytes = 2048 * held;
    u32 slot;
    int turn, turns; // the next one, and how many there are
    int batch, row0, column0;
    float row[2]; // scales of rows g and g + 8

    __device__ __forceinline__ explicit DeferredSums(u32 at) : slot(at), turn(0), turns(0), batch(0), row0(0), column0(0), row{1.0f, 1.0f} {}

    __device__ __forceinline__ bool waiting() const { return turn < turns; }

    __device__ __forceinline__ void ask(const EpilogueParams &e, HalfVectors &v) const
    {
        v.load(e, batch, column0 + 32 * turn + 2 * (pinned_lane() & 3));
    }

    // Takes over blocks first, first + 1, ... of a tile whose columns begin at `column`. Nothing must be waiting.
    template <int n> __device__ __forceinline__ void take(const EpilogueParams &e, const int (&acc)[n], int first, int blocks, int of_batch, int row_at, int column)
    {
        const int lane = pinned_lane();
        batch = of_batch, row0 = row_at, column0 = column + first * kBlockWidth;
        turn = 0, turns = 2 * min(min(blocks - first, held), (e.n - column0 + kBlockWidth - 1) / kBlockWidth);
        if (row0 >= e.m)
            turns = 0;
        const float *scale = e.row_scale[0].at + (bs_i64)batch * e.row_scale[0].batch_step;
#pragma unroll
        for (int r = 0; r < 2; r++)
            row[r] = e.row_scale[0].at ? __ldg(scale + min(row0 + (lane >> 2) + 8 * r, e.m - 1)) : 1.0f;
        __syncwarp(); // the words before have been read
#pragma unroll
        for (int part = 0; part < n / 32; part += held)
            if (part == first)
#pragma unroll
                for (int i = part * 32; i < min(part + held, n / 32) * 32; i += 8) {
                    int pair[4];
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        pair[j] = acc[i + 2 * j] + (int)((u32)acc[i + 2 * j + 1] << 16);
                    store_shared(slot + ((i >> 4) - 2 * part) * 1024 + (i & 8) * 64 + lane * 16, pair[0], pair[1], pair[2], pair[3]);
                }
    }

    // Sums of two neighbours as floats: 2^23 + 2^15 above them stands what has these mantissas.
    static __device__ __forceinline__ void split(int pair, float &x, float &y)
    {
        const u32 positive = (u32)pair + 0x80008000u;
        x = bs_subf(bs_float_of(__byte_perm(positive, 0x4b000000u, 0x7610)), 8421376.0f);
        y = bs_subf(bs_float_of(__byte_perm(positive, 0x4b000000u, 0x7632)), 8421376.0f);
    }

    // One turn; after the last one the words are stored.
    __device__ __forceinline__ void finish_half(const EpilogueParams &e, const HalfVectors &vectors)
    {
        const int lane = pinned_lane();
        const u32 here = slot + turn * 1024;
        const int4 upper = load_shared(here + lane * 16), lower = load_shared(here + lane * 16 + 512);
        float v[16];
        split(upper.x, v[0], v[1]), split(upper.y, v[2], v[3]), split(upper.z, v[4], v[5]), split(upper.w, v[6], v[7]);
        split(lower.x, v[8], v[9]), split(lower.y, v[10], v[11]), split(lower.z, v[12], v[13]), split(lower.w, v[14], v[15]);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 scale = vectors.scale[i >> 2], bias = vectors.bias[i >> 2];
            v[i] = bs_addf(bs_mulf(bs_mulf(v[i], row[i >> 1 & 1]), i & 1 ? scale.y : scale.x), i & 1 ? bias.y : bias.x);
        }
        u32 code[16];
        codes_of_bounded(e, v, code);
        uint2 words = plane_words(code, lane); // has seen the sums of all lanes, so these may be overwritten
        const int left = e.n - column0 - 32 * turn;
        words = make_uint2(first_columns(words.x, left), first_columns(words.y, left));
        const u32 to = word_address(turn, lane);
        store_shared_word(to, (int)words.x);
        store_shared_word(to + 512, (int)words.y);
        if (++turn == turns)
            store_words(e, lane);
    }

    // Where the word of a line among 32 (plane t of row g: line 4 g + t) lies. Four blocks of eight lines touch every bank once.
    __device__ __forceinline__ u32 word_address(int at, int line) const { return slot + at * 1024 + (at >> 1) * 32 + line * 4; }

    // Four lanes a line, with two words each, and eight lines at a time.
    __device__ __forceinline__ void store_words(const EpilogueParams &e, int lane) const
    {
        __syncwarp();
        const int block = lane & 3, plane = lane >> 2 & 3, row_of_two = lane >> 4;
        const int column = column0 + block * kBlockWidth;
        const bool pad = ends_with_pad(e, column);
        const int rows = 2 * block < turns && plane < e.bits ? e.m - row0 - row_of_two : 0;
        u32 *to = (u32 *)e.out + (((bs_i64)batch * e.m + row0 + row_of_two) * e.bits + plane) * e.words + (column >> 5);
        const bs_i64 two_rows = 2ll * e.bits * e.words;
        const u32 from = word_address(2 * block, lane >> 2);
#pragma unroll 1
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int step = 0; step < 4; step++) {
                const u32 at = from + half * 512 + step * 32;
                if (8 * half + 2 * step < rows)
                    store_block_words(to, (u32)load_shared_word(at), (u32)load_shared_word(at + 1024), pad);
                to += two_rows;
            }
    }
};

#endif
