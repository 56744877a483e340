/* Units of work over threads, and the choice of a kernel table. Stateless: thread count and level are arguments of every call. */
#ifndef BITSPARSE_PARALLEL_H
#define BITSPARSE_PARALLEL_H

#include "simd/kernels.h"

enum bs_level { BS_SCALAR, BS_AVX2, BS_AVX512 };

/* The best level this processor runs. */
int bs_best_level(void);
/* The table of a level, or of the best one if the processor lacks it. */
const bs_kernels *bs_table(int level);

/* 1 if the build has OpenMP. */
int bs_has_openmp(void);
/* Threads OpenMP would use by default (OMP_NUM_THREADS, affinity); 1 without OpenMP. */
int bs_default_threads(void);

/* body(context, unit, thread) for every unit, in any order; 0 <= thread < threads. One thread never enters OpenMP, so that a child
 * after fork, whose pool of threads is gone, can still work. */
void bs_parallel(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, int threads);

BS_FN size_t bs_ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }
BS_FN size_t bs_min(size_t a, size_t b) { return a < b ? a : b; }
BS_FN size_t bs_max(size_t a, size_t b) { return a > b ? a : b; }

#endif
