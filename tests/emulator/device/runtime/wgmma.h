// Products of a warpgroup, computed when they are waited for.
#pragma once

static void open_product(int n, int kind, int *const *d, u64 a, u64 b, int keep, const u32 *words)
{
    if (blockDim.x * blockDim.y * blockDim.z < 128)
        emu_fail("wgmma: the block has less than a warpgroup");
    if (!cur->fenced)
        emu_fail("wgmma: no wgmma.fence before the first wgmma since the accumulators were touched");
    bool together = true;
    for (int i = 1; i < n / 2; i++)
        together = together && d[i] == d[0] + i;
    Product made{n, kind, keep, a, b, d[0], together ? std::vector<int *>() : std::vector<int *>(d, d + n / 2), {}};
    if (words)
        memcpy(made.words, words, sizeof made.words);
    cur->open_products.push_back(std::move(made));
}
// kind: 0 for bits, popc(A & B); 2 for bytes, | 4 if A is signed, | 8 if B is signed; 16 for TF32 with A in registers
API void emu_wgmma(int n, int kind, int *const *d, u64 a, u64 b, int keep) { open_product(n, kind, d, a, b, keep, nullptr); }
API void emu_wgmma_a(int n, int kind, int *const *d, const u32 *words, u64 b, int keep) { open_product(n, kind, d, 0, b, keep, words); }
API void emu_wgmma_fence() { cur->fenced = true; }
API void emu_wgmma_commit()
{
    cur->products.push_back(std::move(cur->open_products));
    cur->open_products.clear();
}

struct Operand {
    const u8 *base;
    u32 address;
};
static u32 desc_address(u64 desc)
{
    if (desc >> 62 != 1)
        emu_fail("wgmma: only descriptors of the 128-byte swizzle are emulated (%llx)", desc);
    if ((desc >> 32 & 0x3fff) != 64)
        emu_fail("wgmma: stride byte offset %llu, only 1024 is emulated", (desc >> 32 & 0x3fff) * 16);
    if (desc >> 49 & 7)
        emu_fail("wgmma: base offset of the descriptor is not zero");
    return (u32)(desc & 0x3fff) << 4;
}
// Loads 32 bytes of row r of a tile: groups of 8 rows of 128 bytes each, address bits 4..6 XOR bits 7..9.
static inline void take_row(u32 start, int r, u64 out[4])
{
    const u32 at = start + (r >> 3) * 1024 + (r & 7) * 128;
    for (int h = 0; h < 2; h++)
        memcpy(out + 2 * h, emu_shared(swizzled(at + 16 * h, 3), 16), 16);
}

static void run_product(const Product &p)
{
    const u32 b = desc_address(p.b);
    const int lane = cur->lane, g = lane >> 2, t = lane & 3, row = (cur->warp & 3) * 16 + g;
    u64 x[2][4];
    if (p.kind == 16)
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 2; i++)
                memcpy(x[half] + 2 * i, p.words + 4 * half + 8 * i, 16);
    else
        for (int half = 0; half < 2; half++)
            take_row(desc_address(p.a), row + 8 * half, x[half]);
    const u8 *whole = (const u8 *)emu_shared(b & ~1023u, p.n * 128); // one check for all rows
    const u32 inside = b & 1023;
    for (int i = 0; i < p.n / 8; i++)
        for (int e = 0; e < 2; e++) {
            const int column = 8 * i + 2 * t + e;
            const u32 at = inside + (column >> 3) * 1024 + (column & 7) * 128;
            u64 y[4];
            memcpy(y, whole + swizzled(at, 3), 16);
            memcpy(y + 2, whole + swizzled(at + 16, 3), 16);
            for (int half = 0; half < 2; half++) {
                int *d = p.d.empty() ? p.first + 4 * i + 2 * half + e : p.d[4 * i + 2 * half + e];
                if (p.kind == 16) {
                    float before = 0.0f;
                    if (p.keep)
                        memcpy(&before, d, 4);
                    const float after = dot_floats(p.kind, (const u32 *)x[half], (const u32 *)y, before);
                    memcpy(d, &after, 4);
                    continue;
                }
                u32 sum = 0;
                if (p.kind == 0)
                    for (int j = 0; j < 4; j++)
                        sum += __builtin_popcountll(x[half][j] & y[j]);
                else if (p.kind == 2) {
                    const u8 *u = (const u8 *)x[half], *v = (const u8 *)y;
                    for (int j = 0; j < 32; j++)
                        sum += (u32)u[j] * v[j];
                } else {
                    const u8 *u = (const u8 *)x[half], *v = (const u8 *)y;
                    for (int j = 0; j < 32; j++)
                        sum += (u32)((p.kind & 4 ? (int)(signed char)u[j] : (int)u[j]) * (p.kind & 8 ? (int)(signed char)v[j] : (int)v[j]));
                }
                *d = (int)((p.keep ? (u32)*d : 0) + sum);
            }
        }
}
API void emu_wgmma_wait(int pending)
{
    Thread *me = cur;
    while ((int)me->products.size() > pending) {
        for (const Product &p : me->products.front())
            run_product(p);
        me->products.pop_front();
    }
    me->fenced = false;
    Request q{SYNC, ~0u, 0, 0, 0, 0, nullptr};
    collective(q);
}
