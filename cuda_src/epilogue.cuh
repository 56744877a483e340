// The epilogue's way out for one warp: a block of 16 rows x 64 columns of sums goes through the chain (epilogue_chain.cuh) and is stored as
// floats or as packed codes, pad bits included. No barrier but the warp's own.
//
// A product hands over its accumulators in the order of the matrix instructions (register 4 i + e of 64 columns is row g + 8 (e / 2),
// column 8 i + 2 t + e % 2, for lane 4 g + t):
//     __syncwarp(); put_sums(slot, acc[0..31]); __syncwarp(); finish_block(e, SharedSums{slot}, batch, row0, column0);
// with `slot` the shared address of 4096 bytes of its own, 512-byte aligned.
#ifndef BITSPARSE_EPILOGUE_CUH
#define BITSPARSE_EPILOGUE_CUH

#include "epilogue_chain.cuh"

constexpr int kBlockHeight = 16, kBlockWidth = 64;

// Sums of a block lie in rows of 256 bytes, of which the 32-byte pieces and the halves of these are moved about, so that writing fragments,
// reading octets of a row and reading columns of rows r and r + 8 all touch every bank once.
BS_INLINE u32 sum_address(u32 slot, int row, int column)
{
    const int piece = (column >> 3) ^ (row & 7) ^ ((row >> 3) << 1);
    return slot + row * 256 + piece * 32 + ((((column >> 2) ^ (piece >> 2)) & 1) << 4) + (column & 3) * 4;
}

template <int n> BS_INLINE void put_sums(u32 slot, const int (&acc)[n], int first)
{
    const int lane = threadIdx.x & 31;
    const u32 upper = sum_address(0, lane >> 2, 2 * (lane & 3)), lower = sum_address(0, (lane >> 2) + 8, 2 * (lane & 3));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 move = (i << 5) ^ ((i >> 2) << 4);
        store_shared(slot + (upper ^ move), acc[first + 4 * i], acc[first + 4 * i + 1]);
        store_shared(slot + (lower ^ move), acc[first + 4 * i + 2], acc[first + 4 * i + 3]);
    }
}

// Where a block's sums are read from: what put_sums left.
struct SharedSums {
    u32 slot;
    template <bool down> __device__ __forceinline__ void load(float (&v)[8], int row, int column, int jump) const
    {
        if constexpr (down) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = (float)load_shared_word(sum_address(slot, row + i, column));
        } else {
            const int4 x = load_shared(sum_address(slot, row, column)), y = load_shared(sum_address(slot, row, column + jump));
            v[0] = (float)x.x, v[1] = (float)x.y, v[2] = (float)x.z, v[3] = (float)x.w;
            v[4] = (float)y.x, v[5] = (float)y.y, v[6] = (float)y.z, v[7] = (float)y.w;
        }
    }
};

// ---- packing
// Bit p of element i of the octet to bit i of byte p, for four planes. Elements enter in an order that leaves two exchanges of bits to do.
BS_INLINE u32 plane_bytes(const u32 (&code)[8])
{
    u32 w = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        w |= (code[i] & 15u) << (8 * (i & 3) + 4 * (i >> 2));
    u32 t = ((w >> 14) ^ w) & 0x0000ccccu;
    w ^= t ^ (t << 14);
    t = ((w >> 7) ^ w) & 0x00aa00aau;
    return w ^ t ^ (t << 7);
}

// Where a packed line of the result starts: one plane of an outer index, or the whole outer index, as halves of words.
template <bool down> BS_INLINE bs_u16 *line_of(const EpilogueParams &e, bs_i64 batch, int outer, int plane)
{
    const int lines = e.steps & kWhole ? 1 : e.bits;
    return (bs_u16 *)e.out + ((batch * (down ? e.n : e.m) + outer) * lines + plane) * 2 * e.words;
}

// Four planes at a time. Along a row, four lanes exchange bytes so that each has a word of one plane; along a column, two lanes exchange
// so that each has sixteen bits of two planes.
template <bool down> BS_INLINE void store_planes(const EpilogueParams &e, const EpilogueSpot &s, u32 (&code)[8])
{
    const int lane = threadIdx.x & 31;
    for (int plane = 0;;) {
        const u32 mine = plane_bytes(code);
        if constexpr (down) {
            const u32 theirs = __shfl_xor_sync(~0u, mine, 16);
            const u32 two = lane < 16 ? __byte_perm(mine, theirs, 0x5140) : __byte_perm(theirs, mine, 0x7362);
            const int first = plane + (lane < 16 ? 0 : 2);
            bs_u16 *to = line_of<down>(e, s.batch, s.column, first) + (s.row >> 4);
            if (s.column < e.n && first < e.bits)
                to[0] = (bs_u16)two;
            if (s.column < e.n && first + 1 < e.bits)
                to[2 * e.words] = (bs_u16)(two >> 16);
        } else {
            const u32 pairs = __byte_perm(mine, __shfl_xor_sync(~0u, mine, 1), lane & 1 ? 0x3715 : 0x6240);
            const u32 word = __byte_perm(pairs, __shfl_xor_sync(~0u, pairs, 2), lane & 2 ? 0x3276 : 0x5410);
            const int its = plane + (lane & 3);
            if (s.row < e.m && its < e.bits && (s.column >> 5) < e.words)
                ((u32 *)line_of<down>(e, s.batch, s.row, its))[s.column >> 5] = word;
        }
        plane += 4;
        if (plane >= e.bits)
            break;
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] >>= 4;
    }
}

// The octet's integers side by side: `bits` bytes.
template <bool down> BS_INLINE void store_whole(const EpilogueParams &e, const EpilogueSpot &s, const u32 (&code)[8])
{
    const int outer = down ? s.column : s.row, along = down ? s.row : s.column;
    if (outer >= (down ? e.n : e.m) || along * e.bits >= 32 * e.words)
        return;
    unsigned char *to = (unsigned char *)line_of<down>(e, s.batch, outer, 0) + (along >> 3) * e.bits;
    u32 w[4] = {0, 0, 0, 0};
    if (e.bits == 16) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i >> 1] |= (code[i] & 0xffffu) << (16 * (i & 1));
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    } else if (e.bits == 8) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i >> 2] |= (code[i] & 0xffu) << (8 * (i & 3));
        *(uint2 *)to = make_uint2(w[0], w[1]);
    } else {
        const u32 mask = (1u << e.bits) - 1u;
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[0] |= (code[i] & mask) << (i * e.bits);
        if (e.bits == 4)
            *(u32 *)to = w[0];
        else if (e.bits == 2)
            *(bs_u16 *)to = (bs_u16)w[0];
        else
            *to = (unsigned char)w[0];
    }
}

// The last block along the packed axis also clears what is left up to the next multiple of 128 bits.
template <bool down> BS_INLINE void clear_pad(const EpilogueParams &e, bs_i64 batch, int row0, int column0)
{
    const int length = down ? e.m : e.n, end = down ? row0 + kBlockHeight : column0 + kBlockWidth;
    const bool whole = e.steps & kWhole;
    const int first = end * (whole ? e.bits : 1) / 16;
    if (end < length || first >= 2 * e.words)
        return;
    const int outer = down ? column0 : row0, lines = whole ? 1 : e.bits;
    const int count = (down ? min(kBlockWidth, e.n - outer) : min(kBlockHeight, e.m - outer)) * lines;
    bs_u16 *to = line_of<down>(e, batch, outer, 0);
    for (int line = threadIdx.x & 31; line < count; line += 32)
        for (int i = first; i < 2 * e.words; i++)
            to[(bs_i64)line * 2 * e.words + i] = 0;
}

BS_INLINE void store_floats(const EpilogueParams &e, const EpilogueSpot &s, const float (&v)[8])
{
    if (s.row >= e.m)
        return;
    float *to = (float *)e.out + (s.batch * e.m + s.row) * e.n;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int column = s.column + half * s.jump;
        if (e.steps & kAligned) {
            if (column < e.n)
                *(float4 *)(to + column) = make_float4(v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + i < e.n)
                    to[column + i] = v[4 * half + i];
        }
    }
}

// ---- a block
template <bool down, class Sums> BS_INLINE void finish_turns(const EpilogueParams &e, const Sums &sums, bs_i64 batch, int row0, int column0)
{
    const int lane = threadIdx.x & 31;
    const bool bits = e.steps & kBits;
    const int jump = bits ? 4 : 32;
    int row = down ? 8 * (lane >> 4) : lane >> 3, column = down ? lane & 15 : (bits ? 8 : 4) * (lane & 7);
    EpilogueSpot s = {batch, row0 + row, column0 + column, jump};
    RowValues<down> rows;
    ColumnValues<down> columns;
    rows.load(e, s);
    columns.load(e, s);
    bool nan = false;
#pragma unroll 1
    for (int turn = 0; turn < 4; turn++) {
        float v[8];
        sums.template load<down>(v, row, column, jump);
        apply_chain<down>(e, rows, columns, s, v);
        if (!bits) {
            store_floats(e, s, v);
        } else {
            u32 code[8];
            if (!(e.steps & kQuick) || !codes_quickly(e, grid_at(e, batch, s.row, s.column), v, code))
                nan = codes_exactly<down>(e, s, v, code) || nan;
            const int left = down ? e.m - s.row : e.n - s.column;
            if (left < 8)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    code[i] = i < left ? code[i] : 0u;
            if (e.steps & kWhole)
                store_whole<down>(e, s, code);
            else
                store_planes<down>(e, s, code);
        }
        if constexpr (down) {
            column += 16, s.column += 16;
            columns.load(e, s);
        } else {
            row += 4, s.row += 4;
            rows.load(e, s);
        }
    }
    if (nan)
        atomicOr(e.nan, 1);
    if (bits)
        clear_pad<down>(e, batch, row0, column0);
}

// One warp, a block that begins at (row0, column0) of the result and may lie across its edge or beyond it.
template <class Sums> BS_INLINE void finish_block(const EpilogueParams &e, const Sums &sums, bs_i64 batch, int row0, int column0)
{
    if (row0 >= e.m || column0 >= e.n)
        return;
    if (e.steps & kDown)
        finish_turns<true>(e, sums, batch, row0, column0);
    else
        finish_turns<false>(e, sums, batch, row0, column0);
}

#endif
