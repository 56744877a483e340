// Sums over runs of rows, which combine entries that occur several times.
#include "sparse/build.cuh"

struct RunParams {
    const void *values;
    void *out;
    const i64 *starts; // the first row of every run
    i64 runs, entries, width;
    int kind; // 0 float32, 1 float64, 2 float16, 3 bfloat16
};

// The first value plus the others, one after another: the bits do not depend on how the work is dealt out.
template <class T, class Load> static __device__ __forceinline__ T sum_of(i64 from, i64 to, Load load)
{
    if (to - from == 1)
        return load(from);
    T others = load(from + 1);
    for (i64 e = from + 2; e < to; e++)
        others += load(e);
    return load(from) + others;
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) sum_runs(const RunParams p)
{
    const i64 step = (i64)gridDim.x * BS_THREADS;
    for (i64 i = (i64)blockIdx.x * BS_THREADS + threadIdx.x; i < p.runs * p.width; i += step) {
        const i64 run = i / p.width, column = i % p.width;
        const i64 from = p.starts[run], to = run + 1 < p.runs ? p.starts[run + 1] : p.entries;
        if (p.kind == 0) {
            const float *values = (const float *)p.values + column;
            ((float *)p.out)[i] = sum_of<float>(from, to, [&](i64 e) { return values[e * p.width]; });
        } else if (p.kind == 1) {
            const double *values = (const double *)p.values + column;
            ((double *)p.out)[i] = sum_of<double>(from, to, [&](i64 e) { return values[e * p.width]; });
        } else {
            const u16 *values = (const u16 *)p.values + column;
            const bool half = p.kind == 2;
            const float sum = sum_of<float>(from, to, [&](i64 e) {
                const u16 bits = values[e * p.width];
                return half ? bs_f16_to_float(bits) : bs_bf16_to_float(bits);
            });
            ((u16 *)p.out)[i] = half ? bs_float_to_f16(sum) : bs_float_to_bf16(sum);
        }
    }
}
