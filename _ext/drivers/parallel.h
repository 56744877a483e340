/* Units of work over threads, and the choice of a kernel table. Stateless: thread count and level are arguments of every call. */
#ifndef BITSPARSE_PARALLEL_H
#define BITSPARSE_PARALLEL_H

#include "simd/kernels.h"

/* BS_AVX2_VNNI: AVX2 with products of four bytes at a time, and BS_AMX: AVX-512 with the unit that multiplies tiles of bytes. A few loops
 * are compiled again for them. */
enum bs_level { BS_SCALAR, BS_AVX2, BS_AVX2_VNNI, BS_AVX512, BS_AMX, BS_LEVELS };

/* The given level, or the next lower one that this processor supports. */
int bs_runs_level(int level);
/* The table of kernels of that level. */
const bs_kernels *bs_table(int level);

/* 1 if the build has OpenMP. */
int bs_has_openmp(void);
/* Threads OpenMP would use by default (OMP_NUM_THREADS, affinity); 1 without OpenMP. */
int bs_default_threads(void);

/* Calls body(context, unit, thread) for every unit, in any order; 0 <= thread < threads. A call with one thread starts no others, so it
 * still works in a child process after a fork, where the pool of threads is gone. */
void bs_parallel(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, int threads);

/* The same with a team of at least two threads, which take `chunk` units at a time (pool.c). */
void bs_share_out(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, size_t chunk, int team);
/* Every extension module is linked with these drivers; one module lends the others its pool of threads. */
void *bs_own_pool(void);
void bs_use_pool(void *of_another);

BS_FN size_t bs_ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }
BS_FN size_t bs_min(size_t a, size_t b) { return a < b ? a : b; }
BS_FN size_t bs_max(size_t a, size_t b) { return a > b ? a : b; }

#endif
