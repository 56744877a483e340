/* Drivers of one-bit aggregation. Buffer sizes have been checked; the pattern is checked here, row by row. */
#ifndef BITSPARSE_DRIVE_BSPMM_H
#define BITSPARSE_DRIVE_BSPMM_H

#include "simd/bspmm_kernels.h"

/* One of bs_bspmm_status; unless it is BS_BSPMM_OK, the output is unspecified. */
int bs_bspmm_count(int level, int threads, const bs_bspmm_job *job);
int bs_bspmm_sign(int level, int threads, const bs_bspmm_job *job);

#endif
