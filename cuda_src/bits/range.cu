// Smallest and largest value of a whole array, along rows or along columns, and whether a float is NaN or infinite. Ranges of parts are
// computed first (range_rows, range_columns), then the parts are merged. Floor: reading the values once.
#include "bits/range.cuh"

// The type in which ranges are stored: int64 for integers (uint64 with its top bit inverted), float32 or float64; and the type in which
// they are compared.
#if BS_KIND == BS_DOUBLE
typedef double Value;
typedef double Held;
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
typedef float Value;
typedef float Held;
#else
typedef i64 Value;
#if BS_KIND == 3
typedef i64 Held;
#else
typedef int Held; // unsigned integers of four bytes have their top bit inverted
#endif
#endif
#define BS_RANGE_QUADS (sizeof(Element) == 8 ? 4 : 8) // loads that a lane has in flight
#define BS_RANGE_THREADS 256
#define BS_RANGE_BLOCKS (__CUDA_ARCH__ >= 900 ? 4 : 3) // resident blocks of a multiprocessor; with one more, registers would be spilled

// An element in the type in which values are compared.
BS_INLINE Held held_of(Element e, const RangeParams &p)
{
#if BS_KIND == BS_DOUBLE
    return double_of(e);
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
    return float_of(e, p.infinity);
#elif BS_KIND == 3
    return (i64)(p.is_signed ? e : e ^ 0x8000000000000000ull);
#elif BS_KIND == 2
    return (int)(p.is_signed ? e : e ^ 0x80000000u);
#else
    const int away = 32 - 8 * (int)sizeof(Element);
    return p.is_signed ? (int)((u32)e << away) >> away : (int)e;
#endif
}

// A compared value in the type that is stored.
BS_INLINE Value value_of(Held h, const RangeParams &p)
{
#if BS_KIND >= BS_HALF
    return h + (Held)0; // -0 becomes +0
#elif BS_KIND == 2
    return p.is_signed ? (i64)h : (i64)((u32)h ^ 0x80000000u);
#else
    return h;
#endif
}

BS_INLINE Held largest()
{
#if BS_KIND == BS_DOUBLE
    return double_of(0x7ff0000000000000ull);
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
    return bs_float_of(0x7f800000u);
#elif BS_KIND == 3
    return 0x7fffffffffffffffll;
#else
    return 0x7fffffff;
#endif
}

BS_INLINE Held smallest()
{
#if BS_KIND >= BS_HALF
    return -largest();
#else
    return -largest() - 1;
#endif
}

struct Range {
    Held low, high, odd; // odd becomes NaN where a float is NaN or infinite
};

BS_INLINE Range no_range()
{
    Range r = {largest(), smallest(), 0};
    return r;
}

BS_INLINE void widen(Range &r, Held low, Held high)
{
#if BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
    r.low = fminf(r.low, low), r.high = fmaxf(r.high, high);
#else
    r.low = low < r.low ? low : r.low, r.high = high > r.high ? high : r.high;
#endif
}

BS_INLINE void include(Range &r, Held h)
{
    widen(r, h, h);
#if BS_KIND == BS_DOUBLE
    r.odd = bs_addd(r.odd, bs_muld(h, 0.0));
#elif BS_KIND >= BS_HALF
    r.odd = bs_fmaf(h, 0.0f, r.odd);
#endif
}

BS_INLINE void include_quad(Range &r, const Quad &q, const RangeParams &p)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        include(r, held_of(element_of(q, j), p));
}

// The range over each group of `lanes` lanes, in every lane.
BS_INLINE Range over_lanes(Range r, int lanes)
{
    for (int step = 1; step < lanes; step *= 2)
        widen(r, __shfl_xor_sync(~0u, r.low, step), __shfl_xor_sync(~0u, r.high, step));
    return r;
}

// The range over a block of BS_RANGE_THREADS threads, in every thread.
BS_INLINE Range over_block(Range r)
{
    __shared__ Held lows[BS_RANGE_THREADS / 32], highs[BS_RANGE_THREADS / 32];
    r = over_lanes(r, 32);
    __syncthreads(); // all threads have read the previous ranges
    if ((threadIdx.x & 31) == 0)
        lows[threadIdx.x >> 5] = r.low, highs[threadIdx.x >> 5] = r.high;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BS_RANGE_THREADS / 32; i++)
        widen(r, lows[i], highs[i]);
    return r;
}

BS_INLINE void raise_flag(const Range &r, const RangeParams &p)
{
    if (r.odd != (Held)0)
        *p.flag = 1;
}

BS_INLINE void give(const Range &r, i64 at, const RangeParams &p)
{
    ((Value *)p.low)[at] = value_of(r.low, p);
    ((Value *)p.high)[at] = value_of(r.high, p);
}

// A group of lanes, or a whole block, takes one part of one row.
extern "C" __global__ void __launch_bounds__(BS_RANGE_THREADS, BS_RANGE_BLOCKS) range_rows(const RangeParams p)
{
    const int lane = threadIdx.x & (p.lanes - 1), groups = BS_RANGE_THREADS / p.lanes;
    const i64 items = p.lines * p.parts;
    for (i64 base = (i64)blockIdx.x * groups; base < items; base += (i64)gridDim.x * groups) {
        const i64 item = base + threadIdx.x / p.lanes, part = quotient(item, p.lines), line = item - part * p.lines;
        Range r = no_range();
        if (item < items) {
            const i64 batch = quotient(line, p.rows), start = part * p.span, length = min(p.cols - start, p.span);
            const Element *from = (const Element *)p.x + batch * p.x_batch + (line - batch * p.rows) * p.x_row + start * p.x_col;
            i64 at = 4 * lane;
            if (p.vector) {
                const int step = 4 * p.lanes;
                for (; at + (BS_RANGE_QUADS - 1) * step + 4 <= length; at += BS_RANGE_QUADS * step) {
                    Quad q[BS_RANGE_QUADS];
#pragma unroll
                    for (int i = 0; i < BS_RANGE_QUADS; i++)
                        q[i] = load_quad(from + at + i * step);
#pragma unroll
                    for (int i = 0; i < BS_RANGE_QUADS; i++)
                        include_quad(r, q[i], p);
                }
                for (; at + 4 <= length; at += step)
                    include_quad(r, load_quad(from + at), p);
            }
            for (; at < length; at += 4 * p.lanes)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (at + j < length)
                        include(r, held_of(from[(at + j) * p.x_col], p));
        }
        raise_flag(r, p);
        r = p.lanes > 32 ? over_block(r) : over_lanes(r, p.lanes);
        if (item < items && lane == 0)
            give(r, part * p.lines + line, p);
    }
}

// A block takes one part of 128 columns, and a lane four of them; lines are columns here.
extern "C" __global__ void __launch_bounds__(BS_RANGE_THREADS, BS_RANGE_BLOCKS) range_quads(const RangeParams p)
{
    __shared__ Held lows[BS_RANGE_THREADS / 32][BS_GROUP], highs[BS_RANGE_THREADS / 32][BS_GROUP];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 across = (p.cols + BS_GROUP - 1) / BS_GROUP, batches = quotient(p.lines, p.cols), items = batches * p.parts * across;
    for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
        const i64 upper = quotient(item, across), first = BS_GROUP * (item - upper * across);
        const i64 batch = quotient(upper, p.parts), part = upper - batch * p.parts;
        const i64 start = part * p.span, col = min(first + 4 * lane, p.cols - 4); // lanes beyond the last column repeat the last ones
        const int rows = (int)min(p.span, p.rows - start), last = rows - 1;
        const Element *from = (const Element *)p.x + batch * p.x_batch + start * p.x_row + col;
        Range r[4] = {no_range(), no_range(), no_range(), no_range()};
#pragma unroll 1
        for (int row = BS_RANGE_QUADS * warp; row < rows; row += BS_RANGE_QUADS * (BS_RANGE_THREADS / 32)) {
            Quad q[BS_RANGE_QUADS];
#pragma unroll
            for (int i = 0; i < BS_RANGE_QUADS; i++) // the last row may be read several times
                q[i] = load_quad(from + min(row + i, last) * p.x_row);
#pragma unroll
            for (int i = 0; i < BS_RANGE_QUADS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    include(r[j], held_of(element_of(q[i], j), p));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            raise_flag(r[j], p);
            lows[warp][32 * j + lane] = r[j].low, highs[warp][32 * j + lane] = r[j].high;
        }
        __syncthreads();
        if (threadIdx.x < BS_GROUP) {
            Range all = no_range();
#pragma unroll
            for (int i = 0; i < BS_RANGE_THREADS / 32; i++)
                widen(all, lows[i][threadIdx.x], highs[i][threadIdx.x]);
            const i64 mine = first + 4 * lane + warp;
            if (mine < p.cols)
                give(all, part * p.lines + batch * p.cols + mine, p);
        }
        __syncthreads();
    }
}

// The same with one column to a lane and one part to a warp, for any strides.
extern "C" __global__ void __launch_bounds__(BS_RANGE_THREADS, BS_RANGE_BLOCKS) range_columns(const RangeParams p)
{
    const int lane = threadIdx.x & 31, warps = BS_RANGE_THREADS / 32;
    const i64 across = (p.cols + 31) / 32, batches = quotient(p.lines, p.cols), items = batches * p.parts * across;
    for (i64 item = (i64)blockIdx.x * warps + (threadIdx.x >> 5); item < items; item += (i64)gridDim.x * warps) {
        const i64 upper = quotient(item, across), col = 32 * (item - upper * across) + lane;
        const i64 batch = quotient(upper, p.parts), part = upper - batch * p.parts;
        if (col >= p.cols)
            continue;
        const i64 start = part * p.span, rows = min(p.span, p.rows - start);
        const Element *from = (const Element *)p.x + batch * p.x_batch + start * p.x_row + col * p.x_col;
        Range r = no_range();
        i64 row = 0;
        for (; row + 8 <= rows; row += 8) {
            Element e[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                e[i] = from[(row + i) * p.x_row];
#pragma unroll
            for (int i = 0; i < 8; i++)
                include(r, held_of(e[i], p));
        }
        for (; row < rows; row++)
            include(r, held_of(from[row * p.x_row], p));
        raise_flag(r, p);
        give(r, part * p.lines + batch * p.cols + col, p);
    }
}

// Merges the parts of each line into its first part, with `lanes` threads per line. x holds what the other kernels wrote to low and then to
// high.
extern "C" __global__ void __launch_bounds__(BS_RANGE_THREADS, BS_RANGE_BLOCKS) merge_ranges(const RangeParams p)
{
    const int lane = threadIdx.x & (p.lanes - 1), groups = BS_RANGE_THREADS / p.lanes;
    for (i64 base = (i64)blockIdx.x * groups; base < p.lines; base += (i64)gridDim.x * groups) {
        const i64 line = base + threadIdx.x / p.lanes;
        const Value *lows = (const Value *)p.x + line, *highs = lows + p.parts * p.lines;
        Value low = 0, high = 0;
        if (line < p.lines) {
            low = lows[min((i64)lane, p.parts - 1) * p.lines], high = highs[min((i64)lane, p.parts - 1) * p.lines];
#pragma unroll 4
            for (i64 part = lane + p.lanes; part < p.parts; part += p.lanes) {
                const Value l = lows[part * p.lines], h = highs[part * p.lines];
                low = l < low ? l : low, high = h > high ? h : high;
            }
        }
        if (p.lanes > 1) {
            __shared__ Value shared_low[BS_RANGE_THREADS], shared_high[BS_RANGE_THREADS];
            __syncthreads();
            shared_low[threadIdx.x] = low, shared_high[threadIdx.x] = high;
            for (int step = BS_RANGE_THREADS / 2; step > 0; step /= 2) {
                __syncthreads();
                if ((int)threadIdx.x < step) {
                    const Value l = shared_low[threadIdx.x + step], h = shared_high[threadIdx.x + step];
                    low = l < low ? l : low, high = h > high ? h : high;
                    shared_low[threadIdx.x] = low, shared_high[threadIdx.x] = high;
                }
            }
        }
        if (line < p.lines && lane == 0)
            ((Value *)p.low)[line] = low, ((Value *)p.high)[line] = high;
    }
}
