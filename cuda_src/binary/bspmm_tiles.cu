// Sums of one-bit features over FRDC's 4 x 4 tiles: a tile names four adjacent rows of x, and says which of four results take which of
// them.
//
// A team of BS_TEAM << across lanes walks a strip of four rows (csr/streams.cuh, with tiles in place of edges), tile by tile. A lane loads
// BS_WORDS words of the four gathered rows of BS_U tiles at once, so that up to four edges share a load. It adds the words that the tile's
// bits select to vertical counters of all four results. At the end of a strip the lanes exchange counts until each has one result.
//
// Floor: as many instructions as a tile has bits, set or not: about 270 a tile and 128 features, 5 cycles of a multiprocessor. So this pays
// where tiles hold several edges; binary/bspmm_count.cu takes 1.6 cycles an edge.
#ifndef BS_THREADS
#define BS_THREADS 128
#endif
#include "binary/bspmm_finish.cuh"
#include "binary/bspmm_walk.cuh"

// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.
#if BS_TEAM != 4
#error "four lanes share four results"
#endif

constexpr int kBatch = BS_TEAM * BS_U, kTotal = BS_PLANES + 2, kMost = BS_MOST;

#if BS_WORDS == 2
typedef uint2 Words;
BS_INLINE u32 word_of(const uint2 &v, int w) { return w ? v.y : v.x; }
#else
typedef u32 Words;
BS_INLINE u32 word_of(u32 v, int) { return v; }
#endif

struct TileParams {
    CountParams count; // streams of tiles; rows of the result, features and so on
    const unsigned short *tiles; // bit 4r + c: row r of the strip takes row c of the block, aligned to 8 bytes
    const int *edges; // of each row
};

// All ones where bit `number` of a tile is set. The lower half of `spread` holds the tile, the upper half the tile shifted left by four.
BS_INLINE u32 mask_of(u32 spread, int number)
{
    // The sign of a byte fills all four bytes of the mask: bytes 0 to 3 have bits 7, 15, 3 and 11 as their highest bits.
    const int byte = number & 4 ? number >> 3 : 2 + (number >> 3), end = number & 4 ? 7 : 3;
    u32 mask; // inline PTX, since __byte_perm has no mode that repeats signs
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(spread << (end - (number & 7))), "r"(0x8888u + 0x1111u * byte));
    return mask;
}

struct Tiles {
    const TileParams &t;
    const CountParams &p;
    const Stretch &at;
    CountLane me;
    const char *x; // row 0, at this lane's words
    bool has_words;
    Index block[BS_U];
    u32 tile[BS_U];
    u32 count[4 * BS_WORDS][BS_PLANES]; // of the strip's results, word by word

    __device__ __forceinline__ Tiles(const TileParams &params, const Stretch &stretch) : t(params), p(params.count), at(stretch)
    {
        me.lane = group_lane(p.streams);
        me.vector = me.lane & ((1 << p.across) - 1);
        me.part = me.lane >> p.across;
        me.first = (int)blockIdx.y * (BS_WORDS << p.across);
        me.at = me.vector * BS_WORDS;
        has_words = me.first + me.at < p.width;
        x = kept((const char *)(p.words + (has_words ? me.first + me.at : 0)));
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            tile[u] = 0;
        clear();
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 4 * BS_WORDS; i++)
#pragma unroll
            for (int q = 0; q < BS_PLANES; q++)
                count[i][q] = 0;
    }

    // Loads tiles number `from` to `end` of the batch from `base` on; the others have no bits.
    __device__ __forceinline__ void load_tiles(Index base, int from, int end)
    {
#pragma unroll
        for (int k = 0; k < BS_U / 4; k++) {
            const int first = 4 * (me.part + BS_TEAM * k);
            Index quad[4] = {0, 0, 0, 0};
            ushort4 bits = make_ushort4(0, 0, 0, 0);
            if (first < end) {
                load_quad(p.streams.indices, base + first, end - first, quad);
                bits = __ldg((const ushort4 *)(t.tiles + base + first));
            }
            const unsigned short four[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                block[4 * k + i] = quad[i];
                tile[4 * k + i] = (unsigned)(first + i - from) < (unsigned)(end - from) && has_words ? four[i] : 0;
            }
        }
    }

    // Loads the rows of x that the batch's tiles name.
    __device__ __forceinline__ void gather(Words (&v)[BS_U][4]) const
    {
#pragma unroll
        for (int u = 0; u < BS_U; u++) {
            const char *from = row_address(x, block[u], 16u * BS_WIDTH);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (tile[u] & 0x1111u << c) // rows that no bit selects may not exist
                    v[u][c] = __ldg((const Words *)(from + 4 * BS_WIDTH * c));
        }
    }

    // Adds the words that the tiles' bits select to the counters of the four results.
    __device__ __forceinline__ void add(const Words (&v)[BS_U][4], const u32 (&spread)[BS_U])
    {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            u32 mask[4 * BS_U];
#pragma unroll
            for (int i = 0; i < 4 * BS_U; i++)
                mask[i] = mask_of(spread[i / 4], 4 * r + i % 4);
#pragma unroll
            for (int w = 0; w < BS_WORDS; w++) {
                u32 bits[4 * BS_U];
#pragma unroll
                for (int i = 0; i < 4 * BS_U; i++)
                    bits[i] = word_of(v[i / 4][i % 4], w) & mask[i];
                add_bits<0, 4 * BS_U, BS_PLANES>(count[r * BS_WORDS + w], bits);
            }
        }
    }

    // Adds up what the team has counted: the lanes with part r get result r of the strip. Called by whole warps.
    __device__ __forceinline__ void total(u32 (&sum)[BS_WORDS][kTotal]) const
    {
        u32 half[2 * BS_WORDS][BS_PLANES + 1];
        halve<2>(count, half);
        halve<1>(half, sum);
    }

    // Lanes whose parts differ in bit `apart` exchange halves of the results, so that each lane keeps and adds up one half.
    template <int apart, int n, int planes>
    __device__ __forceinline__ void halve(const u32 (&all)[2 * n][planes], u32 (&kept)[n][planes + 1]) const
    {
        const bool upper = me.part & apart;
#pragma unroll
        for (int i = 0; i < n; i++) {
            u32 mine[planes], theirs[planes];
#pragma unroll
            for (int q = 0; q < planes; q++) {
                mine[q] = upper ? all[n + i][q] : all[i][q];
                theirs[q] = __shfl_xor_sync(~0u, upper ? all[i][q] : all[n + i][q], apart << p.across);
            }
            add_counts(kept[i], mine, theirs);
        }
    }

    // Stores result `part` of a strip, from these counts.
    template <int n> __device__ __forceinline__ void finish(Index strip, bool there, const u32 (&plane)[BS_WORDS][n]) const
    {
        const bs_i64 row = 4 * (bs_i64)strip + me.part;
        CountedRow r = {(Index)row, 0, there && row < p.rows};
        if (r.there)
            r.edges = __ldg(t.edges + row);
#if BS_OUT == BS_SIGNS
        store_signs(p, r, me.first + me.at, plane);
        if (BS_WIDTH == 4 && p.features <= 64 && me.vector == 0)
            for (int word = BS_WORDS << p.across; word < 4; word++)
                clear_pad_words(p, r, word, BS_WORDS << p.across);
#else
        // One result after another; every four lanes take a word.
        const int top = planes_in_use(r), j = me.lane & 3, taker = me.lane >> 2, team0 = (int)(threadIdx.x & 31) - me.lane;
#pragma unroll 1
        for (int d = 0; d < 4; d++) {
            const int source = team0 + (d << p.across) + taker;
            const CountedRow one = {4 * strip + d, __shfl_sync(~0u, r.edges, source), __shfl_sync(~0u, (int)r.there, source) != 0};
#pragma unroll
            for (int w = 0; w < BS_WORDS; w++) {
                int sum[8];
                counts_of_word(plane[w], top, source, j, sum);
                store_numbers(p, one, me.first + taker * BS_WORDS + w, j, one.there, sum);
            }
            clear_pad_words(p, one, me.lane, p.features <= 64 ? BS_WORDS << p.across : 4);
        }
#endif
    }

    __device__ __forceinline__ u32 *slot_of(int piece) const
    {
        const bs_u64 number = (bs_u64)(unsigned)piece * (unsigned)p.slices + blockIdx.y;
        return p.partial + (number * (unsigned)(BS_TEAM << p.across) + (unsigned)me.lane) * (unsigned)(BS_WORDS * kSlot);
    }

    // Leaves the counts of a complete piece in its slot.
    __device__ __forceinline__ void leave(const u32 (&sum)[BS_WORDS][kTotal]) const
    {
        u32 *slot = slot_of(at.piece);
#pragma unroll
        for (int w = 0; w < BS_WORDS; w++)
            store_planes<kTotal>(slot + kSlot * w, sum[w]);
    }

    // As in binary/bspmm_count.cu, but every piece is in a slot: the team that comes last adds up all pieces of the strip.
    __device__ __forceinline__ void take() const
    {
        u32 sum[BS_WORDS][kMost] = {};
        const PieceNode node(p, at, 0, at.piece);
        const bool last = take_pieces<kTotal, 1, true>(p, node, me, sum, at.piece >= 0, 0, 1, [&](int piece) { return slot_of(piece); });
        finish(at.row, last, sum);
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) bspmm_tiles(const __grid_constant__ TileParams t)
{
    const CountParams &p = t.count;
    Stretch at;
    const bool there = count_stretch_of(p, (int)(blockIdx.x * (blockDim.x >> p.streams.shift) + (threadIdx.x >> p.streams.shift)), at);
    if (!__any_sync(~0u, there))
        return;
    Tiles body(t, at);
    CountWalk<kBatch> walk(p.streams, at);
    if (walk.rows > 0)
        body.load_tiles(walk.base, walk.from(), walk.to());
    Words v[BS_U][4] = {};
    while (__any_sync(~0u, walk.rows > 0)) {
        body.gather(v);
        u32 spread[BS_U];
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            spread[u] = body.tile[u] * 0x00100001u;
        const Index strip = walk.row;
        const bool ends = walk.step();
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            body.tile[u] = 0;
        if (walk.rows > 0)
            body.load_tiles(walk.base, walk.from(), walk.to()); // these loads arrive while the words do
        body.add(v, spread);
        if (!__any_sync(~0u, ends))
            continue;
        u32 sum[BS_WORDS][kTotal];
        body.total(sum);
        body.finish(strip, ends && at.piece < 0, sum);
        if (ends && at.piece >= 0)
            body.leave(sum);
        if (ends)
            body.clear();
    }
    if (__any_sync(~0u, at.piece >= 0))
        body.take();
}
