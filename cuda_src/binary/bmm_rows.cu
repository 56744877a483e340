// Product of signs, C (m, n) = sign(X) sign(W), of activations of any dtype and packed weights, by the 1-bit instructions of a warp (sm_80
// and later). Rows of X are read once and become bits on their way to shared memory, so only X, W and C move.
//
// A block takes BS_ROWS rows. If X is packed already, it takes further rows round by round and copies one round ahead. Warps load eight
// rows of 128 columns at a time (BS_AHEAD such units in flight), turn the signs of their lanes into words and leave the words in shared
// memory, in parts if the whole contraction axis does not fit. Then each warp multiplies 16 rows by 64 columns of W, which is in shared
// memory if it fits, and stores its own results. The order along the contraction axis does not matter, so lanes take 16 neighbouring bytes
// of the rows of X and of W for two instructions. With a and b the bits, a sum of k products of -1 and +1 is k - 2 |a| - 2 |b| + 4 |a & b|.
// A column of ones beside those of W counts |a|; `columns` holds k - 2 |b|.
//
// Compile-time: BS_KIND (the dtype, see bits/elements.cuh; 7: bits), BS_BFLOAT (16-bit floats are bfloat16), BS_VECTOR (bytes of a load),
// BS_TINY (rows have fewer than four elements), BS_ROWS, BS_WARPS, BS_AHEAD, BS_BLOCKS (resident blocks of a multiprocessor), BS_STREAM (X
// will not stay in the L2), BS_MEANS (mean magnitudes of the rows are computed), BS_STAGED (W is in shared memory), BS_NEAR (so are the
// vectors over the columns), BS_PARTS (the contraction axis is taken in parts), BS_NORM (a factor and an addend for each feature come
// before the sign), BS_FINISH: 0 stores the int32 sums, 1 goes through finish/strips.cuh, 2 compares with a threshold for each column and
// packs the bits along the row, 3 applies the most common chains to the sums in registers.
// Floor: the bytes of X at the memory's rate. See docs/kernels/binary.md.
#include "binary/bmm_finish.cuh"

// The means of the block's rows, from sums over 128 columns each. `totals` holds what earlier parts of the contraction axis gave.
BS_INLINE void add_means(const BmmParams &g, u32 sums, u32 totals, int row0, int chunks, bool first, bool last)
{
    for (int row = own_thread(); row < kRows; row += kThreads) {
        float total = first ? 0.0f : bs_float_of((u32)load_shared_word(totals + 4 * row));
        for (int i = 0; i < chunks; i++)
            total = bs_addf(total, bs_float_of((u32)load_shared_word(sums + (row * (g.part_words / 4) + i) * 4)));
        if (!last)
            store_shared_word(totals + 4 * row, (int)bs_bits_of(total));
        else if (row0 + row < g.m)
            g.absmean[row0 + row] = bs_divf(total, (float)g.k);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, BS_BLOCKS) bmm_rows(const __grid_constant__ BmmParams g)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 slots = (shared_address(memory) + 255u) & ~255u, bits = slots + kSlots, behind = bits + kBuffers * kRoom * g.pitch * 4;
    const u32 totals = behind, sums = totals + kRows * 4, weights = sums + (kRows * (g.part_words / 4) * 4 + 15) / 16 * 16;
    const u32 vectors = weights + (kStaged ? padded_columns(g) * g.pitch * 4 : 0);
    const int warp = own_thread() >> 5, items = kStrips * ((g.n + 63) / 64);
    int row0 = blockIdx.x * kRows;
    if (kNear)
        copy_vectors(g, vectors);
#ifdef BS_PARTS
    copy_wait_all();
    const int end = min(g.m, row0 + kRows);
    // Every round of items reads the rows again; with so long a contraction axis there is time for that.
#pragma unroll 1
    for (int first_item = 0; first_item < items; first_item += BS_WARPS) {
        const int item = first_item + warp, strip = item % kStrips, column0 = item / kStrips * 64;
        const bool busy = item < items && row0 + 16 * strip < g.m;
        Sums s;
        s.clear();
#pragma unroll 1
        for (int first = 0; first < g.words; first += g.part_words) {
            const int count = min(g.part_words, g.words - first);
            __syncthreads(); // all warps are done with the previous words
#if BS_KIND == BS_WORDS
            copy_rows(g, bits, row0, first, count);
            copy_wait_all();
#else
            load_rows(g, bits, sums, row0, first, count);
#endif
            __syncthreads();
            if (kMeans && first_item == 0)
                add_means(g, sums, totals, row0, count / 4, first == 0, first + count == g.words);
            if (busy)
                s.multiply(g, bits, weights, strip, column0, first, count);
        }
#if BS_FINISH & 1
        __syncthreads(); // the epilogue reads the means
#endif
        if (busy)
            finish(g, slots + warp * 4096, vectors, s, row0 + 16 * strip, column0, end);
    }
#else
    if (kStaged)
        copy_weights(g, weights);
    copy_commit();
#if BS_KIND == BS_WORDS
    copy_rows(g, bits, row0, 0, g.words);
    const int step = gridDim.x * kRows;
    u32 here = 0;
#else
    constexpr u32 here = 0;
    constexpr int step = 0;
#endif
#pragma unroll 1
    do {
        const int end = min(g.m, row0 + kRows);
#if BS_KIND == BS_WORDS
        const u32 other = kRoom * g.pitch * 4 - here;
        if (row0 + step < g.m)
            copy_rows(g, bits + other, row0 + step, 0, g.words); // while this one is multiplied
        else
            copy_commit();
        copy_wait<1>();
#else
        load_rows(g, bits, sums, row0, 0, g.words);
        copy_wait_all(); // the weights
#endif
        __syncthreads();
        if (kMeans) {
            add_means(g, sums, totals, row0, g.words / 4, true, true);
#if BS_FINISH & 1
            __syncthreads(); // the epilogue reads them
#endif
        }
#pragma unroll 1
        for (int item = warp; item < items; item += BS_WARPS) {
            const int strip = item % kStrips, column0 = item / kStrips * 64;
            if (row0 + 16 * strip >= g.m)
                continue;
            Sums s;
            s.clear();
            s.multiply(g, bits + here, weights, strip, column0, 0, g.words);
            finish(g, slots + warp * 4096, vectors, s, row0 + 16 * strip, column0, end);
        }
#if BS_KIND == BS_WORDS
        __syncthreads(); // all warps are done with the words
        here = other;
#endif
    } while (kRounds && (row0 += step) < g.m);
#endif
}
