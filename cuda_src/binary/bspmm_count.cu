// Sums of one-bit features over the edges of a 0/1 CSR pattern: y[i] = sum over edges (i, j) of x[j], as integers, as bits, or through a
// float chain.
//
// A team of lanes (binary/bspmm_count.cuh) walks a stretch of rows (csr/streams.cuh), row by row. Every lane gathers BS_WORDS words of BS_U
// edges at once and adds them to vertical counters by carry-save adders: two LOP3 to an adder, 1.75 adders an edge and word and a few for
// the carries, with no ballots and no unpacking. At the end of a row its lanes add up their counters and compare them with the threshold,
// all bit-sliced: a sum becomes an integer only where integers are wanted. All teams of a warp work in step: first a batch each, then the
// ends of rows.
// Rows in pieces: a block adds up in shared memory the pieces that it has of a row. It leaves their planes in a slot, and the last block to
// arrive adds up those.
//
// Floor: edges at 155 G/s (a gathered row is 16 bytes or little more), and the bytes of a result of integers.
#ifndef BS_THREADS
#define BS_THREADS 128
#endif
#include "binary/bspmm_finish.cuh"
#include "binary/bspmm_walk.cuh"

// BS_BLOCKS: resident blocks of a multiprocessor, which bounds the registers.

// Lanes that share the edges of a row, in a stream and in a piece.
#ifndef BS_PIECE_TEAM
#define BS_PIECE_TEAM BS_TEAM
#endif
// Planes of a lane's counters for a piece.
#ifndef BS_PIECE_PLANES
#define BS_PIECE_PLANES BS_PLANES
#endif
// Planes of a lane's counters that short rows need; a warp with only such rows takes a shorter way.
#if BS_OUT != BS_SIGNS
#undef BS_FEW
#define BS_FEW BS_PLANES // code for numbers leaves out planes as it runs, and should not be instantiated twice
#elif !defined(BS_FEW)
#define BS_FEW 4
#endif
constexpr int kMost = BS_MOST;

BS_INLINE constexpr int log_of(int n) { return n < 2 ? 0 : 1 + log_of(n / 2); }
BS_INLINE constexpr int min_of(int a, int b) { return a < b ? a : b; }

#if BS_WORDS == 4
typedef uint4 Words;
BS_INLINE void split(const uint4 &v, u32 (&to)[4]) { to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w; }
#elif BS_WORDS == 2
typedef uint2 Words;
BS_INLINE void split(const uint2 &v, u32 (&to)[2]) { to[0] = v.x, to[1] = v.y; }
#else
typedef u32 Words;
BS_INLINE void split(u32 v, u32 (&to)[1]) { to[0] = v; }
#endif

// `team` lanes with counters of `planes` planes.
template <int team, int planes> struct Count {
    static constexpr int kBatch = team * BS_U, kQuads = BS_U / 4, kTotal = planes + log_of(team);
    static constexpr int kLeft = team < BS_WORDS ? BS_WORDS / team : 1; // words that a lane has once the team has added up
    static constexpr int kFew = min_of(BS_FEW, planes), kFewEdges = ((1 << kFew) - 4) * team;

    const CountParams &p;
    const Stretch &at;
    CountLane me;
    const char *x; // row 0, at this lane's words
    bool has_words; // whether this lane has words of a row
    Index columns[BS_U];
    u32 count[BS_WORDS][planes];

    __device__ __forceinline__ Count(const CountParams &params, const Stretch &stretch) : p(params), at(stretch)
    {
        me.lane = (int)threadIdx.x & ((team << p.across) - 1);
        me.vector = me.lane & ((1 << p.across) - 1);
        me.part = me.lane >> p.across;
        const int slice = (int)blockIdx.y;
        me.first = slice * (BS_WORDS << p.across);
        me.at = me.vector * BS_WORDS + (me.part * kLeft & (BS_WORDS - 1));
        const int word = me.first + me.vector * BS_WORDS;
        has_words = word < p.width;
        x = kept((const char *)(p.words + (has_words ? word : 0)));
        clear();
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int w = 0; w < BS_WORDS; w++)
#pragma unroll
            for (int q = 0; q < planes; q++)
                count[w][q] = 0;
    }

    // Loads the columns of the batch from `base` on; edges from base + end on belong to other rows.
    __device__ __forceinline__ void load_columns(Index base, int end)
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            const int first = 4 * (me.part + team * k);
            Index quad[4] = {0, 0, 0, 0};
            if (first < end)
                load_quad(p.streams.indices, base + first, end - first, quad);
#pragma unroll
            for (int i = 0; i < 4; i++)
                columns[4 * k + i] = quad[i];
        }
    }

    // Gathers the words of edges `from` to `end` of the batch, and zeros for the others.
    __device__ __forceinline__ void gather(Words (&v)[BS_U], int from, int end) const
    {
        const int mine = 4 * me.part - from, length = end - from;
#pragma unroll
        for (int u = 0; u < BS_U; u++) {
            v[u] = Words{};
            if ((unsigned)(mine + 4 * team * (u / 4) + u % 4) < (unsigned)length && has_words)
                v[u] = __ldg((const Words *)row_address(x, columns[u], 4u * (unsigned)p.width));
        }
    }

    __device__ __forceinline__ void add(const Words (&v)[BS_U])
    {
        u32 words[BS_U][BS_WORDS];
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            split(v[u], words[u]);
#pragma unroll
        for (int w = 0; w < BS_WORDS; w++) {
            u32 x[BS_U];
#pragma unroll
            for (int u = 0; u < BS_U; u++)
                x[u] = words[u][w];
            add_bits<0, BS_U, planes>(count[w], x);
        }
    }

    // Adds up what the team has counted; no lane's counter has more than `used` planes. Called by whole warps.
    template <int used> __device__ __forceinline__ void total(u32 (&sum)[kLeft][used + log_of(team)]) const
    {
        constexpr int apart = BS_WORDS == 1 ? 1 : (team < BS_WORDS ? team : BS_WORDS) / 2;
        u32 lower[BS_WORDS][used];
#pragma unroll
        for (int w = 0; w < BS_WORDS; w++)
#pragma unroll
            for (int q = 0; q < used; q++)
                lower[w][q] = count[w][q];
        add_across<team, BS_WORDS, apart>(lower, me.part, 1 << p.across, sum);
    }

    // Stores the words of a row that has been counted. Called by whole warps.
    template <int n> __device__ __forceinline__ void finish(const CountedRow &r, const u32 (&sum)[kLeft][n]) const
    {
#if BS_OUT == BS_SIGNS
        if (me.part * kLeft < BS_WORDS)
            store_signs(p, r, me.first + me.at, sum);
#else
        finish_numbers<kLeft>(p, me, r, sum);
#endif
        if (BS_WORDS < 4)
            for (int word = me.lane; word < 4; word += team)
                clear_pad_words(p, r, word, BS_WORDS);
    }

    __device__ __forceinline__ u32 *slot_of(int piece) const
    {
        const bs_u64 number = (bs_u64)(unsigned)piece * (unsigned)p.slices + blockIdx.y;
        return p.partial + (number * (unsigned)(BS_WORDS << p.across) + (unsigned)me.at) * kSlot;
    }

    // The number of this team within its block, and where a team's counts are in shared memory.
    __device__ __forceinline__ int number() const { return (int)threadIdx.x / team >> p.across; }
    __device__ __forceinline__ int place_of(int number) const { return number * (kTotal * (BS_WORDS << p.across)) + me.at; }

    // Leaves the counts of a complete piece where the block adds up its pieces.
    __device__ __forceinline__ void leave(u32 *shared, const u32 (&sum)[kLeft][kTotal]) const
    {
        if (me.part * kLeft < BS_WORDS)
#pragma unroll
            for (int q = 0; q < kTotal; q++)
#pragma unroll
                for (int w = 0; w < kLeft; w++)
                    shared[place_of(number()) + q * (BS_WORDS << p.across) + w] = sum[w][q];
    }

    // Of the block's teams with pieces of the same row, the first adds up what all of them have; of these first teams in all blocks, the
    // one that comes last adds up the whole row. Called by whole blocks; teams of streams do nothing here.
    __device__ __forceinline__ void take(const u32 *shared) const
    {
        constexpr int copies = team > BS_WORDS ? team / BS_WORDS : 1, kLeaf = kTotal + log_of(BS_THREADS / team);
        static_assert(kLeaf <= kMost, "the pieces of a block need more planes than a sum has");
        constexpr int busy = min_of(copies, BS_THREADS / team); // copies that have pieces of the block
        const int copy = me.part * kLeft / BS_WORDS, apart = BS_WORDS << p.across;
        const PieceNode node(p, at, 31 - __clz((int)blockDim.x / team >> p.across), (int)blockIdx.x);
        const int count = node.first_of(node.at + 1) - at.piece;
        const bool going = at.piece >= 0 && at.piece == node.first_of(node.at);
        __syncthreads();
        if (!__any_sync(~0u, going))
            return;
        u32 leaf[kLeft][kLeaf], sum[kLeft][kMost];
#pragma unroll
        for (int i = 0; i < kLeft * kLeaf; i++)
            leaf[i / kLeaf][i % kLeaf] = 0;
        if (going)
#pragma unroll 1
            for (int i = copy; i < count; i += copies) {
                const u32 *from = shared + place_of(number() + i);
#pragma unroll
                for (int w = 0; w < kLeft; w++) {
                    u32 one[kTotal];
#pragma unroll
                    for (int q = 0; q < kTotal; q++)
                        one[q] = from[q * (BS_WORDS << p.across) + w];
                    add_to_counts(leaf[w], one);
                }
            }
        add_lanes<busy, kLeaf - log_of(busy)>(leaf, going, apart);
#pragma unroll
        for (int i = 0; i < kLeft * kMost; i++)
            sum[i / kMost][i % kMost] = i % kMost < kLeaf ? leaf[i / kMost][i % kMost < kLeaf ? i % kMost : 0] : 0;
        const bool last =
            take_pieces<kLeaf, copies, false>(p, node, me, sum, going, copy, apart, [&](int piece) { return slot_of(piece); });
        finish({at.row, last ? node.edges : 0, last}, sum);
    }
};

// Counts one stretch from start to end, with or without pieces.
template <int team, int planes, bool pieces> BS_INLINE void count_stretch(const CountParams &p, int unit)
{
    typedef Count<team, planes> Body;
    Stretch at;
    // Whether the block has pieces; if so, its warps meet at the end.
    const bool meets = pieces && (int)(blockIdx.x * (blockDim.x / team >> p.across)) < p.streams.pieces;
    const bool there = count_stretch_of(p, unit, at);
    if (!meets && !__any_sync(~0u, there))
        return;
    __shared__ u32 shared[pieces ? BS_THREADS / team * BS_WORDS * Body::kTotal : 1];
    Body body(p, at);
    CountWalk<Body::kBatch> walk(p.streams, at);
    if (walk.rows > 0)
        body.load_columns(walk.base, walk.to());
    while (__any_sync(~0u, walk.rows > 0)) {
        Words v[BS_U];
        body.gather(v, walk.from(), walk.to());
        CountedRow counted = {walk.row, walk.end - walk.begin, at.piece < 0};
        const bool ends = walk.step();
        counted.there = ends && counted.there;
        if (walk.rows > 0)
            body.load_columns(walk.base, walk.to()); // these loads arrive while the words do
        body.add(v);
        if (!__any_sync(~0u, ends))
            continue;
        if (Body::kFew < planes && !__any_sync(~0u, ends && (at.piece >= 0 || counted.edges > Body::kFewEdges))) {
            u32 sum[Body::kLeft][Body::kFew + log_of(team)];
            body.template total<Body::kFew>(sum);
            body.finish(counted, sum);
        } else {
            u32 sum[Body::kLeft][Body::kTotal];
            body.template total<planes>(sum);
            body.finish(counted, sum);
            if (pieces && ends && at.piece >= 0)
                body.leave(shared, sum);
        }
        if (ends)
            body.clear();
    }
    if (meets)
        body.take(shared);
}

// The blocks of pieces come first, as they last longest.
extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) bspmm_count(const __grid_constant__ CountParams p)
{
    const int groups = (int)blockDim.x / BS_TEAM >> p.across, unit = (int)threadIdx.x / BS_TEAM >> p.across;
    if (BS_TEAM == BS_PIECE_TEAM) {
        count_stretch<BS_TEAM, BS_PLANES, true>(p, (int)blockIdx.x * groups + unit);
    } else if ((int)blockIdx.x >= p.piece_blocks) {
        count_stretch<BS_TEAM, BS_PLANES, false>(p, p.streams.pieces + ((int)blockIdx.x - p.piece_blocks) * groups + unit);
    } else {
        const int number = (int)((blockIdx.x * blockDim.x + threadIdx.x) / BS_PIECE_TEAM >> p.across);
        count_stretch<BS_PIECE_TEAM, BS_PIECE_PLANES, true>(p, number < p.streams.pieces ? number : p.streams.pieces + p.streams.streams);
    }
}
