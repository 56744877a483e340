/* Packets read back. Whatever a packet holds, nothing is read or written beyond its bytes and its nodes. */
#ifndef BITSPARSE_READ_PACKETS_H
#define BITSPARSE_READ_PACKETS_H

#include "drivers/drive.h"
#include "drivers/packets.h"

typedef struct {
    const uint8_t *start, *end, *stream, *features;
    uint32_t *table; /* of chunks: a copy whose numbers have been checked; see bs_packet_close */
    size_t nodes, entries, chunks;
    int loops;
} bs_packet;

/* Memory of one thread: columns of rows, and their units before decoding. All zeros at first. */
typedef struct {
    uint8_t *units;
    int32_t *indices;
    size_t bytes, entries;
} bs_packet_room;

/* Opens a packet of `bytes` bytes at a multiple of 4; its head is checked, its chunks are not. Another thread may write into the packet
 * meanwhile, so head and table are copied, and streams are read once. */
int bs_packet_open(const uint8_t *packet, size_t bytes, bs_packet *p);
void bs_packet_close(bs_packet *p);
void bs_packet_room_free(bs_packet_room *room);
/* Decodes the rows of chunk c, whose columns all lie in from .. until; columns are counted from `from`. Columns go into room->indices
 * from *entry on, and *entry advances; the start and the length of each row go into indptr and counts. Rows are padded to whole fours
 * with `filler`, unless it is negative. */
int bs_packet_rows(const bs_kernels *k, const bs_packet *p, size_t c, size_t from, size_t until, int32_t filler, size_t *entry,
                   int32_t *indptr, uint32_t *counts, bs_packet_room *room);

/* A packet's rows as a CSR pattern of int32. */
int bs_packet_expand(bs_run_on on, const uint8_t *packet, size_t bytes, int32_t *indptr, size_t nodes, int32_t *indices, size_t entries);
/* Copies the first `used` bytes of `count` runs; the rest of each run of `to` becomes zero. */
void bs_copy_runs(int threads, uint8_t *to, size_t to_stride, const uint8_t *from, size_t from_stride, size_t used, size_t count);

#endif
