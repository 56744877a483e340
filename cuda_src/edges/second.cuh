// The second sums that attention computes for its gradient, and the numbers of each row that the gradient reads.
#ifndef BITSPARSE_EDGE_SECOND_CUH
#define BITSPARSE_EDGE_SECOND_CUH

#include "edges/vectors.cuh"

// BS_ABOVE: there are second sums. They are stored as elements like the first ones, except in the gradient (BS_TURNED), where they have
// type Sum.
#ifdef BS_ABOVE
#define BS_SUMS 2
#else
#define BS_SUMS 1
#endif
#ifdef BS_TURNED
typedef Sum Second;
BS_INLINE Second second_of(Sum x) { return x; }
#else
typedef Element Second;
BS_INLINE Second second_of(Sum x) { return narrow(x); }
#endif

// For each row and head: its score, the logarithm of its softmax denominator, and the dot product of the result and its gradient.
struct alignas(4 * sizeof(Sum)) Ends {
    Sum target, lse, product, unused;
};

#if BS_TYPE == 3
BS_INLINE void load_if(bool valid, const Ends *at, Ends &to)
{
    load_if(valid, &at->target, to.target);
    load_if(valid, &at->lse, to.lse);
    load_if(valid, &at->product, to.product);
}
#else
BS_INLINE void load_if(bool valid, const Ends *at, Ends &to)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+f"(to.target), "+f"(to.lse), "+f"(to.product), "+f"(to.unused)
                 : "l"(at), "r"((u32)valid)
                 : "memory");
}
#endif

#endif
