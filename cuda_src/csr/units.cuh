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
    int each; // for take_units: consecutive pieces or rows of a warp
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

// Where the batches of this thread's group begin if all groups of a warp share the edges from `start` on.
template <int U> BS_INLINE Index first_batch(const Streams &s, Index start)
{
    return (start & ~(Index)3) + (((int)threadIdx.x & 31) >> s.shift) * U;
}

// The first indices of the group in such a row or piece, if it has any.
template <int U> BS_INLINE void load_first(Index (&columns)[U], const Streams &s, const Stretch &at)
{
    const Index base = first_batch<U>(s, at.start);
    if (base < at.stop)
        load_columns(columns, s, base, (int)(at.stop - base));
}

// Walks a row or piece with all groups of a warp: each takes U edges (a multiple of 4), then the next group the next U. `columns` has the
// first ones. `body` has the functions of walk() in csr/streams.cuh, of which batch, gather, add, done and, with `blanks`, blank are
// called. With `together`, add_all and (without blanks) add_some of csr/segments.cuh replace add. `after` is called once the group needs
// `columns` no more.
template <int U, bool blanks, bool together, class Body, class After>
BS_INLINE void share_from(Index (&columns)[U], const Streams &s, const Stretch &at, Body &body, After after)
{
    const int step = (32 >> s.shift) * U;
    Index base = first_batch<U>(s, at.start);
    int from = (int)(at.start - base), left = (int)(at.stop - base);
    if (left <= 0)
        after();
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
        if (left > step) // these loads arrive while the gathers do
            load_columns(columns, s, base + step, left - step);
        else
            after();
        if constexpr (together) {
            if (blanks || all)
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

template <int U, bool blanks, bool together = false, class Body> BS_INLINE void share(const Streams &s, const Stretch &at, Body &body)
{
    Index columns[U];
    load_first(columns, s, at);
    share_from<U, blanks, together>(columns, s, at, body, [] {});
}

// Handles the unit of this warp or group: `share` and body.shared() for warps with pieces and whole rows, `walk` for a stream.
template <class Body, class Share, class Walk>
BS_INLINE void take_unit_by(const Units &units, const Streams &s, Stretch &at, Body &body, Share share, Walk walk)
{
    const int warp = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32), warps = units.pieces + units.whole;
    if (warp < warps) {
        read_unit(units.table + warp, at);
        if (warp < units.pieces)
            at.piece = warp;
        share();
        body.shared();
    } else {
        const int shift = s.shift, unit = ((warp - warps) << (5 - shift)) + (((int)threadIdx.x & 31) >> shift);
        if (unit >= units.streams)
            return;
        read_unit(units.table + warps + unit, at);
        walk();
    }
}

// Handles the unit of this warp or group with share() of all edges.
template <int U, bool blanks, bool together = false, class Body, class Walk>
BS_INLINE void take_unit(const Units &units, const Streams &s, Stretch &at, Body &body, Walk walk)
{
    take_unit_by(units, s, at, body, [&] { share<U, blanks, together>(s, at, body); }, walk);
}

// Like take_unit, but a warp handles up to units.each pieces and rows, one after the other. Meanwhile the next one's place in the table and
// first indices arrive, which it would otherwise wait for. `body` must be as new after body.shared(); its
// function coming() is told the next one.
template <int U, bool blanks, bool together, class Body, class Walk>
BS_INLINE void take_units(const Units &units, const Streams &s, Stretch &at, Body &body, Walk walk)
{
    const int warp = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32), all = units.pieces + units.whole;
    const int warps = (all + units.each - 1) / units.each;
    if (warp < warps) {
        int unit = warp * units.each;
        const int last = min(unit + units.each, all) - 1;
        Stretch next;
        Index columns[U];
        read_unit(units.table + unit, next);
        load_first(columns, s, next);
        body.coming(next);
#pragma unroll 1
        for (;; unit++) {
            at = next;
            at.piece = unit < units.pieces ? unit : -1;
            if (unit < last)
                read_unit(units.table + unit + 1, next);
            share_from<U, blanks, together>(columns, s, at, body, [&] {
                if (unit < last) {
                    load_first(columns, s, next);
                    body.coming(next);
                }
            });
            body.shared();
            if (unit == last)
                break;
            __syncwarp(); // the lanes that finished the row gather with the others again
        }
    } else {
        const int shift = s.shift, unit = ((warp - warps) << (5 - shift)) + (((int)threadIdx.x & 31) >> shift);
        if (unit >= units.streams)
            return;
        read_unit(units.table + all + unit, at);
        walk();
    }
}

#endif
