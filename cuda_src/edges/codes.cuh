// Rows of packed integers ("codes") as the ends of edges: their meaning, and dot products of codes without unpacking.
//
// BS_CODES: bits of a code, 1, 2, 4 or 8. BS_REAL: results are float32, of the real values; else integers.
// For dot products, BS_LEFT and BS_RIGHT: how the rows of x and of y are encoded (enum below). BS_OFFSETS: there are offsets.
#ifndef BITSPARSE_EDGE_CODES_CUH
#define BITSPARSE_EDGE_CODES_CUH

#include "edges/vectors.cuh"

#define BS_UNSIGNED 0
#define BS_SIGNED 1
#define BS_BIPOLAR 2

// The integer of a code c is ((c << shift) ^ flip) - minus, its real value fl(fl(integer * scale) + offset). Scale and offset are arrays
// over nodes, heads and columns, with a step of 0 along what they do not depend on; null stands for 1 and 0.
struct CodeSide {
    const float *scale, *offset;
    i64 scale_node, offset_node;
    int scale_head, offset_head, scale_column, offset_column;
    int shift, flip, minus;
};

struct NodeMap {
    float scale, offset;
};

// Scale and offset of a node and head, at column 0.
BS_INLINE NodeMap map_of(const CodeSide &side, Index node, int head)
{
    return {side.scale ? __ldg(side.scale + (i64)node * side.scale_node + (i64)head * side.scale_head) : 1.0f,
            side.offset ? __ldg(side.offset + (i64)node * side.offset_node + (i64)head * side.offset_head) : 0.0f};
}

// The map that lane `from` holds.
BS_INLINE NodeMap handed(const NodeMap &map, int from) { return {__shfl_sync(~0u, map.scale, from), __shfl_sync(~0u, map.offset, from)}; }

#ifdef BS_LEFT
// The sums over a pair of rows: products and, with offsets, the integers of each row.
struct Sums {
    int dot;
#ifdef BS_OFFSETS
    int left, right;
#endif
};

#if BS_CODES == 1
// An integer is TIMES bit + PLUS; the constant term of each sum, which every column contributes once, is added at the end.
template <int encoding> struct Coded {
    static constexpr int times = encoding == BS_BIPOLAR ? 2 : encoding == BS_SIGNED ? -1 : 1;
    static constexpr int plus = encoding == BS_BIPOLAR ? -1 : 0;
};
typedef Coded<BS_LEFT> Left;
typedef Coded<BS_RIGHT> Right;

BS_INLINE void add_word(u32 a, u32 b, Sums &sum)
{
#if BS_LEFT == BS_BIPOLAR && BS_RIGHT == BS_BIPOLAR
    sum.dot -= 2 * __popc(a ^ b);
#else
    sum.dot += Left::times * Right::times * __popc(a & b);
    if constexpr (Right::plus != 0)
        sum.dot += Left::times * Right::plus * __popc(a);
    if constexpr (Left::plus != 0)
        sum.dot += Left::plus * Right::times * __popc(b);
#endif
#ifdef BS_OFFSETS
    sum.left += Left::times * __popc(a);
    sum.right += Right::times * __popc(b);
#endif
}

BS_INLINE void complete(Sums &sum, int columns)
{
    sum.dot += Left::plus * Right::plus * columns;
#ifdef BS_OFFSETS
    sum.left += Left::plus * columns;
    sum.right += Right::plus * columns;
#endif
}
#else
// Codes `part`, part + 8 / BS_CODES, ... of a word as bytes: unsigned codes in the low bits, signed ones in the high bits, so that the
// code's sign is the byte's. Sums of signed codes are shifted back when they are complete.
template <int encoding> BS_INLINE u32 bytes_of(u32 word, int part)
{
    constexpr u32 low = BS_CODES == 8 ? 0xffffffffu : BS_CODES == 4 ? 0x0f0f0f0fu : 0x03030303u;
    if (encoding == BS_SIGNED)
        return word << (8 - BS_CODES * (part + 1)) & low << (8 - BS_CODES);
    return word >> BS_CODES * part & low;
}

// Four products of bytes, signed or not, added to c.
template <bool left, bool right> BS_INLINE int dot_bytes(u32 a, u32 b, int c)
{
    if constexpr (left && right)
        return __dp4a((int)a, (int)b, c);
    else if constexpr (!left && !right)
        return (int)__dp4a(a, b, (u32)c);
    else {
        int d;
        if constexpr (left)
            asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
        else
            asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
        return d;
    }
}

BS_INLINE void add_word(u32 a, u32 b, Sums &sum)
{
#pragma unroll
    for (int part = 0; part < 8 / BS_CODES; part++) {
        const u32 left = bytes_of<BS_LEFT>(a, part), right = bytes_of<BS_RIGHT>(b, part);
        sum.dot = dot_bytes<BS_LEFT == BS_SIGNED, BS_RIGHT == BS_SIGNED>(left, right, sum.dot);
#ifdef BS_OFFSETS
        sum.left = dot_bytes<BS_LEFT == BS_SIGNED, false>(left, 0x01010101u, sum.left);
        sum.right = dot_bytes<BS_RIGHT == BS_SIGNED, false>(right, 0x01010101u, sum.right);
#endif
    }
}

BS_INLINE void complete(Sums &sum, int)
{
    constexpr int left = BS_LEFT == BS_SIGNED ? 8 - BS_CODES : 0, right = BS_RIGHT == BS_SIGNED ? 8 - BS_CODES : 0;
    sum.dot >>= left + right;
#ifdef BS_OFFSETS
    sum.left >>= left;
    sum.right >>= right;
#endif
}
#endif

BS_INLINE Sums no_sums()
{
    Sums none = {};
    return none;
}

BS_INLINE Sums add_products(const Vector &a, const Vector &b, bool inside, Sums sum)
{
    Sums with = sum;
#pragma unroll
    for (int w = 0; w < BS_VECTOR / 4; w++)
        add_word(a.word[w], b.word[w], with);
    return inside ? with : sum;
}

template <int lanes, int count, int Sums::*member> BS_INLINE int sum_of_lanes(const Sums (&part)[count], int lane)
{
    int of[count];
#pragma unroll
    for (int i = 0; i < count; i++)
        of[i] = part[i].*member;
    return transposed_sum<lanes, count>(of, lane);
}

template <int lanes, int count> BS_INLINE Sums sums_of_lanes(const Sums (&part)[count], int lane)
{
    Sums made;
    made.dot = sum_of_lanes<lanes, count, &Sums::dot>(part, lane);
#ifdef BS_OFFSETS
    made.left = sum_of_lanes<lanes, count, &Sums::left>(part, lane);
    made.right = sum_of_lanes<lanes, count, &Sums::right>(part, lane);
#endif
    return made;
}

// The dot product of the real values, from exact sums: sum of (s q + o)(t r + p) = s (t qr + p q) + o (t r + p columns).
BS_INLINE float real_dot(const Sums &sum, const NodeMap &left, const NodeMap &right, int columns)
{
#ifdef BS_OFFSETS
    const float upper = fmaf(right.offset, (float)sum.left, right.scale * (float)sum.dot);
    const float lower = fmaf(right.offset, (float)columns, right.scale * (float)sum.right);
    return fmaf(left.scale, upper, left.offset * lower);
#else
    return (float)sum.dot * left.scale * right.scale;
#endif
}
#endif

#endif
