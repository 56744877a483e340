/* Encodes the gaps between the sorted columns of every row in units of 3 to 16 bits; a unit of all ones adds its value and is no entry. */
#include <stdlib.h>
#include <string.h>

#include "drivers/packets.h"
#include "drivers/parallel.h"

#define UNITS BS_PACKET_UNITS
#define unit_bits bs_packet_unit_bits

typedef struct {
    uint32_t *columns;
    size_t room;
} scratch;

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Writes the local numbers of the columns that stay, one after another, and returns how many there are. *largest becomes the largest
 * column. There are no branches, since nothing predicts which edges stay. */
#define GATHER(name, type)                                                                                                                 \
    static size_t name(const type *columns, size_t count, size_t nodes, const int32_t *place, int64_t low, int64_t high, int64_t base,     \
                       uint32_t *to, uint64_t *largest)                                                                                    \
    {                                                                                                                                      \
        size_t kept = 0;                                                                                                                   \
        uint64_t most = 0;                                                                                                                 \
        for (size_t e = 0; e < count; e++) {                                                                                               \
            const uint64_t column = (uint64_t)__atomic_load_n(columns + e, __ATOMIC_RELAXED);                                              \
            const int64_t c = column < nodes ? place[column] : -1;                                                                         \
            most = column > most ? column : most;                                                                                          \
            to[kept] = (uint32_t)(c - base);                                                                                               \
            kept += (c >= low) & (c < high);                                                                                               \
        }                                                                                                                                  \
        *largest = most;                                                                                                                   \
        return kept;                                                                                                                       \
    }
GATHER(gather_narrow, int32_t)
GATHER(gather_wide, int64_t)

/* The columns of a row that stay, counted from `base` and ascending; -1 if memory is short, -2 if the pattern is not valid. */
static int64_t columns_of(const bs_packet_job *job, size_t row, int64_t low, int64_t high, int64_t base, scratch *s, int64_t *left)
{
    const bs_csr *a = &job->csr;
    const size_t node = (size_t)__atomic_load_n(job->order + row, __ATOMIC_RELAXED);
    size_t first, edges;
    if (node >= a->rows || !bs_row(a, node, &first, &edges))
        return -2;
    if (edges >= s->room) {
        const size_t room = bs_max(2 * s->room, edges + 64);
        uint32_t *more = realloc(s->columns, room * sizeof *more);
        if (!more)
            return -1;
        s->columns = more, s->room = room;
    }
    uint64_t largest;
    const size_t count =
        a->wide ? gather_wide((const int64_t *)a->indices + first, edges, a->cols, job->place, low, high, base, s->columns, &largest)
                : gather_narrow((const int32_t *)a->indices + first, edges, a->cols, job->place, low, high, base, s->columns, &largest);
    if (edges && largest >= a->cols)
        return -2;
    *left += (int64_t)(edges - count);
    int sorted = 1;
    for (size_t i = 1; i < count; i++)
        sorted &= s->columns[i - 1] <= s->columns[i];
    if (!sorted)
        qsort(s->columns, count, sizeof *s->columns, by_value);
    const uint32_t own = job->loops ? (uint32_t)((int64_t)row - base) : UINT32_MAX;
    size_t unique = 0; /* an edge that is stored twice counts once */
    for (size_t i = 0; i < count; i++) {
        const uint32_t column = s->columns[i];
        if (column != own && (!unique || s->columns[unique - 1] != column))
            s->columns[unique++] = column;
    }
    return (int64_t)unique;
}

typedef struct {
    const bs_packet_job *job;
    int64_t *sizes;
    const int64_t *known, *starts;
    uint8_t *stream;
    size_t bytes;
    scratch *scratches;
    int status;
} work;

static void fail(work *w, int status) { __atomic_store_n(&w->status, status, __ATOMIC_RELAXED); }

static size_t head_bits(uint64_t longest, int *code)
{
    for (*code = 0; *code < 3; ++*code)
        if (longest < 1ull << (4 << *code))
            break;
    return 4u << *code;
}

static void size_chunk(void *context, size_t c, int thread)
{
    work *w = context;
    const bs_packet_job *job = w->job;
    const int64_t *chunk = job->chunks + 4 * c;
    const int64_t first = chunk[0], rows = chunk[1];
    size_t block = (size_t)chunk[2];
    const int64_t base = job->blocks[block];
    int64_t entries = job->loops ? rows : 0, left = 0;
    uint64_t units[UNITS] = {0}, longest[UNITS] = {0};
    for (int64_t row = first; row < first + rows; row++) {
        while (row >= job->blocks[block + 1])
            block++;
        const int64_t count = columns_of(job, (size_t)row, job->blocks[block], job->blocks[block + 1], base, &w->scratches[thread], &left);
        if (count < 0) {
            fail(w, count == -1 ? BS_PACKET_MEMORY : BS_PACKET_PATTERN);
            return;
        }
        const uint32_t *columns = w->scratches[thread].columns;
        uint64_t more[UNITS] = {0};
        uint32_t next = (uint32_t)bs_gaps_from((size_t)(row - base), 0, (size_t)chunk[3]);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t gap = columns[i] - next;
            next = columns[i] + 1;
            if (gap < 7) /* one unit of any width */
                continue;
            more[0] += gap / 7, more[1] += gap / 15, more[2] += gap / 31, more[3] += gap / 63;
            more[4] += gap / 127, more[5] += gap / 255, more[6] += gap / 4095, more[7] += gap / 65535;
        }
        for (int u = 0; u < UNITS; u++) {
            more[u] += (uint64_t)count;
            units[u] += more[u];
            longest[u] = more[u] > longest[u] ? more[u] : longest[u];
        }
        entries += count;
    }
    int64_t best = INT64_MAX;
    for (int u = 0; u < UNITS; u++) {
        int head;
        const size_t bits = head_bits(longest[u], &head);
        const int64_t bytes = (int64_t)(((size_t)rows * bits + 7) / 8 + (units[u] * (uint64_t)unit_bits[u] + 7) / 8);
        if (bytes < best) {
            best = bytes;
            w->sizes[4 * c + 2] = head << 3 | u;
        }
    }
    w->sizes[4 * c] = entries, w->sizes[4 * c + 1] = best, w->sizes[4 * c + 3] = left;
}

/* Writes short numbers one after another, from the lowest bit of each byte on. */
typedef struct {
    uint8_t *at, *end;
    uint64_t bits;
    int filled;
} writer;

static int put(writer *w, uint32_t value, int bits)
{
    w->bits |= (uint64_t)value << w->filled;
    w->filled += bits;
    while (w->filled >= 8) {
        if (w->at == w->end)
            return 0;
        *w->at++ = (uint8_t)w->bits;
        w->bits >>= 8, w->filled -= 8;
    }
    return 1;
}

static int put_last(writer *w) { return w->filled == 0 || put(w, 0, 8 - w->filled); }

static void encode_chunk(void *context, size_t c, int thread)
{
    work *w = context;
    const bs_packet_job *job = w->job;
    const int64_t *chunk = job->chunks + 4 * c;
    const int64_t first = chunk[0], rows = chunk[1], code = w->known[4 * c + 2];
    const int bits = unit_bits[code & 7], head = 4 << (code >> 3);
    const uint32_t full = (1u << bits) - 1;
    const size_t start = (size_t)w->starts[c], size = (size_t)w->known[4 * c + 1];
    const size_t heads = ((size_t)rows * (size_t)head + 7) / 8;
    if (w->starts[c] < 0 || start > w->bytes || size > w->bytes - start || heads > size) {
        fail(w, BS_PACKET_DAMAGED);
        return;
    }
    uint8_t *out = w->stream + start;
    writer lengths = {out, out + heads, 0, 0}, gaps = {out + heads, out + size, 0, 0};
    size_t block = (size_t)chunk[2];
    const int64_t base = job->blocks[block];
    int64_t left = 0;
    int ok = 1;
    for (int64_t row = first; row < first + rows; row++) {
        while (row >= job->blocks[block + 1])
            block++;
        const int64_t count = columns_of(job, (size_t)row, job->blocks[block], job->blocks[block + 1], base, &w->scratches[thread], &left);
        if (count < 0) {
            fail(w, count == -1 ? BS_PACKET_MEMORY : BS_PACKET_PATTERN);
            return;
        }
        const uint32_t *columns = w->scratches[thread].columns;
        uint32_t next = (uint32_t)bs_gaps_from((size_t)(row - base), 0, (size_t)chunk[3]), length = (uint32_t)count;
        for (int64_t i = 0; i < count && ok; i++) {
            uint32_t gap = columns[i] - next;
            next = columns[i] + 1;
            for (; gap >= full && ok; gap -= full, length++)
                ok = put(&gaps, full, bits);
            ok = ok && put(&gaps, gap, bits);
        }
        if (!ok || !put(&lengths, length, head))
            break;
    }
    if (!ok || !put_last(&lengths) || !put_last(&gaps) || lengths.at != lengths.end || gaps.at != gaps.end)
        fail(w, BS_PACKET_DAMAGED);
}

static int over_chunks(int threads, work *w, void (*body)(void *, size_t, int))
{
    w->status = BS_PACKET_OK;
    w->scratches = calloc((size_t)threads, sizeof *w->scratches);
    if (!w->scratches)
        return BS_PACKET_MEMORY;
    bs_parallel(body, w, w->job->chunk_count, threads);
    for (int i = 0; i < threads; i++)
        free(w->scratches[i].columns);
    free(w->scratches);
    return w->status;
}

int bs_packet_sizes(int threads, const bs_packet_job *job, int64_t *sizes)
{
    work w = {.job = job, .sizes = sizes};
    return over_chunks(threads, &w, size_chunk);
}

int bs_packet_encode(int threads, const bs_packet_job *job, const int64_t *sizes, const int64_t *starts, uint8_t *stream, size_t bytes)
{
    work w = {.job = job, .known = sizes, .starts = starts, .stream = stream, .bytes = bytes};
    return over_chunks(threads, &w, encode_chunk);
}
