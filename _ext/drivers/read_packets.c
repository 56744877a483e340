/* Packets read back: their head, the rows of their chunks, their features. */
#include <stdlib.h>

#include "drivers/read_packets.h"

const int bs_packet_unit_bits[BS_PACKET_UNITS] = {3, 4, 5, 6, 7, 8, 12, 16};

int bs_packet_open(const uint8_t *packet, size_t bytes, bs_packet *p)
{
    uint32_t head[BS_PACKET_HEAD];
    *p = (bs_packet){0};
    if (bytes < sizeof head)
        return BS_PACKET_DAMAGED;
    memcpy(head, packet, sizeof head);
    if (head[6] > bytes || head[4] > head[6] || head[5] > head[6] || head[3] % 4)
        return BS_PACKET_DAMAGED;
    const size_t chunks = head[1], table = head[3];
    if (table > bytes || (chunks + 1) * BS_CHUNK_WORDS * 4 > bytes - table || head[0] > INT32_MAX || head[2] > INT32_MAX)
        return BS_PACKET_DAMAGED;
    const size_t table_bytes = (chunks + 1) * BS_CHUNK_WORDS * 4;
    uint32_t *own = malloc(table_bytes);
    if (!own)
        return BS_PACKET_MEMORY;
    memcpy(own, packet + table, table_bytes);
    *p = (bs_packet){packet, packet + head[6], packet + head[4], packet + head[5], own, head[0], head[2], chunks, (int)(head[7] & 1)};
    const uint32_t *end = own + BS_CHUNK_WORDS * chunks;
    if (own[0] == 0 && own[2] == 0 && end[0] == p->nodes && end[2] == p->entries)
        return BS_PACKET_OK;
    bs_packet_close(p);
    return BS_PACKET_DAMAGED;
}

void bs_packet_close(bs_packet *p)
{
    free(p->table);
    p->table = NULL;
}

void bs_packet_room_free(bs_packet_room *room)
{
    free(room->units);
    free(room->indices);
}

/* Grows an array to at least `wanted` items and keeps its contents. */
static int grown(void **at, size_t *room, size_t wanted, size_t item)
{
    if (wanted <= *room)
        return 1;
    const size_t size = wanted + wanted / 2;
    void *more = realloc(*at, size * item);
    if (!more)
        return 0;
    *at = more, *room = size;
    return 1;
}

/* Number `index` in a sequence of numbers of `bits` bits. */
static uint32_t get(const uint8_t *from, const uint8_t *end, size_t index, int bits)
{
    const size_t bit = index * (size_t)bits;
    uint64_t value = 0;
    from += bit / 8;
    for (int i = 0; i < 5 && from < end; i++)
        value |= (uint64_t)*from++ << 8 * i;
    return (uint32_t)(value >> bit % 8 & (bits == 32 ? UINT32_MAX : (1u << bits) - 1));
}

/* Like gaps_to_columns, for units of more than 8 bits. */
static size_t wide_gaps(const bs_gap_rows *g, const uint8_t *from, const uint8_t *end, int bits, size_t entry, int32_t *indptr,
                        int32_t *indices, uint64_t *reach)
{
    size_t unit = 0;
    *reach = 0;
    for (size_t r = 0; r < g->rows; r++) {
        const size_t row = g->row + r, until = unit + g->counts[r], begin = entry;
        indptr[r] = (int32_t)entry;
        if (g->loops)
            indices[entry++] = (int32_t)row;
        uint64_t column = bs_gaps_from(row, g->low, g->span);
        for (; unit < until; unit++) {
            const uint32_t gap = get(from, end, unit, bits);
            column += gap;
            if (gap != (uint32_t)g->full)
                indices[entry++] = (int32_t)(uint32_t)column++;
        }
        g->counts[r] = (uint32_t)(entry - begin);
        while (g->filler >= 0 && (entry - begin) % 4)
            indices[entry++] = g->filler;
        *reach = bs_max(*reach, column);
    }
    return entry;
}

int bs_packet_rows(const bs_kernels *k, const bs_packet *p, size_t c, size_t from, size_t until, int32_t filler, size_t *entry,
                   int32_t *indptr, uint32_t *counts, bs_packet_room *room)
{
    const uint32_t *chunk = p->table + BS_CHUNK_WORDS * c, *after = chunk + BS_CHUNK_WORDS;
    const size_t row0 = chunk[0], low = chunk[1], code = chunk[3] & 31;
    if (after[0] < row0 || after[0] > until || after[0] - row0 > BS_CHUNK_ROWS || after[2] < chunk[2] || low > row0 || low < from)
        return BS_PACKET_DAMAGED;
    const size_t rows = after[0] - row0;
    const int bits = bs_packet_unit_bits[code & 7], head = 4 << (code >> 3);
    const size_t start = 4 * (size_t)(chunk[3] >> 5), heads = (rows * (size_t)head + 7) / 8, bytes = (size_t)(p->end - p->stream);
    if (start > bytes || heads > bytes - start)
        return BS_PACKET_DAMAGED;
    const uint8_t *lengths = p->stream + start, *stream = lengths + heads;
    uint8_t short_counts[BS_CHUNK_ROWS + 64];
    if (head <= 8)
        k->fields_to_bytes(lengths, stream, 0, head, rows, 1, 0, short_counts);
    uint64_t units = 0;
    for (size_t r = 0; r < rows; r++)
        units += counts[r] = head <= 8 ? short_counts[r] : get(lengths, stream, r, head);
    const size_t loops = p->loops ? rows : 0;
    if (units > (size_t)(p->end - stream) * 8 / (size_t)bits)
        return BS_PACKET_DAMAGED;
    /* A kernel writes several entries at a time, before it knows which of them stay. */
    if (!grown((void **)&room->indices, &room->entries, *entry + units + loops + 3 * rows + 12, sizeof *room->indices) ||
        !grown((void **)&room->units, &room->bytes, bits <= 8 ? units + 64 : 0, 1))
        return BS_PACKET_MEMORY;
    const bs_gap_rows g = {room->units, counts, rows, row0 - from, low - from, chunk[4], (1 << bits) - 1, p->loops, filler};
    uint64_t reach = 0, entries = 0;
    if (bits <= 8) {
        k->fields_to_bytes(stream, p->end, 0, bits, units, 1, 0, room->units);
        *entry = k->gaps_to_columns(&g, *entry, indptr, room->indices, &reach);
    } else {
        *entry = wide_gaps(&g, stream, p->end, bits, *entry, indptr, room->indices, &reach);
    }
    for (size_t r = 0; r < rows; r++)
        entries += counts[r];
    return entries == after[2] - chunk[2] && reach <= until - from ? BS_PACKET_OK : BS_PACKET_DAMAGED;
}

typedef struct {
    const bs_kernels *k;
    const bs_packet *p;
    bs_packet_room *rooms;
    int32_t *indptr, *indices;
    int status;
} expansion;

static void expand_chunk(void *context, size_t c, int thread)
{
    expansion *x = context;
    const uint32_t *chunk = x->p->table + BS_CHUNK_WORDS * c, *after = chunk + BS_CHUNK_WORDS;
    int32_t starts[BS_CHUNK_ROWS];
    uint32_t counts[BS_CHUNK_ROWS];
    size_t entry = 0;
    const int status = bs_packet_rows(x->k, x->p, c, 0, x->p->nodes, -1, &entry, starts, counts, &x->rooms[thread]);
    if (status != BS_PACKET_OK || after[2] > x->p->entries) {
        __atomic_store_n(&x->status, status == BS_PACKET_OK ? BS_PACKET_DAMAGED : status, __ATOMIC_RELAXED);
        return;
    }
    for (size_t r = 0; r < after[0] - chunk[0]; r++)
        x->indptr[chunk[0] + r] = starts[r] + (int32_t)chunk[2];
    if (after[2] > chunk[2])
        memcpy(x->indices + chunk[2], x->rooms[thread].indices, (after[2] - chunk[2]) * sizeof *x->indices);
}

int bs_packet_expand(bs_run_on on, const uint8_t *packet, size_t bytes, int32_t *indptr, size_t nodes, int32_t *indices, size_t entries)
{
    bs_packet p;
    const int opened = bs_packet_open(packet, bytes, &p);
    if (opened != BS_PACKET_OK)
        return opened;
    if (p.nodes != nodes || p.entries != entries) {
        bs_packet_close(&p);
        return BS_PACKET_DAMAGED;
    }
    expansion x = {bs_table(on.level), &p, calloc((size_t)on.threads, sizeof *x.rooms), indptr, indices, BS_PACKET_OK};
    if (!x.rooms) {
        bs_packet_close(&p);
        return BS_PACKET_MEMORY;
    }
    indptr[nodes] = (int32_t)entries;
    bs_parallel(expand_chunk, &x, p.chunks, on.threads);
    for (int i = 0; i < on.threads; i++)
        bs_packet_room_free(&x.rooms[i]);
    free(x.rooms);
    bs_packet_close(&p);
    return x.status;
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
