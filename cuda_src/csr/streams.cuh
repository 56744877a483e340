// Streams of edges: how the kernels over CSR patterns cut a graph into equal runs and walk them.
// A group of 2^shift lanes walks one *stretch*: a run of whole consecutive rows (a stream), or a piece of a row that is too long for one.
// The group reads the indices of the next U edges, whatever rows they belong to, issues all U gathers, and only then checks where rows end.
// So short rows keep as many gathers in flight as long ones do. A group needs no shuffles: its lanes read the same indices, 16 bytes at
// once.
// bitsparse/backends/cuda/schedule.py decides which stretches there are.
#ifndef BITSPARSE_CSR_STREAMS_CUH
#define BITSPARSE_CSR_STREAMS_CUH

#include "common/scalar.h"

#define BS_INLINE static __device__ __forceinline__

// BS_LARGE: indptr and indices are int64. BS_DIRECT: there are no indices; edge e belongs to row e of the gathered array.
#ifdef BS_LARGE
typedef bs_i64 Index;
#else
typedef int Index;
#endif

struct Streams {
    const Index *indptr; // rows + 1
    const Index *indices; // 16-byte aligned
    const Index *starts; // streams + 1: first rows
    const Index *piece_row; // of each piece, in the order of rows; the pieces of a row follow each other
    const Index *piece_first; // first edge of each piece
    int streams, pieces;
    int longest; // edges of a piece; longer rows are in no stream, or alone in one that is skipped
    int shift; // log2 of the lanes of a group
    int whole; // whether batches within one row take a path of their own; not if the groups of a warp would seldom all take it
};

// Rows [row, last) and edges [start, stop). `piece` is the number of the piece and of the slot of its partial result, or -1.
struct Stretch {
    Index row, last, start, stop;
    int piece;
};

BS_INLINE int group_lane(const Streams &s) { return (int)threadIdx.x & ((1 << s.shift) - 1); }

// The stretch of group `unit` of the grid, pieces first since they are the longest; false if the group has nothing to do.
BS_INLINE bool stretch_of(const Streams &s, int unit, Stretch &at)
{
    if (unit < s.pieces) {
        at.row = __ldg(s.piece_row + unit);
        at.start = __ldg(s.piece_first + unit);
        at.last = at.row + 1;
        at.stop = min(at.start + s.longest, __ldg(s.indptr + at.last));
        at.piece = unit;
        return true;
    }
    unit -= s.pieces;
    if (unit >= s.streams)
        return false;
    at.row = __ldg(s.starts + unit);
    at.last = __ldg(s.starts + unit + 1);
    at.start = __ldg(s.indptr + at.row);
    at.stop = __ldg(s.indptr + at.last);
    at.piece = -1;
    return at.row < at.last && !(at.last == at.row + 1 && at.stop - at.start > s.longest);
}

// The stretch of this thread's group; blocks are numbered along x.
BS_INLINE bool this_stretch(const Streams &s, Stretch &at)
{
    return stretch_of(s, (int)(blockIdx.x * (blockDim.x >> s.shift) + (threadIdx.x >> s.shift)), at);
}

// The pieces of the row that this piece belongs to: number of the first, and how many there are.
BS_INLINE void pieces_of_row(const Streams &s, const Stretch &at, int &first, int &count)
{
    const Index begin = s.indptr[at.row], edges = s.indptr[at.row + 1] - begin;
    first = at.piece - (int)((at.start - begin) / s.longest);
    count = (int)((edges + s.longest - 1) / s.longest);
}

// Row `index` of an array with rows of `bytes` bytes.
BS_INLINE const char *row_address(const char *base, Index index, unsigned bytes)
{
#ifdef BS_LARGE
    return base + (bs_u64)index * bytes;
#else
    // Written in this way it is one instruction; the compiler would sometimes make two or three.
    bs_u64 offset;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"((unsigned)index), "r"(bytes));
    return base + offset;
#endif
}

// The same address in a form that the compiler keeps in registers; otherwise it tends to recompute the address in a loop. Called by whole
// warps.
BS_INLINE const char *kept(const char *address) { return (const char *)__shfl_sync(~0u, (bs_u64)address, (int)threadIdx.x & 31); }

// Elements 0 .. U - 1 from `array` on, which is 16-byte aligned. Those from `left` on may be arbitrary: only vectors that hold an element
// before `left` are read, and there is at least one such element.
template <int U, class T> BS_INLINE void load_run(T (&to)[U], const T *array, int left)
{
    const int each = 16 / (int)sizeof(T), last = (left - 1) & -each;
    union {
        uint4 vector;
        T of[each];
    } v;
#pragma unroll
    for (int u = 0; u < U; u += each) {
        v.vector = __ldg((const uint4 *)(array + (u ? min(u, last) : 0)));
#pragma unroll
        for (int i = 0; i < each; i++)
            to[u + i] = v.of[i];
    }
}

// Like load_run, for elements of 16 bits that are aligned to 8 bytes, two to a word.
template <int U> BS_INLINE void load_halves(unsigned (&to)[U / 2], const unsigned short *array, int left)
{
    const int last = (left - 1) & -4;
#pragma unroll
    for (int u = 0; u < U; u += 4) {
        const uint2 v = __ldg((const uint2 *)(array + (u ? min(u, last) : 0)));
        to[u / 2] = v.x, to[u / 2 + 1] = v.y;
    }
}

template <int U> BS_INLINE void load_columns(Index (&to)[U], const Streams &s, Index base, int left)
{
#ifdef BS_DIRECT
#pragma unroll
    for (int u = 0; u < U; u++)
        to[u] = base + u;
#else
    load_run(to, s.indices + base, left);
#endif
}

#define BS_NO_END (1 << 30)

// Where a walk stands: the next batch, the current row and its first edge, the end of the row counted from the batch, and the end of the
// next row.
struct Place {
    Index base, row, begin, next;
    int ends;
};

// Moves on to the next row once the current one is complete.
template <class Body> BS_INLINE void next_row(const Streams &s, const Stretch &at, Place &here, Body &body)
{
    const Index end = here.base + here.ends;
    body.flush(here.row, here.begin, end);
    here.row++;
    here.begin = end;
    here.ends = (int)(here.next - here.base);
    if (here.row + 1 < at.last)
        here.next = __ldg(s.indptr + here.row + 2);
}

// Like next_row, but the last row of the stretch gets an end that no batch reaches.
template <class Body> BS_INLINE void next_open_row(const Streams &s, const Stretch &at, Place &here, Body &body)
{
    next_row(s, at, here, body);
    if (here.row + 1 == at.last)
        here.ends = BS_NO_END;
}

// Walks a stretch in batches of U edges (a multiple of 4) for a `body` of six functions:
//   batch(base, left)         `left` edges from `base` (a multiple of 4) on belong to this stretch; the next U of them come now
//   gather(u, column, edge)   start loading what edge base + u needs
//   add(u, row)               edge base + u joins the current row
//   flush(row, begin, end)    the current row of a stream is complete (it may be empty); the next one begins
//   piece(row)                the piece is complete
//   done(base, from, left)    edges base + max(from, 0) .. base + min(left, U) - 1 have been added (from > 0 only at the start)
//   blank(u)                  only with `blanks`: there is no edge base + u, yet add(u) will be called; make it change nothing
// With `blanks`, every edge of a batch is added, which saves checking which of them exist.
template <int U, bool blanks = false, class Body> BS_INLINE void walk(const Streams &s, const Stretch &at, Body &body)
{
    Place here = {at.start & ~(Index)3, at.row, at.start, at.stop, 0};
    int from = (int)(at.start - here.base), left = (int)(at.stop - here.base); // start and stop of the stretch, counted from the batch on
    here.ends = left;
    Index columns[U];
    if (left > 0)
        load_columns(columns, s, here.base, left);
    if (at.row + 1 < at.last) {
        here.ends = (int)(__ldg(s.indptr + at.row + 1) - here.base);
        here.next = __ldg(s.indptr + at.row + 2);
    }
    if (blanks && at.row + 1 == at.last)
        here.ends = BS_NO_END;
    while (left > 0) {
        body.batch(here.base, left);
        if (from <= 0 && left >= U) {
#pragma unroll
            for (int u = 0; u < U; u++)
                body.gather(u, columns[u], here.base + u);
        } else {
#pragma unroll
            for (int u = 0; u < U; u++)
                if (u >= from && u < left)
                    body.gather(u, columns[u], here.base + u);
                else if constexpr (blanks)
                    body.blank(u);
        }
        if (left > U)
            load_columns(columns, s, here.base + U, left - U); // these loads arrive while the gathers do
        if ((blanks || from <= 0) && here.ends >= U && s.whole) {
#pragma unroll
            for (int u = 0; u < U; u++)
                body.add(u, here.row);
        } else if constexpr (blanks) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (here.ends <= u)
                    do
                        next_open_row(s, at, here, body);
                    while (here.ends <= u);
                body.add(u, here.row);
            }
        } else {
#pragma unroll
            for (int u = 0; u < U; u++) {
                const bool mine = u >= from && u < left;
                if (mine && here.ends <= u)
                    do
                        next_row(s, at, here, body);
                    while (here.ends <= u);
                if (mine)
                    body.add(u, here.row);
            }
        }
        body.done(here.base, from, left);
        here.base += U;
        from -= U, left -= U, here.ends -= U;
    }
    if (blanks && here.row + 1 == at.last)
        here.ends = left;
    if (at.piece >= 0)
        body.piece(at.row);
    else
        while (here.row < at.last)
            next_row(s, at, here, body);
}

#endif
