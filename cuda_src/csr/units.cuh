// Stretches from a table (csr/streams.cuh): one load tells a group all that it needs to know before it loads its first indices. Rows of
// many edges are walked by whole warps, whose groups take turns; rows of few edges are walked by single groups, one stream at a time.
#ifndef BITSPARSE_CSR_UNITS_CUH
#define BITSPARSE_CSR_UNITS_CUH

#include "csr/streams.cuh"

// Rows [row, last) and edges [start, stop) of a stream; for warps `last` is the number of pieces of the row.
struct __align__(16) Unit {
    Index row, last, start, stop;
};

struct Units {
    const Unit *table;          // for warps: pieces of the longest rows, whole rows; for groups: streams
    int pieces, whole, streams; // how many of them
};

BS_INLINE void read_unit(const Unit *from, Stretch &at)
{
    union {
        uint4 moved[sizeof(Unit) / 16];
        Unit unit;
    } u;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(Unit) / 16); i++)
        u.moved[i] = __ldg((const uint4 *)from + i);
    at.row = u.unit.row;
    at.last = u.unit.last;
    at.start = u.unit.start;
    at.stop = u.unit.stop;
    at.piece = -1;
}

// Walks a row or piece with all groups of a warp: each takes U edges (a multiple of 4), then the next group the next U. `body` has the
// functions of walk() in csr/streams.cuh, of which batch, gather, add, done and, with `blanks`, blank are called. With `together` (and no
// blanks), add_all and add_some of csr/segments.cuh replace add.
template <int U, bool blanks, bool together = false, class Body> BS_INLINE void share(const Streams &s, const Stretch &at, Body &body)
{
    const int step = (32 >> s.shift) * U;
    Index base = (at.start & ~(Index)3) + (((int)threadIdx.x & 31) >> s.shift) * U;
    int from = (int)(at.start - base), left = (int)(at.stop - base);
    Index columns[U];
    if (left > 0)
        load_columns(columns, s, base, left);
    while (left > 0) {
        body.batch(base, left);
        const bool all = from <= 0 && left >= U;
        if (all) {
#pragma unroll
            for (int u = 0; u < U; u++)
                body.gather(u, columns[u], base + u);
        } else {
#pragma unroll
            for (int u = 0; u < U; u++)
                if (u >= from && u < left)
                    body.gather(u, columns[u], base + u);
                else if constexpr (blanks)
                    body.blank(u);
        }
        if (left > step)
            load_columns(columns, s, base + step, left - step); // these loads arrive while the gathers do
        if constexpr (together) {
            if (all)
                body.add_all();
            else
                body.add_some(max(from, 0), min(left, U));
        } else if (blanks || all) {
#pragma unroll
            for (int u = 0; u < U; u++)
                body.add(u, at.row);
        } else {
#pragma unroll
            for (int u = 0; u < U; u++)
                if (u >= from && u < left)
                    body.add(u, at.row);
        }
        body.done(base, from, left);
        base += step;
        from -= step, left -= step;
    }
}

// Handles the unit of this warp or group: share() and body.shared() for warps with pieces and whole rows, `walk` for a stream.
template <int U, bool blanks, bool together = false, class Body, class Walk>
BS_INLINE void take_unit(const Units &units, const Streams &s, Stretch &at, Body &body, Walk walk)
{
    const int warp = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32), warps = units.pieces + units.whole;
    if (warp < warps) {
        read_unit(units.table + warp, at);
        if (warp < units.pieces)
            at.piece = warp;
        share<U, blanks, together>(s, at, body);
        body.shared();
    } else {
        const int shift = s.shift, unit = ((warp - warps) << (5 - shift)) + (((int)threadIdx.x & 31) >> shift);
        if (unit >= units.streams)
            return;
        read_unit(units.table + warps + unit, at);
        walk();
    }
}

#endif
