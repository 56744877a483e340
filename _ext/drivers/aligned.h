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

/* At least `bytes` bytes from a multiple of `alignment` on, to be given back by bs_free_aligned; NULL if there is no memory. */
BS_FN void *bs_aligned_to(size_t alignment, size_t bytes)
{
    const size_t whole = bs_ceil_div(bs_max(1, bytes), alignment) * alignment;
#if defined(_WIN32)
    return _aligned_malloc(whole, alignment);
#else
    void *memory = NULL; /* not aligned_alloc: macOS has that from 10.15 on */
    return posix_memalign(&memory, alignment, whole) ? NULL : memory;
#endif
}

/* At least `bytes` bytes from a line on. */
BS_FN void *bs_aligned(size_t bytes) { return bs_aligned_to(BS_LINE, bytes); }

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

/* At least `bytes` bytes from a line on; much memory is whole large pages. */
BS_FN void *bs_aligned_large(size_t bytes)
{
    const size_t page = (size_t)1 << 21;
    void *const memory = bytes > 2 * page ? bs_aligned_to(page, bytes) : bs_aligned(bytes);
    if (memory)
        bs_large_pages(memory, bytes > 2 * page ? bs_ceil_div(bytes, page) * page : bytes);
    return memory;
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
