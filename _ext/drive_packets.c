/* Gaps between the sorted columns of every row, in units of 3 to 16 bits; all ones in a unit add its value and stand for no entry. */
#include <stdlib.h>
#include <string.h>

#include "drive_packets.h"
#include "parallel.h"

#define UNITS 8
static const int unit_bits[UNITS] = {3, 4, 5, 6, 7, 8, 12, 16};

typedef struct {
    uint32_t *columns;
    size_t room;
} scratch;

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The local numbers of columns that stay, one after the other; how many. The largest column is left in *largest. Without branches: which
 * edges stay cannot be foretold. */
#define GATHER(name, type)                                                                                                               \
    static size_t name(const type *columns, size_t count, size_t nodes, const int32_t *place, int64_t low, int64_t high, int64_t base,   \
                       uint32_t *to, uint64_t *largest)                                                                                  \
    {                                                                                                                                    \
        size_t kept = 0;                                                                                                                 \
        uint64_t most = 0;                                                                                                               \
        for (size_t e = 0; e < count; e++) {                                                                                             \
            const uint64_t column = (uint64_t)columns[e];                                                                                \
            const int64_t c = column < nodes ? place[column] : -1;                                                                       \
            most = column > most ? column : most;                                                                                        \
            to[kept] = (uint32_t)(c - base);                                                                                             \
            kept += (c >= low) & (c < high);                                                                                             \
        }                                                                                                                                \
        *largest = most;                                                                                                                 \
        return kept;                                                                                                                     \
    }
GATHER(gather_narrow, int32_t)
GATHER(gather_wide, int64_t)

/* Columns of a row that stay, counted from `base` on and ascending; -1 without memory, -2 if the pattern is not valid. */
static int64_t columns_of(const bs_packet_job *job, size_t row, int64_t low, int64_t high, int64_t base, scratch *s, int64_t *left)
{
    const bs_csr *a = &job->csr;
    const size_t node = (size_t)job->order[row];
    if (node >= a->rows || !bs_rows_ordered(a, node, node + 1))
        return -2;
    const size_t first = (size_t)bs_row_start(a, node), last = (size_t)bs_row_start(a, node + 1);
    if (last - first >= s->room) {
        const size_t room = bs_max(2 * s->room, last - first + 64);
        uint32_t *more = realloc(s->columns, room * sizeof *more);
        if (!more)
            return -1;
        s->columns = more, s->room = room;
    }
    uint64_t largest;
    const size_t count = a->wide ? gather_wide((const int64_t *)a->indices + first, last - first, a->cols, job->place, low, high, base, s->columns, &largest)
                                 : gather_narrow((const int32_t *)a->indices + first, last - first, a->cols, job->place, low, high, base, s->columns, &largest);
    if (last > first && largest >= a->cols)
        return -2;
    *left += (int64_t)(last - first - count);
    int sorted = 1;
    for (size_t i = 1; i < count; i++)
        sorted &= s->columns[i - 1] <= s->columns[i];
    if (!sorted)
        qsort(s->columns, count, sizeof *s->columns, by_value);
    const uint32_t own = job->loops ? (uint32_t)((int64_t)row - base) : UINT32_MAX;
    size_t unique = 0; /* an edge that is stored twice is one */
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

static void fail(work *w, int status)
{
    __atomic_store_n(&w->status, status, __ATOMIC_RELAXED);
}

static size_t head_bits(uint64_t longest, int *code)
{
    for (*code = 0; *code < 3; ++*code)
        if (longest < 1ull << (4 << *code))
            break;
    return 4u << *code;
}

/* A row's first gap is counted from a column that its block cannot begin before. */
static uint32_t gaps_from(int64_t row, int64_t span)
{
    return row + 1 > span ? (uint32_t)(row + 1 - span) : 0;
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
        uint32_t next = gaps_from(row - base, chunk[3]);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t gap = columns[i] - next;
            next = columns[i] + 1;
            if (gap < 7) /* one unit of any size */
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

/* Numbers of few bits one after the other, from the lowest bit of each byte on. */
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

static int put_last(writer *w)
{
    return w->filled == 0 || put(w, 0, 8 - w->filled);
}

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
        uint32_t next = gaps_from(row - base, chunk[3]), length = (uint32_t)count;
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

int bs_packet_encode(int threads, const bs_packet_job *job, const int64_t *sizes, const int64_t *starts, uint8_t *stream,
                     size_t bytes)
{
    work w = {.job = job, .known = sizes, .starts = starts, .stream = stream, .bytes = bytes};
    return over_chunks(threads, &w, encode_chunk);
}

typedef struct {
    const uint8_t *packet;
    size_t bytes, nodes, entries, chunks, stream;
    const uint32_t *table;
    int32_t *indptr, *indices;
    int loops, status;
} opening;

/* Number `index` of so many bits each; bytes from `size` on are not read. */
static uint32_t get(const uint8_t *from, size_t size, size_t index, int bits)
{
    const size_t bit = index * (size_t)bits, at = bit / 8;
    uint64_t value = 0;
    for (size_t i = 0; i < 5 && at + i < size; i++)
        value |= (uint64_t)from[at + i] << 8 * i;
    return (uint32_t)(value >> bit % 8 & (bits == 32 ? UINT32_MAX : (1u << bits) - 1));
}

/* Whether the chunk's rows agree with the packet's sizes; nothing is read or written beyond them. */
static int expand_chunk_rows(opening *o, size_t c)
{
    const uint32_t *chunk = o->table + BS_CHUNK_WORDS * c, *after = chunk + BS_CHUNK_WORDS;
    const size_t row0 = chunk[0], entry0 = chunk[2], last = after[2], code = chunk[3] & 31;
    if (after[0] < row0 || after[0] > o->nodes || after[0] - row0 > BS_CHUNK_ROWS || last < entry0 || last > o->entries)
        return 0;
    const size_t rows = after[0] - row0, base = chunk[1];
    if (base > row0)
        return 0;
    const int bits = unit_bits[code & 7], head = 4 << (code >> 3);
    const uint32_t full = (1u << bits) - 1;
    const size_t start = o->stream + 4 * (size_t)(chunk[3] >> 5), heads = (rows * (size_t)head + 7) / 8;
    if (start > o->bytes || heads > o->bytes - start)
        return 0;
    const uint8_t *from = o->packet + start, *units = from + heads;
    const size_t size = o->bytes - start - heads, room = size * 8 / (size_t)bits;
    size_t entry = entry0, unit = 0;
    for (size_t r = 0; r < rows; r++) {
        const size_t count = get(from, heads, r, head), until = unit + count;
        if (until > room)
            return 0;
        o->indptr[row0 + r] = (int32_t)entry;
        if (o->loops) {
            if (entry == last)
                return 0;
            o->indices[entry++] = (int32_t)(row0 + r);
        }
        uint64_t column = base + gaps_from((int64_t)(row0 + r) - (int64_t)base, chunk[4]);
        for (; unit < until; unit++) {
            const uint32_t gap = get(units, size, unit, bits);
            column += gap;
            if (gap == full)
                continue;
            if (entry == last || column >= o->nodes)
                return 0;
            o->indices[entry++] = (int32_t)column++;
        }
    }
    return entry == last;
}

static void expand_chunk(void *context, size_t c, int thread)
{
    opening *o = context;
    (void)thread;
    if (!expand_chunk_rows(o, c))
        __atomic_store_n(&o->status, BS_PACKET_DAMAGED, __ATOMIC_RELAXED);
}

int bs_packet_expand(int threads, const uint8_t *packet, size_t bytes, int32_t *indptr, size_t nodes, int32_t *indices,
                     size_t entries)
{
    const uint32_t *head = (const uint32_t *)packet;
    if (bytes < 4 * BS_PACKET_HEAD || head[0] != nodes || head[2] != entries || head[6] > bytes || head[4] > bytes || head[3] % 4)
        return BS_PACKET_DAMAGED;
    const size_t chunks = head[1], table = head[3];
    if (table > bytes || (chunks + 1) * BS_CHUNK_WORDS * 4 > bytes - table)
        return BS_PACKET_DAMAGED;
    opening o = {packet, head[6], nodes, entries, chunks, head[4], (const uint32_t *)(packet + table), indptr, indices,
                 (int)(head[7] & 1), BS_PACKET_OK};
    const uint32_t *end = o.table + BS_CHUNK_WORDS * chunks;
    if (o.table[0] != 0 || o.table[2] != 0 || end[0] != nodes || end[2] != entries)
        return BS_PACKET_DAMAGED;
    indptr[nodes] = (int32_t)entries;
    bs_parallel(expand_chunk, &o, chunks, threads);
    return o.status;
}

#define RUNS 1024

typedef struct {
    uint8_t *to;
    const uint8_t *from;
    size_t to_stride, from_stride, used, count;
} runs;

static void copy_some(void *context, size_t unit, int thread)
{
    const runs *r = context;
    (void)thread;
    const size_t last = bs_min(r->count, (unit + 1) * RUNS);
    for (size_t i = unit * RUNS; i < last; i++) {
        memcpy(r->to + i * r->to_stride, r->from + i * r->from_stride, r->used);
        memset(r->to + i * r->to_stride + r->used, 0, r->to_stride - r->used);
    }
}

void bs_copy_runs(int threads, uint8_t *to, size_t to_stride, const uint8_t *from, size_t from_stride, size_t used, size_t count)
{
    runs r = {to, from, to_stride, from_stride, used, count};
    bs_parallel(copy_some, &r, bs_ceil_div(count, RUNS), threads);
}
