// Device memory: pages around each allocation fault when they are touched; guard bytes fill the gaps between these pages and the data.
#pragma once

struct Alloc {
    u8 *base, *front;
    size_t mapped;
    u8 *p;
    size_t size, room;
};
static std::map<u8 *, Alloc> allocs;
static size_t live_bytes;
static const size_t kPage = 4096, kNothing = 1 << 20;
static const u8 kGuard = 0xE7, kFresh = 0xA5;

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

API void *emu_alloc(size_t size, size_t granule)
{
    // In order: no access, a page of guard bytes, data up to the end of a page, no access. A stray access past the end faults at once.
    const size_t room = up(size ? size : 1, granule), body = up(room, kPage), mapped = body + kPage + 2 * kNothing;
    u8 *base = (u8 *)mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return nullptr;
    u8 *front = base + kNothing, *end = front + kPage + body;
    if (mprotect(front, kPage + body, PROT_READ | PROT_WRITE)) {
        munmap(base, mapped);
        return nullptr;
    }
    u8 *p = end - room;
    memset(front, kGuard, p - front);
    memset(p, kFresh, size);
    memset(p + size, kGuard, room - size);
    allocs[p] = {base, front, mapped, p, size, room};
    live_bytes += size;
    return p;
}

API void emu_free(void *p)
{
    auto it = allocs.find((u8 *)p);
    if (it == allocs.end())
        return;
    live_bytes -= it->second.size;
    munmap(it->second.base, it->second.mapped);
    allocs.erase(it);
}

API size_t emu_live_bytes() { return live_bytes; }

static char error_text[8192];

// Returns 1 if the guard bytes of an allocation are damaged; emu_error() then says which. Only the pages next to the data are examined.
API int emu_check_guards()
{
    static u8 intact[2 * kPage];
    if (!intact[0])
        memset(intact, kGuard, sizeof intact);
    for (auto &e : allocs) {
        Alloc &a = e.second;
        const size_t front = a.p - a.front, back = a.room - a.size;
        if (!memcmp(a.front, intact, front) && !memcmp(a.p + a.size, intact, back))
            continue;
        for (u8 *q = a.front; q < a.p; q++)
            if (*q != kGuard) {
                snprintf(error_text, sizeof error_text, "wrote %zd bytes before the start of an allocation of %zu bytes at %p", a.p - q,
                         a.size, a.p);
                memset(a.front, kGuard, a.p - a.front);
                return 1;
            }
        for (u8 *q = a.p + a.size; q < a.p + a.room; q++)
            if (*q != kGuard) {
                snprintf(error_text, sizeof error_text, "wrote %zd bytes past the end of an allocation of %zu bytes at %p",
                         q - a.p - a.size + 1, a.size, a.p);
                memset(a.p + a.size, kGuard, a.room - a.size);
                return 1;
            }
    }
    return 0;
}
API const char *emu_error() { return error_text; }
