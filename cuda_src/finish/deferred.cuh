// The final steps of finish/fragments.cuh, deferred until the matrix units are busy with the next tile. A warp leaves its sums, 16 bits
// each, in its own shared memory, and finishes half a block of 16 x 64 whenever it would otherwise wait for products. This is for blocks
// with several tiles, sums of at most 16 bits, vectors of the chain only, and quotients that are known to be small.
//
// Half h of block b is turn 2 b + h and has 1 KB: first 32 bytes of sums for each lane, which only this lane reads, and later in their
// place two words of codes for each lane. The words of all turns are stored together, since whole sectors are written four times as fast as
// quarters of sectors.
#ifndef BITSPARSE_EPILOGUE_DEFERRED_CUH
#define BITSPARSE_EPILOGUE_DEFERRED_CUH

#include "finish/fragments.cuh"

// Scales and biases of the columns that a lane has in half a block: two neighbours of every eight. They are loaded well before they are
// used.
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

// Sums of half a block, two neighbours in a word, and how they move to shared memory and back: 1 KB for each half, lane by lane.
struct HalfSums {
    int4 upper, lower;

    __device__ __forceinline__ void load(u32 half, int lane)
    {
        upper = load_shared(half + lane * 16), lower = load_shared(half + lane * 16 + 512);
    }

    // Stores 16 accumulators, from `first` on.
    template <int n> static __device__ __forceinline__ void store(u32 half, int lane, const int (&acc)[n], int first)
    {
#pragma unroll
        for (int i = 0; i < 16; i += 8) {
            int pair[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                pair[j] = acc[first + i + 2 * j] + (int)((u32)acc[first + i + 2 * j + 1] << 16);
            store_shared(half + i * 64 + lane * 16, pair[0], pair[1], pair[2], pair[3]);
        }
    }

    // Splits a word into two floats: each half becomes the mantissa of a float that is 2^23 + 2^15 too large.
    static __device__ __forceinline__ void split(int pair, float &x, float &y)
    {
        const u32 positive = (u32)pair + 0x80008000u;
        x = bs_subf(bs_float_of(__byte_perm(positive, 0x4b000000u, 0x7610)), 8421376.0f);
        y = bs_subf(bs_float_of(__byte_perm(positive, 0x4b000000u, 0x7632)), 8421376.0f);
    }

    __device__ __forceinline__ void scale(const HalfVectors &vectors, const float (&row)[2], float (&v)[16]) const
    {
        split(upper.x, v[0], v[1]), split(upper.y, v[2], v[3]), split(upper.z, v[4], v[5]), split(upper.w, v[6], v[7]);
        split(lower.x, v[8], v[9]), split(lower.y, v[10], v[11]), split(lower.z, v[12], v[13]), split(lower.w, v[14], v[15]);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 scale = vectors.scale[i >> 2], bias = vectors.bias[i >> 2];
            v[i] = bs_addf(bs_mulf(bs_mulf(v[i], row[i >> 1 & 1]), i & 1 ? scale.y : scale.x), i & 1 ? bias.y : bias.x);
        }
    }
};

// Where 16 rows of a result go.
struct Strip {
    int batch, row0, column0;

    // The number of half blocks that lie at least partly inside the result.
    __device__ __forceinline__ int turns(const EpilogueParams &e, int blocks) const
    {
        return row0 < e.m ? 2 * min(blocks, (e.n - column0 + kBlockWidth - 1) / kBlockWidth) : 0;
    }

    // Scales of rows g and g + 8.
    __device__ __forceinline__ void row_scales(const EpilogueParams &e, int lane, float (&row)[2]) const
    {
        const float *scale = e.row_scale[0].at + (bs_i64)batch * e.row_scale[0].batch_step;
#pragma unroll
        for (int r = 0; r < 2; r++)
            row[r] = e.row_scale[0].at ? __ldg(scale + min(row0 + (lane >> 2) + 8 * r, e.m - 1)) : 1.0f;
    }
};

// Words to be stored. The word of one of 32 lines (plane t of row g is line 4 g + t; rows from 8 on are `below` bytes further on) and half
// `turn` lies at address(), so that four blocks of eight lines touch every bank once.
template <int half_bytes, int below> struct WordArea {
    static __device__ __forceinline__ u32 address(u32 slot, int turn, int line)
    {
        return slot + turn * half_bytes + (turn >> 1) * 32 + line * 4;
    }

    static __device__ __forceinline__ void put(u32 slot, int turn, int lane, uint2 words)
    {
        const u32 to = address(slot, turn, lane);
        store_shared_word(to, (int)words.x);
        store_shared_word(to + below, (int)words.y);
    }

    // Four lanes store a line, two words each, and eight lines are stored at a time.
    static __device__ __forceinline__ void store(const EpilogueParams &e, u32 slot, const Strip &strip, int turns, int lane)
    {
        __syncwarp();
        const int block = lane & 3, plane = lane >> 2 & 3, row_of_two = lane >> 4;
        const int column = strip.column0 + block * kBlockWidth;
        const bool pad = ends_with_pad(e, column);
        const int rows = 2 * block < turns && plane < e.bits ? e.m - strip.row0 - row_of_two : 0;
        u32 *to = (u32 *)e.out + (((bs_i64)strip.batch * e.m + strip.row0 + row_of_two) * e.bits + plane) * e.words + (column >> 5);
        const bs_i64 two_rows = 2ll * e.bits * e.words;
        const u32 from = address(slot, rows > 0 ? 2 * block : 0, lane >> 2);
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            u32 words[4][2];
#pragma unroll
            for (int i = 0; i < 8; i++)
                words[i >> 1][i & 1] = (u32)load_shared_word(from + half * below + (i >> 1) * 32 + (i & 1) * half_bytes);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                if (8 * half + 2 * step < rows)
                    store_block_words(to, words[step][0], words[step][1], pad);
                to += two_rows;
            }
        }
        __syncwarp(); // another strip may take their place
    }
};

// The waiting sums of a warp: those of 16 rows and up to `held` blocks of columns.
template <int held> struct DeferredSums {
    typedef WordArea<1024, 512> Words; // in place of the sums
    u32 slot;
    int turn, turns; // the next turn, and how many there are
    Strip strip;
    float row[2];

    __device__ __forceinline__ explicit DeferredSums(u32 at) : slot(at), turn(0), turns(0), strip{0, 0, 0}, row{1.0f, 1.0f} {}

    __device__ __forceinline__ bool waiting() const { return turn < turns; }

    __device__ __forceinline__ void ask(const EpilogueParams &e, HalfVectors &v) const
    {
        v.load(e, strip.batch, strip.column0 + 32 * turn + 2 * (pinned_lane() & 3));
    }

    // Takes over blocks first, first + 1, ... of a tile whose columns begin at `column`. No sums may be waiting.
    template <int n> __device__ __forceinline__ void take(const EpilogueParams &e, const int (&acc)[n], int first, int blocks, int of_batch,
                                                          int row_at, int column)
    {
        const int lane = pinned_lane();
        strip = {of_batch, row_at, column + first * kBlockWidth};
        turn = 0, turns = strip.turns(e, min(blocks - first, held));
        strip.row_scales(e, lane, row);
#pragma unroll
        for (int part = 0; part < n / 32; part += held)
            if (part == first)
#pragma unroll
                for (int i = part * 32; i < min(part + held, n / 32) * 32; i += 16)
                    HalfSums::store(slot + ((i >> 4) - 2 * part) * 1024, lane, acc, i);
    }

    // Finishes one turn; after the last one the words are stored.
    __device__ __forceinline__ void finish_half(const EpilogueParams &e, const HalfVectors &vectors)
    {
        const int lane = pinned_lane();
        HalfSums sums;
        sums.load(slot + turn * 1024, lane);
        float v[16];
        u32 code[16];
        sums.scale(vectors, row, v);
        codes_of_bounded(e, v, code);
        const uint2 words = first_columns(plane_words(code, lane), e.n - strip.column0 - 32 * turn);
        __syncwarp(); // all lanes have read their sums, which the words replace
        Words::put(slot, turn, lane, words);
        if (++turn == turns)
            Words::store(e, slot, strip, turns, lane);
    }
};

#endif
