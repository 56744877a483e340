// Sums of one-bit features over the edges of a 0/1 CSR pattern: y[i] = sum over edges (i, j) of x[j], as integers, as bits, or through a
// float chain.
//
// A team of lanes (bspmm_count.cuh) walks a stretch of rows (csr_streams.cuh), row by row. Every lane gathers BS_WORDS words of BS_U edges
// at once and adds them to vertical counters by carry-save adders: two LOP3 to an adder, 1.75 adders an edge and word and a few for the
// carries, no ballots and nothing unpacked. At the end of a row its lanes add up, bit-sliced, and the counts are compared bit-sliced, so
// that no sum is ever an integer unless integers are wanted. All teams of a warp go in step: a batch each, then the ends of rows.
// Rows in pieces: every piece leaves its planes in a slot, and whichever is the last to arrive adds them up.
//
// Floor: edges at 155 G/s (a gathered row is 16 bytes or little more), and the bytes of a result of integers.
#include "bspmm_finish.cuh"
#include "bspmm_walk.cuh"

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
#ifndef BS_BLOCKS
#define BS_BLOCKS 4
#endif

#define BS_LOG2(n) ((n) == 1 ? 0 : (n) == 2 ? 1 : (n) == 4 ? 2 : (n) == 8 ? 3 : (n) == 16 ? 4 : 5)
// Planes of a lane's counters that rows of kFewEdges edges need; teams take a shorter way where no row of the warp has more.
#ifndef BS_FEW
#define BS_FEW 4
#endif
constexpr int kFew = BS_FEW < BS_PLANES ? BS_FEW : BS_PLANES;
constexpr int kFewEdges = ((1 << BS_FEW) - 4) * BS_TEAM;
constexpr int kQuads = BS_U / 4, kBatch = BS_TEAM * BS_U, kTotal = BS_PLANES + BS_LOG2(BS_TEAM), kMost = 31;

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

// What the team has counted: a lane has word `me.at`; for numbers every four lanes take a word at a time, so that what they store lies
// together. For whole warps.
template <int n> BS_INLINE void finish_counts(const CountParams &p, const CountLane &me, const CountedRow &r, const u32 (&plane)[n])
{
#if BS_OUT == BS_SIGNS
    if (me.part < BS_WORDS)
        store_signs(p, r, me.first + me.at, plane);
#else
    const int top = planes_in_use(r), j = me.lane & 3;
    const int words = BS_WORDS << p.across, teams = BS_TEAM << p.across >> 2, team0 = (int)(threadIdx.x & 31) - me.lane;
#pragma unroll 1
    for (int turn = 0; turn < words; turn += teams) {
        const int at = turn + (me.lane >> 2), vector = min(at / BS_WORDS, (1 << p.across) - 1);
        int sum[8];
        counts_of_word(plane, top, team0 + ((at & (BS_WORDS - 1)) << p.across) + vector, j, sum);
        store_numbers(p, r, me.first + at, j, r.there && at < words, sum);
    }
#endif
    if (BS_WORDS < 4)
        clear_pad_words(p, r, me.lane, BS_WORDS);
}

struct Count {
    const CountParams &p;
    const Stretch &at;
    CountLane me;
    const char *x; // row 0, this lane's words
    bool has_words; // of a row
    Index columns[BS_U];
    u32 count[BS_WORDS][BS_PLANES];

    __device__ __forceinline__ Count(const CountParams &params, const Stretch &stretch) : p(params), at(stretch)
    {
        me.lane = group_lane(p.streams);
        me.vector = me.lane & ((1 << p.across) - 1);
        me.part = me.lane >> p.across;
        const int slice = (int)blockIdx.y;
        me.first = slice * (BS_WORDS << p.across);
        me.at = me.vector * BS_WORDS + (me.part & (BS_WORDS - 1));
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
            for (int q = 0; q < BS_PLANES; q++)
                count[w][q] = 0;
    }

    // The columns of the batch from `base` on; edges from base + end on are others'.
    __device__ __forceinline__ void load_columns(Index base, int end)
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            const int first = 4 * (me.part + BS_TEAM * k);
            Index quad[4] = {0, 0, 0, 0};
            if (first < end)
                load_quad(p.streams.indices, base + first, end - first, quad);
#pragma unroll
            for (int i = 0; i < 4; i++)
                columns[4 * k + i] = quad[i];
        }
    }

    // Words of the batch's edges number `from` to `end`, zeros for the others.
    __device__ __forceinline__ void gather(Words (&v)[BS_U], int from, int end) const
    {
        const int mine = 4 * me.part - from, length = end - from;
#pragma unroll
        for (int u = 0; u < BS_U; u++) {
            v[u] = Words{};
            if ((unsigned)(mine + 4 * BS_TEAM * (u / 4) + u % 4) < (unsigned)length && has_words)
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
            add_bits<0, BS_U, BS_PLANES>(count[w], x);
        }
    }

    // What the team has counted, of which a lane has no more than `planes` planes. For whole warps.
    template <int planes> __device__ __forceinline__ void total(u32 (&sum)[planes + BS_LOG2(BS_TEAM)]) const
    {
        u32 lower[BS_WORDS][planes];
#pragma unroll
        for (int w = 0; w < BS_WORDS; w++)
#pragma unroll
            for (int q = 0; q < planes; q++)
                lower[w][q] = count[w][q];
        add_across<BS_TEAM, BS_WORDS, BS_WORDS, planes>(lower, me.part, 1 << p.across, sum);
    }

    __device__ __forceinline__ u32 *slot_of(int piece) const
    {
        const bs_u64 number = (bs_u64)(unsigned)piece * (unsigned)p.slices + blockIdx.y;
        return p.partial + number * (unsigned)(kTotal * (BS_WORDS << p.across)) + me.at;
    }

    // The piece is counted: into its slot.
    __device__ __forceinline__ void leave(const u32 (&sum)[kTotal]) const
    {
        u32 *slot = slot_of(at.piece);
        if (me.part < BS_WORDS)
#pragma unroll
            for (int q = 0; q < kTotal; q++)
                slot[q * (BS_WORDS << p.across)] = sum[q];
        __threadfence();
    }

    // The team that comes last takes all pieces of the row. For whole warps; teams of streams have nothing to do.
    __device__ __forceinline__ void take() const
    {
        int from = 0, pieces = 0;
        const bool last = is_last_piece(p, at, me, from, pieces);
        u32 sum[kMost];
#pragma unroll
        for (int q = 0; q < kMost; q++)
            sum[q] = 0;
        if (last) {
#pragma unroll 1
            for (int i = 0; i < pieces; i++) {
                const u32 *slot = slot_of(from + i);
                u32 one[kTotal];
#pragma unroll
                for (int q = 0; q < kTotal; q++)
                    one[q] = __ldcg(slot + q * (BS_WORDS << p.across));
                add_to_counts(sum, one);
            }
        }
        const Index edges = last ? p.streams.indptr[at.row + 1] - p.streams.indptr[at.row] : 0;
        finish_counts(p, me, {at.row, edges, last}, sum);
    }
};

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) bspmm_count(const __grid_constant__ CountParams p)
{
    Stretch at;
    const bool there = this_stretch(p.streams, at);
    if (!__any_sync(~0u, there))
        return;
    if (!there)
        at = {0, 0, 0, 0, -1};
    Count body(p, at);
    CountWalk<kBatch> walk(p.streams, at);
    if (walk.rows > 0)
        body.load_columns(walk.base, walk.to());
    while (__any_sync(~0u, walk.rows > 0)) {
        Words v[BS_U];
        body.gather(v, walk.from(), walk.to());
        CountedRow counted = {walk.row, walk.end - walk.begin, at.piece < 0};
        const bool ends = walk.step();
        counted.there = ends && counted.there;
        if (walk.rows > 0)
            body.load_columns(walk.base, walk.to()); // arrive while the words do
        body.add(v);
        if (!__any_sync(~0u, ends))
            continue;
        if (BS_FEW < BS_PLANES && !__any_sync(~0u, ends && (at.piece >= 0 || counted.edges > kFewEdges))) {
            u32 sum[kFew + BS_LOG2(BS_TEAM)];
            body.total<kFew>(sum);
            finish_counts(p, body.me, counted, sum);
        } else {
            u32 sum[kTotal];
            body.total<BS_PLANES>(sum);
            finish_counts(p, body.me, counted, sum);
            if (ends && at.piece >= 0)
                body.leave(sum);
        }
        if (ends)
            body.clear();
    }
    if (__any_sync(~0u, at.piece >= 0))
        body.take();
}
