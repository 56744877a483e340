/* Edge sampling and sums over sampled (or all) edges. Buffer sizes have been checked; the pattern is checked here, row by row. */
#ifndef BITSPARSE_DRIVE_SAMPLE_H
#define BITSPARSE_DRIVE_SAMPLE_H

#include "drivers/csr.h"
#include "simd/gather_kernels.h"

/* AES-SpMM's adaptive sampling, ES-SpMM's accuracy-first and speed-first sampling, one random edge per stratum; or every edge. */
enum bs_strategy { BS_SAMPLE_AES, BS_SAMPLE_AFS, BS_SAMPLE_SFS, BS_SAMPLE_UNIFORM, BS_SAMPLE_ALL, BS_STRATEGIES };

typedef struct {
    int strategy;
    int64_t width;
    uint64_t seed;
    uint32_t stream;
} bs_sampler;

/* Counts the sampled edges of each row (repeats included). 0 if indptr is not valid. */
int bs_sample_counts(int threads, const bs_csr *a, const bs_sampler *s, int64_t *counts);
/* Edge numbers, row after row; `starts` (rows + 1) are the running sums of the counts. 0 if indptr or starts are not valid. */
int bs_sample_edges(int threads, const bs_csr *a, const bs_sampler *s, const int64_t *starts, size_t total, int64_t *edges);

typedef struct {
    bs_csr csr;
    bs_sampler sampler;
    bs_features x;
    /* float, or double with double features; NULL where absent: weight = value * col_scale */
    const void *values, *col_scale, *row_scale;
    int rescale, mean; /* times row_nnz / samples; divided by row_nnz (0 for empty rows) */
    void *out;         /* (rows, features) */
} bs_gather_job;

/* Computes the sums; 0 if the pattern is not valid. */
int bs_gather(int level, int threads, const bs_gather_job *job);

#endif
