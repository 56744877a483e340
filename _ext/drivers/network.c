/* A network over a packet: see drivers/network.h. */
#include <stdlib.h>

#include "drivers/network.h"

#define FACTORS 512 /* degrees whose factors are in a table */
#define SLACK 64    /* bytes that may be written after the last row of codes */

typedef struct {
    bs_packet_room packet;
    uint8_t *memory; /* holds all that follows, for `nodes` nodes */
    size_t nodes;
    uint8_t *codes[2];
    int32_t *indptr; /* rows are padded to whole fours of entries with the number of a row of zeros */
    uint32_t *degrees;
    float *vectors[BS_DEGREES + 1];
} network_room;

typedef struct {
    bs_run_on on;
    const bs_kernels *k;
    bs_network *n;
    size_t stride; /* of the widest rows of codes */
    const uint32_t *first_chunk;
    network_room *rooms;
    float factors[FACTORS];
    int status;
} network_job;

/* D^-1/2 as in bitsparse.graph.Graph, 0 if there is no edge. */
static float factor_of(size_t degree) { return degree ? (float)(1.0 / __builtin_sqrt((double)degree)) : 0.0f; }

static float factor(const network_job *j, size_t degree) { return degree < FACTORS ? j->factors[degree] : factor_of(degree); }

/* Reserves memory for `nodes` nodes; 0 if there is not enough. */
static int reserve(network_room *r, size_t nodes, size_t stride)
{
    if (nodes <= r->nodes)
        return 1;
    const size_t room = nodes + nodes / 4 + 16, codes = (room + 1) * stride + SLACK, words = (room + 16) * 4;
    free(r->memory);
    r->nodes = 0;
    r->memory = malloc(2 * codes + (2 + BS_DEGREES) * words);
    if (!r->memory)
        return 0;
    uint8_t *at = r->memory;
    r->codes[0] = at, at += codes;
    r->codes[1] = at, at += codes;
    r->indptr = (int32_t *)at, at += words;
    r->degrees = (uint32_t *)at, at += words;
    for (int i = BS_FACTOR; i <= BS_DEGREES; i++, at += words)
        r->vectors[i] = (float *)at;
    r->nodes = room;
    return 1;
}

/* Computes the vectors over a piece's rows, as defined by Graph and the terms of the epilogue. */
static void make_vectors(const network_job *j, network_room *r, size_t nodes)
{
    for (size_t i = 0; i < nodes; i++) {
        const size_t degree = r->degrees[i];
        const float scale = j->n->normalisation == BS_SUM ? 1.0f : factor(j, degree);
        r->vectors[BS_FACTOR][i] = scale;
        r->vectors[BS_DEGREES][i] = (float)((double)degree * (double)scale);
    }
}

static void load_features(const network_job *j, const network_room *r, size_t first, size_t nodes)
{
    const bs_network *n = j->n;
    const size_t row_bytes = n->run * (n->planes ? (size_t)n->bits : 1);
    const uint8_t *from = n->packet.features + first * row_bytes;
    (n->planes ? j->k->planes_to_bytes : j->k->fields_to_bytes)(from, n->packet.end, n->run, n->bits, n->columns, nodes,
                                                                bs_bytes_width(n->columns), r->codes[0]);
}

static void put_vector(bs_operand *o, const network_room *r, int which)
{
    if (which != BS_NO_VECTOR)
        *o = (bs_operand){r->vectors[which], 0, 1, 0};
}

static int run_layers(network_job *j, network_room *r, size_t first, size_t nodes)
{
    size_t stride = bs_bytes_width(j->n->columns);
    int found_nan = 0;
    for (size_t i = 0; i < j->n->count; i++) {
        const bs_layer *layer = &j->n->layers[i];
        bs_bytes_step s = layer->step;
        bs_epilogue e = layer->e;
        s.x = r->codes[i % 2], s.stride = stride;
        s.indptr = r->indptr, s.indices = r->packet.indices;
        s.most = i ? (int)j->n->layers[i - 1].e.quantizer.qmax : (1 << j->n->bits) - 1;
        if (!s.panels)
            memset(r->codes[i % 2] + nodes * stride, 0, stride);
        put_vector(&e.row_scale, r, layer->scale);
        put_vector(&e.row_term[0], r, layer->row_term);
        put_vector(&e.col_term[0], r, layer->col_term);
        if (i + 1 < j->n->count)
            e.out = r->codes[(i + 1) % 2];
        else
            s.places = j->n->places + first;
        bs_bytes_rows(j->on, &s, &e, &layer->chain, 0, nodes);
        found_nan |= e.found_nan;
        stride = bs_bytes_width(e.cols);
    }
    return found_nan;
}

static int run_piece(network_job *j, size_t unit, network_room *r)
{
    const bs_packet *p = &j->n->packet;
    const size_t c0 = j->first_chunk[unit], c1 = j->first_chunk[unit + 1];
    const size_t first = p->table[BS_CHUNK_WORDS * c0], last = p->table[BS_CHUNK_WORDS * c1];
    if (last < first || last > p->nodes || last - first >= BS_PIECE_ROWS)
        return BS_PACKET_DAMAGED;
    if (last == first)
        return BS_PACKET_OK;
    if (!reserve(r, last - first, j->stride))
        return BS_PACKET_MEMORY;
    const int32_t zeros = (int32_t)(last - first); /* the number of a row that is all zeros */
    size_t entry = 0;
    for (size_t c = c0; c < c1; c++) {
        const size_t row = p->table[BS_CHUNK_WORDS * c];
        if (row < first || row > last)
            return BS_PACKET_DAMAGED;
        const int status =
            bs_packet_rows(j->k, p, c, first, last, zeros, &entry, r->indptr + (row - first), r->degrees + (row - first), &r->packet);
        if (status != BS_PACKET_OK)
            return status;
    }
    r->indptr[last - first] = (int32_t)entry;
    make_vectors(j, r, last - first);
    load_features(j, r, first, last - first);
    if (run_layers(j, r, first, last - first))
        __atomic_store_n(&j->n->found_nan, 1, __ATOMIC_RELAXED);
    return BS_PACKET_OK;
}

static void network_unit(void *context, size_t unit, int thread)
{
    network_job *j = context;
    const int status = run_piece(j, unit, &j->rooms[thread]);
    if (status != BS_PACKET_OK)
        __atomic_store_n(&j->status, status, __ATOMIC_RELAXED);
}

/* Finds the chunks at which pieces begin, namely those that begin with their block; returns how many there are. */
static size_t find_pieces(const bs_packet *p, uint32_t *first_chunk)
{
    size_t pieces = 0;
    for (size_t c = 0; c < p->chunks; c++)
        if (!c || p->table[BS_CHUNK_WORDS * c + 1] == p->table[BS_CHUNK_WORDS * c])
            first_chunk[pieces++] = (uint32_t)c;
    first_chunk[pieces] = (uint32_t)p->chunks;
    return pieces;
}

int bs_network_run(bs_run_on on, bs_network *n)
{
    network_job j = {.on = on, .k = bs_table(on.level), .n = n, .stride = bs_bytes_width(n->columns), .status = BS_PACKET_OK};
    uint32_t *first_chunk = malloc((n->packet.chunks + 1) * sizeof *first_chunk);
    j.rooms = calloc((size_t)on.threads, sizeof *j.rooms);
    if (first_chunk && j.rooms) {
        for (size_t i = 0; i < n->count; i++) {
            j.stride = bs_max(j.stride, bs_bytes_width(n->layers[i].e.cols));
            bs_bytes_prepare(on, &n->layers[i].e, &n->layers[i].chain);
        }
        for (size_t degree = 0; degree < FACTORS; degree++)
            j.factors[degree] = factor_of(degree);
        j.first_chunk = first_chunk;
        bs_parallel(network_unit, &j, find_pieces(&n->packet, first_chunk), on.threads);
        for (int i = 0; i < on.threads; i++) {
            bs_packet_room_free(&j.rooms[i].packet);
            free(j.rooms[i].memory);
        }
    } else {
        j.status = BS_PACKET_MEMORY;
    }
    free(first_chunk);
    free(j.rooms);
    return j.status;
}
