// Floats to adjacent codes of 2, 4 or 8 bits, rounded at random, each row by a step of its own: its largest magnitude over the largest
// code. The row's scale lies in the last word of its codes. A group of lanes takes a row, eight values to a lane, finds the magnitude
// while it holds them, and rounds them: rows of up to 256 values are read once, longer ones a second time, mostly from the L1. The codes
// are those of bits/octets.cu over the same steps. Floor: the bytes of values and words.
//
// Compile-time: BS_KIND, BS_LARGE; BS_RAGGED as in bits/octets.cu.
#define BS_DRAWN 1
#include "bits/octets.cuh"

#if BS_RAGGED && (defined(BS_LARGE) || __CUDA_ARCH__ >= 1000)
#define BLOCKS 2 // with three, registers would be spilled
#elif BS_RAGGED || defined(BS_LARGE)
#define BLOCKS 3
#else
#define BLOCKS 4
#endif

constexpr int kThreads = 256;

// Here middle and range of the parameters are the lowest and the highest code.
struct RowOctetParams {
    EncodeParams encode;
    u32 keys[20]; // of the rounds of Philox
    const float *factors; // by which scales are multiplied, one per row; may be null
    int lanes, pad; // of a row: a power of two
};

// The place of an octet of a row; it has no values behind the last row and behind the row's last value.
BS_INLINE Place place_in_row(const EncodeParams &p, Index row, Index octet)
{
    Place at = {row, octet, row, 0, nullptr, 8, 1.0f};
    if (row < (Index)p.rows && 8 * octet < (Index)p.cols)
        at.x = (const Element *)p.x + (row * (Index)p.x_row + 8 * octet);
#if BS_RAGGED
    at.left = (int)min((Index)8, (Index)p.cols - 8 * octet);
#endif
    return at;
}

BS_INLINE void load_or_clear(const Place &at, Quad (&quads)[2])
{
    quads[0] = quads[1] = zero_quad();
    load_values(at, quads);
}

// The bits of the largest magnitude, which order magnitudes; those of NaN are the largest.
BS_INLINE u32 largest_of(const Quad (&quads)[2], u32 found, int infinity)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        found = max(found, bs_bits_of(real_of(element_of(quads[j / 4], j % 4), infinity)) & 0x7fffffffu);
    return found;
}

// The step of codes up to `top`: 1 where the magnitude is too small to divide by, NaN where it is not finite.
BS_INLINE float step_up_to(u32 largest, float top)
{
    const float step = bs_divf(bs_float_of(largest), top);
    return step < 1.17549435e-38f ? 1.0f : bs_addf(step, bs_mulf(step, 0.0f));
}

// Codes by a step of at most 1, which is scaled to at least 1/2 by `power`, a power of two, and the values with it: that changes no
// quotient. The quick quotient is wrong for a numerator that is too small, but it is then nonzero, of the right sign and below 2^-16, and
// no rounding tells it from the exact one.
BS_INLINE void codes_by_power(const Quad (&quads)[2], const u32 (&w)[4], const Steps &s, float power, const EncodeParams &p,
                              u32 (&codes)[8])
{
    float unused = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float value = bs_mulf(real_of(element_of(quads[j / 4], j % 4), p.infinity), power);
        codes[j] = whole_of(fminf(fmaxf(quick_quotient(value, s, unused), p.middle), p.range), j, w, p);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS) row_octets(const RowOctetParams all)
{
    const EncodeParams &p = all.encode;
    const Index each = (Index)(p.width * 4) / p.bits, rows = (Index)p.rows, step = (Index)gridDim.x * (kThreads / all.lanes);
    const Index lane = threadIdx.x & (all.lanes - 1), mine = threadIdx.x / all.lanes;
    const Index octets = (Index)((p.cols + 7) / 8); // with values
    const bool once = octets <= (Index)all.lanes; // a lane has one octet at most, and loads the next row's before it computes
    const u32 stream = stream_of(p);
    Index first = (Index)blockIdx.x * (kThreads / all.lanes);
    Quad next[2];
    if (once)
        load_or_clear(place_in_row(p, first + mine, lane), next);
    for (; first < rows; first += step) { // all lanes of a warp go round together
        const Index row = first + mine;
        Quad quads[2];
        u32 largest = 0;
        if (once) {
            quads[0] = next[0], quads[1] = next[1];
            if (first + step < rows)
                load_or_clear(place_in_row(p, row + step, lane), next);
            largest = largest_of(quads, largest, p.infinity);
        } else {
            for (Index octet = lane; octet < octets; octet += all.lanes) {
                load_or_clear(place_in_row(p, row, octet), quads);
                largest = largest_of(quads, largest, p.infinity);
            }
        }
        for (int o = all.lanes / 2; o; o /= 2)
            largest = max(largest, __shfl_xor_sync(~0u, largest, o));
        if (row >= rows)
            continue;
        const float size = step_up_to(largest, p.range);
        const bool small = size <= 1.0f;
        const float power = small ? bs_float_of((253u << 23) - (bs_bits_of(size) & 0x7f800000u)) : 1.0f;
        const Steps s = steps_of(0.0f, bs_mulf(size, power));
        const u32 scale = bs_bits_of(all.factors ? bs_mulf(size, __ldg(all.factors + row)) : size);
        for (Index octet = lane; octet < each; octet += all.lanes) {
            const Place at = place_in_row(p, row, octet);
            if (!once)
                load_or_clear(at, quads);
            u32 low = 0, high = 0;
            if (at.x) {
                const u64 index = p.first_index + (u64)row * (u64)p.cols + 8 * (u64)octet;
                u32 w[4], c[8];
#if BS_RAGGED
                halves_from(index / 8, (int)(index & 7), stream, all.keys, w);
#else
                words_of_draw(index / 8, stream, all.keys, w); // the index is a multiple of 8
#endif
                bool slow = false;
                if (small)
                    codes_by_power(quads, w, s, power, p, c);
                else
                    slow = codes_of(quads, w, s, p, c);
                join_codes(c, low, high);
                if (slow)
                    exact_codes(at.x, at.left, 1.0f, 0.0f, size, index, p, low, high);
#if BS_RAGGED
                keep_codes(at.left, low, high);
#endif
            }
            // Octets of 2 bits are halves of a word.
            if (p.bits == 8 && octet == each - 1)
                high = scale;
            if (p.bits == 2 && octet >= each - 2)
                ((unsigned short *)p.words)[row * each + octet] = (unsigned short)(octet == each - 1 ? scale >> 16 : scale);
            else if (p.bits == 4 && octet == each - 1)
                p.words[row * each + octet] = scale;
            else
                store_codes(p.words, row * each + octet, p.bits, low, high);
        }
    }
}
