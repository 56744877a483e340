// Product of signs, C (m, n) = sign(X) sign(W), of activations of any dtype and packed weights, by the 1-bit instructions of a warp (sm_80
// and later). Rows of X are read once and become bits on their way to shared memory, so that nothing but X, W and C moves.
//
// A block takes BS_ROWS rows; of bits, which are copied a round ahead, as many rounds as there are. Warps load eight rows of 128 columns at a time (BS_AHEAD times that in flight), turn the signs of lanes
// into words and leave these in shared memory; if the whole contraction axis does not fit, in parts. Then each warp multiplies 16 rows by
// 64 columns of W, which is in shared memory if it fits, and sees to its own way out. The order along the contraction axis does not matter,
// so lanes take 16 neighbouring bytes of X's and of W's rows for two instructions. With a and b the bits, a sum of k products of -1 and +1 is
// k - 2 |a| - 2 |b| + 4 |a & b|; a column of ones beside those of W counts |a|, `columns` has k - 2 |b|.
//
// Compile-time: BS_KIND (the dtype, see bits_elements.cuh; 7: bits), BS_BFLOAT (of 16 bits), BS_VECTOR (bytes of a load), BS_TINY (rows of
// fewer than four elements), BS_ROWS, BS_WARPS, BS_AHEAD, BS_BLOCKS (of a multiprocessor at a time), BS_PREFETCH (asks the L2 for what follows),
// BS_STAGED (W in shared memory), BS_PARTS (the contraction axis in parts), BS_NORM (a factor and an addend for each feature come before the
// sign), BS_FINISH: 0 stores the int32 sums, 1 goes through epilogue.cuh, 2 compares with a threshold for each column and packs the bits along
// the row, 3 goes through the commonest chains where the sums are.
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
        const int lane = own_thread() & 31, column = column0 + (lane >> 2);
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
#if BS_FINISH < 2
BS_INLINE int sum_at(const BmmParams &g, const Sums &s, int j, int e, int2 more)
{
    return 4 * s.acc[j][e] - 2 * s.ones[e & 2] + (e & 1 ? more.y : more.x);
}
#endif

BS_INLINE int2 columns_at(const BmmParams &g, int column) { return __ldg((const int2 *)(g.columns + column)); }

#if BS_FINISH > 1
// Each lane's bits of 32 columns of rows g and g + 8, bit 8 j + e for column 8 j + 2 t + e, to words of the result; for two such words.
BS_INLINE void store_bits(const BmmParams &g, u32 *out, int words, u32 (&upper)[2], u32 (&lower)[2], int row0, int column0)
{
    const int lane = own_thread() & 31, t = lane & 3, row = row0 + (lane >> 2) + 8 * (t & 1);
    u32 word[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 x = upper[half] << (2 * t), y = lower[half] << (2 * t);
        // Lanes with even t go on with the upper row, the others with the lower one.
        u32 mine = (t & 1 ? y : x) | __shfl_xor_sync(~0u, t & 1 ? x : y, 1);
        mine |= __shfl_xor_sync(~0u, mine, 2);
#if BS_FINISH == 2
        word[half] = mine ^ g.flips[(column0 >> 5) + half];
#else
        const int left = g.n - column0 - 32 * half;
        word[half] = left >= 32 ? mine : left <= 0 ? 0u : mine & ((1u << left) - 1u);
#endif
    }
    if (t >= 2 || row >= g.m)
        return;
    u32 *to = out + (long long)row * words + (column0 >> 5);
    if (column0 + 64 >= g.n && !(column0 & 64)) // pad words follow
        store_global(to, word[0], word[1], 0, 0);
    else
        store_global(to, word[0], word[1]);
}
#endif

#if BS_FINISH == 0
BS_INLINE void finish(const BmmParams &g, u32, const Sums &s, int row0, int column0)
{
    const int lane = own_thread() & 31, row = row0 + (lane >> 2), first = column0 + 2 * (lane & 3);
    int *out = (int *)g.out + (long long)row * g.n + first;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int column = first + 8 * j;
        if (column >= g.n)
            break;
        const int2 more = columns_at(g, column);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half >= g.m)
                continue;
            int *to = out + 8 * j + 8ll * half * g.n;
            const int p = sum_at(g, s, j, 2 * half, more), q = sum_at(g, s, j, 2 * half + 1, more);
            if (g.pairs) {
                *(int2 *)to = make_int2(p, q);
            } else {
                to[0] = p;
                if (column + 1 < g.n)
                    to[1] = q;
            }
        }
    }
}
#elif BS_FINISH == 1
BS_INLINE void finish(const BmmParams &g, u32 slot, const Sums &s, int row0, int column0)
{
    const int first = column0 + 2 * (own_thread() & 3);
    int sums[32];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int2 more = columns_at(g, first + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[4 * j + e] = sum_at(g, s, j, e, more);
    }
    finish_strip(g.epilogue, RegisterSums<32>{{slot}, sums}, 0, row0, column0, 1);
}
#elif BS_FINISH == 2
// Twice the count of common ones, less those of the row, against the column's threshold.
BS_INLINE void finish(const BmmParams &g, u32, const Sums &s, int row0, int column0)
{
    u32 upper[2] = {0, 0}, lower[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int2 least = columns_at(g, column0 + 8 * j + 2 * (own_thread() & 3));
        const int *acc = s.acc[j], shift = 8 * (j & 3);
        upper[j >> 2] |= (2 * acc[0] - s.ones[0] >= least.x ? 1u << shift : 0u) | (2 * acc[1] - s.ones[0] >= least.y ? 2u << shift : 0u);
        lower[j >> 2] |= (2 * acc[2] - s.ones[2] >= least.x ? 1u << shift : 0u) | (2 * acc[3] - s.ones[2] >= least.y ? 2u << shift : 0u);
    }
    store_bits(g, (u32 *)g.out, g.out_words, upper, lower, row0, column0);
}
#else
BS_INLINE float2 pair_of(const EpilogueVector &v, int column, float neutral)
{
    return v.at ? __ldg((const float2 *)(v.at + column)) : make_float2(neutral, neutral);
}

// The commonest chains where the sums are: scales, a bias, batch norm, at most relu; to floats, or to bits along the row.
BS_INLINE void finish(const BmmParams &g, u32, const Sums &s, int row0, int column0)
{
    const EpilogueParams &e = g.epilogue;
    const int lane = own_thread() & 31, row = row0 + (lane >> 2), first = column0 + 2 * (lane & 3);
    RowValues<false> rows[2];
    rows[0].load(e, {0, row, 0, 0});
    rows[1].load(e, {0, row + 8, 0, 0});
    float *out = (float *)e.out + (long long)row * g.n + first;
    u32 ones[2][2] = {{0, 0}, {0, 0}};
    float probe = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int column = first + 8 * j, shift = 8 * (j & 3);
        if (column >= g.n)
            break;
        const int2 more = columns_at(g, column);
        const float2 scale = pair_of(e.col_scale[0], column, 1.0f), bias = pair_of(e.bias, column, -0.0f);
        const float2 factor = pair_of(e.bn_scale, column, 1.0f), addend = pair_of(e.bn_shift, column, -0.0f);
        const bool second = column + 1 < g.n;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int ones_of_row = 2 * s.ones[2 * half];
            float x = (float)(4 * s.acc[j][2 * half] - ones_of_row + more.x), y = (float)(4 * s.acc[j][2 * half + 1] - ones_of_row + more.y);
            x = bs_addf(bs_mulf(bs_mulf(x, rows[half].scale[0]), scale.x), bias.x);
            y = bs_addf(bs_mulf(bs_mulf(y, rows[half].scale[0]), scale.y), bias.y);
            if (e.steps & kNorm)
                x = bs_addf(bs_mulf(x, factor.x), addend.x), y = bs_addf(bs_mulf(y, factor.y), addend.y);
            if (e.activation == BS_RELU)
                x = bs_reluf(x), y = bs_reluf(y);
            if (e.steps & kBits) {
                probe = bs_addf(probe, bs_addf(fabsf(x), second ? fabsf(y) : 0.0f));
                ones[half][j >> 2] |= (x >= 0.0f ? 1u << shift : 0u) | (y >= 0.0f ? 2u << shift : 0u);
            } else if (row + 8 * half < g.m) {
                float *to = out + 8 * j + 8ll * half * g.n;
                if (g.pairs) {
                    *(float2 *)to = make_float2(x, y);
                } else {
                    to[0] = x;
                    if (second)
                        to[1] = y;
                }
            }
        }
    }
    if (!(e.steps & kBits))
        return;
    if (probe != probe)
        *e.nan = 1;
    store_bits(g, (u32 *)e.out, e.words, ones[0], ones[1], row0, column0);
}
#endif

// The means of the block's rows, of whose 128 columns each there are sums; those of parts before are in `totals`.
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
    const u32 slots = (shared_address(memory) + 255u) & ~255u, bits = slots + kSlots, behind = bits + kBuffers * kRows * g.pitch * 4;
    const u32 totals = behind, sums = totals + kRows * 4, weights = sums + (kRows * (g.part_words / 4) * 4 + 15) / 16 * 16;
    const int warp = own_thread() >> 5, items = kStrips * ((g.n + 63) / 64);
    int row0 = blockIdx.x * kRows;
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
#if BS_KIND == BS_WORDS
            copy_rows(g, bits, row0, first, count);
            copy_wait_all();
#else
            load_rows(g, bits, sums, row0, first, count);
#endif
            __syncthreads();
            if (g.absmean && first_item == 0)
                add_means(g, sums, totals, row0, count / 4, first == 0, first + count == g.words);
            if (busy)
                s.multiply(g, bits, weights, strip, column0, first, count);
        }
#if BS_FINISH & 1
        __syncthreads(); // the epilogue reads the means
#endif
        if (busy)
            finish(g, slots + warp * 4096, s, row0 + 16 * strip, column0);
    }
#else
    if (kStaged)
        copy_weights(g, weights);
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
#if BS_KIND == BS_WORDS
        const u32 other = kRows * g.pitch * 4 - here;
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
        if (g.absmean) {
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
            finish(g, slots + warp * 4096, s, row0 + 16 * strip, column0);
        }
#if BS_KIND == BS_WORDS
        __syncthreads(); // all are done with the words
        here = other;
#endif
    } while (kRounds && (row0 += step) < g.m);
#endif
}
