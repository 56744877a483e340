// Operations of a whole warp: votes, shuffles, reductions, mma.sync and ldmatrix.
#pragma once

enum {
    SYNC,
    SHFL,
    SHFL_UP,
    SHFL_DOWN,
    SHFL_XOR,
    BALLOT,
    ANY,
    ALL,
    MATCH_ANY,
    MATCH_ALL,
    RED_ADD,
    RED_MIN,
    RED_MAX,
    RED_AND,
    RED_OR,
    RED_XOR,
    RED_SMIN,
    RED_SMAX,
    MMA,
    LDMATRIX,
    STMATRIX,
    KINDS
};
static const char *const kind_names[] = {
    "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",   "__shfl_down_sync",  "__shfl_xor_sync",   "__ballot_sync",
    "__any_sync",        "__all_sync",        "__match_any_sync", "__match_all_sync",  "__reduce_add_sync", "__reduce_min_sync",
    "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync", "__reduce_min_sync", "__reduce_max_sync",
    "mma.sync",          "ldmatrix",          "stmatrix"};

struct Mma {
    int kind, m, n, k;
    u32 a[4], b[2];
    int c[4];
    int d[4];
};
static void run_mma(Warp &w);
static void run_ldmatrix(Warp &w);

static void shuffle(Warp &w, int kind, u32 mask)
{
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1) {
            Request &r = *w.req[l];
            const int width = (int)r.c, base = l & ~(width - 1);
            int from;
            if (width < 1 || width > 32 || (width & (width - 1)))
                emu_fail("%s: width %d", kind_names[kind], width);
            const int x = (int)r.b;
            switch (kind) {
            case SHFL: from = base + (x & (width - 1)); break;
            case SHFL_UP: from = l - x < base ? l : l - x; break;
            case SHFL_DOWN: from = l + x >= base + width ? l : l + x; break;
            default: from = (l ^ x) >= base + width ? l : l ^ x; break;
            }
            if (from < 0 || from > 31 || !(mask >> from & 1))
                emu_fail("%s: lane %d reads lane %d, which does not take part (mask %08x)", kind_names[kind], l, from, mask);
            r.r = w.req[from]->a;
        }
}

static void run_collective(Warp &w, int kind, u32 mask)
{
    const int first = __builtin_ctz(mask);
    switch (kind) {
    case SYNC: return;
    case SHFL:
    case SHFL_UP:
    case SHFL_DOWN:
    case SHFL_XOR: shuffle(w, kind, mask); return;
    case MMA: run_mma(w); return;
    case LDMATRIX: run_ldmatrix(w); return;
    default: break;
    }
    u64 r; // the reduction's start value
    switch (kind) {
    case ALL: r = 1; break;
    case MATCH_ALL: r = mask; break;
    case RED_AND: r = ~0ull; break;
    case RED_MIN: r = ~0ull; break;
    case RED_SMIN: r = 0x7fffffff; break;
    case RED_SMAX: r = 0x80000000u; break;
    default: r = 0; break;
    }
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1) {
            const u64 a = w.req[l]->a;
            switch (kind) {
            case BALLOT: r |= (u64)(a != 0) << l; break;
            case ANY: r |= a != 0; break;
            case ALL: r &= a != 0; break;
            case MATCH_ALL:
                if (a != w.req[first]->a)
                    r = 0;
                break;
            case RED_ADD: r = (u32)(r + a); break;
            case RED_MIN: r = a < r ? a : r; break;
            case RED_MAX: r = a > r ? a : r; break;
            case RED_SMIN: r = (int)a < (int)r ? a : r; break;
            case RED_SMAX: r = (int)a > (int)r ? a : r; break;
            case RED_AND: r &= a; break;
            case RED_OR: r |= a; break;
            case RED_XOR: r ^= a; break;
            }
        }
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1) {
            if (kind == MATCH_ANY) {
                r = 0;
                for (int j = 0; j < 32; j++)
                    if ((mask >> j & 1) && w.req[j]->a == w.req[l]->a)
                        r |= 1u << j;
            }
            w.req[l]->r = r;
        }
}

static void collective(Request &q)
{
    Warp &w = cur->block->warps[cur->warp];
    const int lane = cur->lane;
    if (!(q.mask >> lane & 1))
        emu_fail("%s: lane %d is not in its mask %08x", kind_names[q.kind], lane, q.mask);
    if (q.mask & ~w.live)
        emu_fail("%s: mask %08x names lanes that ended or do not exist (alive: %08x)", kind_names[q.kind], q.mask, w.live);
    w.req[lane] = &q;
    w.waiting |= 1u << lane;
    if ((w.waiting & q.mask) != q.mask) {
        wait_for(kind_names[q.kind], q.mask);
        return;
    }
    for (int l = 0; l < 32; l++)
        if (q.mask >> l & 1) {
            if (w.req[l]->mask != q.mask)
                emu_fail("%s: lane %d has mask %08x, lane %d has mask %08x", kind_names[q.kind], lane, q.mask, l, w.req[l]->mask);
            if (w.req[l]->kind != q.kind)
                emu_fail("diverged warp: lane %d is at %s, lane %d at %s", lane, kind_names[q.kind], l, kind_names[w.req[l]->kind]);
        }
    run_collective(w, q.kind, q.mask);
    w.waiting &= ~q.mask;
    for (int l = 0; l < 32; l++)
        if ((q.mask >> l & 1) && l != lane)
            wake(w.lane[l]);
}

API u64 emu_collective(int kind, u32 mask, u64 a, u64 b, u64 c)
{
    Request q{kind, mask, a, b, c, 0, nullptr};
    collective(q);
    return q.r;
}

API void emu_mma(Mma *m)
{
    Request q{MMA, ~0u, 0, 0, 0, 0, m};
    collective(q);
}

// A float16 (kind 17) or bfloat16 (kind 18) as a float.
static float half_float(u32 h, int kind)
{
    h &= 0xffff;
    const u32 sign = (h & 0x8000) << 16, rest = h & 0x7fff;
    u32 bits = h << 16;
    if (kind == 17) {
        if (rest < 0x400) {
            const float tiny = (float)rest * 0x1p-24f;
            return sign ? -tiny : tiny;
        }
        bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + (112u << 23));
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Products are exact; how the hardware rounds their float32 sum is not defined. Here they are summed in float64 and rounded at the end.
static float dot_floats(int kind, const u32 *x, const u32 *y, float c)
{
    double sum = c;
    for (int i = 0; i < 8; i++)
        if (kind == 16) {
            const u32 p = x[i] & 0xffffe000u, q = y[i] & 0xffffe000u;
            float f, h;
            memcpy(&f, &p, 4), memcpy(&h, &q, 4);
            sum += (double)f * h;
        } else
            for (int j = 0; j < 32; j += 16)
                sum += (double)half_float(x[i] >> j, kind) * half_float(y[i] >> j, kind);
    return (float)sum;
}

static void run_mma(Warp &w)
{
    u32 a[16][8], b[8][8]; // rows of 8 words
    const Mma &first = *(Mma *)w.req[0]->p;
    for (int l = 0; l < 32; l++) {
        const Mma &m = *(Mma *)w.req[l]->p;
        if (m.kind != first.kind || m.m != first.m || m.k != first.k)
            emu_fail("mma.sync: lanes with different instructions");
        const int g = l >> 2, t = l & 3;
        if (m.m == 16) {
            a[g][t] = m.a[0], a[g + 8][t] = m.a[1], a[g][t + 4] = m.a[2], a[g + 8][t + 4] = m.a[3];
            b[g][t] = m.b[0], b[g][t + 4] = m.b[1];
            if (m.k == 128) // half the contraction: a0 (g), a1 (g + 8), b0
                a[g][t + 4] = a[g + 8][t + 4] = b[g][t + 4] = 0;
        } else { // m8n8: a0, b0
            a[g][t] = m.a[0], b[g][t] = m.b[0];
            a[g + 8][t] = a[g + 8][t + 4] = a[g][t + 4] = b[g][t + 4] = 0;
        }
    }
    for (int l = 0; l < 32; l++) {
        Mma &m = *(Mma *)w.req[l]->p;
        const int g = l >> 2, t = l & 3;
        for (int e = 0; e < (m.m == 16 ? 4 : 2); e++) {
            const u32 *x = a[g + (e & 2 ? 8 : 0)], *y = b[2 * t + (e & 1)];
            if (m.kind >= 16) {
                float c;
                memcpy(&c, &m.c[e], 4);
                c = dot_floats(m.kind, x, y, c);
                memcpy(&m.d[e], &c, 4);
                continue;
            }
            u32 sum = (u32)m.c[e];
            for (int i = 0; i < 8; i++)
                if (m.kind == 0)
                    sum += __builtin_popcount(x[i] & y[i]);
                else if (m.kind == 1)
                    sum += __builtin_popcount(x[i] ^ y[i]);
                else
                    for (int j = 0; j < 32; j += 8) {
                        const int p = m.kind & 4 ? (int)(signed char)(x[i] >> j) : (int)(u8)(x[i] >> j);
                        const int q = m.kind & 8 ? (int)(signed char)(y[i] >> j) : (int)(u8)(y[i] >> j);
                        sum += (u32)(p * q);
                    }
            m.d[e] = (int)sum;
        }
    }
}

struct Ldmatrix {
    int n, trans;
    u32 address;
    u32 d[4];
};
API void emu_ldmatrix(Ldmatrix *m)
{
    Request q{LDMATRIX, ~0u, 0, 0, 0, 0, m};
    collective(q);
}
static void run_ldmatrix(Warp &w)
{
    const Ldmatrix &first = *(Ldmatrix *)w.req[0]->p;
    for (int i = 0; i < first.n; i++) {
        u16 rows[8][8];
        for (int r = 0; r < 8; r++)
            memcpy(rows[r], aligned_shared(((Ldmatrix *)w.req[8 * i + r]->p)->address, 16, 16, "ldmatrix"), 16);
        for (int l = 0; l < 32; l++) {
            Ldmatrix &m = *(Ldmatrix *)w.req[l]->p;
            if (m.n != first.n || m.trans != first.trans)
                emu_fail("ldmatrix: lanes with different instructions");
            const int r = l >> 2, c = 2 * (l & 3);
            m.d[i] = first.trans ? rows[c][r] | (u32)rows[c + 1][r] << 16 : rows[r][c] | (u32)rows[r][c + 1] << 16;
        }
    }
}
