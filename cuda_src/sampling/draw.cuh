// Which edges of a row are sampled, one by one: the same as _ext/drivers/sample.c on the host, in integer operations that are fast on a
// GPU.
#ifndef BITSPARSE_SAMPLE_CUH
#define BITSPARSE_SAMPLE_CUH

#include "csr/streams.cuh"

#define BS_AES 0
#define BS_AFS 1
#define BS_SFS 2
#define BS_UNIFORM 3

// BS_RANDOM: 1 if the strategy is known to be the uniform one, 0 if it is known to be another; else both are compiled in.
#ifdef BS_RANDOM
#define BS_MAY_BE_RANDOM BS_RANDOM
#define BS_MAY_BE_FIXED !BS_RANDOM
#else
#define BS_MAY_BE_RANDOM 1
#define BS_MAY_BE_FIXED 1
#endif

// AES-SpMM, Table 1: rows of more than W edges fall into four classes by R = edges / W, at most 2, 36, 54, and beyond.
#define BS_CLASSES 4
#define BS_AES_PRIME 1429
#define BS_AFS_PRIME 577

struct Sampler {
    bs_i64 width; // W; no row has more samples
    bs_u64 seed;
    bs_i64 most[BS_CLASSES - 1]; // edges of rows of the first three classes
    bs_i64 run[BS_CLASSES]; // neighbouring edges of one sample
    float inverse[BS_CLASSES]; // 1 / run
    int samples[BS_CLASSES]; // how many samples, at most 32
    bs_u32 stream;
    int strategy;
};

BS_INLINE int class_of(const Sampler &s, Index edges)
{
    return edges <= (Index)s.most[0] ? 0 : edges <= (Index)s.most[1] ? 1 : edges <= (Index)s.most[2] ? 2 : 3;
}

// The number of sampled edges of a row, repeats included.
BS_INLINE Index samples_of(const Sampler &s, Index edges)
{
    if (edges <= (Index)s.width)
        return edges;
    if (s.strategy != BS_AES)
        return (Index)s.width;
    const int c = class_of(s, edges);
    return (Index)s.run[c] * (Index)s.samples[c];
}

// floor(a / b) and the remainder, for 0 <= a < 2^62 and 0 < b: a float estimate, a float estimate of the remainder's quotient, and a final
// correction.
BS_INLINE bs_i64 divided(bs_i64 a, bs_i64 b, bs_i64 &rest)
{
    const float inverse = __fdividef(1.0f, (float)b);
    bs_i64 q = (bs_i64)((float)a * inverse);
    rest = a - q * b;
    const bs_i64 more = (bs_i64)((float)rest * inverse);
    q += more;
    rest -= more * b;
    while (rest < 0)
        rest += b, q--;
    while (rest >= b)
        rest -= b, q++;
    return q;
}

// Draws one edge of stratum k of `count`: 64 random bits scaled to the length of the stratum.
BS_INLINE Index drawn(const Sampler &s, Index row, Index edges, Index count, Index k)
{
    // k edges / count within 64 bits: edges = whole count + part, and both part and k are less than count.
    bs_i64 part, rest;
    const bs_i64 whole = divided(edges, count, part);
    const bs_i64 low = k * whole + divided(k * part, count, rest);
    const bs_i64 length = whole + (rest + part >= count); // up to (k + 1) edges / count
    bs_u32 w0, w1, w2, w3;
    bs_stochastic_words((bs_u64)row * (bs_u64)s.width + (bs_u64)k, s.seed, s.stream, &w0, &w1, &w2, &w3);
    return (Index)(low + (bs_i64)__umul64hi((bs_u64)w1 << 32 | w0, (bs_u64)length));
}

// Position of sample k (of `count`) within a row of `edges` edges.
BS_INLINE Index position_of(const Sampler &s, Index row, Index edges, Index count, Index k)
{
    if (BS_MAY_BE_FIXED && s.strategy == BS_AES && edges > (Index)s.width) {
        const int c = class_of(s, edges);
        const Index run = (Index)s.run[c];
        int sample = (int)((float)k * s.inverse[c]); // off by at most one from k / run, as there are at most 32 samples
        Index inside = k - (Index)sample * run;
        if (inside < 0)
            inside += run, sample--;
        else if (inside >= run)
            inside -= run, sample++;
        const int step = sample * BS_AES_PRIME;
        const Index among = edges - run + 1;
        if ((Index)step < among)
            return (Index)step + inside;
        // Both are below 2^16.
        const int m = (int)among;
        int start = step - (int)__fdividef((float)step, (float)m) * m;
        start += start < 0 ? m : 0;
        return start - (start >= m ? m : 0) + inside;
    }
    if (BS_MAY_BE_FIXED && s.strategy == BS_AFS) {
        const bs_i64 step = (bs_i64)k * BS_AFS_PRIME;
        bs_i64 rest = step - (bs_i64)(int)__fdividef((float)step, (float)edges) * edges; // the quotient is below 577 and off by at most one
        rest += rest < 0 ? (bs_i64)edges : 0;
        return (Index)(rest - (rest >= edges ? (bs_i64)edges : 0));
    }
    if (BS_MAY_BE_RANDOM && s.strategy == BS_UNIFORM && edges > (Index)s.width)
        return drawn(s, row, edges, count, k);
    return k;
}

// The row in [low, high) that element e belongs to; `starts` holds where the rows start.
BS_INLINE Index row_of(const Index *starts, Index low, Index high, Index e)
{
    while (high - low > 1) {
        const Index middle = low + (high - low) / 2;
        if (__ldg(starts + middle) <= e)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
