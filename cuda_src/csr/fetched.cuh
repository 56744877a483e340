// Walks streams and rows like csr/streams.cuh and csr/units.cuh, but only those edges whose rows have a number other than 0. A bit for each
// edge says which (csr/fetched.cu).
//
// The lanes of a group look at two edges each at a time, and append those that are fetched to a queue in shared memory, from which the group
// takes U at a time. So as many gathers are in flight as if the others did not exist.
#ifndef BITSPARSE_CSR_FETCHED_CUH
#define BITSPARSE_CSR_FETCHED_CUH

#include "csr/streams.cuh"

// Whether edges are left out.
struct Fetching {
    int few; // whether they are
    int changed; // whether rows have numbers that had none at the last call, or the other way round
    bs_i64 zero_row; // a row of zeros, if few
};

// Which edges are fetched.
struct Fetched {
    const unsigned *bits; // bit i % 32 of word i / 32 is edge i's
    Index zero_row;
};

// The queues of a block's groups. Little shared memory leaves more of it to the L1.
template <int threads, int U> struct __align__(16) Queues {
    Index columns[threads * (2 + U / 8)];
    unsigned short numbers[threads * (2 + U / 8)]; // of edges, counted from the start of the stretch
};
#define BS_LAST_NUMBER 0xffff // not that of an edge

// N elements of an array in shared memory, aligned to 16 bytes.
template <int N, class T> BS_INLINE void read_queue(T (&to)[N], const T *from)
{
    const int each = 16 / (int)sizeof(T);
    union {
        uint4 vector;
        T of[each];
    } v;
#pragma unroll
    for (int i = 0; i < N; i += each) {
        v.vector = *(const uint4 *)(from + i);
#pragma unroll
        for (int k = 0; k < each && i + k < N; k++)
            to[i + k] = v.of[k];
    }
}

// The number of an edge, which may go past the last one by some.
#ifdef BS_LARGE
typedef bs_u64 Edge;
#else
typedef unsigned Edge;
#endif

// Two edges of each lane of a group: edges base + lane and base + lanes + lane.
struct Looked {
    unsigned bits[2]; // of all lanes
    Index columns[2];
};

BS_INLINE Looked look(const Fetched &fetched, const Streams &s, const Stretch &at, Edge base, int lane, int lanes)
{
    Looked found = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Edge first = base + (unsigned)(half * lanes), start = (Edge)at.start, stop = (Edge)at.stop;
        if (first >= stop)
            break;
        const int from = start > first ? (int)(start - first) : 0, left = (int)min(stop - first, (Edge)lanes);
        const unsigned bits = __ldg(fetched.bits + (first >> 5)) >> ((unsigned)first & 31u);
        if (from < left)
            found.bits[half] = bits & (~0u >> (32 - left)) & (~0u << from);
        if (lane < left)
            found.columns[half] = __ldg(s.indices + first + lane);
    }
    return found;
}

// Visits the edges of a stretch that are fetched, from `base` on 2 * lanes of every `step` edges: gather() of `body` for U of them and then
// add(numbers), where U is 8, or 16 and at most the lanes of a group. Edges that are missing at the end get the row of zeros.
template <int U, class Queue, class Body, class Add>
BS_INLINE void visit_fetched(Queue &queues, const Fetched &fetched, const Streams &s, const Stretch &at, Edge base, int step, Body &body,
                             Add add)
{
    const int lanes = 1 << s.shift, lane = group_lane(s), shift = (int)threadIdx.x & 31 & -lanes;
    const unsigned below = (1u << lane) - 1, group = (~0u >> (32 - lanes)) << shift;
    const int room = ((int)threadIdx.x >> s.shift) * (2 * lanes + U);
    Index *const columns = queues.columns + room;
    unsigned short *const numbers = queues.numbers + room;
    int count = 0;
    Looked next = look(fetched, s, at, base, lane, lanes);
    while (base < (Edge)at.stop || count > 0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (next.bits[half] >> lane & 1) {
                const int slot = count + __popc(next.bits[half] & below);
                columns[slot] = next.columns[half];
                numbers[slot] = (unsigned short)((int)(base - (Edge)at.start) + half * lanes + lane);
            }
            count += __popc(next.bits[half]);
        }
        base += (unsigned)step;
        if (base >= (Edge)at.stop) {
            if (lane < (-count & (U - 1))) {
                columns[count + lane] = fetched.zero_row;
                numbers[count + lane] = BS_LAST_NUMBER;
            }
            count = (count + U - 1) & -U;
        }
        next = look(fetched, s, at, base, lane, lanes); // these loads arrive while the gathers do
        __syncwarp(group);
        int head = 0;
        for (; count - head >= U; head += U) {
            Index taken[U];
            read_queue(taken, columns + head);
#pragma unroll
            for (int u = 0; u < U; u++)
                body.gather(u, taken[u], 0);
            add(numbers + head);
        }
        count -= head;
        Index column = 0;
        unsigned short number = 0;
        if (lane < count)
            column = columns[head + lane], number = numbers[head + lane];
        __syncwarp(group);
        if (lane < count)
            columns[lane] = column, numbers[lane] = number;
    }
}

// Walks a stream, never a piece. `body` is that of walk().
template <int U, class Queue, class Body>
BS_INLINE void walk_fetched(Queue &queues, const Fetched &fetched, const Streams &s, const Stretch &at, Body &body)
{
    Place here = {at.start, at.row, at.start, at.stop, BS_NO_END};
    if (at.row + 1 < at.last) {
        here.ends = (int)(__ldg(s.indptr + at.row + 1) - at.start);
        here.next = __ldg(s.indptr + at.row + 2);
    }
    const int step = 2 << s.shift;
    visit_fetched<U>(queues, fetched, s, at, (Edge)(at.start & -(Index)step), step, body, [&](const unsigned short *from) {
        unsigned short numbers[U];
        read_queue(numbers, from);
        if (s.whole && here.ends > numbers[U - 1]) {
#pragma unroll
            for (int u = 0; u < U; u++)
                body.add(u, here.row);
            return;
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (here.ends <= numbers[u])
                do
                    next_open_row(s, at, here, body);
                while (here.ends <= numbers[u]);
            body.add(u, here.row);
        }
    });
    if (here.row + 1 == at.last)
        here.ends = (int)(at.stop - at.start);
    while (here.row < at.last)
        next_row(s, at, here, body);
}

// Walks a row or piece with all groups of a warp, which take turns.
template <int U, class Queue, class Body>
BS_INLINE void share_fetched(Queue &queues, const Fetched &fetched, const Streams &s, const Stretch &at, Body &body)
{
    const int each = 2 << s.shift;
    const Edge base = (Edge)(at.start & -(Index)each) + (unsigned)((((int)threadIdx.x & 31) >> s.shift) * each);
    visit_fetched<U>(queues, fetched, s, at, base, 2 * 32, body, [&](const unsigned short *) {
#pragma unroll
        for (int u = 0; u < U; u++)
            body.add(u, at.row);
    });
}

#endif
