/* The reductions of a row, shared by C and kernels. bitsparse/backends/reductions.py has the same table for Python; a new reduction is
 * one line here and one line there. */
#ifndef BITSPARSE_REDUCTIONS_H
#define BITSPARSE_REDUCTIONS_H

#define BS_REDUCE_SUM 0
#define BS_REDUCE_MEAN 1
#define BS_REDUCE_MAX 2
#define BS_REDUCE_MIN 3
#define BS_REDUCTIONS 4

/* Reductions from here on select one of the terms, after all factors are applied. */
#define BS_SELECTS(reduce) ((reduce) >= BS_REDUCE_MAX)
/* Whether a term replaces the current value (NaN always does), and whether the reduction starts at the lowest number. */
#define BS_TAKES(reduce, term, have) ((reduce) == BS_REDUCE_MIN ? (term) < (have) : (term) > (have))
#define BS_BEGINS_LOW(reduce) ((reduce) != BS_REDUCE_MIN)
/* FOR(..., reduction, name) for each selecting reduction. */
#define BS_FOR_SELECTIONS(FOR, ...) FOR(__VA_ARGS__, BS_REDUCE_MAX, max) FOR(__VA_ARGS__, BS_REDUCE_MIN, min)

#endif
