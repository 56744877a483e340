// Sums of packed integers times values of the edges, with one integer or float to a register: a part of spmm/codes.cuh.
#ifndef BITSPARSE_SPMM_CODES_PRODUCTS_CUH
#define BITSPARSE_SPMM_CODES_PRODUCTS_CUH

#define BS_PAIRS (BS_NODES && BS_BITS <= 4 && !BS_FLOATS) // two integers by one multiplication

struct CodeSums {
    Total of[kCodes], weights;

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            of[j] = 0;
        weights = 0;
    }

    // Weights of edges that do not exist are ignored. Floats: an integer becomes the fraction of 2^23, which is then subtracted. The words
    // are made opaque to the compiler here; otherwise it would hoist the work that whole and partial batches share above the branch, for
    // eight edges at once.
    __device__ __forceinline__ void add_products(const Gathered (&codes)[BS_U], const Total (&w)[BS_U], unsigned flip, int base, int from,
                                                 int to)
    {
        constexpr int shifts = BS_BITS < 8 ? 8 / BS_BITS : 1, places = kEach / shifts;
#if BS_FLOATS
        const float zero = 8388608.0f + (float)base;
#endif
#if BS_PAIRS
        // Halves of a word hold the products of 16 edges, at most 15 * 255 each: one multiplication serves two integers.
        static_assert(BS_U <= 16, "products of a batch fit into 16 bits");
        unsigned pairs[BS_WORDS * shifts][2];
#pragma unroll
        for (int i = 0; i < BS_WORDS * shifts; i++)
            pairs[i][0] = pairs[i][1] = 0;
#endif
#pragma unroll
        for (int u = 0; u < BS_U; u++)
            if (u >= from && u < to) {
#pragma unroll
                for (int i = 0; i < BS_WORDS * shifts; i++) {
                    unsigned all = codes[u].of[i / shifts];
                    asm volatile("" : "+r"(all));
                    const unsigned word = shifts > 1 ? spread(all, i % shifts, flip) : all ^ flip;
#if BS_PAIRS
                    pairs[i][0] += (unsigned)w[u] * (word & 0x00ff00ffu);
                    pairs[i][1] += (unsigned)w[u] * __byte_perm(word, 0, 0x4341);
#else
#pragma unroll
                    for (int k = 0; k < places; k++) {
                        Total &sum = of[i / shifts * kEach + k * shifts + i % shifts];
#if BS_FLOATS
                        const unsigned from_word = places == 2 ? (k ? 0x7432u : 0x7410u) : 0x7440u + (unsigned)k;
                        sum = bs_fmaf(bs_float_of(__byte_perm(word, 0x4b000000u, from_word)) - zero, w[u], sum);
#else
                        sum += w[u] * (int)((word >> (k * 32 / places)) & (places == 2 ? 0xffffu : 0xffu));
#endif
                    }
#endif
                }
#if !BS_FLOATS
                weights += w[u];
#endif
            }
#if BS_PAIRS
#pragma unroll
        for (int i = 0; i < BS_WORDS * shifts; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned both = pairs[i][k & 1];
                of[i / shifts * kEach + k * shifts + i % shifts] += (int)(k & 2 ? both >> 16 : both & 0xffffu);
            }
#endif
    }

    __device__ __forceinline__ void settle(unsigned, int, bool) {}

    // By how much the sums are too large, and by how much those of a row's pieces are.
    __device__ __forceinline__ Total excess(int base, int) const { return BS_FLOATS ? 0 : base * weights; }
    __device__ __forceinline__ Total excess_of_pieces(int, int) const { return 0; }

    __device__ __forceinline__ void widen(Total (&v)[kCodes]) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            v[j] = of[j];
    }

    __device__ __forceinline__ void carry() {}

    __device__ __forceinline__ void join(int over, bool)
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            of[j] += __shfl_xor_sync(~0u, of[j], over);
        weights += __shfl_xor_sync(~0u, weights, over);
    }

    __device__ __forceinline__ void leave(PackedSum &slot, int base, int) const
    {
        PackedSum mine;
#pragma unroll
        for (int j = 0; j < kCodes; j++)
            mine.of[j] = bits_of(of[j] - excess(base, 0));
        store_vector(&slot, mine);
    }

    __device__ __forceinline__ void add_to(Total (&v)[kCodes], const PackedSum &one) const
    {
#pragma unroll
        for (int j = 0; j < kCodes; j++)
#if BS_FLOATS
            v[j] += bs_float_of(one.of[j]);
#else
            v[j] += (int)one.of[j];
#endif
    }
};

#endif
