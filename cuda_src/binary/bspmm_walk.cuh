// How teams of lanes walk rows of edges (or strips of tiles) batch by batch, all teams of a warp in step, and how the pieces of long rows
// are joined.
#ifndef BITSPARSE_BSPMM_WALK_CUH
#define BITSPARSE_BSPMM_WALK_CUH

#include "binary/bspmm_count.cuh"
#include "csr/groups.cuh"

// Loads four indices from `at` on, a multiple of 4; at least `left` of them exist.
BS_INLINE void load_quad(const Index *indices, Index at, int left, Index (&to)[4])
{
#ifdef BS_LARGE
    const longlong2 a = __ldg((const longlong2 *)(indices + at)), b = __ldg((const longlong2 *)(indices + at + (left > 2 ? 2 : 0)));
    to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
#else
    const int4 a = __ldg((const int4 *)(indices + at));
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
#endif
}

// The stretch of team `unit`: that of stretch_of, unless rows are dealt out one by one. A row with only one piece counts as a whole row.
BS_INLINE bool count_stretch_of(const CountParams &p, int unit, Stretch &at)
{
    const Streams &s = p.streams;
    bool there = false;
    if (p.order && unit >= s.pieces) {
        unit -= s.pieces;
        there = unit < s.streams;
        if (there) {
            at.row = __ldg(p.order + unit);
            const bool known = p.bounds; // then nothing waits for at.row
            at.start = __ldg(known ? p.bounds + 2 * (bs_i64)unit : s.indptr + at.row);
            at.stop = __ldg(known ? p.bounds + 2 * (bs_i64)unit + 1 : s.indptr + at.row + 1);
            at.last = at.row + 1, at.piece = -1;
        }
    } else if (p.piece_edges && unit < s.pieces) {
        Index piece[4]; // loaded together with the row, so that nothing waits for what indptr says of the row
        load_quad(p.piece_edges, 4 * (Index)unit, 4, piece);
        at.row = __ldg(s.piece_row + unit), at.last = at.row + 1;
        at.start = __ldg(s.piece_first + unit), at.stop = piece[0];
        at.piece = piece[3] > 1 ? unit : -1;
        there = true;
    } else {
        there = stretch_of(s, unit, at);
        if (there && at.piece >= 0 && at.start == __ldg(s.indptr + at.row) && at.stop == __ldg(s.indptr + at.last))
            at.piece = -1;
    }
    if (!there)
        at = {0, 0, 0, 0, -1};
    return there;
}

// Where a team stands: `rows` rows are left; the first of them has the edges from `begin` to `end`, the next one those up to `next`. The
// batch begins at `base`, a multiple of four that may lie before the row.
template <int batch> struct CountWalk {
    const Index *indptr;
    Index row, begin, end, next, base;
    int rows;

    __device__ __forceinline__ CountWalk(const Streams &s, const Stretch &at) : indptr(s.indptr)
    {
        row = at.row, begin = at.start, end = next = at.stop, base = begin & ~(Index)3;
        rows = (int)(at.last - at.row);
        if (rows > 1) {
            end = __ldg(indptr + row + 1);
            next = __ldg(indptr + row + 2);
        }
    }

    // The row has edges base + from() to base + to() of this batch, or up to the end of the batch.
    __device__ __forceinline__ int to() const { return rows > 0 ? (int)min(end - base, (Index)BS_NO_END) : 0; }
    __device__ __forceinline__ int from() const { return rows > 0 ? min(max((int)(begin - base), 0), to()) : 0; }

    // Steps to the next batch; returns whether it belongs to another row.
    __device__ __forceinline__ bool step()
    {
        if (rows <= 0 || to() > batch) {
            base += batch;
            return false;
        }
        row++, rows--;
        begin = end, end = next, base = begin & ~(Index)3;
        if (rows > 1)
            next = __ldg(indptr + row + 2);
        return true;
    }
};

// Children of a node in the tree that adds up the pieces of a row: long rows take few steps, and each step waits for few loads in sequence.
constexpr int kFanLog = 5, kFan = 1 << kFanLog;

// A node in the tree that adds up the pieces of a row. A leaf is what 1 << `each` consecutive teams, those of a block, have of the row.
// Pieces are numbered through all rows, so the first and the last leaf of a row may have fewer. Other nodes hold 1 << `shift` leaves each,
// the last one fewer.
struct PieceNode {
    int from, pieces; // first piece and number of pieces of the row
    Index edges; // of the row
    int each, skipped; // pieces of the first leaf's teams that belong to earlier rows
    int at, shift; // the first leaf of the node

    // The leaf of a team that has counted a piece, with the teams of run number `run`.
    __device__ __forceinline__ PieceNode(const CountParams &p, const Stretch &stretch, int each_of_run, int run)
        : from(0), pieces(1), edges(0), each(each_of_run), skipped(0), at(0), shift(0)
    {
        if (stretch.piece < 0)
            return;
        if (p.piece_edges) {
            Index piece[4];
            load_quad(p.piece_edges, 4 * (Index)stretch.piece, 4, piece);
            edges = piece[1], from = (int)piece[2], pieces = (int)piece[3];
        } else {
            pieces_of_row(p.streams, stretch, from, pieces);
            edges = __ldg(p.streams.indptr + stretch.row + 1) - __ldg(p.streams.indptr + stretch.row);
        }
        const int first = from >> each;
        skipped = from - (first << each), at = run - first;
    }

    __device__ __forceinline__ int leaves() const { return ((skipped + pieces - 1) >> each) + 1; }
    // The first piece of a leaf; behind the last leaf, the end of the pieces.
    __device__ __forceinline__ int first_of(int leaf) const { return from + min(max((leaf << each) - skipped, 0), pieces); }
    __device__ __forceinline__ bool is_root() const { return leaves() <= 1 << shift; }
    __device__ __forceinline__ int parent() const { return at & -(kFan << shift); } // the parent's first leaf
    __device__ __forceinline__ int siblings() const { return min(kFan, ((leaves() - parent() - 1) >> shift) + 1); }
    // The counter of a parent lies at its first piece, one place further for each level. There are enough pieces for that only if the parent
    // has several children; one child needs no counter.
    __device__ __forceinline__ int counter() const { return first_of(parent()) + shift / kFanLog; }
};

// Adds up the counts of `lanes` lanes, `apart` from each other, none of which has more than `used` planes; all of them get the sum. Teams
// that are not `going` keep what they have. Called by whole warps.
template <int lanes, int used, int words, int most> BS_INLINE void add_lanes(u32 (&sum)[words][most], bool going, int apart)
{
    if constexpr (lanes > 1) {
        constexpr int more = used < most ? used + 1 : most;
#pragma unroll
        for (int w = 0; w < words; w++) {
            u32 carry = 0;
#pragma unroll
            for (int q = 0; q < more; q++) {
                const u32 mine = sum[w][q], theirs = q < used ? __shfl_xor_sync(~0u, mine, apart) : 0;
                sum[w][q] = going ? xor3(mine, theirs, carry) : mine;
                carry = majority(mine, theirs, carry);
            }
        }
        add_lanes<lanes / 2, more>(sum, going, 2 * apart);
    }
}

// Planes of a word in a slot, which follow each other: vectors of four.
constexpr int kSlot = (BS_MOST + 3) / 4 * 4;

// Stores the first `used` planes of a word, and zeros up to a multiple of four.
template <int used, int most> BS_INLINE void store_planes(u32 *to, const u32 (&sum)[most])
{
#pragma unroll
    for (int q = 0; q < used; q += 4) {
        u32 of[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            of[i] = q + i < used ? sum[q + i < used ? q + i : 0] : 0;
        *(uint4 *)(to + q) = make_uint4(of[0], of[1], of[2], of[3]);
    }
}

// The tree that adds up the counts of a row's pieces: the team that brings the last child of a node adds up its children. A node's sum lies
// in the slot of its first piece, where slot_of(piece) has the planes of this lane's words, kSlot to a word. `copies` lanes of a team,
// `apart` from each other, have the same words and share the children; `copy` numbers them. Only copy 0 needs the team's leaf in `sum`.
template <int copies, int words, class SlotOf> struct PieceTree {
    const CountParams &p;
    const CountLane &me;
    PieceNode node;
    u32 (&sum)[words][BS_MOST];
    bool going, whole; // whether the team still has a child to bring, and whether it has the whole row
    int copy, apart;
    SlotOf slot_of;

    // Brings the team's child, whose sum has at most `used` planes, to its parent; `stored`: it is in its slot. Called by whole warps.
    template <int used, bool stored> __device__ __forceinline__ void join()
    {
        constexpr int most = BS_MOST, planes = used < most ? used : most, vectors = (planes + 3) / 4, shared = kFan / copies;
        // Leaves that a lane loads together, as far as there are registers. Other nodes are rare: it loads one after another.
        constexpr int room = used == most ? 1 : (BS_OUT == BS_SIGNS ? 64 : 32) / (4 * vectors * words);
        constexpr int most_of = room < shared ? room : shared, together = most_of > 1 ? most_of : 1;
        if (going && copy == 0 && !stored)
#pragma unroll
            for (int w = 0; w < words; w++)
                store_planes<planes>(slot_of(node.first_of(node.at)) + kSlot * w, sum[w]);
        // Whether this team is the last of its siblings; if so, it sees what the others have stored.
        const int count = node.siblings(), begin = node.parent();
        int *counter = p.arrived + (bs_u64)(unsigned)node.counter() * (unsigned)p.slices + blockIdx.y;
        int before = count - 1;
        __syncwarp();
        if (going && count > 1 && me.lane == 0) {
            before = arrive(counter);
            if (before == count - 1)
                *counter = 0; // for the next launch
        }
        before = __shfl_sync(~0u, before, (int)(threadIdx.x & 31) - me.lane);
        __syncwarp();
        going = going && before == count - 1;
        if (going) {
#pragma unroll
            for (int i = 0; i < words * most; i++)
                sum[i / most][i % most] = 0;
#pragma unroll 1
            for (int i = copy; i < count; i += together * copies) {
                u32 x[together][words][4 * vectors];
#pragma unroll
                for (int t = 0; t < together; t++) {
                    const int child = i + t * copies;
                    const u32 *slot = slot_of(node.first_of(begin + (child << node.shift)));
#pragma unroll
                    for (int v = 0; v < words * vectors; v++) {
                        const int w = v / vectors, q = 4 * (v % vectors);
                        uint4 four = make_uint4(0, 0, 0, 0);
                        if (child < count)
                            four = __ldcg((const uint4 *)(slot + kSlot * w + q));
                        x[t][w][q] = four.x, x[t][w][q + 1] = four.y, x[t][w][q + 2] = four.z, x[t][w][q + 3] = four.w;
                    }
                }
#pragma unroll
                for (int t = 0; t < together; t++)
#pragma unroll
                    for (int w = 0; w < words; w++)
                        add_to_counts(sum[w], x[t][w]);
            }
        }
        constexpr int of_lane = planes + kFanLog, joined = of_lane < most ? of_lane : most;
        add_lanes<copies, joined>(sum, going, apart);
        node.at = begin, node.shift += kFanLog;
        whole = whole || (going && node.is_root());
        going = going && !whole;
    }
};

// Adds up all pieces of the rows whose leaves the `going` teams have, in `sum` or (`stored`) in their slots; a leaf has `leaf` planes. True
// for the team that ends up with the whole row, false for all others. Called by whole warps.
template <int leaf, int copies, bool stored, int words, class SlotOf>
BS_INLINE bool take_pieces(const CountParams &p, const PieceNode &node, const CountLane &me, u32 (&sum)[words][BS_MOST], bool going,
                           int copy, int apart, SlotOf slot_of)
{
    asm volatile("" : "+r"(copy), "+r"(apart)); // computed here and not earlier, when registers are scarce
    const bool whole = going && node.is_root();
    PieceTree<copies, words, SlotOf> tree = {p, me, node, sum, going && !whole, whole, copy, apart, slot_of};
    if (__any_sync(~0u, tree.going))
        tree.template join<leaf, stored>();
    while (__any_sync(~0u, tree.going))
        tree.template join<BS_MOST, false>();
    return tree.whole;
}

#endif
