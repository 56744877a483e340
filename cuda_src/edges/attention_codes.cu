// Graph attention over 8-bit codes with one scale, and its gradient (edges/attention.cu: BS_ABOVE, BS_TURNED), on the matrix units.
//
// A warp walks a stretch of rows (csr/streams.cuh), 32 edges of a row at a time. A lane computes the weights of one head, for BS_HEADS
// edges, relative to the largest of the 32: as integers of 31 bits, off by half a unit. The four bytes of these weights, and those of the
// weights for the second sum, are eight columns of a matrix. The other factor is the codes of 32 edges as they are stored, except for a
// transposition of 4 x 4 bytes. So the products and their sums over 32 edges are exact, and are then scaled and added in float32. An edge's
// weight is off by 2^-32 of the largest of its 32, besides the error of quick_exp. Adding and converting an element takes half an
// instruction, where float32 takes four.
//
// Floor: gathering the codes and, for each edge, a score (BS_TURNED: 16 bytes) for each head.
#include "common/ptx.cuh"
#include "csr/streams.cuh"
#include "edges/second.cuh"

// There are BS_HEADS heads, each of BS_TILES tiles of 16 features. A node has eight vectors. Vector g has 2 BS_TILES features of each head,
// from 2 BS_TILES g on, so that lane (g, t) of an operand holds these features of edges 4 t to 4 t + 3 and 16 + 4 t to 16 + 4 t + 3.
#define OWN (2 * BS_TILES)
#define APART (32 / BS_HEADS) // distance between a lane's own edges
#define TILES (BS_HEADS * BS_TILES)

struct AttentionCodesParams {
    Streams s;
    const char *x; // (cols, 8, BS_VECTOR)
    float *out, *above; // (rows, heads, width)
    float *lse, *share; // (rows, heads); lse may be null
    const void *source; // (cols, heads): scores; BS_TURNED: Ends
    const float *target; // (rows, heads)
    float *partial; // as in edges/attention.cu
    const u64 *seed_at; // where the seed is, or null
    u64 seed;
    const float *scale; // the value of code 1
    float kept_scale, slope;
    int width; // columns of a head in the results
    u32 threshold; // the least random bits with which an edge is kept
};

struct LayCodesParams {
    const char *x; // (nodes, heads, bytes)
    char *out; // (nodes, 8, BS_VECTOR)
    i64 items; // nodes * 8
    int bytes; // of a head
};

extern "C" __global__ void __launch_bounds__(256) lay_codes(const LayCodesParams p)
{
    const i64 item = (i64)blockIdx.x * 256 + threadIdx.x;
    if (item >= p.items)
        return;
    const int first = (int)(item & 7) * OWN;
    const char *from = p.x + (item >> 3) * BS_HEADS * p.bytes + first;
    union {
        Raw raw;
        u16 pair[BS_VECTOR / 2];
    } v;
#pragma unroll
    for (int i = 0; i < BS_VECTOR / 2; i++) {
        const int head = i / BS_TILES, at = i % BS_TILES * 2;
        v.pair[i] = first + at < p.bytes ? *(const u16 *)(from + head * p.bytes + at) : (u16)0;
    }
    ((Raw *)p.out)[item] = v.raw;
}

#ifdef BS_THREADS
// Transposes bytes: byte i of the four words becomes word i.
BS_INLINE void turn_words(const u32 (&w)[4], u32 (&to)[4])
{
    const u32 low = __byte_perm(w[0], w[1], 0x5140), high = __byte_perm(w[0], w[1], 0x7362);
    const u32 other_low = __byte_perm(w[2], w[3], 0x5140), other_high = __byte_perm(w[2], w[3], 0x7362);
    to[0] = __byte_perm(low, other_low, 0x5410), to[1] = __byte_perm(low, other_low, 0x7632);
    to[2] = __byte_perm(high, other_high, 0x5410), to[3] = __byte_perm(high, other_high, 0x7632);
}

// Reduces over the lanes that compute the weights of one head.
template <class T, class F> BS_INLINE T over_head(T x, F both)
{
#pragma unroll
    for (int lanes = 16; lanes >= BS_HEADS; lanes /= 2)
        x = both(x, __shfl_xor_sync(~0u, x, lanes));
    return x;
}

struct Sums {
    float most; // of this lane's head
    float total, share; // of this lane's edges
    float sum[TILES][2]; // features g OWN + 2 i and + 1 of tile i; t selects upper or lower bytes of the first or second sum
};

// Stores the results of a complete row, or of a piece.
BS_INLINE void leave(const AttentionCodesParams &p, const Stretch &at, Index row, bool used, Sums &r)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, columns = BS_HEADS * p.width;
    const bool piece = at.piece >= 0, second = t >= 2;
    float *const part = p.partial + (i64)at.piece * 2 * (2 * BS_HEADS + columns);
    const auto plus = [](float x, float y) { return x + y; };
    const float total = over_head(r.total, plus), share = over_head(r.share, plus);
#ifdef BS_TURNED
    float scale = fused(total, 0.0f, 1.0f); // NaN if a weight was NaN, which no integer can show
#else
    float scale = piece ? 1.0f : used ? 1 / total : 0.0f;
#endif
    if (lane < BS_HEADS) {
        const i64 item = (i64)row * BS_HEADS + lane;
        if (piece) {
            float *const other = part + 2 * BS_HEADS + columns;
            part[lane] = other[lane] = r.most;
            part[BS_HEADS + lane] = total, other[BS_HEADS + lane] = share;
        } else {
            p.share[item] = share * scale;
            if (p.lse)
                p.lse[item] = r.most + logarithm(total);
        }
    }
    scale *= __ldg(p.scale);
    float *to = piece ? part + 2 * BS_HEADS + (second ? 2 * BS_HEADS + columns : 0) : (second ? p.above : p.out) + (i64)row * columns;
#pragma unroll
    for (int h = 0; h < BS_HEADS; h++) {
        const float of_head = __shfl_sync(~0u, scale, h);
        float v[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            v[i] = r.sum[h * BS_TILES + i / 2][i % 2];
            v[i] += __shfl_xor_sync(~0u, v[i], 1);
#ifdef BS_TURNED
            // The second sum includes the slopes of the leaky relu.
            const float first = __shfl_xor_sync(~0u, v[i], 2);
            v[i] = second ? fused(1 - p.slope, v[i], p.slope * first) : v[i];
#endif
            v[i] *= of_head;
        }
        // The two lanes that know a number take turns at storing.
#pragma unroll
        for (int i = 0; i < OWN; i += 2)
            if (g * OWN + i + (t & 1) < p.width)
                to[h * p.width + g * OWN + i + (t & 1)] = t & 1 ? v[i + 1] : v[i];
    }
}

extern "C" __global__ void __launch_bounds__(BS_THREADS, BS_BLOCKS) attention_codes(const AttentionCodesParams p)
{
    // Weights of the first and of the second sum; those of different heads begin in different banks.
    __shared__ alignas(16) u32 exchanged[BS_THREADS / 32][BS_HEADS][64 + APART];
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, bytes = 8 * BS_VECTOR;
    const int head = lane % BS_HEADS, own = lane / BS_HEADS; // edges own, own + APART, ... of the 32 are this lane's
    u32(&weights)[BS_HEADS][64 + APART] = exchanged[threadIdx.x >> 5];
    Stretch at;
    if (!this_stretch(p.s, at))
        return;
    const char *x = in_registers(p.x + g * BS_VECTOR);
    const u32 digit = 3 - (g & 3), digits = digit | (4 + digit) << 4; // the digits of the weights that this lane supplies
    float unit = t & 1 ? 4.656612873077393e-10f : 3.0517578125e-05f; // 2^-31, 2^-15: the value of 1 in two digits
#ifdef BS_DROPOUT
    const u64 seed = p.seed_at ? __ldg(p.seed_at) : p.seed;
    unit *= p.kept_scale;
#endif
    const Index last_edge = at.stop - 1;
    Index e = at.start, end = at.row + 1 < at.last ? __ldg(p.s.indptr + at.row + 1) : at.stop;
    Index col = at.start < at.stop ? __ldg(p.s.indices + min(e + lane, last_edge)) : 0;
    for (Index row = at.row; row < at.last; row++) {
        const Index after = row + 2 < at.last ? __ldg(p.s.indptr + row + 2) : at.stop;
        const bool used = e < end;
        const float target = __ldg(p.target + (i64)row * BS_HEADS + head);
        Sums r;
#ifdef BS_TURNED
        r.most = 0;
#else
        r.most = BS_LOWEST;
#endif
        r.total = r.share = 0;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            r.sum[i][0] = r.sum[i][1] = 0;
        while (e < end) {
            // Edges past the end of the row are loaded too, with weight 0.
            const Index left = end - e;
            Index column[BS_HEADS];
#pragma unroll
            for (int k = 0; k < BS_HEADS; k++)
                column[k] = BS_HEADS == 1 ? col : __shfl_sync(~0u, col, own + k * APART);
#ifdef BS_TURNED
            Ends ends[BS_HEADS] = {};
#pragma unroll
            for (int k = 0; k < BS_HEADS; k++)
                load_if(true, (const Ends *)p.source + row_offset(column[k], BS_HEADS) + head, ends[k]);
#else
            float score[BS_HEADS] = {};
#pragma unroll
            for (int k = 0; k < BS_HEADS; k++)
                load_if(true, (const float *)p.source + row_offset(column[k], BS_HEADS) + head, score[k]);
#endif
            Vector found[8];
#pragma unroll
            for (int u = 0; u < 8; u++)
                found[u] = load_vector(x + row_offset(__shfl_sync(~0u, col, u / 4 * 16 + 4 * t + u % 4), bytes));
            e = min(e + 32, end);
            col = __ldg(p.s.indices + min(e + lane, last_edge));
            bool steep[BS_HEADS];
            float l[BS_HEADS], top = BS_LOWEST;
#pragma unroll
            for (int k = 0; k < BS_HEADS; k++) {
#ifdef BS_TURNED
                const float s = ends[k].target + target;
                l[k] = (s < 0 ? s * p.slope : s) - ends[k].lse;
#else
                const float s = score[k] + target;
                l[k] = s < 0 ? s * p.slope : s;
#endif
                steep[k] = s > 0;
                if (own + k * APART < left)
                    top = larger(top, l[k]);
            }
            top = over_head(top, [](float x, float y) { return larger(x, y); });
#ifdef BS_TURNED
            const float gain = quick_exp(top);
#else
            const float most = larger(r.most, top);
            if (__any_sync(~0u, most > r.most)) {
                const float shrink = quick_exp(r.most - most);
                r.total *= shrink;
                r.share *= shrink;
#pragma unroll
                for (int h = 0; h < BS_HEADS; h++) {
                    const float of_head = __shfl_sync(~0u, shrink, h);
#pragma unroll
                    for (int i = h * BS_TILES; i < (h + 1) * BS_TILES; i++)
                        r.sum[i][0] *= of_head, r.sum[i][1] *= of_head;
                }
                r.most = most;
            }
            const float gain = quick_exp(top - most);
#endif
#pragma unroll
            for (int k = 0; k < BS_HEADS; k++) {
                const float w = own + k * APART < left ? quick_exp(l[k] - top) : 0.0f;
#ifdef BS_TURNED
                r.total += w;
                r.share = fused(w * gain * (steep[k] ? 1.0f : p.slope), ends[k].product, r.share);
#else
                r.total = fused(w, gain, r.total);
                r.share = fused(steep[k] ? w : 0.0f, gain, r.share);
#endif
                u32 whole = __float2uint_rn(w * 2147483648.0f);
#ifdef BS_DROPOUT
#ifdef BS_TURNED
                const u32 kept = bs_edge_kept(column[k], row, head >> 2, seed, p.threshold);
#else
                const u32 kept = bs_edge_kept(row, column[k], head >> 2, seed, p.threshold);
#endif
                whole = kept >> (head & 3) & 1 ? whole : 0;
#endif
                weights[head][own + k * APART] = whole;
                weights[head][32 + own + k * APART] = steep[k] ? whole : 0;
            }
            __syncwarp();
            u32 b[2];
            float worth = 0; // the value of 1 in two digits
#pragma unroll
            for (int q = 0; q < BS_VECTOR / 4; q++) {
                __syncwarp(); // otherwise the assembler transposes the words of all tiles at once and runs out of registers
                u32 near[4], far[4];
                const u32 first[4] = {found[0].word[q], found[1].word[q], found[2].word[q], found[3].word[q]};
                const u32 rest[4] = {found[4].word[q], found[5].word[q], found[6].word[q], found[7].word[q]};
                turn_words(first, near);
                turn_words(rest, far);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int tile = 2 * q + i, h = tile / BS_TILES;
                    if (tile % BS_TILES == 0) {
                        worth = __shfl_sync(~0u, gain, h) * unit;
#pragma unroll
                        for (int k = 0; k < 2; k++) {
                            const uint4 w = *(const uint4 *)(weights[h] + (g >> 2) * 32 + 16 * k + 4 * t);
                            b[k] = __byte_perm(__byte_perm(w.x, w.y, digits), __byte_perm(w.z, w.w, digits), 0x5410);
                        }
                    }
                    const u32 a[4] = {near[2 * i], near[2 * i + 1], far[2 * i], far[2 * i + 1]};
                    int d[4] = {0, 0, 0, 0};
                    mma_m16n8k32_s8u8(d, a, b[0], b[1]);
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        r.sum[tile][j] = fused((float)(d[2 * j] * 256 + d[2 * j + 1]), worth, r.sum[tile][j]);
                }
            }
            __syncwarp(); // before the weights are written again
        }
        leave(p, at, row, used, r);
        end = after;
    }
}
#endif
