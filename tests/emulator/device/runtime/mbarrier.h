// cp.async and the barriers in shared memory.
#pragma once

API void emu_cp_async(u32 to, const void *from, u32 bytes, u32 take)
{
    if (take > bytes)
        emu_fail("cp.async: source size %u above %u", take, bytes);
    if ((u64)from % bytes)
        emu_fail("cp.async: global address %p is not a multiple of %u", from, bytes);
    u8 *d = aligned_shared(to, bytes, bytes, "cp.async");
    if (take) {
        volatile u8 touch = *(const volatile u8 *)from; // faults here, where the thread can be named
        touch = *((const volatile u8 *)from + take - 1);
        (void)touch;
    }
    memset(d, 0xCD, bytes); // the data is not there before the wait
    cur->open_copies.push_back({d, (const u8 *)from, bytes, take});
}
static void do_copies(std::vector<Copy> &list)
{
    for (Copy &c : list) {
        memcpy(c.to, c.from, c.take);
        memset(c.to + c.take, 0, c.bytes - c.take);
    }
}
API void emu_cp_async_commit()
{
    cur->copies.push_back(std::move(cur->open_copies));
    cur->open_copies.clear();
}
API void emu_cp_async_wait(int pending)
{
    while ((int)cur->copies.size() > pending) {
        do_copies(cur->copies.front());
        cur->copies.pop_front();
    }
}
API void emu_cp_async_wait_all()
{
    emu_cp_async_commit();
    emu_cp_async_wait(0);
}

// ---- barriers in shared memory
// A barrier's bits: 63 the phase; 0..19 the arrivals of a phase; 20..39 the arrivals left; 40..62 transaction bytes, biased by 1 << 22
static const u64 kBias = 1ull << 22;
static u64 bar_pack(u64 phase, u64 count, u64 left, long long tx)
{
    return phase << 63 | (u64)(tx + (long long)kBias) << 40 | left << 20 | count;
}
static void bar_unpack(u64 v, u64 &phase, u64 &count, u64 &left, long long &tx)
{
    phase = v >> 63, tx = (long long)((v >> 40) & 0x7fffff) - (long long)kBias, left = v >> 20 & 0xfffff, count = v & 0xfffff;
}
static std::vector<u64 *> known_bars;
static u64 *bar_at(u32 address, const char *what)
{
    u64 *p = (u64 *)aligned_shared(address, 8, 8, what);
    for (u64 *b : known_bars)
        if (b == p)
            return p;
    emu_fail("%s: %08x is not an initialised mbarrier", what, address);
}
static void bar_update(u64 *p, u64 phase, u64 count, u64 left, long long tx)
{
    if (left == 0 && tx == 0) {
        phase ^= 1, left = count;
        for (size_t i = 0; i < waiters.size();)
            if (waiters[i].bar == p && waiters[i].parity != phase) {
                wake(waiters[i].t);
                waiters[i] = waiters.back();
                waiters.pop_back();
            } else
                i++;
    }
    *p = bar_pack(phase, count, left, tx);
}
API void emu_bar_init(u32 address, u32 arrivals)
{
    u64 *p = (u64 *)aligned_shared(address, 8, 8, "mbarrier.init");
    if (arrivals == 0 || arrivals >= 1u << 20)
        emu_fail("mbarrier.init: %u arrivals", arrivals);
    bool known = false;
    for (u64 *b : known_bars)
        known |= b == p;
    if (!known)
        known_bars.push_back(p);
    *p = bar_pack(0, arrivals, arrivals, 0);
}
API void emu_bar_inval(u32 address)
{
    u64 *p = bar_at(address, "mbarrier.inval");
    for (size_t i = 0; i < known_bars.size(); i++)
        if (known_bars[i] == p)
            known_bars.erase(known_bars.begin() + i--);
}
static void bar_arrive(u64 *p, u32 n, long long add)
{
    u64 phase, count, left;
    long long tx;
    bar_unpack(*p, phase, count, left, tx);
    if (left < n)
        emu_fail("mbarrier: %u arrivals at a phase that waits for %llu more", n, left);
    bar_update(p, phase, count, left - n, tx + add);
}
API void emu_bar_arrive(u32 address, u32 n) { bar_arrive(bar_at(address, "mbarrier.arrive"), n, 0); }
API void emu_bar_expect_tx(u32 address, u32 bytes, u32 arrivals) { bar_arrive(bar_at(address, "mbarrier.expect_tx"), arrivals, bytes); }
static void bar_complete(u64 *p, u32 bytes)
{
    u64 phase, count, left;
    long long tx;
    bar_unpack(*p, phase, count, left, tx);
    bar_update(p, phase, count, left, tx - (long long)bytes);
}
API void emu_bar_complete_tx(u32 address, u32 bytes) { bar_complete(bar_at(address, "mbarrier.complete_tx"), bytes); }
API u32 emu_bar_test(u32 address, u32 parity, int blocking)
{
    u64 *p = bar_at(address, "mbarrier.try_wait");
    if (*p >> 63 != (parity & 1))
        return 1;
    if (!blocking) {
        yield_now();
        return *p >> 63 != (parity & 1);
    }
    waiters.push_back({p, parity & 1, cur});
    wait_for("mbarrier", address, parity);
    return 1;
}
