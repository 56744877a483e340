/* Run-time choice of an instruction set, and the one place that knows OpenMP. */
#include "drivers/parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int bs_best_level(void)
{
#ifdef BS_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt"))
        return BS_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni"))
        return BS_AVX512;
    return BS_AVX2;
#else
    return BS_SCALAR;
#endif
}

const bs_kernels *bs_table(int level)
{
#ifdef BS_X86
    const int best = bs_best_level();
    if (level > best)
        level = best;
    if (level == BS_AVX512)
        return &bs_kernels_avx512;
    if (level == BS_AVX2)
        return &bs_kernels_avx2;
#else
    (void)level;
#endif
    return &bs_kernels_scalar;
}

int bs_has_openmp(void)
{
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

int bs_default_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void bs_parallel(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, int threads)
{
#ifdef _OPENMP
    if (threads > 1 && units > 1) {
        const int team = units < (size_t)threads ? (int)units : threads;
        /* Several units at a time when there are very many of them: asking for the next one costs an atomic operation. */
        const long chunk = (long)bs_max(1, units / ((size_t)team * 16));
#pragma omp parallel for num_threads(team) schedule(dynamic, chunk)
        for (ptrdiff_t unit = 0; unit < (ptrdiff_t)units; unit++)
            body(context, (size_t)unit, omp_get_thread_num());
        return;
    }
#else
    (void)threads;
#endif
    for (size_t unit = 0; unit < units; unit++)
        body(context, unit, 0);
}
