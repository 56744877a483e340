// The epilogue of one octet, eight adjacent sums of a row, by a single thread: for results packed along the row, or floats.
#ifndef BITSPARSE_EPILOGUE_OCTET_CUH
#define BITSPARSE_EPILOGUE_OCTET_CUH

#include "finish/store.cuh"

// Store one byte of each plane for an octet's codes; the planes of a line are `words` words apart.
BS_INLINE void store_plane_bytes(const EpilogueParams &e, bs_u64 line, int column, u32 (&code)[8])
{
    unsigned char *to = (unsigned char *)e.out + 4 * (line * (unsigned)(e.bits * e.words)) + (column >> 3);
#pragma unroll 1
    for (int plane = 0; plane < e.bits; plane += 4) {
        const u32 bytes = plane_bytes(four_bits(code));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (plane + k < e.bits)
                *to = (unsigned char)(bytes >> 8 * k);
            to += 4 * e.words;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] >>= 4;
    }
}

// Finish eight sums of a row from `column` on, which may be in the padding of the result.
BS_INLINE void finish_octet(const EpilogueParams &e, int batch, int row, int column, float (&v)[8])
{
    const EpilogueSpot spot = {batch, row, column, 4};
    const bs_u64 line = (bs_u64)batch * (unsigned)e.m + (unsigned)row;
    const int left = e.n - column;
    u32 code[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        code[i] = 0;
    if (left > 0) {
        RowValues<false> rows;
        ColumnValues<false> columns;
        rows.load(e, spot);
        columns.load(e, spot);
        apply_chain<false, false>(e, rows, columns, spot, v);
        if (!(e.steps & kBits)) {
            store_floats(e, spot, (unsigned char *)e.out + 4 * (line * (unsigned)e.n + (unsigned)column), v);
            return;
        }
        if (!(e.steps & kQuick) || !codes_quickly(e, grid_at(e, batch, row, column), v, code))
            if (codes_exactly<false>(e, spot, v, code, 0u))
                *e.nan = 1;
        if (left < 8)
#pragma unroll
            for (int i = 0; i < 8; i++)
                code[i] = i < left ? code[i] : 0;
    } else if (!(e.steps & kBits)) {
        return;
    }
    if (e.steps & kWhole)
        store_whole<false>(e, spot, (unsigned char *)e.out + 4 * (line * (unsigned)e.words) + (bs_i64)(column >> 3) * e.bits, code);
    else if (column >> 3 < 4 * e.words)
        store_plane_bytes(e, line, column, code);
}

#endif
