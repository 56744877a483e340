// Product of signs, C (m, n) = sign(X) sign(W), of activations of any dtype and packed weights, by the 1-bit instructions of a warp (sm_80
// and later). Rows of X are read once and become bits on their way to shared memory, so that nothing but X, W and C moves.
//
// A block takes BS_ROWS rows. Its warps load eight rows of 128 columns at a time (BS_AHEAD times that in flight), turn the signs of lanes
// into words and leave these in shared memory; if the whole contraction axis does not fit, in parts. Then each warp multiplies 16 rows by
// 64 columns of W, which it reads through the L1 cache, and sees to its own way out. The order along the contraction axis does not matter,
// so lanes take 16 neighbouring bytes of X's and of W's rows for two instructions. With a and b the bits, a sum of k products of -1 and +1 is
// k - 2 |a| - 2 |b| + 4 |a & b|; a column of ones beside those of W counts |a|, `columns` has k - 2 |b|.
//
// Compile-time: BS_KIND (the dtype, see bits_elements.cuh; 7: bits), BS_BFLOAT (of 16 bits), BS_VECTOR (bytes of a load), BS_ROWS, BS_WARPS,
// BS_AHEAD, BS_BLOCKS (of a multiprocessor at a time), BS_NORM (a factor and an addend for each feature come before the sign), BS_FINISH: 0
// stores the int32 sums, 1 goes through epilogue.cuh, 2 compares with a threshold for each column and packs the bits along the row.
// Floor: the bytes of X at the memory's rate. See benchmarks/NOTES.md.
#include "bmm_rows.cuh"

struct Sums {
    int acc[8][4], ones[4]; // block j of eight columns as the matrix instructions have it

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ones[e] = 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
                acc[j][e] = 0;
        }
    }

    // Rows 16 strip ... of the block, columns from column0 on; words `first` to `first + count` - 1.
    __device__ __forceinline__ void multiply(const BmmParams &g, u32 bits, u32 weights, int strip, int column0, int first, int count)
    {
        const int lane = threadIdx.x & 31, column = column0 + (lane >> 2);
        const u32 a = bits + ((16 * strip + (lane >> 2)) * g.pitch + 4 * (lane & 3)) * 4;
        const u32 *w = g.w + (long long)column * g.words + first + 4 * (lane & 3);
        const u32 staged = weights + (column * g.pitch + 4 * (lane & 3)) * 4;
#pragma unroll 1
        for (int at = 0; at < count; at += 16, w += 16) {
            const bool inside = at + 4 * (lane & 3) < count;
            const int4 upper = load_shared(a + at * 4), lower = load_shared(a + (at + 8 * g.pitch) * 4);
            const u32 one = inside ? ~0u : 0u;
            const u32 left[4] = {(u32)upper.x, (u32)lower.x, (u32)upper.y, (u32)lower.y};
            const u32 right[4] = {(u32)upper.z, (u32)lower.z, (u32)upper.w, (u32)lower.w};
            mma_m16n8k256_b1(ones, left, one, one);
            mma_m16n8k256_b1(ones, right, one, one);
            if (kStaged) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const int4 b = load_shared(staged + (at + 8 * j * g.pitch) * 4);
                    mma_m16n8k256_b1(acc[j], left, (u32)b.x, (u32)b.y);
                    mma_m16n8k256_b1(acc[j], right, (u32)b.z, (u32)b.w);
                }
                continue;
            }
#pragma unroll
            for (int half = 0; half < 8; half += 4) {
                uint4 b[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    b[j] = make_uint4(0, 0, 0, 0);
                    if (inside && column + 8 * (half + j) < g.n)
                        b[j] = __ldg((const uint4 *)(w + 8ll * (half + j) * g.words));
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma_m16n8k256_b1(acc[half + j], left, b[j].x, b[j].y);
                    mma_m16n8k256_b1(acc[half + j], right, b[j].z, b[j].w);
                }
            }
        }
    }
};

// Element e of block j is row g + 8 (e / 2), column 8 j + 2 t + e % 2 from (row0, column0), for lane 4 g + t.
#if BS_FINISH == 0
BS_INLINE void finish(const BmmParams &g, u32, const Sums &s, int row0, int column0)
{
    const int lane = threadIdx.x & 31, row = row0 + (lane >> 2), first = column0 + 2 * (lane & 3);
    int *out = (int *)g.out + (long long)row * g.n + first;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int column = first + 8 * j;
        if (column >= g.n)
            break;
        const bool second = column + 1 < g.n;
        const int x = g.columns[column], y = second ? g.columns[column + 1] : 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half >= g.m)
                continue;
            int *to = out + 8 * j + 8ll * half * g.n;
            const int p = 4 * s.acc[j][2 * half] - 2 * s.ones[2 * half] + x, q = 4 * s.acc[j][2 * half + 1] - 2 * s.ones[2 * half] + y;
            if (g.pairs) {
                *(int2 *)to = make_int2(p, q);
            } else {
                to[0] = p;
                if (second)
                    to[1] = q;
            }
        }
    }
}
#elif BS_FINISH == 1
BS_INLINE void finish(const BmmParams &g, u32 slot, const Sums &s, int row0, int column0)
{
    const int lane = threadIdx.x & 31;
    int sums[32];
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = min(column0 + 8 * j + 2 * (lane & 3) + (e & 1), g.n - 1);
            sums[4 * j + e] = 4 * s.acc[j][e] - 2 * s.ones[e & 2] + g.columns[column];
        }
    finish_strip(g.epilogue, RegisterSums<32>{{slot}, sums}, 0, row0, column0, 1);
}
#else
// Twice the count of common ones, less those of the row, against the column's threshold.
BS_INLINE void finish(const BmmParams &g, u32, const Sums &s, int row0, int column0)
{
    const int lane = threadIdx.x & 31, t = lane & 3;
    u32 words[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 upper = 0, lower = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int2 least = __ldg((const int2 *)(g.columns + column0 + 32 * half + 8 * j + 2 * t));
            const int *acc = s.acc[4 * half + j];
            upper |= (2 * acc[0] - s.ones[0] >= least.x ? 1u : 0u) << (8 * j) | (2 * acc[1] - s.ones[0] >= least.y ? 2u : 0u) << (8 * j);
            lower |= (2 * acc[2] - s.ones[2] >= least.x ? 1u : 0u) << (8 * j) | (2 * acc[3] - s.ones[2] >= least.y ? 2u : 0u) << (8 * j);
        }
        upper <<= 2 * t, lower <<= 2 * t;
        // Lanes with even t go on with the upper row, the others with the lower one.
        u32 mine = (t & 1 ? lower : upper) | __shfl_xor_sync(~0u, t & 1 ? upper : lower, 1);
        mine |= __shfl_xor_sync(~0u, mine, 2);
        words[half] = mine ^ g.flips[(column0 >> 5) + half];
    }
    const int row = row0 + (lane >> 2) + 8 * (t & 1);
    if (t >= 2 || row >= g.m)
        return;
    u32 *to = (u32 *)g.out + (long long)row * g.out_words + (column0 >> 5);
    if (column0 + 64 >= g.n && !(column0 & 64)) // pad words follow
        store_global(to, words[0], words[1], 0, 0);
    else
        store_global(to, words[0], words[1]);
}
#endif

// The means of the block's rows, of whose 128 columns each there are sums; those of parts before are in `totals`.
BS_INLINE void add_means(const BmmParams &g, u32 sums, u32 totals, int row0, int chunks, bool first, bool last)
{
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
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
    const u32 slots = (shared_address(memory) + 255u) & ~255u, bits = slots + kSlots, totals = bits + kRows * g.pitch * 4, sums = totals + kRows * 4;
    const u32 weights = sums + (kStaged ? (kRows * (g.words / 4) * 4 + 15) / 16 * 16 : 0);
    const int warp = threadIdx.x >> 5, row0 = blockIdx.x * kRows, items = kStrips * ((g.n + 63) / 64);
#ifdef BS_PARTS
    // Every round of items reads the rows again: with so long a contraction axis there is time for it.
#pragma unroll 1
    for (int first_item = 0; first_item < items; first_item += BS_WARPS) {
        const int item = first_item + warp, strip = item % kStrips, column0 = item / kStrips * 64;
        const bool busy = item < items && row0 + 16 * strip < g.m;
        Sums s;
        s.clear();
#pragma unroll 1
        for (int first = 0; first < g.words; first += g.part_words) {
            const int count = min(g.part_words, g.words - first);
            __syncthreads(); // all are done with the words before
            load_rows(g, bits, sums, row0, first, count);
            __syncthreads();
            if (g.absmean && first_item == 0)
                add_means(g, sums, totals, row0, count / 4, first == 0, first + count == g.words);
            if (busy)
                s.multiply(g, bits, weights, strip, column0, first, count);
        }
#if BS_FINISH == 1
        __syncthreads(); // the epilogue reads the means
#endif
        if (busy)
            finish(g, slots + warp * 4096, s, row0 + 16 * strip, column0);
    }
#else
    if (kStaged)
        copy_weights(g, weights);
    load_rows(g, bits, sums, row0, 0, g.words);
    copy_wait_all();
    __syncthreads();
    if (g.absmean) {
        add_means(g, sums, totals, row0, g.words / 4, true, true);
#if BS_FINISH == 1
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
        s.multiply(g, bits, weights, strip, column0, 0, g.words);
        finish(g, slots + warp * 4096, s, row0 + 16 * strip, column0);
    }
#endif
}
