// Converts coordinates to the bits of a dense array, and back.
#include "sparse/build.cuh"

struct BitParams {
    const Index *indptr, *indices;
    const i64 *rows_of, *cols_of, *codes; // coordinates: along the outer axis and along the packed axis, and the codes stored there
    u32 *words;
    Index *counts; // of each segment, shifted by one place, then where its entries start
    Index *columns;
    u64 *found; // the first row with bits beyond the last column, counted from the end; zero at the start
    i64 rows, cols, nnz, width, segments, spread; // words of a row, segments of a row and of all rows
    int bits, fields;                             // bits of a code; whether codes are adjacent instead of in planes
};

#define BS_FROM_END (1ull << 62)

// Sets one bit for every entry of a pattern.
extern "C" __global__ void __launch_bounds__(BS_THREADS) set_entries(const BitParams p)
{
    __shared__ i64 ends[2];
    const i64 from = (i64)blockIdx.x * BS_CHUNK, to = from + BS_CHUNK < p.nnz ? from + BS_CHUNK : p.nnz;
    rows_of_chunk(p.indptr, p.rows, from, to, ends);
    const i64 low = ends[0], high = ends[1];
    for (i64 e = from + threadIdx.x; e < to; e += BS_THREADS) {
        const i64 row = last_start(p.indptr, low, high, e), col = p.indices[e];
        atomicOr(p.words + row * p.width + (col >> 5), 1u << (col & 31));
    }
}

// Sets the bits of every code; a row (and plane) has `width` words.
extern "C" __global__ void __launch_bounds__(BS_THREADS) set_codes(const BitParams p)
{
    const i64 step = (i64)gridDim.x * BS_THREADS;
    for (i64 e = (i64)blockIdx.x * BS_THREADS + threadIdx.x; e < p.nnz; e += step) {
        const i64 row = p.rows_of[e], col = p.cols_of[e];
        const u32 code = (u32)p.codes[e] & (p.bits < 32 ? (1u << p.bits) - 1u : ~0u);
        if (p.fields) {
            if (code)
                atomicOr(p.words + row * p.width + ((col * p.bits) >> 5), code << ((col * p.bits) & 31));
            continue;
        }
        for (u32 left = code; left; left &= left - 1)
            atomicOr(p.words + (row * p.bits + __ffs(left) - 1) * p.width + (col >> 5), 1u << (col & 31));
    }
}

// -- set bits to columns: a warp a segment of a row, so that long rows and many rows are the same -----------------------------------
#define BS_SEGMENT 1024 // words

extern "C" __global__ void __launch_bounds__(BS_THREADS) count_bits(const BitParams p)
{
    const int lane = threadIdx.x & 31;
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 s = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); s < p.spread; s += step) {
        const i64 row = s / p.segments, from = s % p.segments * BS_SEGMENT;
        const i64 to = from + BS_SEGMENT < p.width ? from + BS_SEGMENT : p.width;
        int sum = 0;
        bool bad = false;
        for (i64 i = from + lane; i < to; i += 32) {
            const u32 word = p.words[row * p.width + i];
            const i64 left = p.cols - 32 * i;
            bad = bad || (left < 32 && (left <= 0 ? word : word >> left) != 0);
            sum += __popc(word);
        }
        if (bad)
            atomicMax(p.found, BS_FROM_END - (u64)row);
        for (int offset = 16; offset > 0; offset >>= 1)
            sum += __shfl_xor_sync(~0u, sum, offset);
        if (lane == 0)
            p.counts[s + 1] = sum;
        if (s == 0 && lane == 0)
            p.counts[0] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) list_bits(const BitParams p)
{
    const int lane = threadIdx.x & 31;
    const i64 step = (i64)gridDim.x * (BS_THREADS / 32);
    for (i64 s = (i64)blockIdx.x * (BS_THREADS / 32) + (threadIdx.x >> 5); s < p.spread; s += step) {
        const i64 row = s / p.segments, from = s % p.segments * BS_SEGMENT;
        const i64 to = from + BS_SEGMENT < p.width ? from + BS_SEGMENT : p.width;
        i64 done = p.counts[s];
        for (i64 first = from; first < to; first += 32) {
            const u32 word = first + lane < to ? p.words[row * p.width + first + lane] : 0;
            const int mine = __popc(word);
            const int sum = sum_up_to_lane(mine);
            i64 at = done + sum - mine;
            for (u32 left = word; left; left &= left - 1)
                p.columns[at++] = (Index)(32 * (first + lane) + __ffs(left) - 1);
            done += __shfl_sync(~0u, sum, 31);
        }
    }
}
