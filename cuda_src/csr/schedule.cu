// The steps that cut a CSR pattern into streams and pieces (csr/streams.cuh), as far as they are not CuPy calls; they run once per pattern.
#include "csr/streams.cuh"

struct ScheduleParams {
    const Index *indptr;
    const Index *long_rows; // ascending
    const Index *before; // long_count + 1: edges (stream_starts) or pieces (piece_edges) of the long rows before each
    Index *out, *first;
    bs_i64 rows, count, span;
    int long_count;
};

// How many of the first n of ascending numbers are less than x.
BS_INLINE int less_than(const Index *numbers, int n, Index x)
{
    int low = 0, high = n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (numbers[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// out[s] = the first row with at least s * span edges and rows before it, where edges of long rows are not counted; out[count] = rows.
extern "C" __global__ void __launch_bounds__(256) stream_starts(const ScheduleParams p)
{
    const bs_i64 s = (bs_i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (s > p.count)
        return;
    Index low = 0, high = (Index)p.rows;
    const bs_i64 wanted = s == p.count ? (bs_i64)1 << 62 : s * p.span;
    while (low < high) {
        const Index middle = low + (high - low) / 2;
        const Index away = p.long_count ? p.before[less_than(p.long_rows, p.long_count, middle)] : 0;
        if ((bs_i64)p.indptr[middle] - away + middle < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    p.out[s] = low;
}

// Row and first edge of each of `count` pieces of `span` edges.
extern "C" __global__ void __launch_bounds__(256) piece_edges(const ScheduleParams p)
{
    const bs_i64 piece = (bs_i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (piece >= p.count)
        return;
    const int at = less_than(p.before, p.long_count + 1, (Index)piece + 1) - 1;
    const Index row = p.long_rows[at];
    p.out[piece] = row;
    p.first[piece] = p.indptr[row] + (Index)((piece - p.before[at]) * p.span);
}

// For each of `count` edges, its row minus the row of the first edge of its 32 (edges/ends.cuh), or 255 if the difference is 255 or more.
extern "C" __global__ void __launch_bounds__(256) rows_behind(const ScheduleParams p)
{
    const bs_i64 edge = (bs_i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (edge >= p.count)
        return;
    const Index first = p.before[edge / 32];
    Index low = first, high = p.before[edge / 32 + 1];
    while (low < high) {
        const Index middle = low + (high - low + 1) / 2;
        if (p.indptr[middle] <= edge)
            low = middle;
        else
            high = middle - 1;
    }
    ((unsigned char *)p.out)[edge] = (unsigned char)min(low - first, (Index)255);
}
