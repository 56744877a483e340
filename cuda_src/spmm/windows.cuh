// Windows of eight rows and the columns that occur in them: what the float32 product on the CUDA cores reads where rows share columns.
#ifndef BITSPARSE_SPMM_WINDOWS_CUH
#define BITSPARSE_SPMM_WINDOWS_CUH

#include "csr/streams.cuh"

#define BS_ROWS 8  // of a window: one bit of an entry's mask each
#define BS_BATCH 4 // entries whose gathers are in flight; units are filled up to whole batches

// A column and the rows of the window that have it. Entries that fill up a batch repeat a column and have no rows.
struct WindowEntry {
    bs_u32 column, rows;
};

// A window, or a part of one with many columns.
struct WindowUnit {
    bs_u32 window, entry, batches; // the first entry
    int slot;                      // of the part's sums, or -1
    int parts, part;               // how many parts the window has, and which this is
};

#endif
