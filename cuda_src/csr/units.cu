// Cuts a CSR pattern into the units of csr/units.cuh. Rows of more than `limit` edges are not in streams ("away"): they are whole, or in
// pieces of `longest` edges if they have more than that. All other rows are in streams of about `span` edges and rows. This takes three
// launches, once per pattern. A block takes a chunk of rows, and adds up what was counted in all chunks before its own.
#include "csr/units.cuh"

#define BS_THREADS 256

enum { BS_AWAY, BS_WHOLE, BS_PIECES, BS_STREAMS, BS_COUNTS };

struct CutParams {
    const Index *indptr;
    bs_i64 *totals; // sums over all chunks, zero at the start; totals[BS_AWAY] has the edges and rows that are not away
    bs_i64 *counts; // of each chunk: edges of rows that are away, whole rows, pieces, streams
    Unit *table;    // pieces, whole rows, streams
    bs_i64 rows, chunk, limit, longest, span;
    bs_i64 pieces, whole;
};

// Returns the sum of x over the threads before this one; `all` becomes the sum over all threads.
BS_INLINE bs_i64 summed_before(bs_i64 x, bs_i64 &all)
{
    __shared__ bs_i64 of_warp[BS_THREADS / 32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    bs_i64 sum = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const bs_i64 other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step)
            sum += other;
    }
    if (lane == 31)
        of_warp[warp] = sum;
    __syncthreads();
    bs_i64 before = 0;
    all = 0;
#pragma unroll
    for (int w = 0; w < BS_THREADS / 32; w++) {
        if (w < warp)
            before += of_warp[w];
        all += of_warp[w];
    }
    __syncthreads(); // before the next sum is written
    return before + sum - x;
}

// Adds up what was counted in the chunks before this block's.
BS_INLINE bs_i64 counted_before(const CutParams &p, int what)
{
    bs_i64 sum = 0, all;
    for (int chunk = (int)threadIdx.x; chunk < (int)blockIdx.x; chunk += BS_THREADS)
        sum += p.counts[chunk * BS_COUNTS + what];
    summed_before(sum, all);
    return all;
}

BS_INLINE bs_i64 first_row(const CutParams &p) { return (bs_i64)blockIdx.x * p.chunk; }
BS_INLINE bs_i64 behind_rows(const CutParams &p) { return min(first_row(p) + p.chunk, p.rows); }

struct Row {
    bs_i64 begin, end, edges;
    bool exists, away;
    bool first, behind_short; // whether the row is the first of a stream; whether the row before it is in a stream
};

BS_INLINE Row row_at(const CutParams &p, bs_i64 r)
{
    Row row{0, 0, 0, r < p.rows, false, false, false};
    if (row.exists) {
        row.begin = p.indptr[r], row.end = p.indptr[r + 1];
        row.edges = row.end - row.begin;
        row.away = row.edges > p.limit;
    }
    return row;
}

// A stream begins where the edges and rows before a row, not counting edges of rows that are away, reach the next multiple of the span.
BS_INLINE void find_first(const CutParams &p, bs_i64 r, bs_i64 away_before, Row &row)
{
    if (!row.exists)
        return;
    if (r == 0) {
        row.first = !row.away;
        return;
    }
    const bs_i64 length = row.begin - p.indptr[r - 1], reached = row.begin - away_before + r;
    row.behind_short = length <= p.limit;
    const bs_i64 grown = row.behind_short ? length + 1 : 1;
    row.first = !row.away && (!row.behind_short || reached / p.span > (reached - grown) / p.span);
}

BS_INLINE bs_i64 pieces_of(const CutParams &p, const Row &row)
{
    return row.edges > p.longest ? (row.edges + p.longest - 1) / p.longest : 0;
}

// First launch: counts edges and rows of each chunk by what they will belong to.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_rows(const CutParams p)
{
    bs_i64 found[BS_COUNTS] = {}, short_work = 0;
    for (bs_i64 r = first_row(p) + threadIdx.x; r < behind_rows(p); r += BS_THREADS) {
        const Row row = row_at(p, r);
        const bs_i64 pieces = row.away ? pieces_of(p, row) : 0;
        found[BS_AWAY] += row.away ? row.edges : 0;
        found[BS_WHOLE] += row.away && !pieces;
        found[BS_PIECES] += pieces;
        short_work += row.away ? 0 : row.edges + 1;
    }
#pragma unroll
    for (int what = 0; what < BS_STREAMS; what++) {
        bs_i64 all, work;
        summed_before(found[what], all);
        if (what == BS_AWAY)
            summed_before(short_work, work);
        if (threadIdx.x == 0) {
            p.counts[blockIdx.x * BS_COUNTS + what] = all;
            atomicAdd((unsigned long long *)&p.totals[what], (unsigned long long)(what == BS_AWAY ? work : all));
        }
    }
}

// Second launch: counts the streams that begin in each chunk.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_streams(const CutParams p)
{
    bs_i64 away = counted_before(p, BS_AWAY), streams = 0, all;
    for (bs_i64 tile = first_row(p); tile < behind_rows(p); tile += BS_THREADS) {
        const bs_i64 r = tile + threadIdx.x;
        Row row = row_at(p, r < behind_rows(p) ? r : p.rows);
        const bs_i64 before = summed_before(row.away ? row.edges : 0, all);
        find_first(p, r, away + before, row);
        streams += row.first;
        away += all;
    }
    summed_before(streams, all);
    if (threadIdx.x == 0) {
        p.counts[blockIdx.x * BS_COUNTS + BS_STREAMS] = all;
        atomicAdd((unsigned long long *)&p.totals[BS_STREAMS], (unsigned long long)all);
    }
}

// Third launch: writes the units of each chunk.
extern "C" __global__ void __launch_bounds__(BS_THREADS) write_units(const CutParams p)
{
    bs_i64 away = counted_before(p, BS_AWAY), whole = counted_before(p, BS_WHOLE), pieces = counted_before(p, BS_PIECES);
    bs_i64 streams = counted_before(p, BS_STREAMS);
    Unit *const of_rows = p.table + p.pieces, *const of_streams = of_rows + p.whole;
    for (bs_i64 tile = first_row(p); tile < behind_rows(p); tile += BS_THREADS) {
        const bs_i64 r = tile + threadIdx.x;
        Row row = row_at(p, r < behind_rows(p) ? r : p.rows);
        bs_i64 all_away, all_pieces, all_rest;
        const bs_i64 before = summed_before(row.away ? row.edges : 0, all_away);
        find_first(p, r, away + before, row);
        const bs_i64 cut = row.away ? pieces_of(p, row) : 0;
        const bs_i64 piece = pieces + summed_before(cut, all_pieces);
        const bs_i64 both = ((bs_i64)row.first << 32) + (row.away && !cut); // summed over one tile only, so no half overflows
        const bs_i64 rest = summed_before(both, all_rest);
        const bs_i64 stream = streams + (rest >> 32);
        if (row.away && !cut)
            of_rows[whole + (rest & 0xffffffff)] = Unit{(Index)r, 1, (Index)row.begin, (Index)row.end};
        if (row.behind_short && (row.first || row.away)) { // the previous stream ends here
            of_streams[stream - 1].last = (Index)r;
            of_streams[stream - 1].stop = (Index)row.begin;
        }
        if (row.first) {
            of_streams[stream].row = (Index)r;
            of_streams[stream].start = (Index)row.begin;
        }
        if (r == p.rows - 1 && !row.away) {
            of_streams[stream - !row.first].last = (Index)p.rows;
            of_streams[stream - !row.first].stop = (Index)row.end;
        }
        // A warp writes the pieces of its rows, one row after another, since some rows have very many.
        for (bs_u32 left = __ballot_sync(~0u, cut != 0); left; left &= left - 1) {
            const int lane = __ffs(left) - 1;
            const bs_i64 count = __shfl_sync(~0u, cut, lane), place = __shfl_sync(~0u, piece, lane);
            const bs_i64 begin = __shfl_sync(~0u, row.begin, lane), end = __shfl_sync(~0u, row.end, lane);
            const Index number = (Index)__shfl_sync(~0u, r, lane);
            for (bs_i64 k = (int)threadIdx.x & 31; k < count; k += 32) {
                const bs_i64 start = begin + k * p.longest;
                p.table[place + k] = Unit{number, (Index)count, (Index)start, (Index)min(start + p.longest, end)};
            }
        }
        away += all_away, pieces += all_pieces, whole += all_rest & 0xffffffff, streams += all_rest >> 32;
    }
}
