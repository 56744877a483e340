/* Entries of a CSR array: what does not depend on the index type, then both instances of the rest. */
#include "sparse/entries.h"

#include <stdlib.h>
#include <string.h>

#include "drivers/parallel.h"
#include "simd/join.h"

/* Units of work per thread, and entries from which on more than one thread pays. */
#define UNITS_PER_THREAD 8
#define WORTH_THREADS 32768
/* Rows of up to so many entries are looked through, longer ones bisected. */
#define SHORT_ROW 8

/* Specialised for each size of items: it is a constant at every call. */
#define ENTRY_FN static inline __attribute__((always_inline))

static size_t unit_count(int64_t work, int threads)
{
    return threads > 1 && work >= WORTH_THREADS ? (size_t)threads * UNITS_PER_THREAD : 1;
}

ENTRY_FN void copy_item(void *to, size_t to_at, const void *from, size_t from_at, size_t item)
{
    memcpy((char *)to + to_at * item, (const char *)from + from_at * item, item);
}

/* The task with the size of an item as a constant where it is a usual one. */
#define BY_ITEM(task, job)                                                                                                                 \
    switch ((job)->values ? (job)->item : 0) {                                                                                             \
    case 0: task(job, unit, 0); break;                                                                                                     \
    case 1: task(job, unit, 1); break;                                                                                                     \
    case 2: task(job, unit, 2); break;                                                                                                     \
    case 4: task(job, unit, 4); break;                                                                                                     \
    case 8: task(job, unit, 8); break;                                                                                                     \
    default: task(job, unit, (job)->item);                                                                                                 \
    }

/* Bits of columns in three levels; behind the bits of one thread lie those of the next. */
typedef struct {
    uint64_t *first, *second, *third;
    size_t thirds;
} levels;

/* With the columns of a row of a product: they are removed from the first level, marked there, or in all levels. */
enum walk { CLEAR, MARK, MARK_LEVELS };

static size_t level_words(size_t cols)
{
    const size_t first = bs_ceil_div(cols, 64), second = bs_ceil_div(first, 64);
    return first + second + bs_ceil_div(second, 64) + 8; /* a line of the cache apart */
}

static levels levels_of(uint64_t *marks, size_t cols, int thread)
{
    const size_t first = bs_ceil_div(cols, 64), second = bs_ceil_div(first, 64);
    uint64_t *const own = marks + (size_t)thread * level_words(cols);
    return (levels){own, own + first, own + first + second, bs_ceil_div(second, 64)};
}

#define INDEX int32_t
#define NAME(f) BS_JOIN(f, i32)
#include "sparse/entries.inc"
#include "sparse/merge.inc"
#include "sparse/product.inc"
#undef INDEX
#undef NAME

#define INDEX int64_t
#define NAME(f) BS_JOIN(f, i64)
#include "sparse/entries.inc"
#include "sparse/merge.inc"
#include "sparse/product.inc"
