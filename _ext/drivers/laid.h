/* Columns of x side by side in memory of their own. Gathers from there find more in the caches than from rows of all columns: rows begin on
 * lines, lie on fewer and larger pages, and a factor is multiplied in once a row and not once an edge. */
#ifndef BITSPARSE_LAID_H
#define BITSPARSE_LAID_H

#include "drivers/sparse.h"

#define BS_LAID_ROWS 256 /* by one unit of work */

/* How many columns are laid side by side at a time, of `most` that the kernels take at once; 0 where x is better gathered as it lies. */
size_t bs_laid_columns(const bs_csr *a, const bs_spmm_job *job, size_t most);
/* From row to row of so many columns: whole lines, or what divides one. */
size_t bs_laid_stride(size_t columns);

/* Room for so many bytes, which begins on a line; NULL if there is no memory. Large room is on large pages. */
unsigned char *bs_laid_take(size_t bytes);
/* Give it back: one piece is kept for the next call. */
void bs_laid_give(unsigned char *room);

#endif
