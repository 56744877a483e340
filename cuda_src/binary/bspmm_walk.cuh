// How teams of lanes walk rows of edges (or strips of tiles) batch by batch, all teams of a warp in step, and gather the pieces of long ones.
#ifndef BITSPARSE_BSPMM_WALK_CUH
#define BITSPARSE_BSPMM_WALK_CUH

#include "binary/bspmm_count.cuh"

// Four indices from `at` on, a multiple of 4, of which `left` at least are there.
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

// What team `unit` walks: as stretch_of says, but for rows dealt out one by one. A row that is its own only piece is none.
BS_INLINE bool count_stretch_of(const CountParams &p, int unit, Stretch &at)
{
    const Streams &s = p.streams;
    bool there = false;
    if (p.order && unit >= s.pieces) {
        unit -= s.pieces;
        there = unit < s.streams;
        if (there) {
            at.row = __ldg(p.order + unit);
            const bool known = p.bounds; // without asking for the row first
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

// Where a team is: `rows` are left, the first of them from `begin` to `end`, the next one to `next`; the batch begins at `base`, a multiple of
// four that may lie before the row.
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

    // The row's edges in the batch are those from `base` + from() to base + to(), or to the end of the batch.
    __device__ __forceinline__ int to() const { return rows > 0 ? (int)min(end - base, (Index)BS_NO_END) : 0; }
    __device__ __forceinline__ int from() const { return rows > 0 ? min(max((int)(begin - base), 0), to()) : 0; }

    // To the next batch; gives whether it is another row's.
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

// Whether this team brings the last of its row's pieces, which are slots `from` to from + pieces - 1; all of them can be read then. Called
// by whole warps once the piece is in its slot; teams of streams get no.
BS_INLINE bool is_last_piece(const CountParams &p, const Stretch &at, const CountLane &me, int &from, int &pieces)
{
    int before = -1;
    if (at.piece >= 0)
        pieces_of_row(p.streams, at, from, pieces);
    int *arrived = p.arrived + (bs_u64)(unsigned)from * (unsigned)p.slices + blockIdx.y;
    __syncwarp();
    if (at.piece >= 0 && me.lane == 0)
        before = atomicAdd(arrived, 1);
    before = __shfl_sync(~0u, before, (int)(threadIdx.x & 31) - me.lane);
    const bool last = at.piece >= 0 && before == pieces - 1;
    __threadfence();
    if (last && me.lane == 0)
        *arrived = 0; // for the next launch
    return last;
}

// The counts of a row's pieces, added up by the team that brings the last of them; false for all others. Plane q of word w of a piece lies
// at slot_of(piece) + place(w, q). Called as is_last_piece().
template <int planes, int words, int most, class SlotOf, class Place>
BS_INLINE bool take_pieces(const CountParams &p, const Stretch &at, const CountLane &me, u32 (&sum)[words][most], SlotOf slot_of,
                           Place place)
{
    int from = 0, pieces = 0;
    const bool last = is_last_piece(p, at, me, from, pieces);
#pragma unroll
    for (int i = 0; i < words * most; i++)
        sum[i / most][i % most] = 0;
    if (last) {
#pragma unroll 1
        for (int i = 0; i < pieces; i++) {
            const u32 *slot = slot_of(from + i);
#pragma unroll
            for (int w = 0; w < words; w++) {
                u32 one[planes];
#pragma unroll
                for (int q = 0; q < planes; q++)
                    one[q] = __ldcg(slot + place(w, q));
                add_to_counts(sum[w], one);
            }
        }
    }
    return last;
}

#endif
