/* Steps of low-bit networks on codes in bytes: each node has a row of `stride` bytes (a multiple of 16, with zeros after its codes). */
#ifndef BITSPARSE_BYTES_H
#define BITSPARSE_BYTES_H

#include "drivers/matmul.h"

#define BS_BYTES_LONGEST 512 /* the most columns of a step */

BS_FN size_t bs_bytes_width(size_t columns) { return bs_ceil_div(columns, 16) * 16; }

/* A chain of few operations, with the vectors over columns prepared; see bs_lines. */
typedef struct {
    int simple;
    float columns[3][BS_BYTES_LONGEST];
} bs_bytes_chain;

/* Prepares what bs_bytes_rows needs to know of a step, whatever rows it computes; operands of rows must have their strides already. */
void bs_bytes_prepare(bs_run_on on, const bs_epilogue *e, bs_bytes_chain *chain);
/* Rows first .. last of a step; e->out begins with row 0. */
void bs_bytes_rows(bs_run_on on, const bs_bytes_step *s, bs_epilogue *e, const bs_bytes_chain *chain, size_t first, size_t last);
enum bs_bytes_status { BS_BYTES_OK, BS_BYTES_PATTERN, BS_BYTES_MEMORY };

/* Writes into e->out: floats without gaps (BS_RESULT_FLOAT), or bytes in rows of whole blocks of 16 (BS_RESULT_BYTES). One batch; `nnz`
 * edges if there are no panels. Returns one of bs_bytes_status; unless it is BS_BYTES_OK, the output is unspecified. */
int bs_bytes_run(bs_run_on on, const bs_bytes_step *s, size_t nnz, bs_epilogue *e);

#endif
