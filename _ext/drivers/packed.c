/* Copies tiles and rows of codes to and from packed words. */
#include "drivers/packed.h"

BS_FN size_t round_up(size_t n, size_t multiple) { return bs_ceil_div(n, multiple) * multiple; }

BS_FN uint32_t *outer_words(const bs_packed *p, size_t batch, size_t outer)
{
    return p->words + (batch * bs_packed_outer(p) + outer) * bs_packed_stride(p);
}

/* Number of words of n elements of one outer index, padding of the group included. */
BS_FN size_t field_words(const bs_packed *p, size_t n) { return round_up(n * (size_t)p->bits, 128) / 32; }

static void put_line(const bs_kernels *k, const bs_packed *p, uint32_t *line, size_t e0, size_t n, const uint32_t *codes)
{
    if (p->layout == BS_PLANES)
        k->pack_planes(codes, round_up(n, 128) / 32, p->bits, line + e0 / 32, bs_packed_width(p));
    else
        k->pack_fields(codes, field_words(p, n), p->bits, line + e0 * (size_t)p->bits / 32);
}

static void get_line(const bs_kernels *k, const bs_packed *p, const uint32_t *line, size_t e0, size_t n, uint32_t *codes)
{
    if (p->layout == BS_PLANES)
        k->unpack_planes(line + e0 / 32, bs_packed_width(p), round_up(n, 128) / 32, p->bits, codes);
    else
        k->unpack_fields(line + e0 * (size_t)p->bits / 32, field_words(p, n), p->bits, codes);
}

void bs_put_row(const bs_kernels *k, const bs_packed *p, size_t batch, size_t row, size_t c0, size_t n, const uint32_t *codes)
{
    put_line(k, p, outer_words(p, batch, row), c0, n, codes);
}

void bs_get_row(const bs_kernels *k, const bs_packed *p, size_t batch, size_t row, size_t c0, size_t n, uint32_t *codes)
{
    get_line(k, p, outer_words(p, batch, row), c0, n, codes);
}

void bs_put_tile(const bs_kernels *k, const bs_packed *p, size_t batch, size_t r0, size_t c0, size_t rows, size_t cols,
                 const uint32_t *tile)
{
    if (p->axis == -1) {
        for (size_t r = 0; r < rows; r++)
            bs_put_row(k, p, batch, r0 + r, c0, cols, tile + r * BS_TILE);
        return;
    }
    uint32_t *line = outer_words(p, batch, c0);
    if (p->layout == BS_PLANES) {
        k->pack_columns(tile, rows, cols, p->bits, line + r0 / 32, bs_packed_width(p));
        return;
    }
    uint32_t column[BS_TILE];
    for (size_t c = 0; c < cols; c++) {
        for (size_t r = 0; r < BS_TILE; r++)
            column[r] = r < rows ? tile[r * BS_TILE + c] : 0;
        put_line(k, p, line + c * bs_packed_stride(p), r0, rows, column);
    }
}

void bs_get_tile(const bs_kernels *k, const bs_packed *p, size_t batch, size_t r0, size_t c0, size_t rows, size_t cols, uint32_t *tile)
{
    if (p->axis == -1) {
        for (size_t r = 0; r < rows; r++)
            bs_get_row(k, p, batch, r0 + r, c0, cols, tile + r * BS_TILE);
        return;
    }
    uint32_t *line = outer_words(p, batch, c0);
    if (p->layout == BS_PLANES) {
        k->unpack_columns(line + r0 / 32, bs_packed_width(p), rows, cols, p->bits, tile);
        return;
    }
    uint32_t column[BS_TILE];
    for (size_t c = 0; c < cols; c++) {
        get_line(k, p, line + c * bs_packed_stride(p), r0, rows, column);
        for (size_t r = 0; r < rows; r++)
            tile[r * BS_TILE + c] = column[r];
    }
}
