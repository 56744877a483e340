// Rows of many edges on the matrix units (BS_MMA): 16-bit features, no weights or those of 16 bits, groups of 16 lanes. Included by spmm_csr.cu.
// A word that a lane gathers is an operand as it is, nothing is widened: the two halves of the words of the four lanes of a quad are the
// eight rows of a column of B. A has an edge's weight where lane and half of its row are those of its column, and zeros elsewhere: a
// diagonal. Its first eight rows are for the first group of lanes, the others for the second, which has another edge.
#ifndef BITSPARSE_SPMM_CSR_MMA_CUH
#define BITSPARSE_SPMM_CSR_MMA_CUH

#include "ptx.cuh"

#if BS_KIND == BS_FLOAT16
#define BS_ONES 0x3c003c00u
#define BS_MULTIPLY mma_m16n8k8_f16
#else
#define BS_ONES 0x3f803f80u
#define BS_MULTIPLY mma_m16n8k8_bf16
#endif

// The weights of both groups' edges of a batch, two to a word.
BS_INLINE void load_weights(unsigned (&w)[2][BS_U / 2], const unsigned short *array)
{
#pragma unroll
    for (int i = 0; i < BS_U; i += 2) {
        const uint2 v = BS_LOAD_ONCE((const uint2 *)array + i / 2);
        w[i / (BS_U / 2)][i % (BS_U / 2)] = v.x, w[i / (BS_U / 2)][i % (BS_U / 2) + 1] = v.y;
    }
}

// The same where edges before `from` and from `left` on are to have none.
BS_INLINE void load_weights(unsigned (&w)[2][BS_U / 2], const unsigned short *array, int from, int left)
{
    const int last = (left - 1) / 4;
#pragma unroll
    for (int i = 0; i < BS_U; i++) {
        const int edge = 2 * i;
        const uint2 v = BS_LOAD_ONCE((const uint2 *)array + min(i / 2, last));
        w[i / (BS_U / 2)][i % (BS_U / 2)] = (i & 1 ? v.y : v.x) & ((edge >= from && edge < left ? 0x0000ffffu : 0u) |
                                                              (edge + 1 >= from && edge + 1 < left ? 0xffff0000u : 0u));
    }
}

// As share() in csr_units.cuh with all lanes in step; leaves a lane's sums as shared() does, in other lanes, and returns whether all of
// them are numbers: zeros are multiplied too, so one infinite feature spreads.
BS_INLINE bool multiply(const Streams &s, const Stretch &at, Aggregate &body)
{
    const int t = (int)threadIdx.x & 31, first = (t >> 4) * BS_U;
    const bool mine = t >> 3 == (t & 3);
    const unsigned lower = !mine ? 0x4444u : t & 4 ? 0x1044u : 0x4410u, upper = !mine ? 0x4444u : t & 4 ? 0x3244u : 0x4432u;
    float c[BS_V][BS_EACH / 2][4] = {};
    Index base = at.start & ~(Index)3;
    int from = (int)(at.start - base), left = (int)(at.stop - base);
    Index columns[BS_U];
    if (left > first)
        load_columns(columns, s, base + first, left - first);
    while (left > 0) {
        unsigned w[2][BS_U / 2];
        body.locate(columns);
        if (from <= 0 && left >= 2 * BS_U) {
#if BS_WEIGHTS == 1
            load_weights(w, (const unsigned short *)body.p.values + base);
#endif
#pragma unroll
            for (int u = 0; u < BS_U; u++)
                body.fetch(u, columns[u], 0);
        } else {
#if BS_WEIGHTS == 1
            load_weights(w, (const unsigned short *)body.p.values + base, from, left);
#endif
#pragma unroll
            for (int u = 0; u < BS_U; u++)
                if (first + u >= from && first + u < left)
                    body.fetch(u, columns[u], 0);
                else
                    body.blank(u);
        }
        if (left > 2 * BS_U + first)
            load_columns(columns, s, base + 2 * BS_U + first, left - 2 * BS_U - first); // arrive while the gathers do
        __syncwarp();
#pragma unroll
        for (int u = 0; u < BS_U; u++) {
            const unsigned place = u % 2 ? upper : lower;
            const unsigned w0 = BS_WEIGHTS == 1 ? w[0][u / 2] : BS_ONES, w1 = BS_WEIGHTS == 1 ? w[1][u / 2] : BS_ONES;
            const unsigned a0 = __byte_perm(w0, 0, place), a1 = __byte_perm(w1, 0, place);
#pragma unroll
            for (int k = 0; k < BS_V; k++)
#pragma unroll
                for (int i = 0; i < BS_EACH / 2; i++)
                    BS_MULTIPLY(c[k][i], a0, a1, body.v[u][k].words[i]);
        }
        base += 2 * BS_U;
        from -= 2 * BS_U, left -= 2 * BS_U;
    }
    // Lanes with bit 1 hold sums of the second group, those with bit 2 upper halves.
    bool finite = true;
#pragma unroll
    for (int k = 0; k < BS_V; k++)
#pragma unroll
        for (int i = 0; i < BS_EACH / 2; i++) {
            float even = t & 2 ? c[k][i][2] : c[k][i][0], odd = t & 2 ? c[k][i][3] : c[k][i][1];
            even += __shfl_xor_sync(~0u, even, 2);
            odd += __shfl_xor_sync(~0u, odd, 2);
            finite = finite && even - even == odd - odd;
            const float other = __shfl_xor_sync(~0u, t & 4 ? even : odd, 4);
            body.sums[k].of[2 * i] = t & 4 ? other : even;
            body.sums[k].of[2 * i + 1] = t & 4 ? odd : other;
        }
    return __all_sync(~0u, finite);
}

// Makes a lane the one whose sums multiply() left with it; true in one lane of two.
BS_INLINE bool take_place(Aggregate &body)
{
    const int t = (int)threadIdx.x & 31;
    body.lane = 8 * (t & 1) + (t & 4) + (t >> 3);
    body.first = min((unsigned)body.slice * (unsigned)(BS_V * 16) + (unsigned)body.lane, body.p.vectors - 1);
    return !(t & 2);
}

#endif
