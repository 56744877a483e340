// An elementwise operation of two canonical CSR arrays: the result has the entries of either, without those that become zero. A group of
// lanes takes a row and steps along both of its versions in windows of one entry a lane. Up to the smaller of the windows' last columns,
// each entry's place follows from its rank in the other window, which is found by bisection among the lanes. If both windows have the same
// columns, no search is needed. The groups of a warp go in step, since votes and shuffles of part of a warp cost several times those of a
// whole one. The entries are counted first, with their values, then written to memory of the right size. Floor: reading both arrays twice
// and writing the result.
#include "sparse/groups.cuh"

// BS_KIND: integers of 1, 2, 4 or 8 bytes, unsigned (even) or signed (odd), float32, float64. Booleans are bytes of 0 and 1.
#if BS_KIND == 0
typedef unsigned char Value;
#elif BS_KIND == 1
typedef signed char Value;
#elif BS_KIND == 2
typedef u16 Value;
#elif BS_KIND == 3
typedef short Value;
#elif BS_KIND == 4
typedef u32 Value;
#elif BS_KIND == 5
typedef int Value;
#elif BS_KIND == 6
typedef u64 Value;
#elif BS_KIND == 7
typedef i64 Value;
#elif BS_KIND == 8
typedef float Value;
#else
typedef double Value;
#endif

struct MergeParams {
    const Index *left, *left_columns, *right, *right_columns;
    const void *left_values, *right_values; // NULL: every entry is 1
    Index *starts; // counts of rows, shifted by one place, then where they start
    Index *columns; // the result
    void *values; // booleans for comparisons
    i64 rows;
    int lanes, operation;
};

enum { BS_ADD, BS_SUBTRACT, BS_MULTIPLY, BS_MAXIMUM, BS_MINIMUM, BS_LESS, BS_GREATER, BS_NOT_EQUAL };

// The type of an entry's position, or one slightly past the end.
#ifdef BS_LARGE
typedef i64 Place;
#else
typedef u32 Place;
#endif

// As SciPy computes it: a maximum passes on a NaN only from the left. Integers wrap.
BS_INLINE Value combined(int operation, Value a, Value b)
{
    if (operation == BS_ADD) // the most frequent case comes first
        return (Value)(a + b);
    switch (operation) {
    case BS_SUBTRACT: return (Value)(a - b);
    case BS_MULTIPLY: return (Value)(a * b);
    case BS_MAXIMUM: return a < b ? b : a;
    case BS_MINIMUM: return b < a ? b : a;
    case BS_LESS: return a < b;
    case BS_GREATER: return b < a;
    default: return a != b;
    }
}

// The rest of a row of one array.
struct Rest {
    const Index *columns;
    const Value *values;
    Place at, end;
};

// One entry; past the end of a row there is none.
struct Entry {
    Index column;
    Value value;
};

BS_INLINE Rest row_at(const Index *starts, const Index *columns, const void *values, i64 row, i64 rows)
{
    const bool there = row < rows;
    return {columns, (const Value *)values, there ? (Place)starts[row] : 0, there ? (Place)starts[row + 1] : 0};
}

BS_INLINE Value value_at(const Rest &r, Place place) { return r.values ? r.values[place] : (Value)1; }

BS_INLINE Entry entry_at(const Rest &r, Place place)
{
    if (place >= r.end)
        return {BS_BEYOND, (Value)0};
    return {r.columns[place], value_at(r, place)};
}

// How many lanes of the group have a column below this one; their columns ascend.
BS_INLINE int lanes_below(const Group &g, Index columns, Index column)
{
    int below = 0;
    for (int half = g.lanes >> 1; half; half >>= 1)
        below += __shfl_sync(~0u, columns, below + half - 1, g.lanes) < column ? half : 0;
    return below + (__shfl_sync(~0u, columns, below, g.lanes) < column);
}

// Whether lane `place` of the group, if it exists, has this column.
BS_INLINE bool lane_has(const Group &g, Index columns, int place, Index column)
{
    return __shfl_sync(~0u, columns, min(place, g.lanes - 1), g.lanes) == column && place < g.lanes;
}

BS_INLINE void store(const MergeParams &p, Index to, Index column, Value value)
{
    p.columns[to] = column;
    if (p.operation >= BS_LESS)
        ((unsigned char *)p.values)[to] = 1;
    else
        ((Value *)p.values)[to] = value;
}

// How many entries of a row are kept, none for a row past the end; with `writing` they are written from `to` on. Called by all lanes of the
// warp.
template <bool writing> BS_INLINE Index merge_row(const MergeParams &p, const Group &g, i64 row, Index to)
{
    Rest left = row_at(p.left, p.left_columns, p.left_values, row, p.rows);
    Rest right = row_at(p.right, p.right_columns, p.right_values, row, p.rows);
    const Index before = to;
    while (__any_sync(~0u, left.at < left.end || right.at < right.end)) {
        const Entry a = entry_at(left, left.at + g.lane), b = entry_at(right, right.at + g.lane);
        const Entry later_a = entry_at(left, left.at + g.lanes + g.lane), later_b = entry_at(right, right.at + g.lanes + g.lane);
        if (__all_sync(~0u, a.column == b.column && later_a.column == later_b.column)) {
            const Value made = combined(p.operation, a.value, b.value), later = combined(p.operation, later_a.value, later_b.value);
            const bool kept = a.column != BS_BEYOND && made != (Value)0;
            const bool later_kept = later_a.column != BS_BEYOND && later != (Value)0;
            const u32 all = votes_in_step(g, kept), later_all = votes_in_step(g, later_kept);
            const Index middle = to + __popc(all);
            if (writing && kept)
                store(p, to + __popc(in_front(all, g.lane)), a.column, made);
            if (writing && later_kept)
                store(p, middle + __popc(in_front(later_all, g.lane)), later_a.column, later);
            to = middle + __popc(later_all);
            left.at = min(left.at + 2 * g.lanes, left.end);
            right.at = min(right.at + 2 * g.lanes, right.end);
            continue;
        }
        // Entries up to the smaller of the last columns have their ranks in both windows.
        const Index last_a = __shfl_sync(~0u, a.column, g.lanes - 1, g.lanes);
        const Index last_b = __shfl_sync(~0u, b.column, g.lanes - 1, g.lanes);
        const bool has_a = a.column <= min(last_a, last_b) && a.column != BS_BEYOND;
        const bool has_b = b.column <= min(last_a, last_b) && b.column != BS_BEYOND;
        const int rank_a = lanes_below(g, b.column, a.column), rank_b = lanes_below(g, a.column, b.column);
        const bool paired_a = lane_has(g, b.column, rank_a, a.column), paired_b = lane_has(g, a.column, rank_b, b.column);
        const Value made_a = combined(p.operation, a.value, has_a && paired_a ? value_at(right, right.at + rank_a) : (Value)0);
        const Value made_b = combined(p.operation, (Value)0, b.value);
        const bool kept_a = has_a && made_a != (Value)0, kept_b = has_b && !paired_b && made_b != (Value)0;
        const u32 all_a = votes_in_step(g, kept_a), all_b = votes_in_step(g, kept_b);
        if (writing && kept_a)
            store(p, to + __popc(in_front(all_a, g.lane)) + __popc(in_front(all_b, rank_a)), a.column, made_a);
        if (writing && kept_b)
            store(p, to + __popc(in_front(all_b, g.lane)) + __popc(in_front(all_a, rank_b)), b.column, made_b);
        to += __popc(all_a) + __popc(all_b);
        left.at += __popc(votes_in_step(g, has_a));
        right.at += __popc(votes_in_step(g, has_b));
    }
    return to - before;
}

// Resident blocks of a multiprocessor, few enough that registers allow many loads in flight.
#define BS_BLOCKS (sizeof(Index) + sizeof(Value) > 8 ? 4 : 6)

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) count_merged(const MergeParams p)
{
    const Group g = group_of(p.lanes);
    for (i64 row = g.first; __any_sync(~0u, row < p.rows); row += g.step) {
        const Index kept = merge_row<false>(p, g, row, 0);
        if (g.lane == 0 && row < p.rows)
            p.starts[row + 1] = kept;
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) fill_merged(const MergeParams p)
{
    const Group g = group_of(p.lanes);
    for (i64 row = g.first; __any_sync(~0u, row < p.rows); row += g.step)
        merge_row<true>(p, g, row, row < p.rows ? p.starts[row] : 0);
}
