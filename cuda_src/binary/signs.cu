// Signs of float32 rows as bit planes, with the mean magnitude of each row, and such planes as bytes.
//
// Compile-time, for sign_rows: BS_NORM (values are first multiplied by a factor and added an addend, one for each column); BS_DROP (signs
// are dropped at random, and two planes tell -1, 0 and 1; else one plane holds 1 where a value is not negative); BS_PASSES (one more plane
// for gradients: where a sign was not dropped and its value lies in -1..1).
// Floor: the bytes of the values, read once. 232 965 x 602 values are 561 MB, 125 us on an H100.
#include "common/ptx.cuh"
#include "common/scalar.h"

struct SignParams {
    const float *x; // (rows, cols)
    u32 *words, *passes; // (rows, planes, width) and (rows, width)
    float *means;        // of the magnitudes of each row, times the gain
    const float *factor, *addend; // BS_NORM: (cols)
    const u32 *stream_at; // BS_DROP: address of the number of the stream of draws; null: stream
    long long rows;
    u64 seed;
    int cols, width;
    u32 stream;
    float limit, gain; // a sign is kept if its 16 random bits, as a float, are below the limit
};

constexpr int kWarps = 8, kRows = 4, kGroup = 128, kWords = kGroup / 32, kDraws = kGroup / 8;
#ifdef BS_DROP
constexpr int kPlanes = 2;
#else
constexpr int kPlanes = 1;
#endif

// The sum of the magnitudes of 128 columns: a binary tree of neighbours, whose first five levels are lanes and whose last two are words.
BS_INLINE float sum_of_magnitudes(const float (&v)[kWords], int lane)
{
    float pair[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float even = fabsf(v[2 * i]), odd = fabsf(v[2 * i + 1]);
        pair[i] = bs_addf(lane & 1 ? odd : even, __shfl_xor_sync(~0u, lane & 1 ? even : odd, 1));
    }
    float sum = bs_addf(lane & 2 ? pair[1] : pair[0], __shfl_xor_sync(~0u, lane & 2 ? pair[0] : pair[1], 2));
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        sum = bs_addf(sum, __shfl_xor_sync(~0u, sum, step));
    sum = bs_addf(sum, __shfl_xor_sync(~0u, sum, 1));
    return bs_addf(sum, __shfl_xor_sync(~0u, sum, 2));
}

// A warp takes four rows, 128 columns at a time; a lane takes every 32nd column, so that a vote of the warp gives a word.
extern "C" __global__ void __launch_bounds__(32 * kWarps, 3) sign_rows(const SignParams p)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
#ifdef BS_DROP
    __shared__ uint4 draws[kWarps][kRows * kDraws];
    const u32 stream = p.stream_at ? __ldg(p.stream_at) : p.stream;
    const long long row_draws = (p.cols + 7) / 8;
#endif
    const long long quads = (p.rows + kRows - 1) / kRows;
    for (long long quad = (long long)blockIdx.x * kWarps + warp; quad < quads; quad += (long long)gridDim.x * kWarps) {
        const long long row0 = quad * kRows;
        const int count = p.rows - row0 < kRows ? (int)(p.rows - row0) : kRows;
        float sums[kRows];
#pragma unroll
        for (int r = 0; r < kRows; r++)
            sums[r] = 0.0f;
#pragma unroll 1
        for (int first = 0; first < p.cols; first += kGroup) {
            float v[kRows][kWords];
#pragma unroll
            for (int r = 0; r < kRows; r++)
#pragma unroll
                for (int w = 0; w < kWords; w++) {
                    const int column = first + 32 * w + lane;
                    v[r][w] = r < count && column < p.cols ? __ldcs(p.x + (row0 + r) * p.cols + column) : 0.0f;
                }
#ifdef BS_DROP
            __syncwarp();
#pragma unroll
            for (int i = lane; i < kRows * kDraws; i += 32) {
                const long long draw = (row0 + i / kDraws) * row_draws + first / 8 + i % kDraws;
                uint4 &to = draws[warp][i];
                bs_stochastic_words((u64)draw, p.seed, stream, &to.x, &to.y, &to.z, &to.w);
            }
            __syncwarp();
#endif
#ifdef BS_NORM
#pragma unroll
            for (int w = 0; w < kWords; w++) {
                const int column = first + 32 * w + lane;
                const float factor = column < p.cols ? __ldg(p.factor + column) : 0.0f;
                const float addend = column < p.cols ? __ldg(p.addend + column) : 0.0f;
#pragma unroll
                for (int r = 0; r < kRows; r++)
                    v[r][w] = bs_addf(bs_mulf(v[r][w], factor), addend);
            }
#endif
#pragma unroll
            for (int r = 0; r < kRows; r++) {
                const float sum = sum_of_magnitudes(v[r], lane);
                sums[r] = first ? bs_addf(sums[r], sum) : sum;
                u32 planes[kPlanes], passes = 0; // lane w of the first four gets word w
#pragma unroll
                for (int w = 0; w < kWords; w++) {
                    bool kept = first + 32 * w + lane < p.cols;
#ifdef BS_DROP
                    const unsigned short *const halves = (const unsigned short *)(draws[warp] + r * kDraws);
                    kept = kept && (float)(int)halves[32 * w + lane] < p.limit;
                    const u32 word = __ballot_sync(~0u, kept), minus = __ballot_sync(~0u, kept && !(v[r][w] >= 0.0f));
                    planes[kPlanes - 1] = lane == w || w == 0 ? minus : planes[kPlanes - 1];
#else
                    const u32 word = __ballot_sync(~0u, kept && v[r][w] >= 0.0f);
#endif
                    planes[0] = lane == w || w == 0 ? word : planes[0];
#ifdef BS_PASSES
                    const u32 within = __ballot_sync(~0u, kept && fabsf(v[r][w]) <= 1.0f);
                    passes = lane == w ? within : passes;
#endif
                }
                if (r < count && lane < kWords) {
                    const long long line = row0 + r;
                    const int at = first / 32 + lane;
#pragma unroll
                    for (int plane = 0; plane < kPlanes; plane++)
                        p.words[(line * kPlanes + plane) * p.width + at] = planes[plane];
#ifdef BS_PASSES
                    p.passes[line * p.width + at] = passes;
#endif
                }
            }
        }
#pragma unroll
        for (int r = 0; r < kRows; r++)
            if (r < count && lane == r)
                p.means[row0 + r] = bs_mulf(bs_divf(sums[r], (float)p.cols), p.gain);
    }
}

struct SignBytesParams {
    const u32 *words; // (rows, planes, width), as sign_rows makes them
    uint4 *out;       // (rows, pieces): a byte for each column, -1, 0 or 1, then zeros
    long long rows;
    int cols, width, planes, pieces;
};

// Four bits as the lowest bits of four bytes.
BS_INLINE u32 spread(u32 bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

// A thread takes 16 columns.
extern "C" __global__ void __launch_bounds__(256) sign_bytes(const SignBytesParams p)
{
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x, row = i / p.pieces;
    if (row >= p.rows)
        return;
    const int piece = (int)(i - row * p.pieces), left = p.cols - 16 * piece;
    const u32 *const from = p.words + row * p.planes * p.width + piece / 2;
    const u32 valid = left >= 16 ? 0xffffu : (1u << left) - 1u, one = __ldg(from) >> 16 * (piece & 1);
    const u32 kept = p.planes == 2 ? one : valid, minus = (p.planes == 2 ? __ldg(from + p.width) >> 16 * (piece & 1) : ~one) & valid;
    u32 bytes[4];
#pragma unroll
    for (int k = 0; k < 4; k++) // a byte of a dropped sign is 0, a positive one 1, a negative one 1 + 254
        bytes[k] = spread(kept >> 4 * k) + spread(minus >> 4 * k) * 254u;
    p.out[i] = make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
}
