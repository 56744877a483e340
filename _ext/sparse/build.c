/* Builders of the sparse formats: what does not depend on the index type, then both instances of the rest. */
#include "sparse/build.h"

#include <stdlib.h>
#include <string.h>

#include "drivers/parallel.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Cells of a window are collected in panels of this many, so that the workspace of a thread (a 16-bit mask per cell) stays in its L2 cache
 * and does not grow with the matrix. */
#define PANEL_BITS 18
#define PANEL ((int64_t)1 << PANEL_BITS)
/* Cells that share one byte of `touched`: their masks are one 128-bit vector, their flags one word. */
#define GROUP_BITS 3
#define GROUP ((int64_t)1 << GROUP_BITS)
/* Bytes of `touched` that are read at a time. */
#define STRIDE 64
/* Units of work per thread: hubs make windows uneven. */
#define UNITS_PER_THREAD 32
/* Entries from which on more than one thread pays. */
#define WORTH_THREADS 16384

typedef struct {
    uint16_t *masks;  /* PANEL cells, zero between windows; as bytes, flags of the cells while counting */
    uint8_t *touched; /* one byte per group, zero between windows; STRIDE more, so that whole strides can be read */
    uint64_t *keys;   /* for windows too spread for panels: two buffers of `capacity` keys */
    size_t capacity;
    void *entries; /* the column indices of the window's rows: a copy that no other thread writes into */
    size_t entry_bytes;
} workspace;

static void release(workspace *ws)
{
    free(ws->masks);
    free(ws->touched);
    free(ws->keys);
    free(ws->entries);
    memset(ws, 0, sizeof *ws);
}

static int reserve_panel(workspace *ws)
{
    if (ws->masks)
        return 1;
    ws->masks = calloc((size_t)PANEL, sizeof *ws->masks);
    ws->touched = calloc((size_t)(PANEL / GROUP) + STRIDE, 1);
    return ws->masks && ws->touched;
}

static int reserve_keys(workspace *ws, size_t count)
{
    if (count <= ws->capacity)
        return 1;
    free(ws->keys);
    ws->capacity = 0;
    ws->keys = malloc(2 * count * sizeof *ws->keys);
    if (!ws->keys)
        return 0;
    ws->capacity = count;
    return 1;
}

static int reserve_entries(workspace *ws, size_t bytes)
{
    if (bytes <= ws->entry_bytes)
        return 1;
    free(ws->entries);
    ws->entry_bytes = 0;
    ws->entries = malloc(bytes);
    if (!ws->entries)
        return 0;
    ws->entry_bytes = bytes;
    return 1;
}

/* Which of 8 masks are set. */
static inline uint32_t set_masks(const uint16_t *masks)
{
#ifdef __SSE2__
    const __m128i empty = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)masks), _mm_setzero_si128());
    return (uint32_t)~_mm_movemask_epi8(_mm_packs_epi16(empty, empty)) & 0xffu;
#else
    uint32_t set = 0;
    for (int i = 0; i < 8; i++)
        set |= (uint32_t)(masks[i] != 0) << i;
    return set;
#endif
}

/* How many of 8 byte flags (0 or 1) are set; clears them. */
static inline int64_t take_flags(uint8_t *flags)
{
    uint64_t word;
    memcpy(&word, flags, 8);
    memset(flags, 0, 8);
    return (int64_t)((word * 0x0101010101010101u) >> 56);
}

/* The touched groups of a stride as bits; clears them. */
static inline uint64_t take_stride(uint8_t *touched)
{
    uint64_t groups = 0;
#ifdef __SSE2__
    for (int i = 0; i < STRIDE; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(touched + i));
        groups |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_slli_epi16(bytes, 7)) << i;
    }
#else
    for (int i = 0; i < STRIDE; i++)
        groups |= (uint64_t)touched[i] << i;
#endif
    if (groups)
        memset(touched, 0, STRIDE);
    return groups;
}

/* `runs` ascending runs in keys, run r in [starts[r], starts[r + 1]), merged pairwise into one; returns where it lies, keys or spare. */
static uint64_t *merge_runs(uint64_t *keys, uint64_t *spare, size_t *starts, int runs)
{
    while (runs > 1) {
        int made = 0;
        for (int r = 0; r < runs; r += 2) {
            size_t a = starts[r], to = a;
            const size_t a_end = starts[r + 1], b_end = r + 1 < runs ? starts[r + 2] : a_end;
            size_t b = a_end;
            while (a < a_end && b < b_end) {
                const uint64_t x = keys[a], y = keys[b];
                const int first = x < y;
                spare[to++] = first ? x : y;
                a += (size_t)first;
                b += (size_t)!first;
            }
            memcpy(spare + to, keys + a, (a_end - a) * sizeof *keys);
            memcpy(spare + to + (a_end - a), keys + b, (b_end - b) * sizeof *keys);
            starts[++made] = b_end;
        }
        runs = made;
        uint64_t *swap = keys;
        keys = spare;
        spare = swap;
    }
    return keys;
}

/* The smallest position of a fault, and its code: the same whichever thread met one first. */
typedef struct {
    int code;
    int64_t where;
} fault;

static void report(fault *faults, int thread, int code, int64_t where)
{
    fault *mine = &faults[thread];
    if (mine->code == BS_BUILD_OK || where < mine->where)
        *mine = (fault){code, where};
}

static int first_fault(const fault *faults, int threads, int64_t *where)
{
    fault first = {BS_BUILD_OK, 0};
    for (int t = 0; t < threads; t++)
        if (faults[t].code != BS_BUILD_OK && (first.code == BS_BUILD_OK || faults[t].where < first.where))
            first = faults[t];
    *where = first.where;
    return first.code;
}

/* Units for `items` rows or windows of `work` entries altogether; a little work is not worth waking threads for. */
static size_t unit_count(int64_t items, int64_t work, int threads)
{
    const size_t units = threads > 1 && work >= WORTH_THREADS ? (size_t)threads * UNITS_PER_THREAD : 1;
    return bs_min((size_t)items, units);
}

/* Specialised for each task: the task is a constant at every call. */
#define BUILD_FN static inline __attribute__((always_inline))

#define BS_JOIN_(a, b) a##b
#define BS_JOIN(a, b) BS_JOIN_(a, b)

#define INDEX int32_t
#define NAME(f) BS_JOIN(f, _i32)
#include "sparse/windows.inc"
#include "sparse/inverse.inc"
#undef INDEX
#undef NAME

#define INDEX int64_t
#define NAME(f) BS_JOIN(f, _i64)
#include "sparse/windows.inc"
#include "sparse/inverse.inc"
