/* Packets: parts of a graph in one piece of memory that travels to a device. Buffer sizes have been checked; the pattern is checked
 * here. */
#ifndef BITSPARSE_DRIVE_PACKETS_H
#define BITSPARSE_DRIVE_PACKETS_H

#include "drivers/csr.h"

/* A packet encodes its rows in chunks of at most this many rows. */
#define BS_CHUNK_ROWS 256
#define BS_PACKET_HEAD 8 /* words: nodes, chunks, entries, where chunks, stream and features start (bytes), bytes in all, flags */
#define BS_CHUNK_WORDS 5 /* first row, first column, first entry, (stream offset / 4) << 5 | code, span */

/* The possible widths of a chunk's units, in bits; the low three bits of its code say which one. */
#define BS_PACKET_UNITS 8
extern const int bs_packet_unit_bits[BS_PACKET_UNITS];

enum bs_packet_status { BS_PACKET_OK, BS_PACKET_MEMORY, BS_PACKET_PATTERN, BS_PACKET_DAMAGED };

typedef struct {
    bs_csr csr;
    const int32_t *order, *place; /* the node with each new number, and the reverse */
    const int64_t *blocks; /* where blocks start, in new numbers; an edge stays if both its ends are in one block */
    size_t block_count;
    const int64_t *chunks; /* (count, 4): first row, rows, block of the first row, span: nodes of the largest block */
    size_t chunk_count;
    int loops; /* edges from a node to itself are left out: the device adds one to every row */
} bs_packet_job;

/* (count, 4) per chunk: entries (loops included), bytes of the stream, code, edges that left. */
int bs_packet_sizes(int threads, const bs_packet_job *job, int64_t *sizes);
/* Writes the streams, each from `starts[chunk]` on, with the sizes and codes in `sizes`. */
int bs_packet_encode(int threads, const bs_packet_job *job, const int64_t *sizes, const int64_t *starts, uint8_t *stream, size_t bytes);

#endif
