// Stochastic rounding of floats to integral floats. Floor: reading and writing the values once.
#include "bits/range.cuh"

// A thread takes eight elements, which share a draw; x and low are contiguous arrays of `cols` elements.
extern "C" __global__ void __launch_bounds__(256, 4) round_stochastically(const RangeParams p)
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
