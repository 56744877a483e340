// Values to words: packing of integers and signs (BS_STEPS not defined), quantising and packing (BS_STEPS 0, 1, 2).
//
// encode_rows packs along the direction in which neighbours are adjacent in memory: a warp takes eight chunks of 128 elements, every lane
// takes four neighbours of each, and lanes exchange nibbles until each has one whole word. encode_columns packs across that direction: a
// lane takes 32 rows of one column, which form a word as they are, and a block of 128 rows and 32 columns collects 16-byte pieces in shared
// memory.
// Floor: the bytes of values and words. Everything is read once and written once.
#include "bits/encode.cuh"

// ---- along the lanes
#if BS_KIND == 3 || BS_KIND == BS_DOUBLE || (defined(BS_STEPS) && (BS_STEPS > 0 || defined(BS_LARGE) || __CUDA_ARCH__ >= 1000))
#define BS_RESIDENT 3 // resident blocks of a multiprocessor; with four, registers would be spilled
#else
#define BS_RESIDENT 4
#endif
extern "C" __global__ void __launch_bounds__(128, BS_RESIDENT) encode_rows(const EncodeParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Index cols = (Index)p.cols, chunks = (Index)(p.batches * p.rows) * ((cols + BS_GROUP - 1) / BS_GROUP);
    const Index width = (Index)p.width, step = (Index)p.x_col;
    const Element *x = (const Element *)p.x;
#ifdef BS_STEPS
    unsigned short *halves = (unsigned short *)(shared + warp * BS_CHUNKS * BS_LINE_DRAWS);
    const bool along = p.index_col == 1, quick = p.offset_col == 0 && p.divisor_col == 0;
    const bool varied = p.offset_row || p.offset_batch || p.divisor_row || p.divisor_batch;
#endif
    for (Index first = ((Index)blockIdx.x * warps + warp) * BS_CHUNKS; first < chunks; first += (Index)gridDim.x * warps * BS_CHUNKS) {
        const Chunk own = chunk_at(first + (lane & 7), chunks, (Index)p.batches, (Index)p.rows, cols);
        const Index from = BS_AT(x, own.batch, own.row, own.first);
        const bool full = p.vector && __all_sync(~0u, own.left == BS_GROUP);
        Quad quads[BS_CHUNKS];
        u32 valid = ~0u;
        if (full) {
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++)
                quads[u] = load_quad(x + (__shfl_sync(~0u, from, u) + 4 * lane));
        } else {
            valid = 0;
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++) {
                const Element *at = x + (__shfl_sync(~0u, from, u) + 4 * lane * step);
                const int left = __shfl_sync(~0u, own.left, u) - 4 * lane;
                quads[u] = zero_quad();
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < left) {
                        set_element(quads[u], j, at[j * step]);
                        valid |= 1u << (4 * u + j);
                    }
            }
        }
        const auto get = [&](int b) { return element_of(quads[b / 4], b % 4); };
        look_for_odd(p, get);
        u32 *line = p.words + (own.line * width * (p.fields ? 1 : p.bits) + own.first / 32 + (lane >> 3));
#if BS_SIGNS
        const u32 word = exchange_nibbles(signs_of(p, get) & valid, lane);
        if (own.left > 0)
            *line = word;
#else
        u32 codes[32];
#ifdef BS_STEPS
        int half_from[BS_CHUNKS];
        if (p.rounding == BS_STOCHASTIC) {
            const Index index = BS_AT(index, own.batch, own.row, own.first);
            __syncwarp();
            if (along)
                fill_draws(halves, BS_CHUNKS, BS_LINE_DRAWS, p.seed, stream_of(p), lane,
                           [&](int u) { return (p.first_index + (u64)__shfl_sync(~0u, index, u)) >> 3; });
            else
                fill_singly(halves, BS_CHUNKS, BS_GROUP, 8 * BS_LINE_DRAWS, p.seed, stream_of(p), lane,
                            [&](int u, int i) { return p.first_index + (u64)(__shfl_sync(~0u, index, u) + i * (Index)p.index_col); });
            __syncwarp();
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++)
                half_from[u] =
                    8 * BS_LINE_DRAWS * u + 4 * lane + (along ? (int)((u32)p.first_index + (u32)__shfl_sync(~0u, index, u)) & 7 : 0);
        }
        Index offsets = 0, divisors = 0;
        if (own.left && (varied || !quick)) {
            offsets = BS_AT(offset, own.batch, own.row, own.first);
            divisors = BS_AT(divisor, own.batch, own.row, own.first);
        }
#if BS_STEPS == 0
        const Steps mine = steps_of(offset_at(p, offsets), divisor_at(p, divisors));
#else
        const int mine = 0;
#endif
        const auto four = [&](int u) {
            const Index x_at = __shfl_sync(~0u, from, u), o_at = __shfl_sync(~0u, offsets, u), d_at = __shfl_sync(~0u, divisors, u);
            const int left = __shfl_sync(~0u, own.left, u);
            Four f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int col = max(0, min(left - 1, 4 * lane + j));
#if BS_STEPS == 0
                f.x[j] = left ? real_of(x[x_at + col * step], p.infinity) : 0.0f;
#else
                f.x[j] = real_of(get(4 * u + j), p.infinity);
#endif
                f.offset[j] = offset_at(p, o_at + col * (Index)p.offset_col);
                f.divisor[j] = divisor_at(p, d_at + col * (Index)p.divisor_col);
            }
            return f;
        };
        quantized(p, quick, varied, get, mine, four, [&](int b) { return halves[half_from[b / 4] + b % 4]; }, codes);
#else
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = code_of(get(b), p);
#endif
        if (!full)
            clear_missing(valid, codes);
        if (p.fields) {
#pragma unroll
            for (int u = 0; u < BS_CHUNKS; u++) {
                u32 *to = p.words + __shfl_sync(~0u, own.line, u) * width;
                const Index at = __shfl_sync(~0u, own.first, u) / 4 + lane;
                if (__shfl_sync(~0u, own.left, u) > 0 && at * p.bits < 8 * width)
                    store_quad_fields(to, at, p.bits, codes[4 * u], codes[4 * u + 1], codes[4 * u + 2], codes[4 * u + 3]);
            }
            continue;
        }
#pragma unroll 1
        for (int plane = 0;;) {
            u32 w[4];
            planes_of(codes, w);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (plane + k < p.bits) {
                    w[k] = exchange_nibbles(w[k], lane);
                    if (own.left > 0)
                        line[(plane + k) * width] = w[k];
                }
            if ((plane += 4) >= p.bits)
                break;
            drop_planes(codes);
        }
#endif
    }
}

// ---- across the lanes
#if defined(BS_STEPS) && BS_STEPS == 2
#define BS_COLUMN_BOUNDS __launch_bounds__(128, 2) // float64 steps need more registers than the compiler takes by itself
#else
#define BS_COLUMN_BOUNDS __launch_bounds__(128)
#endif
extern "C" __global__ void BS_COLUMN_BOUNDS encode_columns(const EncodeParams p)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Index rows = (Index)p.rows, cols = (Index)p.cols, pieces = (Index)p.width >> 2, step = (Index)p.x_row;
    const Index across = (cols + 31) / 32, down = (rows + BS_GROUP - 1) / BS_GROUP, units = (Index)p.batches * down * across;
    u32 *stage = (u32 *)(shared + (p.rounding == BS_STOCHASTIC ? 4 * 32 * BS_TILE_DRAWS : 0));
    const int pitch = 4 * (p.bits | 1); // an odd number of 16-byte pieces, so that lanes rarely conflict in banks
#ifdef BS_STEPS
    unsigned short *halves = (unsigned short *)(shared + warp * 32 * BS_TILE_DRAWS);
    const bool quick = p.offset_row == 0 && p.divisor_row == 0, along = p.index_col == 1, downward = p.index_row == 1 && !along;
#endif
    for (Index unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const Index upper = quotient(unit, across), col0 = 32 * (unit - upper * across), batch = quotient(upper, down);
        const Index group = upper - batch * down, row0 = BS_GROUP * group + 32 * warp;
        const Index col = min(col0 + lane, cols - 1); // lanes beyond the last column repeat it and store nothing
        // `whole` is computed from `rest`, not from `left`: the assembler of CUDA 13.0 turns min, max and a comparison with their bound
        // into one instruction on sm_90, and then takes the wrong branch.
        const Index rest = rows - row0;
        const bool whole = rest >= 32;
        const int left = whole ? 32 : (int)max((Index)0, rest);
        const u32 valid = whole ? ~0u : (1u << left) - 1u;
        const Element *from = (const Element *)p.x + BS_AT(x, batch, row0, col);
        Element e[32];
        if (whole) {
#pragma unroll
            for (int r = 0; r < 32; r++)
                e[r] = from[r * step];
        } else {
#pragma unroll
            for (int r = 0; r < 32; r++)
                e[r] = r < left ? from[r * step] : (Element)0;
        }
        const auto get = [&](int b) { return e[b]; };
        look_for_odd(p, get);
        u32 *mine = stage + lane * pitch;
#if BS_SIGNS
        mine[warp] = signs_of(p, get) & valid;
#else
        u32 codes[32];
#ifdef BS_STEPS
        const Index index = BS_AT(index, batch, row0, col0), across_step = (Index)(downward ? p.index_col : p.index_row);
        if (p.rounding == BS_STOCHASTIC) {
            __syncwarp();
            if (along || downward)
                fill_draws(halves, 32, BS_TILE_DRAWS, p.seed, stream_of(p), lane,
                           [&](int i) { return (p.first_index + (u64)(index + i * across_step)) >> 3; });
            else
                fill_singly(halves, 32, 32, 8 * BS_TILE_DRAWS, p.seed, stream_of(p), lane,
                            [&](int r, int c) { return p.first_index + (u64)(index + r * (Index)p.index_row + c * (Index)p.index_col); });
            __syncwarp();
        }
        const Index offsets = left ? BS_AT(offset, batch, row0, col) : 0, divisors = left ? BS_AT(divisor, batch, row0, col) : 0;
#if BS_STEPS == 0
        const Steps both = steps_of(offset_at(p, offsets), divisor_at(p, divisors));
#else
        const int both = 0;
#endif
        const auto four = [&](int u) {
            Four f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int row = max(0, min(left - 1, 4 * u + j));
#if BS_STEPS == 0
                f.x[j] = left ? real_of(from[row * step], p.infinity) : 0.0f;
#else
                f.x[j] = real_of(get(4 * u + j), p.infinity);
#endif
                f.offset[j] = offset_at(p, offsets + row * (Index)p.offset_row);
                f.divisor[j] = divisor_at(p, divisors + row * (Index)p.divisor_row);
            }
            return f;
        };
        const auto half = [&](int r) {
            const int major = downward ? lane : r, minor = downward ? r : lane;
            const int skip = along || downward ? (int)((u32)p.first_index + (u32)(index + major * across_step)) & 7 : 0;
            return halves[major * 8 * BS_TILE_DRAWS + skip + minor];
        };
        quantized(p, quick, false, get, both, four, half, codes);
#else
#pragma unroll
        for (int b = 0; b < 32; b++)
            codes[b] = code_of(get(b), p);
#endif
        if (!whole)
            clear_missing(valid, codes);
        if (p.fields) {
            put_any_fields(p.bits, codes, mine + warp * p.bits);
        } else {
#pragma unroll 1
            for (int plane = 0;;) {
                u32 w[4];
                planes_of(codes, w);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (plane + k < p.bits)
                        mine[4 * (plane + k) + warp] = w[k];
                if ((plane += 4) >= p.bits)
                    break;
                drop_planes(codes);
            }
        }
#endif
        __syncthreads();
        for (int i = threadIdx.x; i < 32 * p.bits; i += 128) {
            const int c = i / p.bits, piece = i % p.bits;
            const Index line = batch * cols + col0 + c, at = p.fields ? group * p.bits + piece : group;
            if (col0 + c < cols && at < pieces)
                ((uint4 *)p.words)[(p.fields ? line : line * p.bits + piece) * pieces + at] =
                    *(const uint4 *)(stage + c * pitch + 4 * piece);
        }
        __syncthreads();
    }
}
