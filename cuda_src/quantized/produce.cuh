// How a block of quantized/wgmma.cu gets its operands: its share of the work, warps that load and quantise, and a thread for the weights.
#ifndef BITSPARSE_QUANTIZED_PRODUCE_CUH
#define BITSPARSE_QUANTIZED_PRODUCE_CUH

#include "quantized/load.cuh"

constexpr int kLeftSlots = 8, kRightSlots = 4;
constexpr int kConsumerWarps = 8, kLoaderWarps = 7, kThreads = 32 * (kConsumerWarps + kLoaderWarps + 1);
constexpr int kParts = kTileRows / BS_AHEAD; // of a block, dealt out to the loading warps
static_assert(kParts > kLoaderWarps, "every warp has a part of every block, so that it meets all slots");

template <int slots> struct Ring {
    int slot = 0;
    u32 phase;
    __device__ __forceinline__ explicit Ring(u32 begin) : phase(begin) {}
    __device__ __forceinline__ void advance()
    {
        if (++slot == slots)
            slot = 0, phase ^= 1;
    }
};

struct Shared {
    u32 left, right, staging, left_full, left_empty, right_full, right_empty; // addresses
};

BS_INLINE int blocks_of(const QuantizedParams &g) { return (g.k + kRowBytes - 1) / kRowBytes; }

// A unit of work: 128 rows, the column tiles `first` to `last` - 1, and the blocks `begin` to `end` - 1 of the contraction axis. The first
// `full` units have all columns and blocks. After those, `split` units share the columns of each 128 rows, or they share the contraction
// axis, `part` by part.
struct Unit {
    int m_tile, first, last, part;
    unsigned range; // begin | end << 16, which saves a register

    __device__ __forceinline__ int begin() const { return (int)(range & 0xffffu); }
    __device__ __forceinline__ int end() const { return (int)(range >> 16); }
};

BS_INLINE Unit unit_of(const QuantizedParams &g, int index)
{
    const int blocks = blocks_of(g);
    if (index < g.full)
        return {index, 0, g.n_tiles, 0, (unsigned)blocks << 16};
    int rest = index - g.full, part = 0;
    if (g.k_parts > 1) {
        part = rest % g.k_parts;
        rest /= g.k_parts;
    }
    const int rows = rest / g.split, first = (rest - rows * g.split) * g.per_part;
    const unsigned range = (unsigned)(blocks * part / g.k_parts) | (unsigned)(blocks * (part + 1) / g.k_parts) << 16;
    return {g.full + rows, first, min(g.n_tiles, first + g.per_part), part, range};
}

// Whether the codes of 128 rows do not fit into the ring, so that they are computed again for every column tile.
BS_INLINE bool makes_again(const QuantizedParams &g) { return blocks_of(g) > kLeftSlots * g.k_parts; }

// ---- loading warps
// The order of a loading warp: every seventh part of the blocks of the contraction axis, for every unit (and every tile if codes are
// computed again).
struct Walk {
    const QuantizedParams &g;
    int index, pass = 0, part, block;
    int m_tile, tiles; // tiles of columns; negative unless the unit begins at the first one
    unsigned range; // as in Unit, whose other members are left out to save registers

    __device__ __forceinline__ explicit Walk(const QuantizedParams &params)
        : g(params), index(blockIdx.x), part((int)(threadIdx.x >> 5) - kConsumerWarps)
    {
        take();
    }

    __device__ __forceinline__ void take()
    {
        const Unit unit = unit_of(g, index);
        m_tile = unit.m_tile, tiles = unit.first ? unit.first - unit.last : unit.last, range = unit.range;
        block = unit.begin();
    }

    __device__ __forceinline__ bool done() const { return index >= g.units; }
    __device__ __forceinline__ bool leads() const { return pass == 0 && tiles > 0; } // these codes are new

    __device__ __forceinline__ void step()
    {
        part += kLoaderWarps;
        if (part < kParts)
            return;
        part -= kParts;
        if (++block < (int)(range >> 16))
            return;
        block = (int)(range & 0xffffu);
        if (makes_again(g) && ++pass < abs(tiles))
            return;
        pass = 0;
        index += gridDim.x;
        if (!done())
            take();
    }

    __device__ __forceinline__ int row() const { return m_tile * kTileRows + part * BS_AHEAD; }
};

// Where a part of a block comes from. Rows past the last one repeat it, and their results are not stored.
struct Source {
    const unsigned char *at;
    int last, column;

    __device__ __forceinline__ explicit Source(const Walk &walk)
        : at(walk.g.x + walk.row() * walk.g.x_row), last(walk.g.m - 1 - walk.row()),
          column(walk.block * kRowBytes + 4 * (int)(threadIdx.x & 31))
    {
        if (last < 0)
            at += last * walk.g.x_row, last = 0;
    }

    __device__ __forceinline__ Four load(const QuantizedParams &g, int i) const
    {
        return load_four(at + min(i, last) * g.x_row, column, g.k);
    }
};

// Two parts of blocks are in flight: while one becomes codes the other is still being loaded. The next loads come after the fence, since
// the fence may wait for loads before it.
template <bool usual, bool keeps> struct Loader {
    const QuantizedParams &g;
    const Shared &s;
    const Grid &grid;
    Walk here, ahead; // the part that becomes codes, the part that is loaded
    Ring<kLeftSlots> ring{1}; // its slots start empty
    float odd = 0.0f;

    __device__ __forceinline__ Loader(const QuantizedParams &params, const Shared &shared, const Grid &of)
        : g(params), s(shared), grid(of), here(params), ahead(params)
    {
    }

    __device__ __forceinline__ void load(Four (&fours)[BS_AHEAD])
    {
        if (ahead.done())
            return;
        const Source source(ahead);
#pragma unroll
        for (int i = 0; i < BS_AHEAD; i++)
            fours[i] = source.load(g, i);
        ahead.step();
    }

    __device__ __forceinline__ void store(const Four (&fours)[BS_AHEAD])
    {
        const int lane = threadIdx.x & 31, row = here.row(), column = here.block * kRowBytes + 4 * lane;
        const bool wanted = keeps && here.leads();
        barrier_wait(s.left_empty + ring.slot * 8, ring.phase);
        // Rows are stored in the layout of the matrix units: 16-byte chunk c of row r at c ^ (r & 7), where r & 7 is i & 7.
        const u32 line = s.left + ring.slot * kBytesBlock + (row % kTileRows) * kRowBytes, chunk = (lane >> 2) << 4, rest = (lane & 3) * 4;
#pragma unroll
        for (int i = 0; i < BS_AHEAD; i += 2) {
            const Draws draws(g, (u64)(row + i) * (u32)g.k + column);
#pragma unroll
            for (int j = i; j < i + 2; j++) {
                const u32 word = codes_of<usual>(grid, fours[j], draws.of[j - i], odd);
                store_shared_word(line + j * kRowBytes + ((chunk ^ ((j & 7) << 4)) | rest), (int)word);
                if (wanted)
                    keep_codes(g, row + j, column / 4, word);
            }
        }
        fence_async_proxy();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(s.left_full + ring.slot * 8);
        here.step();
        if (here.part < kLoaderWarps) // the warp's first part of the next block follows
            ring.advance();
    }

    __device__ __forceinline__ void run()
    {
        Four even[BS_AHEAD];
        load(even);
#ifdef BS_RANDOM // draws need the registers, and take longer than the memory
#pragma unroll 1
        while (!here.done()) {
            store(even);
            load(even);
        }
#else
        Four odds[BS_AHEAD];
        load(odds);
#pragma unroll 1
        while (!here.done()) {
            store(even);
            load(even);
            if (here.done())
                break;
            store(odds);
            load(odds);
        }
#endif
        if (odd != odd)
            *g.odd = 1;
    }
};

template <bool keeps> BS_INLINE void load_all(const QuantizedParams &g, const Shared &s, const Grid &grid)
{
    if (grid.usual)
        Loader<true, keeps>(g, s, grid).run();
    else
        Loader<false, keeps>(g, s, grid).run();
}

// ---- the thread that loads the weights
BS_INLINE void load_weights(const QuantizedParams &g, const Shared &s)
{
    Ring<kRightSlots> ring(1);
    for (int index = blockIdx.x; index < g.units; index += gridDim.x) {
        const Unit unit = unit_of(g, index);
        for (int tile = unit.first; tile < unit.last; tile++)
            for (int block = unit.begin(); block < unit.end(); block++) {
                const u32 full = s.right_full + ring.slot * 8;
                barrier_wait(s.right_empty + ring.slot * 8, ring.phase);
                barrier_expect(full, kBytesBlock);
                tma_load(s.right + ring.slot * kBytesBlock, &g.w, full, block * (kRowBytes / 4), tile * kTileColumns, 0, 0);
                ring.advance();
            }
    }
}

#endif
