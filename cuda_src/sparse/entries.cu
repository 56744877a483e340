// Entries of canonical CSR arrays: selecting, masking, finding and summing. Results of unknown size are counted first, one count per row,
// and the counts become starts (starts.cu). Values are copied as `words` words of `unit` bytes, whatever they mean; NULL if there are none.
#include "sparse/groups.cuh"

struct EntryParams {
    const Index *indptr, *indices;
    const i64 *rows, *cols; // which rows; together with columns, which elements
    const unsigned char *mask; // a byte for each entry
    const void *values;
    const Index *order; // order of the items to gather
    Index *firsts; // where the part of each row to copy begins
    Index *starts; // counts of rows, shifted by one place, then where the rows of the result start
    Index *columns; // the result
    void *out;
    i64 *places; // of elements, -1 where there is no entry
    i64 *absent; // not zero once a given row does not exist
    i64 count, first, low, high; // of rows, items or elements; first row of a range; range of columns, or where a diagonal begins
    i64 height; // rows of the array
    int lanes, unit, words;
};

BS_INLINE i64 first_item() { return (i64)blockIdx.x * BS_THREADS + threadIdx.x; }
BS_INLINE i64 item_step() { return (i64)gridDim.x * BS_THREADS; }

extern "C" __global__ void __launch_bounds__(BS_THREADS) gather_items(const EntryParams p)
{
    by_unit(p.unit, [&](auto word) {
        typedef decltype(word) Word;
        const Word *values = (const Word *)p.values;
        Word *out = (Word *)p.out;
        if (p.words == 1) {
#pragma unroll 4
            for (i64 i = first_item(); i < p.count; i += item_step())
                out[i] = values[p.order[i]];
            return;
        }
        const Group g = group_of(p.lanes);
        for (i64 i = g.first; i < p.count; i += g.step)
            for (int w = g.lane; w < p.words; w += g.lanes)
                out[i * p.words + w] = values[(i64)p.order[i] * p.words + w];
    });
}

// -- single elements ----------------------------------------------------------------------------------------------------------------
// Elements at given rows and columns, or of a diagonal that begins in row `low` and column `high`: their positions, or their values.
extern "C" __global__ void __launch_bounds__(BS_THREADS) find_entries(const EntryParams p)
{
    for (i64 i = first_item(); i < p.count; i += item_step()) {
        const i64 row = p.rows ? p.rows[i] : p.low + i, col = p.rows ? p.cols[i] : p.high + i;
        const i64 end = p.indptr[row + 1], at = first_from(p.indices, p.indptr[row], end, col);
        const bool there = at < end && p.indices[at] == col;
        if (p.places)
            p.places[i] = there ? at : -1;
        else if (!p.values)
            ((unsigned char *)p.out)[i] = there;
        else
            by_unit(p.unit, [&](auto word) {
                typedef decltype(word) Word;
                ((Word *)p.out)[i] = there ? ((const Word *)p.values)[at] : (Word)0;
            });
    }
}

// -- rows and columns ---------------------------------------------------------------------------------------------------------------
// Where each row begins and how many entries it has, for all rows or for given ones, with negative numbers counted from the end. With
// `high`, only columns from `low` to `high` count.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_rows(const EntryParams p)
{
    for (i64 i = first_item(); i < p.count; i += item_step()) {
        i64 row = p.rows ? p.rows[i] : i;
        row += row < 0 ? p.height : 0;
        if (row < 0 || row >= p.height) {
            *p.absent = 1;
            p.starts[i + 1] = 0;
            continue;
        }
        i64 from = p.indptr[row], to = p.indptr[row + 1];
        if (p.high >= 0) {
            from = first_from(p.indices, from, to, p.low);
            to = first_from(p.indices, from, to, p.high);
        }
        p.firsts[i] = (Index)from;
        p.starts[i + 1] = (Index)(to - from);
    }
}

// Copies these entries; columns are counted from `low`.
extern "C" __global__ void __launch_bounds__(BS_THREADS) copy_rows(const EntryParams p)
{
    const Group g = group_of(p.lanes);
    for (i64 i = g.first; i < p.count; i += g.step) {
        const i64 to = p.starts[i], size = p.starts[i + 1] - to, from = p.firsts[i];
#pragma unroll 4
        for (i64 e = g.lane; e < size; e += g.lanes)
            p.columns[to + e] = (Index)(p.indices[from + e] - p.low);
        if (p.values)
            by_unit(p.unit, [&](auto word) {
                typedef decltype(word) Word;
                const Word *values = (const Word *)p.values + from * p.words;
                Word *out = (Word *)p.out + to * p.words;
#pragma unroll 4
                for (i64 w = g.lane; w < size * p.words; w += g.lanes)
                    out[w] = values[w];
            });
    }
}

// Where the rows from `first` on begin, counted from there: `count` numbers. `places` gets the first and the last of them without the
// shift.
extern "C" __global__ void __launch_bounds__(BS_THREADS) shift_starts(const EntryParams p)
{
    const Index before = p.indptr[p.first];
    for (i64 i = first_item(); i < p.count; i += item_step())
        p.starts[i] = p.indptr[p.first + i] - before;
    if (first_item() < 2)
        p.places[first_item()] = p.indptr[p.first + (first_item() ? p.count - 1 : 0)];
}

// -- entries that a mask keeps ------------------------------------------------------------------------------------------------------
// Counts the entries of each row that the mask keeps; a group takes a row.
extern "C" __global__ void __launch_bounds__(BS_THREADS) count_kept(const EntryParams p)
{
    const Group g = group_of(p.lanes);
    for (i64 row = g.first; row < p.count; row += g.step) {
        const i64 end = p.indptr[row + 1];
        i64 kept = 0;
        for (i64 e = p.indptr[row] + g.lane; e < end; e += g.lanes)
            kept += p.mask[e] != 0;
        for (int step = g.lanes / 2; step; step >>= 1)
            kept += __shfl_xor_sync(g.mask, kept, step);
        if (g.lane == 0)
            p.starts[row + 1] = (Index)kept;
    }
}

// Copies them; a lane's place follows from the votes of the lanes before it.
extern "C" __global__ void __launch_bounds__(BS_THREADS) copy_kept(const EntryParams p)
{
    const Group g = group_of(p.lanes);
    for (i64 row = g.first; row < p.count; row += g.step) {
        const i64 end = p.indptr[row + 1];
        i64 to = p.starts[row];
        for (i64 from = p.indptr[row]; from < end; from += g.lanes) {
            const i64 e = from + g.lane;
            const bool kept = e < end && p.mask[e];
            const u32 votes = votes_of(g, kept);
            const i64 place = to + __popc(in_front(votes, g.lane));
            to += __popc(votes);
            if (!kept)
                continue;
            p.columns[place] = p.indices[e];
            if (p.values)
                by_unit(p.unit, [&](auto word) {
                    typedef decltype(word) Word;
                    for (int w = 0; w < p.words; w++)
                        ((Word *)p.out)[place * p.words + w] = ((const Word *)p.values)[e * p.words + w];
                });
        }
    }
}
