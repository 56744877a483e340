/* A whole network over a packet, piece by piece: no edge leaves a piece, so the piece goes through all layers while it is in the caches.
 * The operands of rows are computed here, from the degrees. */
#ifndef BITSPARSE_NETWORK_H
#define BITSPARSE_NETWORK_H

#include "drivers/bytes.h"
#include "drivers/read_packets.h"

#define BS_PIECE_ROWS (1 << 16) /* a piece has fewer rows: int32 holds sums of this many products of bytes */

enum bs_normalisation { BS_SUM, BS_GCN };
/* The vector over the rows in a layer's epilogue: the factor of a node's sum and of its messages, or the weight of all edges of a row. */
enum bs_row_vector { BS_NO_VECTOR, BS_FACTOR, BS_DEGREES };

typedef struct {
    bs_bytes_step step; /* with or without panels; everything except k is set for each piece */
    bs_epilogue e;      /* operands of the columns; bytes, or floats in the last layer */
    bs_bytes_chain chain;
    int scale, row_term, col_term; /* bs_row_vector */
} bs_layer;

typedef struct {
    bs_packet packet;
    int normalisation;
    size_t columns; /* of the features */
    int bits, planes;
    size_t run; /* bytes of one plane of a row, or of a whole row */
    bs_layer *layers;
    size_t count;
    const int32_t *places; /* where each node's floats go in the last layer's e.out */
    int found_nan;
} bs_network;

/* Returns one of bs_packet_status. */
int bs_network_run(bs_run_on on, bs_network *n);

#endif
