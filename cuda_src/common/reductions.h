/* The reductions of a row, for C and for kernels: bitsparse/backends/reductions.py has the same table for Python. A new one is a line here
 * and a line there. */
#ifndef BITSPARSE_REDUCTIONS_H
#define BITSPARSE_REDUCTIONS_H

#define BS_REDUCE_SUM 0
#define BS_REDUCE_MEAN 1
#define BS_REDUCE_MAX 2
#define BS_REDUCTIONS 3

/* From here on a reduction takes one of its terms, after all factors. */
#define BS_SELECTS(reduce) ((reduce) >= BS_REDUCE_MAX)
/* Whether a term takes the place of what is there (NaN always does), and whether it begins with the lowest of all numbers. */
#define BS_TAKES(reduce, term, have) ((term) > (have))
#define BS_BEGINS_LOW(reduce) 1
/* FOR(..., reduction, name) for each of these. */
#define BS_FOR_SELECTIONS(FOR, ...) FOR(__VA_ARGS__, BS_REDUCE_MAX, max)

#endif
