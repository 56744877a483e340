/* Columns of x side by side in memory of their own: when, and in which memory. */
#include "drivers/aligned.h"
#include "drivers/laid.h"

/* x that is smaller lies in a core's own cache; columns laid side by side as wide as kernels go take no more than IN_CACHE, which leaves room
 * in the last-level cache; those of more nodes were not measured; and the largest room that is kept. */
static const size_t SMALLEST = (size_t)1 << 18, IN_CACHE = (size_t)8 << 20, LARGEST = (size_t)64 << 20, KEPT = (size_t)16 << 20;

/* In front of the room, on lines of its own. */
typedef union {
    size_t bytes;
    unsigned char lines[2 * BS_LINE];
} header;

static header *kept; /* exchanged atomically, so that nobody else has it */

size_t bs_laid_stride(size_t columns)
{
    const size_t bytes = columns * sizeof(float);
    return bytes > BS_LINE / 2 ? bs_ceil_div(bytes, BS_LINE) * BS_LINE : bytes > BS_LINE / 4 ? BS_LINE / 2 : BS_LINE / 4;
}

size_t bs_laid_columns(const bs_csr *a, const bs_spmm_job *j, size_t most)
{
    /* Weights that are written down for the edges of a unit would be written for every slice. */
    if (j->load != BS_X_F32 || j->heads != 1 || j->attention || (j->values && j->col_scale) || a->cols == 0)
        return 0;
    const size_t fit = bs_max(2, IN_CACHE / BS_LINE / a->cols) * (BS_LINE / sizeof(float)), columns = bs_min(most, fit);
    if (a->cols * j->row_bytes < SMALLEST || a->cols * bs_laid_stride(bs_min(columns, j->width)) > LARGEST)
        return 0;
    /* Below so many edges a column a copy takes longer than it saves; and so it does where all columns are one slice, unless of factors. */
    const size_t edges = 8;
    return a->nnz / a->cols >= edges && (j->col_scale || j->width > columns) ? columns : 0;
}

unsigned char *bs_laid_take(size_t bytes)
{
    header *room = __atomic_exchange_n(&kept, NULL, __ATOMIC_ACQ_REL);
    if (!room || room->bytes < bytes) {
        bs_free_aligned(room);
        room = bs_aligned_large(sizeof *room + bytes);
        if (!room)
            return NULL;
        room->bytes = bytes;
    }
    return (unsigned char *)(room + 1);
}

void bs_laid_give(unsigned char *room)
{
    header *own = (header *)(void *)room - 1;
    bs_free_aligned(own->bytes > KEPT ? own : __atomic_exchange_n(&kept, own, __ATOMIC_ACQ_REL));
}
