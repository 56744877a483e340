// Smallest and largest value of an array altogether, along rows or along columns, and whether a float is NaN or infinite; stochastic
// rounding. Ranges are taken in parts first (range_rows, range_columns), then the parts are merged. Floor: reading the values once.
#define BS_LARGE
#include "bits.cuh"

// What ranges are held in: int64 for integers (uint64 with its top bit turned over), float32 or float64.
#if BS_KIND == BS_DOUBLE
typedef double Value;
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
typedef float Value;
#else
typedef i64 Value;
#endif

struct RangeParams {
    const void *x;
    void *low, *high; // Value (parts, lines)
    int *flag;        // set if a float is NaN or infinite
    i64 lines, rows, cols;                // lines of all batches together
    i64 x_batch, x_row, x_col;
    i64 parts, span;                      // elements of a part
    u64 seed;
    u32 stream;
    int lanes, is_signed, infinity, vector;
};

BS_INLINE Value value_of(Element e, const RangeParams &p)
{
#if BS_KIND == BS_DOUBLE
    return double_of(e);
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
    return float_of(e, p.infinity);
#elif BS_KIND == 3
    return (i64)(p.is_signed ? e : e ^ 0x8000000000000000ull);
#else
    const int away = 32 - 8 * (int)sizeof(Element);
    return p.is_signed ? (i64)((int)((u32)e << away) >> away) : (i64)(u32)e;
#endif
}

BS_INLINE Value largest()
{
#if BS_KIND == BS_DOUBLE
    return double_of(0x7ff0000000000000ull);
#elif BS_KIND == BS_FLOAT || BS_KIND == BS_HALF
    return bs_float_of(0x7f800000u);
#else
    return 0x7fffffffffffffffll;
#endif
}

BS_INLINE Value smallest()
{
#if BS_KIND >= BS_HALF
    return -largest();
#else
    return -largest() - 1;
#endif
}

struct Range {
    Value low, high;
    bool odd;
};

BS_INLINE void include(Range &r, Value v)
{
    r.low = v < r.low ? v : r.low;
    r.high = v > r.high ? v : r.high;
#if BS_KIND >= BS_HALF
    r.odd = r.odd || !(v < largest() && v > smallest());
#endif
}

// The range over groups of `lanes` lanes, in each of them.
BS_INLINE Range over_lanes(Range r, int lanes)
{
    for (int step = 1; step < lanes; step *= 2) {
        const Value low = __shfl_xor_sync(~0u, r.low, step), high = __shfl_xor_sync(~0u, r.high, step);
        r.low = low < r.low ? low : r.low;
        r.high = high > r.high ? high : r.high;
    }
    return r;
}

BS_INLINE void give(const Range &r, i64 at, bool store, const RangeParams &p)
{
    if (store) { // -0 becomes +0
        ((Value *)p.low)[at] = r.low + (Value)0;
        ((Value *)p.high)[at] = r.high + (Value)0;
    }
    if (r.odd)
        *p.flag = 1;
}

// A group of lanes takes one part of one row.
extern "C" __global__ void __launch_bounds__(256, 4) range_rows(const RangeParams p)
{
    const int lane = threadIdx.x & (p.lanes - 1), groups = blockDim.x / p.lanes;
    const i64 items = p.lines * p.parts;
    for (i64 base = (i64)blockIdx.x * groups; base < items; base += (i64)gridDim.x * groups) {
        const i64 item = base + threadIdx.x / p.lanes, part = quotient(item, p.lines), line = item - part * p.lines;
        Range r = {largest(), smallest(), false};
        if (item < items) {
            const i64 batch = quotient(line, p.rows), start = part * p.span, end = min(p.cols, start + p.span);
            const Element *row = (const Element *)p.x + batch * p.x_batch + (line - batch * p.rows) * p.x_row;
            i64 at = start + 4 * lane;
            if (p.vector)
                for (; at + 12 * p.lanes + 4 <= end; at += 16 * p.lanes) {
                    Quad q[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        q[i] = load_quad(row + at + 4 * i * p.lanes);
#pragma unroll
                    for (int i = 0; i < 16; i++)
                        include(r, value_of(element_of(q[i / 4], i % 4), p));
                }
            for (; at < end; at += 4 * p.lanes)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (at + j < end)
                        include(r, value_of(row[(at + j) * p.x_col], p));
        }
        give(over_lanes(r, p.lanes), part * p.lines + line, item < items && lane == 0, p);
    }
}

// A warp takes one part of 32 columns; lines are columns here.
extern "C" __global__ void __launch_bounds__(256) range_columns(const RangeParams p)
{
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const i64 across = (p.cols + 31) / 32, batches = quotient(p.lines, p.cols), items = batches * p.parts * across;
    for (i64 item = (i64)blockIdx.x * warps + (threadIdx.x >> 5); item < items; item += (i64)gridDim.x * warps) {
        const i64 upper = quotient(item, across), col = 32 * (item - upper * across) + lane;
        const i64 batch = quotient(upper, p.parts), part = upper - batch * p.parts;
        if (col >= p.cols)
            continue;
        const i64 start = part * p.span, rows = min(p.span, p.rows - start);
        const Element *from = (const Element *)p.x + batch * p.x_batch + start * p.x_row + col * p.x_col;
        Range r = {largest(), smallest(), false};
        i64 row = 0;
        for (; row + 8 <= rows; row += 8) {
            Element e[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                e[i] = from[(row + i) * p.x_row];
#pragma unroll
            for (int i = 0; i < 8; i++)
                include(r, value_of(e[i], p));
        }
        for (; row < rows; row++)
            include(r, value_of(from[row * p.x_row], p));
        give(r, part * p.lines + batch * p.cols + col, true, p);
    }
}

// The parts of each line into the first; one warp a line. x holds what the other kernels wrote to low and then to high.
extern "C" __global__ void __launch_bounds__(256) merge_ranges(const RangeParams p)
{
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    for (i64 line = (i64)blockIdx.x * warps + (threadIdx.x >> 5); line < p.lines; line += (i64)gridDim.x * warps) {
        const Value *lows = (const Value *)p.x + line, *highs = lows + p.parts * p.lines;
        Range r = {largest(), smallest(), false};
#pragma unroll 4
        for (i64 part = lane; part < p.parts; part += 32) {
            const Value low = lows[part * p.lines], high = highs[part * p.lines];
            r.low = low < r.low ? low : r.low;
            r.high = high > r.high ? high : r.high;
        }
        r = over_lanes(r, 32);
        give(r, line, lane == 0, p);
    }
}

#if BS_KIND >= BS_HALF
// Eight elements, which share a draw, to a thread; x and low are contiguous arrays of `cols` elements.
extern "C" __global__ void __launch_bounds__(256) round_stochastically(const RangeParams p)
{
    const i64 draws = (p.cols + 7) / 8;
    for (i64 draw = (i64)blockIdx.x * blockDim.x + threadIdx.x; draw < draws; draw += (i64)gridDim.x * blockDim.x) {
        const Element *x = (const Element *)p.x + 8 * draw;
        Element *out = (Element *)p.low + 8 * draw, e[8];
        const i64 left = p.cols - 8 * draw;
        const bool whole = p.vector && left >= 8;
        if (whole) {
            const Quad q[2] = {load_quad(x), load_quad(x + 4)};
#pragma unroll
            for (int i = 0; i < 8; i++)
                e[i] = element_of(q[i / 4], i % 4);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                e[i] = i < left ? x[i] : (Element)0;
        }
        u32 w[4];
        bs_stochastic_words((u64)draw, p.seed, p.stream, &w[0], &w[1], &w[2], &w[3]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 half = w[i / 2] >> (16 * (i % 2)) & 0xffffu;
#if BS_KIND == BS_DOUBLE
            e[i] = element_of_double(bs_stochastic_roundd(double_of(e[i]), half));
#else
            const float f = bs_stochastic_roundf(float_of(e[i], p.infinity), half);
#if BS_KIND == BS_FLOAT
            e[i] = bs_bits_of(f);
#else
            e[i] = p.infinity == 0x7c00 ? bs_float_to_f16(f) : bs_float_to_bf16(f);
#endif
#endif
        }
        if (whole) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                Quad q = zero_quad();
#pragma unroll
                for (int j = 0; j < 4; j++)
                    set_element(q, j, e[4 * h + j]);
                store_quad(out + 4 * h, q);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < left)
                    out[i] = e[i];
        }
    }
}
#endif
