/* Entries of a CSR array: first the code that does not depend on the index type, then the rest once per index type. */
#include "sparse/entries.h"

#include <stdlib.h>
#include <string.h>

#include "drivers/parallel.h"
#include "simd/join.h"

/* Units of work per thread, and the least amount of work (entries and rows) for which more than one thread pays. */
#define UNITS_PER_THREAD 8
#define WORTH_THREADS 32768
/* A row of at most this many entries is searched entry by entry, a longer one by bisection. */
#define SHORT_ROW 8

/* Always inlined: the size of an item is a constant at every call, for which the compiler specialises the function. */
#define ENTRY_FN static inline __attribute__((always_inline))

static size_t unit_count(int64_t work, int threads)
{
    return threads > 1 && work >= WORTH_THREADS ? (size_t)threads * UNITS_PER_THREAD : 1;
}

ENTRY_FN void copy_item(void *to, size_t to_at, const void *from, size_t from_at, size_t item)
{
    memcpy((char *)to + to_at * item, (const char *)from + from_at * item, item);
}

/* Calls the task with the size of an item, as a constant if it is one of the usual sizes. */
#define BY_ITEM(task, job)                                                                                                                 \
    switch ((job)->values ? (job)->item : 0) {                                                                                             \
    case 0: task(job, unit, 0); break;                                                                                                     \
    case 1: task(job, unit, 1); break;                                                                                                     \
    case 2: task(job, unit, 2); break;                                                                                                     \
    case 4: task(job, unit, 4); break;                                                                                                     \
    case 8: task(job, unit, 8); break;                                                                                                     \
    default: task(job, unit, (job)->item);                                                                                                 \
    }

/* One thread's marks of columns, in three levels of bits (see product.inc). The marks of all threads lie one after another. */
typedef struct {
    uint64_t *first, *second, *third;
    size_t thirds;
} levels;

/* What to do with the columns of a row of a product: clear them in the first level, mark them there, or mark them in all levels. */
enum walk { CLEAR, MARK, MARK_LEVELS };

static size_t level_words(size_t cols)
{
    const size_t first = bs_ceil_div(cols, 64), second = bs_ceil_div(first, 64);
    return first + second + bs_ceil_div(second, 64) + 8; /* keeps the marks of threads a cache line apart */
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
