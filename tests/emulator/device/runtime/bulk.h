// Bulk copies, by tensor map or of plain bytes, which happen as late as a wait allows.
#pragma once

struct TensorMapBits { // the emulator's own form: the arguments of cuTensorMapEncodeTiled
    u64 magic;
    u64 address;
    u32 rank, swizzle, elem, pad;
    u32 box[5], pad2;
    u64 dim[5];      // 32 bits would do
    u32 stride16[4]; // bytes / 16
};
static_assert(sizeof(TensorMapBits) <= 128, "");
static const u64 kMagic = 0x454d5554454e5352ull;

API int emu_tensor_map(void *to, u64 address, u32 elem, u32 rank, const u64 *dim, const u64 *strides, const u32 *box, u32 swizzle)
{
    TensorMapBits t{};
    t.magic = kMagic, t.address = address, t.rank = rank, t.elem = elem, t.swizzle = swizzle;
    if (address % 16 || rank < 1 || rank > 5)
        return 1;
    for (u32 i = 0; i < rank; i++) {
        if (dim[i] == 0 || dim[i] > 1ull << 32 || box[i] == 0 || box[i] > 256)
            return 1;
        t.dim[i] = dim[i], t.box[i] = box[i];
        if (i) {
            if (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40 || strides[i - 1] / 16 >= 1ull << 32)
                return 1;
            t.stride16[i - 1] = (u32)(strides[i - 1] / 16);
        }
    }
    if (box[0] * elem % 16 || (swizzle == 3 && box[0] * elem > 128) || (swizzle == 2 && box[0] * elem > 64) ||
        (swizzle == 1 && box[0] * elem > 32))
        return 1;
    memcpy(to, &t, sizeof t);
    memset((u8 *)to + sizeof t, 0, 128 - sizeof t);
    return 0;
}

static TensorMapBits map_of(const void *p, u32 rank, const char *what)
{
    TensorMapBits t;
    if ((u64)p % 64)
        emu_fail("%s: the tensor map at %p is not 64-byte aligned", what, p);
    memcpy(&t, p, sizeof t);
    if (t.magic != kMagic)
        emu_fail("%s: no tensor map at %p", what, p);
    if (t.rank != rank)
        emu_fail("%s: %u coordinates, but the tensor map has %u dimensions", what, rank, t.rank);
    return t;
}
static u32 box_bytes(const TensorMapBits &t)
{
    u32 n = t.elem;
    for (u32 i = 0; i < t.rank; i++)
        n *= t.box[i];
    return n;
}
// A shared address after swizzling: 16-byte pieces are exchanged within 128, 64 or 32 bytes.
static u32 swizzled(u32 address, u32 mode)
{
    switch (mode) {
    case 3: return address ^ ((address >> 7 & 7) << 4);
    case 2: return address ^ ((address >> 7 & 3) << 4);
    case 1: return address ^ ((address >> 7 & 1) << 4);
    }
    return address;
}

// Calls f(shared address, global address or null outside of the tensor, bytes) for each element of a box, whose rows are swizzled in pieces
// of 16 bytes.
template <class F> static void each_piece(const TensorMapBits &t, u32 shared, const int *c, F f)
{
    u32 rows = 1;
    for (u32 i = 1; i < t.rank; i++)
        rows *= t.box[i];
    const u32 row_bytes = t.box[0] * t.elem;
    for (u32 r = 0; r < rows; r++) {
        u32 rest = r;
        bool inside = true;
        const u8 *from = (const u8 *)t.address;
        for (u32 i = 1; i < t.rank; i++) {
            const long long x = (long long)c[i] + rest % t.box[i];
            rest /= t.box[i];
            inside = inside && x >= 0 && x < (long long)t.dim[i];
            from += x * (long long)t.stride16[i - 1] * 16;
        }
        for (u32 piece = 0; piece < row_bytes; piece += 16) {
            const u32 at = swizzled(shared + r * row_bytes + piece, t.swizzle);
            for (u32 e = 0; e < 16; e += t.elem) {
                const long long x = (long long)c[0] + (piece + e) / t.elem;
                f(at + e, inside && x >= 0 && x < (long long)t.dim[0] ? from + x * t.elem : nullptr, t.elem);
            }
        }
    }
}

static void engine_or_now(std::function<void()> op) { engine.push_back(std::move(op)); }

API void emu_tma_load(u32 to, const void *map, u32 bar, u32 rank, const int *coords, int multicast, u32 mask)
{
    const TensorMapBits t = map_of(map, rank, "cp.async.bulk.tensor");
    std::vector<int> c(coords, coords + rank);
    const u32 bytes = box_bytes(t), align = t.swizzle == 3 ? 1024 : t.swizzle ? 512 : 128;
    (void)align;
    if (to % 128)
        emu_fail("cp.async.bulk.tensor: shared address %08x is not a multiple of 128", to);
    if (t.address % 16)
        emu_fail("cp.async.bulk.tensor: global address");
    for (u32 r = 0; r < blocks.size(); r++) {
        if (multicast ? !(mask >> r & 1) : &blocks[r] != (to >> 24 ? &blocks[(to >> 24) - 1] : cur->block))
            continue;
        const u32 own = (r + 1) << 24;
        const u32 d = own | (to & 0xffffff);
        memset(emu_shared(d, bytes), 0xCD, bytes);
        u64 *b = bar_at(own | (bar & 0xffffff), "cp.async.bulk.tensor");
        Thread *issuer = cur;
        engine_or_now([=] {
            Thread *saved = cur;
            cur = issuer;
            u8 *base = (u8 *)emu_shared(d, bytes) - d;
            each_piece(t, d, c.data(), [&](u32 at, const u8 *from, u32 n) {
                if (from)
                    memcpy(base + at, from, n);
                else
                    memset(base + at, 0, n);
            });
            bar_complete(b, bytes);
            cur = saved;
        });
    }
    if (multicast && mask >> blocks.size())
        emu_fail("cp.async.bulk.tensor: multicast mask %x for a cluster of %zu", mask, blocks.size());
}

API void emu_tma_store(const void *map, u32 from, u32 rank, const int *coords, int reduce)
{
    const TensorMapBits t = map_of(map, rank, "cp.async.bulk.tensor store");
    std::vector<int> c(coords, coords + rank);
    const u32 bytes = box_bytes(t);
    if (from % 128)
        emu_fail("cp.async.bulk.tensor: shared address %08x is not a multiple of 128", from);
    emu_shared(from, bytes);
    Thread *issuer = cur;
    cur->open_bulk.push_back([=] {
        Thread *saved = cur;
        cur = issuer;
        const u8 *base = (const u8 *)emu_shared(from, bytes) - from;
        each_piece(t, from, c.data(), [&](u32 at, const u8 *to, u32 n) {
            if (!to)
                return;
            if (reduce == 1)
                *(u32 *)to += *(const u32 *)(base + at);
            else
                memcpy((void *)to, base + at, n);
        });
        cur = saved;
    });
}

// Plain bulk copies.
API void emu_bulk_load(u32 to, const void *from, u32 bytes, u32 bar)
{
    if (to % 16 || (u64)from % 16 || bytes % 16)
        emu_fail("cp.async.bulk: addresses and size must be multiples of 16");
    u8 *d = (u8 *)emu_shared(to, bytes);
    u64 *b = bar_at(bar, "cp.async.bulk");
    memset(d, 0xCD, bytes);
    engine_or_now([=] {
        memcpy(d, from, bytes);
        bar_complete(b, bytes);
    });
}
API void emu_bulk_store(void *to, u32 from, u32 bytes)
{
    if (from % 16 || (u64)to % 16 || bytes % 16)
        emu_fail("cp.async.bulk: addresses and size must be multiples of 16");
    const u8 *s = (const u8 *)emu_shared(from, bytes);
    cur->open_bulk.push_back([=] { memcpy(to, s, bytes); });
}
API void emu_bulk_commit()
{
    cur->bulk.push_back(std::move(cur->open_bulk));
    cur->open_bulk.clear();
}
API void emu_bulk_wait(int pending)
{
    while ((int)cur->bulk.size() > pending) {
        auto group = std::move(cur->bulk.front());
        cur->bulk.pop_front();
        for (auto &op : group)
            op();
    }
}
API void emu_st_async(u32 to, u32 bar, const u32 *v, int words)
{
    u32 *d = (u32 *)aligned_shared(to, 4 * words, 4 * words, "st.async");
    u64 *b = bar_at(bar, "st.async");
    if (to >> 24 != bar >> 24)
        emu_fail("st.async: data and barrier are in different blocks");
    std::vector<u32> values(v, v + words);
    engine_or_now([=] {
        memcpy(d, values.data(), 4 * words);
        bar_complete(b, 4 * words);
    });
}
