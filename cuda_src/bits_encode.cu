// Values to words: packing of integers and signs (BS_STEPS not defined), quantising and packing (BS_STEPS 0, 1, 2).
//
// encode_rows packs along the direction in which neighbours follow each other in memory: a warp takes eight chunks of 128 elements, every
// lane four neighbours of each, and lanes exchange nibbles until each has one whole word. encode_columns packs across it: a lane takes
// 32 rows of one column, which are a word as they are, and a block of 128 rows and 32 columns collects 16-byte pieces in shared memory.
// Floor: the bytes of values and words. Everything is read once and written once.
#ifdef BS_STEPS
#include "bits_quantize.cuh"
#else
#include "bits.cuh"
#endif

struct EncodeParams {
    const Element *x;
    u32 *words;
    int *flag; // set if a value is NaN (packing), or NaN or infinite (quantising); may be null
    const void *offset, *divisor; // null: offset_value, divisor_value
    i64 batches, rows, cols;                    // cols is the direction of the lanes
    i64 x_batch, x_row, x_col;                  // steps between elements
    i64 index_batch, index_row, index_col;      // the logical index, by which random bits go
    i64 offset_batch, offset_row, offset_col;
    i64 divisor_batch, divisor_row, divisor_col;
    i64 width; // words of one plane of a line, or of a line of fields
    u64 seed;
    double offset_value, divisor_value, multiplier, low, high;
    u32 stream;
    int bits, fields, rounding, positive, is_signed, infinity, vector;
};

// ---- one element
#ifndef BS_STEPS
#if BS_KIND >= BS_HALF
#define BS_SIGNS 1
#endif

BS_INLINE u32 code_of(Element e, const EncodeParams &p)
{
#if BS_KIND == BS_HALF // not negative and not NaN; both zeros count as not negative
    return (int)e <= p.infinity || e == 0x8000 ? 1u : 0u;
#elif BS_KIND == BS_FLOAT
    return bs_float_of(e) >= 0.0f ? 1u : 0u;
#elif BS_KIND == BS_DOUBLE
    return double_of(e) >= 0.0 ? 1u : 0u;
#elif BS_KIND == 3
    return p.positive ? (e != 0 && !(p.is_signed && (i64)e < 0) ? 1u : 0u) : (u32)e;
#else
    const int away = 32 - 8 * (int)sizeof(Element);
    const u32 v = p.is_signed ? (u32)((int)((u32)e << away) >> away) : (u32)e;
    return p.positive ? (v != 0 && !(p.is_signed && (int)v < 0) ? 1u : 0u) : v;
#endif
}
#endif
#ifndef BS_SIGNS
#define BS_SIGNS 0
#endif

// Whether a value is NaN (packing), or NaN or infinite (quantising).
BS_INLINE bool is_odd(Element e, const EncodeParams &p)
{
#if defined(BS_STEPS) && BS_KIND == BS_HALF
    return (int)(e & p.infinity) == p.infinity;
#elif defined(BS_STEPS) && BS_KIND == BS_FLOAT
    return (e & 0x7f800000u) == 0x7f800000u;
#elif defined(BS_STEPS)
    return ((u32)(e >> 32) & 0x7ff00000u) == 0x7ff00000u;
#elif BS_KIND == BS_HALF
    return (int)(e & 0x7fffu) > p.infinity;
#elif BS_KIND == BS_FLOAT
    return bs_float_of(e) != bs_float_of(e);
#elif BS_KIND == BS_DOUBLE
    return double_of(e) != double_of(e);
#else
    return false;
#endif
}

// ---- the 32 elements of a lane: get(b) is element b, bit b of `valid` says whether it exists
template <class Get> BS_INLINE void look_for_odd(const EncodeParams &p, Get get)
{
    if (!p.flag)
        return;
    bool odd = false;
#pragma unroll
    for (int b = 0; b < 32; b++)
        odd = odd || is_odd(get(b), p);
    if (odd)
        *p.flag = 1;
}

#if BS_SIGNS
template <class Get> BS_INLINE u32 signs_of(const EncodeParams &p, Get get)
{
    u32 word = 0;
#pragma unroll
    for (int b = 0; b < 32; b++)
        word |= code_of(get(b), p) << b;
    return word;
}
#endif

#ifdef BS_STEPS
BS_INLINE Real offset_at(const EncodeParams &p, i64 at) { return p.offset ? ((const Real *)p.offset)[at] : (Real)p.offset_value; }
BS_INLINE Real divisor_at(const EncodeParams &p, i64 at) { return p.divisor ? ((const Real *)p.divisor)[at] : (Real)p.divisor_value; }

// steps(u) serves elements 4 u .. 4 u + 3, pair(b, offset, divisor) element b, half(b) is its half word.
template <class Get, class StepsOf, class Pair, class Half>
BS_INLINE void quantized(const EncodeParams &p, bool quick, Get get, StepsOf steps, Pair pair, Half half, u32 (&codes)[32])
{
    Real v[32];
    const Real multiplier = (Real)p.multiplier;
#pragma unroll
    for (int u = 0; u < 8; u++) {
#if BS_STEPS == 0
        bool exact = quick;
        if (quick) {
            const Steps s = steps(u);
#pragma unroll
            for (int b = 4 * u; b < 4 * u + 4; b++)
                v[b] = scaled(quick_quotient(real_of(get(b), p.infinity), s, exact), multiplier);
        }
        if (__all_sync(~0u, exact))
            continue;
#endif
#pragma unroll
        for (int b = 4 * u; b < 4 * u + 4; b++) {
            Real offset, divisor;
            pair(b, offset, divisor);
            v[b] = scaled(quotient_of(real_of(get(b), p.infinity), offset, divisor), multiplier);
        }
    }
    const Limits limits = {(Real)p.low, (Real)p.high, p.low, p.high};
    round_all(v, limits, p.rounding, half, codes);
}
#endif

#if !BS_SIGNS
BS_INLINE void clear_missing(u32 valid, u32 (&codes)[32])
{
#pragma unroll
    for (int b = 0; b < 32; b++)
        codes[b] = valid >> b & 1u ? codes[b] : 0u;
}
#endif

// ---- along the lanes
extern "C" __global__ void __launch_bounds__(128, 4) encode_rows(const EncodeParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const i64 chunks = p.batches * p.rows * ((p.cols + BS_GROUP - 1) / BS_GROUP);
    const Element *x = (const Element *)p.x;
#ifdef BS_STEPS
    unsigned short *halves = (unsigned short *)(shared + warp * BS_CHUNKS * BS_LINE_DRAWS);
    const bool along = p.index_col == 1;
    const bool quick = p.offset_col == 0 && p.divisor_col == 0;
#endif
    for (i64 first = ((i64)blockIdx.x * warps + warp) * BS_CHUNKS; first < chunks; first += (i64)gridDim.x * warps * BS_CHUNKS) {
        const Chunk own = chunk_at(first + (lane & 7), chunks, p.batches, p.rows, p.cols);
        const i64 from = own.batch * p.x_batch + own.row * p.x_row + own.first * p.x_col;
        const bool full = __all_sync(~0u, own.left == BS_GROUP);
        Quad quads[BS_CHUNKS];
        u32 valid = ~0u;
        if (full && p.vector) {
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++)
                quads[u] = load_quad(x + __shfl_sync(~0u, from, u) + 4 * lane);
        } else {
            valid = 0;
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++) {
                const i64 at = __shfl_sync(~0u, from, u);
                const int left = __shfl_sync(~0u, own.left, u) - 4 * lane;
                quads[u] = zero_quad();
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < left) {
                        set_element(quads[u], j, x[at + (4 * lane + j) * p.x_col]);
                        valid |= 1u << (4 * u + j);
                    }
            }
        }
        const auto get = [&](int b) { return element_of(quads[b / 4], b % 4); };
        look_for_odd(p, get);
        u32 *line = p.words + own.line * p.width * (p.fields ? 1 : p.bits);
#if BS_SIGNS
        const u32 word = exchange_nibbles(signs_of(p, get) & valid, lane);
        if (own.left > 0)
            line[own.first / 32 + (lane >> 3)] = word;
#else
        u32 codes[32];
#ifdef BS_STEPS
        const i64 index = own.batch * p.index_batch + own.row * p.index_row + own.first * p.index_col;
        if (p.rounding == BS_STOCHASTIC) {
            __syncwarp();
            if (along)
                fill_draws(halves, BS_CHUNKS, BS_LINE_DRAWS, p.seed, p.stream, lane, [&](int u) { return __shfl_sync(~0u, index, u) >> 3; });
            else
                fill_singly(halves, BS_CHUNKS, BS_GROUP, 8 * BS_LINE_DRAWS, p.seed, p.stream, lane,
                            [&](int u, int i) { return __shfl_sync(~0u, index, u) + i * p.index_col; });
            __syncwarp();
        }
        const i64 offsets = own.left ? own.batch * p.offset_batch + own.row * p.offset_row + own.first * p.offset_col : 0;
        const i64 divisors = own.left ? own.batch * p.divisor_batch + own.row * p.divisor_row + own.first * p.divisor_col : 0;
#if BS_STEPS == 0
        const bool varied = p.offset_row || p.offset_batch || p.divisor_row || p.divisor_batch;
        const Steps mine = steps_of(offset_at(p, offsets), divisor_at(p, divisors));
        const auto steps = [&](int u) { return varied ? shuffled(mine, u) : mine; };
#else
        const int steps = 0;
#endif
        const auto pair = [&](int b, Real &offset, Real &divisor) {
            const int left = __shfl_sync(~0u, own.left, b / 4), at = max(0, min(left - 1, 4 * lane + b % 4));
            offset = offset_at(p, __shfl_sync(~0u, offsets, b / 4) + at * p.offset_col);
            divisor = divisor_at(p, __shfl_sync(~0u, divisors, b / 4) + at * p.divisor_col);
        };
        const auto half = [&](int b) {
            const int skip = along ? (int)__shfl_sync(~0u, index, b / 4) & 7 : 0;
            return halves[b / 4 * 8 * BS_LINE_DRAWS + skip + 4 * lane + b % 4];
        };
        quantized(p, quick, get, steps, pair, half, codes);
#else
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = code_of(get(b), p);
#endif
        if (!full || !p.vector)
            clear_missing(valid, codes);
        if (p.fields) {
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++) {
                u32 *to = p.words + __shfl_sync(~0u, own.line, u) * p.width;
                const i64 at = (__shfl_sync(~0u, own.first, u) >> 2) + lane;
                if (__shfl_sync(~0u, own.left, u) > 0 && at * p.bits < 8 * p.width)
                    store_quad_fields(to, at, p.bits, codes[4 * u], codes[4 * u + 1], codes[4 * u + 2], codes[4 * u + 3]);
            }
            continue;
        }
#pragma unroll 1
        for (int plane = 0; plane < p.bits; plane += 4) {
            u32 w[4];
            planes_of(codes, plane, w);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (plane + k < p.bits) {
                    w[k] = exchange_nibbles(w[k], lane);
                    if (own.left > 0)
                        line[(plane + k) * p.width + own.first / 32 + (lane >> 3)] = w[k];
                }
        }
#endif
    }
}

// ---- across the lanes
extern "C" __global__ void __launch_bounds__(128) encode_columns(const EncodeParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 across = (p.cols + 31) / 32, down = (p.rows + BS_GROUP - 1) / BS_GROUP, units = p.batches * down * across;
    const Element *x = (const Element *)p.x;
    u32 *stage = (u32 *)(shared + (p.rounding == BS_STOCHASTIC ? 4 * 32 * BS_TILE_DRAWS : 0));
    const int pitch = 4 * (p.bits | 1); // an odd number of 16-byte pieces, so that lanes meet in few banks
#ifdef BS_STEPS
    unsigned short *halves = (unsigned short *)(shared + warp * 32 * BS_TILE_DRAWS);
    const bool quick = p.offset_row == 0 && p.divisor_row == 0;
#endif
    for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const i64 upper = quotient(unit, across), col0 = 32 * (unit - upper * across), batch = quotient(upper, down);
        const i64 group = upper - batch * down, row0 = BS_GROUP * group + 32 * warp;
        const i64 col = min(col0 + lane, p.cols - 1); // lanes beyond the last column repeat it and store nothing
        const int left = (int)max((i64)0, min((i64)32, p.rows - row0));
        const u32 valid = left == 32 ? ~0u : (1u << left) - 1u;
        const Element *from = x + batch * p.x_batch + row0 * p.x_row + col * p.x_col;
        Element e[32];
        if (left == 32) {
#pragma unroll
            for (int r = 0; r < 32; r++)
                e[r] = from[r * p.x_row];
        } else {
#pragma unroll
            for (int r = 0; r < 32; r++)
                e[r] = r < left ? from[r * p.x_row] : (Element)0;
        }
        const auto get = [&](int b) { return e[b]; };
        look_for_odd(p, get);
        u32 *mine = stage + lane * pitch;
#if BS_SIGNS
        mine[warp] = signs_of(p, get) & valid;
#else
        u32 codes[32];
#ifdef BS_STEPS
        const i64 index = batch * p.index_batch + row0 * p.index_row + col0 * p.index_col;
        const bool along = p.index_col == 1, down_first = p.index_row == 1;
        if (p.rounding == BS_STOCHASTIC) {
            __syncwarp();
            if (along || down_first) {
                const i64 step = along ? p.index_row : p.index_col;
                fill_draws(halves, 32, BS_TILE_DRAWS, p.seed, p.stream, lane, [&](int i) { return (index + i * step) >> 3; });
            } else {
                fill_singly(halves, 32, 32, 8 * BS_TILE_DRAWS, p.seed, p.stream, lane,
                            [&](int r, int c) { return index + r * p.index_row + c * p.index_col; });
            }
            __syncwarp();
        }
        const i64 offsets = left ? batch * p.offset_batch + row0 * p.offset_row + col * p.offset_col : 0;
        const i64 divisors = left ? batch * p.divisor_batch + row0 * p.divisor_row + col * p.divisor_col : 0;
#if BS_STEPS == 0
        const Steps both = steps_of(offset_at(p, offsets), divisor_at(p, divisors));
        const auto steps = [&](int) { return both; };
#else
        const int steps = 0;
#endif
        const auto pair = [&](int r, Real &offset, Real &divisor) {
            const int at = max(0, min(left - 1, r));
            offset = offset_at(p, offsets + at * p.offset_row);
            divisor = divisor_at(p, divisors + at * p.divisor_row);
        };
        const auto half = [&](int r) {
            const int major = along || !down_first ? r : lane, minor = along || !down_first ? lane : r;
            const i64 step = along ? p.index_row : p.index_col;
            const int skip = along || down_first ? (int)(index + major * step) & 7 : 0;
            return halves[major * 8 * BS_TILE_DRAWS + skip + minor];
        };
        quantized(p, quick, get, steps, pair, half, codes);
#else
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = code_of(get(b), p);
#endif
        if (left < 32)
            clear_missing(valid, codes);
        if (p.fields) {
            put_any_fields(p.bits, codes, mine + warp * p.bits);
        } else {
#pragma unroll 1
            for (int plane = 0; plane < p.bits; plane += 4) {
                u32 w[4];
                planes_of(codes, plane, w);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (plane + k < p.bits)
                        mine[4 * (plane + k) + warp] = w[k];
            }
        }
#endif
        __syncthreads();
        for (int i = threadIdx.x; i < 32 * p.bits; i += 128) {
            const int c = i / p.bits, piece = i % p.bits;
            const i64 line = batch * p.cols + col0 + c;
            const i64 at = p.fields ? group * p.bits + piece : (line * p.bits + piece) * (p.width >> 2) + group;
            if (col0 + c >= p.cols || (p.fields && at >= p.width >> 2))
                continue;
            ((uint4 *)p.words)[p.fields ? line * (p.width >> 2) + at : at] = *(const uint4 *)(stage + c * pitch + 4 * piece);
        }
        __syncthreads();
    }
}
