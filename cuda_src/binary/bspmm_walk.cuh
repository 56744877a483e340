// How teams of lanes walk rows of edges (or strips of tiles) batch by batch, all teams of a warp in step, and how the pieces of long rows
// are joined.
#ifndef BITSPARSE_BSPMM_WALK_CUH
#define BITSPARSE_BSPMM_WALK_CUH

#include "binary/bspmm_count.cuh"

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

// Whether this team is the last of `count` teams to reach a counter; if so, it sees what the others have written. Called by whole warps;
// false for teams that are not `going`.
BS_INLINE bool is_last(const CountParams &p, const CountLane &me, bool going, int counter, int count)
{
    int *arrived = p.arrived + (bs_u64)(unsigned)counter * (unsigned)p.slices + blockIdx.y;
    int before = 0;
    __syncwarp();
    if (going && count > 1 && me.lane == 0)
        before = atomicAdd(arrived, 1);
    before = __shfl_sync(~0u, before, (int)(threadIdx.x & 31) - me.lane);
    const bool last = going && (count == 1 || before == count - 1);
    __threadfence();
    if (last && count > 1 && me.lane == 0)
        *arrived = 0; // for the next launch
    return last;
}

// A node in the tree of a row's pieces: nodes of a level hold 1 << `shift` pieces each, the last one fewer.
struct PieceNode {
    int from, pieces; // first piece and number of pieces of the row
    int at, shift; // the first piece of the node

    __device__ __forceinline__ int children() const { return ((pieces - 1) >> shift) + 1; }
    __device__ __forceinline__ int parent() const { return at & -(kFan << shift); } // the parent's first piece
    __device__ __forceinline__ int siblings() const { return min(kFan, children() - (parent() >> shift)); }
    // The counter of a parent lies at its first piece, one place further for each level. There are enough pieces for that, since a parent
    // has children.
    __device__ __forceinline__ int counter() const { return from + parent() + shift / kFanLog; }
    // Planes that the sum of up to 1 << `log` pieces from piece `begin` on needs, where one piece has `planes`.
    __device__ __forceinline__ int planes_of(int planes, int begin, int log) const
    {
        const int more = min(pieces - begin, 1 << log) - 1;
        return planes + 32 - __clz(more);
    }
};

// Adds up the counts of a row's pieces as a tree: the team that brings the last child of a node adds up its children. True for the team
// that ends up with the whole row, false for all others. Plane q of word w of a piece lies at slot_of(piece) + place(w, q); a sum of
// several pieces needs more planes, which lie in the slots of its further pieces. `copies` lanes of a team, `apart` from each other, have
// the same words and share the children; `copy` numbers them. Called by whole warps once each piece is in its slot.
template <int planes, int copies, int words, int most, class SlotOf, class Place>
BS_INLINE bool take_pieces(const CountParams &p, const Stretch &at, const CountLane &me, u32 (&sum)[words][most], int copy, int apart,
                           SlotOf slot_of, Place place)
{
    asm volatile("" : "+r"(copy), "+r"(apart)); // computed here and not earlier, when registers are scarce
    PieceNode node = {0, 1, 0, 0};
    bool going = at.piece >= 0, whole = false;
    if (going) {
        pieces_of_row(p.streams, at, node.from, node.pieces);
        node.at = at.piece - node.from;
    }
#pragma unroll
    for (int i = 0; i < words * most; i++)
        sum[i / most][i % most] = 0;
    while (__any_sync(~0u, going)) {
        const int count = node.siblings(), begin = node.parent();
        going = is_last(p, me, going, node.counter(), count);
        if (going) {
#pragma unroll
            for (int i = 0; i < words * most; i++)
                sum[i / most][i % most] = 0;
            if (node.shift == 0) {
#pragma unroll 2
                for (int i = copy; i < count; i += copies) {
                    const u32 *slot = slot_of(node.from + begin + i);
#pragma unroll
                    for (int w = 0; w < words; w++) {
                        u32 one[planes];
#pragma unroll
                        for (int q = 0; q < planes; q++)
                            one[q] = __ldcg(slot + place(w, q));
                        add_to_counts(sum[w], one);
                    }
                }
            } else {
#pragma unroll 1
                for (int i = copy; i < count; i += copies) {
                    const int child = begin + (i << node.shift), used = node.planes_of(planes, child, node.shift);
#pragma unroll
                    for (int w = 0; w < words; w++) {
                        u32 carry = 0;
#pragma unroll
                        for (int q0 = 0; q0 < most; q0 += planes) { // one slot after another, which saves registers
                            const u32 *slot = slot_of(node.from + child + q0 / planes);
                            asm volatile("" ::: "memory");
#pragma unroll
                            for (int q = q0; q < q0 + planes && q < most; q++) {
                                const u32 x = q < used ? __ldcg(slot + place(w, q - q0)) : 0;
                                const u32 both = xor3(sum[w][q], x, carry);
                                carry = majority(sum[w][q], x, carry);
                                sum[w][q] = both;
                            }
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int lanes = 1; lanes < copies; lanes *= 2)
#pragma unroll
            for (int w = 0; w < words; w++) {
                u32 carry = 0;
#pragma unroll
                for (int q = 0; q < most; q++) {
                    const u32 mine = sum[w][q], theirs = __shfl_xor_sync(~0u, mine, lanes * apart);
                    sum[w][q] = going ? xor3(mine, theirs, carry) : mine;
                    carry = majority(mine, theirs, carry);
                }
            }
        whole = whole || (going && node.children() <= kFan);
        going = going && node.children() > kFan;
        if (going) {
            node.shift += kFanLog;
            node.at = begin;
            const int used = node.planes_of(planes, begin, node.shift);
            if (copy == 0)
#pragma unroll
                for (int q0 = 0; q0 < most; q0 += planes) {
                    u32 *slot = slot_of(node.from + begin + q0 / planes);
#pragma unroll
                    for (int w = 0; w < words; w++)
#pragma unroll
                        for (int q = q0; q < q0 + planes && q < most; q++)
                            if (q < used)
                                slot[place(w, q - q0)] = sum[w][q];
                }
        }
        __threadfence();
    }
    return whole;
}

#endif
