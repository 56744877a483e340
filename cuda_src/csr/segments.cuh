// Walks streams of edges whose rows need long code at their end (csr/streams.cuh). That code appears once, not once for each edge of a
// batch, since fetching so many instructions would take longer than running them. A batch is added in segments, one for each row in it.
#ifndef BITSPARSE_CSR_SEGMENTS_CUH
#define BITSPARSE_CSR_SEGMENTS_CUH

#include "csr/streams.cuh"

// Walks a stream, never a piece, in batches of U edges (a multiple of 4). `body` is that of walk(); batch, gather, add and flush are
// called. With `together`, add is replaced by add_all() for a whole batch and add_some(from, to) for edges number `from` to `to` of a
// batch.
template <int U, bool together = false, class Body> BS_INLINE void walk_segments(const Streams &s, const Stretch &at, Body &body)
{
    Index base = at.start & ~(Index)3, row = at.row, next = 0;
    int from = (int)(at.start - base), left = (int)(at.stop - base), ends = left; // from the batch on; `ends`: of the current row
    Index columns[U];
    if (left > 0)
        load_columns(columns, s, base, left);
    if (row + 1 < at.last) {
        ends = (int)(__ldg(s.indptr + row + 1) - base);
        next = __ldg(s.indptr + row + 2);
    }
    Index begin = at.start; // of the current row
    do {
        if (left > 0) {
            body.batch(base, left);
            if (from <= 0 && left >= U) {
#pragma unroll
                for (int u = 0; u < U; u++)
                    body.gather(u, columns[u], base + u);
            } else {
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (u >= from && u < left)
                        body.gather(u, columns[u], base + u);
            }
            if (left > U)
                load_columns(columns, s, base + U, left - U); // these loads arrive while the gathers do
        }
        const int all = min(U, left);
        int have = max(from, 0); // edges of the batch that have been added
        for (;;) {
            const int stop = min(ends, all);
            if constexpr (together) {
                if (have == 0 && stop == U)
                    body.add_all();
                else if (have < stop)
                    body.add_some(have, stop);
            } else if (have == 0 && stop == U) {
#pragma unroll
                for (int u = 0; u < U; u++)
                    body.add(u, row);
            } else {
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (u >= have && u < stop)
                        body.add(u, row);
            }
            if (ends > all || row == at.last)
                break;
            const Index end = base + ends;
            body.flush(row, begin, end);
            have = ends, begin = end;
            row++;
            ends = row < at.last ? (int)(next - base) : BS_NO_END;
            if (row + 1 < at.last)
                next = __ldg(s.indptr + row + 2);
        }
        base += U;
        from -= U, left -= U;
        ends = ends == BS_NO_END ? ends : ends - U;
    } while (left > 0);
}

#endif
