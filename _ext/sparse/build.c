/* Builders of the sparse formats: first the code that does not depend on the index type, then the rest once per index type. */
#include "sparse/build.h"

#include <stdlib.h>
#include <string.h>

#include "drivers/aligned.h"
#include "simd/join.h"

/* The cells of a window are collected in panels of PANEL cells, so that the workspace of a thread (a bit per cell and nine bytes per 64
 * cells) stays in its caches and does not grow with the matrix. */
#define PANEL_BITS 18
#define PANEL ((int64_t)1 << PANEL_BITS)
#define PANEL_WORDS ((size_t)PANEL / 64)
/* Work is split into this many units per thread, because hubs make windows uneven. A unit has at least UNIT_ENTRIES entries: each unit
 * writes to cache lines that the thread of another unit held, and little work is not worth waking threads for. */
#define UNITS_PER_THREAD 32
#define UNIT_ENTRIES 8192
/* A transpose may sort entries by ranges of columns. A range has about RANGE_ENTRIES entries, so that what is read and written of it stays
 * in an L2 cache. There are at most RANGES ranges, because each of them is written at a place of its own. */
#define RANGE_ENTRIES 16384
#define RANGES 1024
/* With at most this many columns a transpose puts entries directly in their places: a cache line of each of two arrays per column is then
 * at most a quarter of a large L3 cache. */
#define DIRECT_COLUMNS 65536

typedef struct {
    /* The arrays of a panel of at most `words` words, see bs_panel; they share one allocation. */
    size_t words;
    uint64_t *bits;
    uint32_t *through, *list;
    uint8_t *touched;
    size_t (*panel_cells)(const bs_panel *, size_t *);
    size_t (*take_columns)(const void *, size_t, int64_t, void *);
    uint64_t *keys; /* for windows too spread out for panels: two buffers of `capacity` keys */
    size_t capacity;
    void *entries; /* the column indices of the windows' rows: a copy that no other thread writes into */
    size_t entry_bytes;
    void *codes; /* the codes of blocks, see bs_panel */
    size_t code_bytes;
    void *cells; /* the cells and tiles of a group of windows, if the room in the result may turn out too small for them */
    size_t cell_bytes;
} workspace;

static void release(workspace *ws)
{
    bs_free_aligned(ws->bits);
    free(ws->keys);
    bs_free_aligned(ws->entries);
    bs_free_aligned(ws->codes);
    bs_free_aligned(ws->cells);
    memset(ws, 0, sizeof *ws);
}

static int reserve_panel(workspace *ws)
{
    if (ws->bits)
        return 1;
    const size_t words = ws->words; /* a multiple of 16, so that every part begins on a cache line */
    ws->bits =
        bs_aligned(words * (sizeof *ws->bits + sizeof *ws->through + sizeof *ws->list + sizeof *ws->touched) + 16 * sizeof *ws->list);
    if (!ws->bits)
        return 0;
    ws->through = (uint32_t *)(ws->bits + words);
    ws->list = ws->through + words;
    ws->touched = (uint8_t *)(ws->list + words + 16);
    memset(ws->bits, 0, words * sizeof *ws->bits);
    memset(ws->touched, 0, words * sizeof *ws->touched);
    return 1;
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

/* Memory that is written once, at scattered places, and therefore asked for in large pages. */
static void *large_room(size_t bytes)
{
    void *const room = malloc(bytes);
    if (room)
        bs_large_pages(room, bytes);
    return room;
}

static int reserve_bytes(void **room, size_t *have, size_t bytes)
{
    if (bytes <= *have)
        return 1;
    bs_free_aligned(*room);
    *have = 0;
    *room = bs_aligned(bytes);
    if (!*room)
        return 0;
    *have = bytes;
    return 1;
}

/* Room for `count` entries, with a cache line in front of them and one entry behind them for the sentinels of take_rows. */
static int reserve_entries(workspace *ws, size_t count, size_t item)
{
    return reserve_bytes(&ws->entries, &ws->entry_bytes, BS_LINE + (count + 1) * item);
}
static int reserve_codes(workspace *ws, size_t count)
{
    return reserve_bytes(&ws->codes, &ws->code_bytes, (count + 16) * sizeof(uint32_t));
}
static int reserve_cells(workspace *ws, size_t bytes) { return reserve_bytes(&ws->cells, &ws->cell_bytes, bytes); }

/* Merges `runs` ascending runs in keys, run r in [starts[r], starts[r + 1]), pairwise into one. Returns its buffer, keys or spare. */
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

/* The fault at the smallest position. It is the same whichever thread met a fault first. */
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

/* The number of units for `items` rows or windows with `work` entries in all. */
static size_t unit_count(int64_t items, int64_t work, int threads)
{
    const size_t units = threads > 1 ? bs_min((size_t)threads * UNITS_PER_THREAD, (size_t)work / UNIT_ENTRIES) : 1;
    return bs_min((size_t)items, bs_max(1, units));
}

int bs_transposes_directly(int64_t cols, int64_t nnz) { return cols <= DIRECT_COLUMNS && cols <= nnz; }

/* Always inlined: the task is a constant at every call, for which the compiler specialises the function. */
#define BUILD_FN static inline __attribute__((always_inline))

#define INDEX int32_t
#define INDEX_MIN INT32_MIN
#define INDEX_MAX INT32_MAX
#define NAME(f) BS_JOIN(f, i32)
#include "sparse/windows.inc"
#include "sparse/inverse.inc"
#include "sparse/transpose.inc"
#undef INDEX
#undef INDEX_MIN
#undef INDEX_MAX
#undef NAME

#define INDEX int64_t
#define INDEX_MIN INT64_MIN
#define INDEX_MAX INT64_MAX
#define NAME(f) BS_JOIN(f, i64)
#include "sparse/windows.inc"
#include "sparse/inverse.inc"
#include "sparse/transpose.inc"
