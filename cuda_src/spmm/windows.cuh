// Windows of eight rows with the columns that occur in them; the float32 product on the CUDA cores reads these if rows share columns.
#ifndef BITSPARSE_SPMM_WINDOWS_CUH
#define BITSPARSE_SPMM_WINDOWS_CUH

#include "csr/streams.cuh"

#define BS_ROWS 8  // rows of a window, one bit of an entry's mask for each
#define BS_BATCH 4 // entries whose gathers are in flight; units are padded to whole batches

// A column and a mask of the rows of the window that have an edge to it. Entries that pad a batch repeat a column and have an empty mask.
struct WindowEntry {
    bs_u32 column, rows;
};

// A window, or a part of one with many columns.
struct WindowUnit {
    bs_u32 window, entry, batches; // number of the window, of its first entry, and how many batches of entries follow
    int slot;                      // where the sums of the part go, or -1 for a whole window
    int parts, part;               // how many parts the window has, and which one this is
};

#endif
