/* Memory that begins on a line of the cache. */
#ifndef BITSPARSE_ALIGNED_H
#define BITSPARSE_ALIGNED_H

#include <stdlib.h>
#if defined(_WIN32)
#include <malloc.h>
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

BS_FN void bs_free_aligned(void *memory)
{
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

#endif
