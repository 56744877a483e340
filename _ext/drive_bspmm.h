/* Drivers of one-bit aggregation. Buffer sizes have been checked; the pattern is checked here, row by row. */
#ifndef BITSPARSE_DRIVE_BSPMM_H
#define BITSPARSE_DRIVE_BSPMM_H

#include "bspmm_kernels.h"

/* 1, or 0 if the pattern (or a class of rows) is not valid; the output is then unspecified. */
int bs_bspmm_count(int level, int threads, const bs_bspmm_job *job);
int bs_bspmm_sign(int level, int threads, const bs_bspmm_job *job);

#endif
