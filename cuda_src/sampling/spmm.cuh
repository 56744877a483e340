// Parameters of sums over sampled edges, and the chunk of samples that a group of lanes has drawn.
#ifndef BITSPARSE_SAMPLE_SPMM_CUH
#define BITSPARSE_SAMPLE_SPMM_CUH

#include "csr/units.cuh"
#include "sampling/draw.cuh"
#include "sampling/sums.cuh"

#ifndef BS_THREADS
#define BS_THREADS 128
#endif
// BS_BLOCKS: blocks per multiprocessor, which limits the registers of a thread.

struct SampleSpmmParams {
    Streams streams; // streams of the samples; the walk does not need their columns
    Units units;
    Sampler sampler;
    CodeMap codes;
    const Index *indptr, *indices;   // of the pattern; indices may be null: edge e lies in column e
    const void *x;                   // (columns of the pattern, vectors), rows row_bytes apart
    void *out;                       // (rows, features) Out
    const Real *values, *col_scale;  // of the pattern's edges, of its columns, or null
    const Real *factors, *row_scale; // what the sum of a row is multiplied by, or null
    RowSum *partial;                 // (pieces, slices, BS_LANES)
    int *arrived;                    // (pieces, slices, BS_LANES), as in spmm/csr.cu
    unsigned vectors, row_bytes, out_bytes;
    int slices, features;
    int whole; // whether rows of the result consist of whole, aligned vectors
};

// How many samples a group draws at a time, at most 32. Each lane draws BS_OWN of them: number `lane`, `lane` + BS_LANES, ...
#ifndef BS_CHUNK
#define BS_CHUNK (BS_LANES > BS_U ? BS_LANES : BS_U)
#endif
#define BS_OWN (BS_CHUNK / BS_LANES)

// The samples of a chunk that a lane has drawn; `ends` has a bit for each sample of the group that is the last of its row.
struct Chunk {
    Index column[BS_OWN], row[BS_OWN];
    unsigned ends;
#if BS_WEIGHTS
    Real weight[BS_OWN];
#endif
#if BS_WEIGHTS == 2
    float offset[BS_OWN];
#endif
};

#endif
