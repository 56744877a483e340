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

// A node in the tree that adds up the pieces of a row. A leaf is what `each` consecutive teams, those of a block, have of the row. Pieces are
// numbered through all rows, so the first and the last leaf of a row may have fewer. Other nodes hold 1 << `shift` leaves each, the last one
// fewer.
struct PieceNode {
    int from, pieces; // first piece and number of pieces of the row
    int each, skipped; // pieces of the first leaf's teams that belong to earlier rows
    int at, shift; // the first leaf of the node

    // The leaf of a team that has counted a piece, with the teams of run number `run`.
    __device__ __forceinline__ PieceNode(const CountParams &p, const Stretch &stretch, int each_of_run, int run)
        : from(0), pieces(1), each(each_of_run), skipped(0), at(0), shift(0)
    {
        if (stretch.piece < 0)
            return;
        pieces_of_row(p.streams, stretch, from, pieces);
        const int first = from / each;
        skipped = from - first * each, at = run - first;
    }

    __device__ __forceinline__ int leaves() const { return (skipped + pieces - 1) / each + 1; }
    // The first piece of a leaf; behind the last leaf, the end of the pieces.
    __device__ __forceinline__ int first_of(int leaf) const { return from + min(max(leaf * each - skipped, 0), pieces); }
    __device__ __forceinline__ bool is_root() const { return leaves() <= 1 << shift; }
    __device__ __forceinline__ int parent() const { return at & -(kFan << shift); } // the parent's first leaf
    __device__ __forceinline__ int siblings() const { return min(kFan, ((leaves() - parent() - 1) >> shift) + 1); }
    // The counter of a parent lies at its first piece, one place further for each level. There are enough pieces for that only if the parent
    // has several children; one child needs no counter.
    __device__ __forceinline__ int counter() const { return first_of(parent()) + shift / kFanLog; }
    // Planes that the sum of the node of this level at `leaf` needs, where one piece has `planes`.
    __device__ __forceinline__ int planes_of(int planes, int leaf) const
    {
        const int more = first_of(leaf + (1 << shift)) - first_of(leaf) - 1;
        return planes + 32 - __clz(more);
    }
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

// Adds up the counts of a row's pieces as a tree: the team that brings the last child of a node adds up its children. True for the team
// that ends up with the whole row, false for all others. `sum` has the counts of the `going` team's leaf, unless leaves are in their slots
// already (`stored`). Plane q of word w of a piece lies at slot_of(piece) + place(w, q); a sum of several pieces needs more planes, which
// lie in the slots of its further pieces. `copies` lanes of a team, `apart` from each other, have the same words and share the children;
// `copy` numbers them. Called by whole warps.
template <int planes, int copies, bool stored, int words, int most, class SlotOf, class Place>
BS_INLINE bool take_pieces(const CountParams &p, PieceNode node, const CountLane &me, u32 (&sum)[words][most], bool going, int copy,
                           int apart, SlotOf slot_of, Place place)
{
    asm volatile("" : "+r"(copy), "+r"(apart)); // computed here and not earlier, when registers are scarce
    constexpr bool kScarce = words * most > 24; // then one slot is read after another
    constexpr int kTogether = kScarce || BS_OUT != BS_SIGNS ? 1 : 3; // children that are loaded together
    bool whole = going && node.is_root();
    going = going && !whole;
    while (__any_sync(~0u, going)) {
        if (going && copy == 0 && !(stored && node.shift == 0)) {
            const int first = node.first_of(node.at), used = node.planes_of(planes, node.at);
#pragma unroll
            for (int q0 = 0; q0 < most; q0 += planes) {
                u32 *slot = slot_of(first + q0 / planes);
#pragma unroll
                for (int w = 0; w < words; w++)
#pragma unroll
                    for (int q = q0; q < q0 + planes && q < most; q++)
                        if (q < planes || q < used)
                            slot[place(w, q - q0)] = sum[w][q];
            }
        }
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
#pragma unroll kTogether
            for (int i = copy; i < count; i += copies) {
                const int child = begin + (i << node.shift), first = node.first_of(child), used = node.planes_of(planes, child);
#pragma unroll
                for (int w = 0; w < words; w++) {
                    u32 carry = 0;
#pragma unroll
                    for (int q0 = 0; q0 < most; q0 += planes) {
                        const u32 *slot = slot_of(first + q0 / planes);
                        if (kScarce)
                            asm volatile("" ::: "memory");
#pragma unroll
                        for (int q = q0; q < q0 + planes && q < most; q++) {
                            const u32 x = q < planes || q < used ? __ldcg(slot + place(w, q - q0)) : 0;
                            const u32 both = xor3(sum[w][q], x, carry);
                            carry = majority(sum[w][q], x, carry);
                            sum[w][q] = both;
                        }
                    }
                }
            }
        }
        add_lanes<copies, most>(sum, going, apart);
        node.at = begin, node.shift += kFanLog;
        whole = whole || (going && node.is_root());
        going = going && !whole;
    }
    return whole;
}

#endif
