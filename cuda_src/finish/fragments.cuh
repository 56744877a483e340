// The short path for the most common chains: scales and a bias, then up to four planes of unsigned codes along the rows. The sums stay in
// the registers of the matrix instructions, where a lane holds two neighbours of every eight columns in two rows; only the vectors pass
// through shared memory. They are loaded before the products, so nothing waits for them afterwards.
#ifndef BITSPARSE_EPILOGUE_FRAGMENTS_CUH
#define BITSPARSE_EPILOGUE_FRAGMENTS_CUH

#include "finish/strips.cuh"

// Keeps the compiler from computing what depends on x ahead of a loop.
BS_INLINE int pinned(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// Copies four values of a vector to shared memory; indices past `last` give the last value.
BS_INLINE void fetch_values(u32 to, const EpilogueVector &v, int batch, int first, int last, float neutral)
{
    const float *from = v.at + (bs_i64)batch * v.batch_step;
    if (v.at == nullptr) {
        const int bits = bs_bits_of(neutral);
        store_shared(to, bits, bits, bits, bits);
    } else if (v.padded && first <= last) {
        copy_async(to, from + first, true);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            copy_word_async(to + 4 * i, (const char *)from + (bs_i64)min(first + i, last) * v.step);
    }
}

// The vectors of a warp's strips of 16 rows, 64 rows apart, each 64 `blocks` columns wide, in the warp's own shared memory: both column
// scales, the bias, and both row scales of each strip. They are loaded before the products, so that nothing waits for them afterwards.
template <int strips, int blocks> struct FragmentVectors {
    static constexpr int kTheirs = 256 * blocks, kBias = 2 * kTheirs, kRows = 3 * kTheirs;
    static_assert(kRows + 128 * strips <= 4096, "the vectors must fit into a warp's part of the staging area");
    u32 slot; // null: there is nothing to fetch

    __device__ __forceinline__ void fetch(const EpilogueParams &e, int batch, int row0, int column0) const
    {
        if (slot == 0)
            return;
        const int lane = pinned_lane();
        __syncwarp(); // all lanes are done with the previous vectors
#pragma unroll
        for (int at = 0; at < 64 * blocks; at += 128) {
            const int column = column0 + at + 4 * lane;
            const u32 to = slot + (at + 4 * lane) * 4;
            if (at + 4 * lane < 64 * blocks) {
                fetch_values(to, e.col_scale[0], batch, column, e.n - 1, 1.0f);
                if (e.col_scale[1].at)
                    fetch_values(to + kTheirs, e.col_scale[1], batch, column, e.n - 1, 1.0f);
                fetch_values(to + kBias, e.bias, batch, column, e.n - 1, -0.0f);
            }
        }
#pragma unroll
        for (int strip = 0; strip < strips; strip++) {
            const EpilogueVector &v = e.row_scale[lane >> 4];
            const int row = min(row0 + 64 * strip + (lane & 15), e.m - 1);
            const u32 to = slot + kRows + strip * 128 + lane * 4;
            if (v.at == nullptr)
                store_shared_word(to, bs_bits_of(1.0f));
            else
                copy_word_async(to, (const char *)(v.at + (bs_i64)batch * v.batch_step) + (bs_i64)row * v.step);
        }
    }

    __device__ __forceinline__ void wait() const
    {
        copy_wait_all();
        __syncwarp();
    }

    __device__ __forceinline__ float row_scale(int strip, int row) const
    {
        const u32 from = slot + kRows + strip * 128 + row * 4;
        return bs_mulf(bs_float_of(load_shared_word(from)), bs_float_of(load_shared_word(from + 64)));
    }

    // Scale and bias of two neighbouring columns.
    __device__ __forceinline__ void columns(const EpilogueParams &e, int column, float (&scale)[2], float (&bias)[2]) const
    {
        const u32 from = slot + column * 4;
        const int2 own = load_shared_pair(from), added = load_shared_pair(from + kBias);
        scale[0] = bs_float_of(own.x), scale[1] = bs_float_of(own.y), bias[0] = bs_float_of(added.x), bias[1] = bs_float_of(added.y);
        if (e.col_scale[1].at) {
            const int2 theirs = load_shared_pair(from + kTheirs);
            scale[0] = bs_mulf(scale[0], bs_float_of(theirs.x)), scale[1] = bs_mulf(scale[1], bs_float_of(theirs.y));
        }
    }
};

// Turns words that hold the bits of one code for each row into two plane words: for the plane with number lane % 4, 32 columns of rows g
// and g + 8. Code 4 i + 2 r + e is that of row g + 8 r and column 8 i + 2 t + e; bits above its lowest four are ignored. The address bits
// of a code bit are swapped two at a time: a bit number within the word with the choice of the word (exchange), and that choice with a bit
// of the lane (trade).
template <int shift> BS_INLINE void exchange(u32 &a, u32 &b, u32 mask)
{
    const u32 up = b << shift, down = a >> shift;
    a = up ^ ((a ^ up) & mask), b ^= (b ^ down) & mask;
}

BS_INLINE void trade(u32 &a, u32 &b, int lane, int bit)
{
    const bool upper = lane & bit;
    const u32 theirs = __shfl_xor_sync(~0u, upper ? a : b, bit);
    (upper ? a : b) = theirs;
}

BS_INLINE u32 nibbles(const u32 (&code)[16], int e)
{
    u32 pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] = code[4 * i + e] + (code[4 * i + 2 + e] << 4);
    return __byte_perm(__byte_perm(pair[0], pair[1], 0x0040), __byte_perm(pair[2], pair[3], 0x0040), 0x5410);
}

BS_INLINE uint2 plane_words(const u32 (&code)[16], int lane)
{
    u32 a = nibbles(code, 0), b = nibbles(code, 1);
    exchange<1>(a, b, 0x55555555u); // a: even columns, b: odd columns; then a: even planes, b: odd planes
    trade(a, b, lane, 1);
    exchange<2>(a, b, 0x33333333u);
    trade(a, b, lane, 2);
    exchange<4>(a, b, 0x0f0f0f0fu);
    return make_uint2(a, b);
}

// The same for two sets of codes, so that their trades wait together.
BS_INLINE void plane_words(const u32 (&first)[16], const u32 (&second)[16], int lane, uint2 &x, uint2 &y)
{
    u32 a = nibbles(first, 0), b = nibbles(first, 1), c = nibbles(second, 0), d = nibbles(second, 1);
    exchange<1>(a, b, 0x55555555u), exchange<1>(c, d, 0x55555555u);
    trade(a, b, lane, 1), trade(c, d, lane, 1);
    exchange<2>(a, b, 0x33333333u), exchange<2>(c, d, 0x33333333u);
    trade(a, b, lane, 2), trade(c, d, lane, 2);
    exchange<4>(a, b, 0x0f0f0f0fu), exchange<4>(c, d, 0x0f0f0f0fu);
    x = make_uint2(a, b), y = make_uint2(c, d);
}

BS_INLINE u32 first_columns(u32 word, int left) { return left >= 32 ? word : left <= 0 ? 0u : word & ((1u << left) - 1u); }

BS_INLINE uint2 first_columns(uint2 words, int left) { return make_uint2(first_columns(words.x, left), first_columns(words.y, left)); }

// Whether a block is the last of a line and the first of the two in its 128 columns, so that a block of padding bits follows.
BS_INLINE bool ends_with_pad(const EpilogueParams &e, int column) { return column + kBlockWidth >= e.n && !(column & kBlockWidth); }

BS_INLINE void store_block_words(u32 *to, u32 a, u32 b, bool pad)
{
    if (pad)
        store_global(to, a, b, 0, 0);
    else
        store_global(to, a, b);
}

// Codes exactly as common/scalar.h defines them. Returns whether an element inside the result is NaN.
BS_INLINE bool codes_of_fragments_exactly(const EpilogueParams &e, int row, int column, float (&v)[16], u32 (&code)[16])
{
    bool nan = false;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const float x = v[0], q = bs_clipf(bs_affinef(x, e.offset, e.divisor, e.multiplier), e.low, e.high);
        nan = nan || (x != x && row + 4 * (i & 2) < e.m && column + 8 * (i >> 2) + (i & 1) < e.n);
#pragma unroll
        for (int j = 0; j < 15; j++)
            v[j] = v[j + 1], code[j] = code[j + 1];
        v[15] = x, code[15] = (u32)bs_round_clippedf(q, e.rounding, 0);
    }
    return nan;
}

// The codes of codes_plainly.
template <int n> BS_INLINE void codes_of_bounded(const EpilogueParams &e, const float (&v)[n], u32 (&code)[n])
{
    float x[n];
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = fminf(bs_mul_saturatef(bs_div_knownf(v[i], e.divisor, e.inverse), e.factor), e.ceiling);
    if (e.rounding == BS_NEAREST) {
#pragma unroll
        for (int i = 0; i < n; i++)
            code[i] = bs_bits_nearestf(x[i], e.unit);
    } else {
#pragma unroll
        for (int i = 0; i < n; i++)
            code[i] = bs_bits_floorf(x[i], e.unit);
    }
}

// The same if all quotients are small enough, otherwise exactly.
BS_INLINE bool codes_of_fragments(const EpilogueParams &e, int row, int column, float (&v)[16], u32 (&code)[16])
{
    if (!(e.steps & kBounded)) {
        bool usual = true;
#pragma unroll
        for (int i = 0; i < 16; i++)
            usual = usual & (fabsf(bs_mulf(v[i], e.inverse)) <= 1.0e12f);
        if (!usual)
            return codes_of_fragments_exactly(e, row, column, v, code);
    }
    codes_of_bounded(e, v, code);
    return false;
}

// One warp finishes 16 rows from row0 on, in `blocks` blocks of 64 columns; they are strip number `strip` of the fetched vectors.
template <class Vectors, int n>
BS_INLINE void finish_fragments(const EpilogueParams &e, const Vectors &vectors, int strip, const int (&acc)[n], int batch, int row0,
                                int column0, int blocks)
{
    if (row0 >= e.m)
        return;
    vectors.wait();
    const int lane = pinned_lane(), upper = row0 + (lane >> 2);
    const bool plane = (lane & 3) < e.bits, stores[2] = {plane && upper < e.m, plane && upper + 8 < e.m};
    const float row[2] = {vectors.row_scale(strip, lane >> 2), vectors.row_scale(strip, (lane >> 2) + 8)};
    u32 *to = (u32 *)e.out + (((bs_i64)batch * e.m + upper) * e.bits + (lane & 3)) * e.words + (column0 >> 5);
    const bs_i64 eight_rows = 8ll * e.bits * e.words;
    bool nan = false;
#pragma unroll 1
    for (int block = 0; block < blocks; block++) {
        const int column = column0 + block * kBlockWidth;
        if (column >= e.n)
            break;
        uint2 words[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int first = half * 32 + 2 * (lane & 3);
            float v[16];
            u32 code[16];
#pragma unroll
            for (int at = 0; at < n / 32; at++)
                if (at == block)
#pragma unroll
                    for (int i = 0; i < 16; i++)
                        v[i] = (float)pinned(acc[32 * at + 16 * half + i]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale[2], bias[2];
                vectors.columns(e, block * kBlockWidth + first + 8 * i, scale, bias);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[4 * i + j] = bs_addf(bs_mulf(bs_mulf(v[4 * i + j], row[j >> 1]), scale[j & 1]), bias[j & 1]);
            }
            nan = codes_of_fragments(e, upper, column + first, v, code) || nan;
            words[half] = plane_words(code, lane);
        }
        if (column + kBlockWidth > e.n)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int left = e.n - column - 32 * half;
                words[half] = first_columns(words[half], left);
            }
        const bool pad = ends_with_pad(e, column);
        if (stores[0])
            store_block_words(to, words[0].x, words[1].x, pad);
        if (stores[1])
            store_block_words(to + eight_rows, words[0].y, words[1].y, pad);
        to += 2;
    }
    if (nan)
        atomicOr(e.nan, 1);
}

#endif
