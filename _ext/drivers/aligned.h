/* Memory that begins on a line of the cache. */
#ifndef BITSPARSE_ALIGNED_H
#define BITSPARSE_ALIGNED_H

#include <stdlib.h>
#if defined(_WIN32)
#include <malloc.h>
#elif defined(__linux__)
#include <sys/mman.h>
#endif

#include "drivers/parallel.h"

#define BS_LINE 64

/* At least `bytes` bytes, to be given back by bs_free_aligned; NULL if there is no memory. */
BS_FN void *bs_aligned(size_t bytes)
{
    const size_t whole = bs_ceil_div(bs_max(1, bytes), BS_LINE) * BS_LINE;
#if defined(_WIN32)
    return _aligned_malloc(whole, BS_LINE);
#else
    void *memory = NULL; /* not aligned_alloc: macOS has that from 10.15 on */
    return posix_memalign(&memory, BS_LINE, whole) ? NULL : memory;
#endif
}

/* Have the system use large pages, where it has them, for much memory that is to be written for the first time: that costs more than the
 * work on it otherwise. */
BS_FN void bs_large_pages(void *memory, size_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, from = ((uintptr_t)memory + page - 1) & ~(page - 1);
    if (bytes > (size_t)1 << 22)
        (void)madvise((void *)from, (bytes - (from - (uintptr_t)memory)) & ~(page - 1), MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

BS_FN void bs_free_aligned(void *memory)
{
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

#endif
