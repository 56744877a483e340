// Launches run clusters one after another, and turn faults into errors that name the thread.
#pragma once

static void thread_exit(Thread *t)
{
    if (!t->open_copies.empty() || !t->copies.empty()) {
        for (auto &g : t->copies)
            do_copies(g);
        do_copies(t->open_copies);
    }
    emu_bulk_commit();
    emu_bulk_wait(0);
    for (auto &g : t->products)
        if (!g.empty())
            emu_fail("the thread ends with wgmma under way");
    Block &b = *t->block;
    Warp &w = b.warps[t->warp];
    t->done = true;
    live_threads--;
    b.live--;
    w.live &= ~(1u << t->lane);
    for (u32 l = w.waiting; l; l &= l - 1)
        if (w.req[__builtin_ctz(l)]->mask >> t->lane & 1)
            emu_fail("the thread ends while lane %d waits for it at %s with mask %08x", __builtin_ctz(l),
                     kind_names[w.req[__builtin_ctz(l)]->kind], w.req[__builtin_ctz(l)]->mask);
    for (Barrier &k : b.barrier)
        if (k.arrived && k.expected < 0 && k.arrived == b.live)
            barrier_release(k);
    if (cluster_arrived && cluster_arrived == live_of_cluster()) {
        cluster_phase++;
        cluster_release();
    }
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    const char *what = number == SIGSEGV  ? "illegal address"
                       : number == SIGBUS ? "bus error"
                       : number == SIGILL ? "trap"
                                          : "arithmetic fault";
    char near[300] = "";
    const u8 *p = (const u8 *)info->si_addr;
    if (number == SIGSEGV) {
        long long best = 1 << 20;
        for (auto &e : allocs) {
            const long long past = p - (e.second.p + e.second.size), before = e.second.p - p;
            const long long d = past >= 0 ? past : before > 0 ? before : 0;
            if (d < best) {
                best = d;
                snprintf(near, sizeof near, "; %lld bytes %s an allocation of %zu bytes at %p", d, past >= 0 ? "past the end of" : "before",
                         e.second.size, e.second.p);
            }
        }
        for (Block &b : blocks)
            if (p >= b.s_dynamic - 65536 && p < b.s_dynamic + b.n_dynamic + 65536)
                snprintf(near, sizeof near, "; at offset %lld of rank %u's dynamic shared memory of %zu bytes",
                         (long long)(p - b.s_dynamic), b.rank, b.n_dynamic);
        for (Context *c : all_contexts)
            if (p >= c->stack - kPage && p < c->stack)
                snprintf(near, sizeof near, "; stack overflow");
    }
    const u64 rip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    snprintf(error_text, sizeof error_text, "%s: %s %p (at %llx)%s", where().c_str(), what, (void *)p, rip, near);
    siglongjmp(main_jump, 1);
}

static u8 *shared_map[16];
static size_t shared_room[16];

static int run_cluster(const Launch *l, u64 first)
{
    const u32 n_threads = l->block[0] * l->block[1] * l->block[2];
    runnable.clear(), engine.clear(), waiters.clear(), known_bars.clear(), cluster_waiting.clear();
    cluster_arrived = 0, started = 0, cluster_phase = 1;
    if (blocks.size() != l->cluster || blocks[0].threads.size() != n_threads) {
        blocks.clear();
        blocks.resize(l->cluster);
        for (Block &b : blocks)
            b.threads.resize(n_threads), b.warps.resize((n_threads + 31) / 32);
    }
    order_of.clear();
    for (u32 r = 0; r < l->cluster; r++) {
        Block &b = blocks[r];
        const u64 index = first + r;
        b.index = {(u32)(index % l->grid[0]), (u32)(index / l->grid[0] % l->grid[1]), (u32)(index / l->grid[0] / l->grid[1])};
        b.rank = r;
        b.s_static = l->s_static[r], b.n_static = l->n_static;
        const size_t align = l->align_dynamic < 16 ? 16 : l->align_dynamic, room = up(l->n_dynamic, align);
        b.s_dynamic = shared_map[r] + shared_room[r] - room;
        b.n_dynamic = l->n_dynamic;
        b.at_dynamic = (u32)up(kReserved + l->n_static, align);
        if (b.n_static)
            memset(b.s_static, 0xB7, b.n_static);
        memset(b.s_dynamic, 0xB7, room);
        b.live = n_threads;
        for (Barrier &k : b.barrier)
            k.arrived = k.expected = 0, k.value = 0, k.waiting.clear();
        for (Warp &w : b.warps)
            w.live = w.waiting = 0;
        for (u32 i = 0; i < n_threads; i++) {
            Thread &t = b.threads[i];
            t.block = &b, t.tid = i, t.lane = i & 31, t.warp = i >> 5, t.ctx = nullptr, t.waits = nullptr, t.done = false, t.fenced = false;
            t.at = {i % l->block[0], i / l->block[0] % l->block[1], i / l->block[0] / l->block[1]};
            if (!t.copies.empty())
                t.copies.clear();
            if (!t.bulk.empty())
                t.bulk.clear();
            if (!t.products.empty())
                t.products.clear();
            t.open_copies.clear(), t.open_bulk.clear(), t.open_products.clear();
            b.warps[i >> 5].live |= 1u << (i & 31);
            b.warps[i >> 5].lane[i & 31] = &t;
        }
    }
    // Warps start in turns over the blocks, in forward, backward or shuffled order.
    std::vector<std::pair<u32, u32>> warps;
    for (u32 w = 0; w < (n_threads + 31) / 32; w++)
        for (u32 r = 0; r < l->cluster; r++)
            warps.push_back({r, w});
    if (l->order == 1)
        for (size_t i = 0; i < warps.size() / 2; i++)
            std::swap(warps[i], warps[warps.size() - 1 - i]);
    if (l->order > 1)
        for (size_t i = warps.size(); i > 1; i--)
            std::swap(warps[i - 1], warps[rnd() % i]);
    for (auto &rw : warps)
        for (u32 i = 32 * rw.second; i < 32 * rw.second + 32 && i < n_threads; i++)
            order_of.push_back(
                &blocks[rw.first].threads[l->order == 1 ? (32 * rw.second + 31 < n_threads ? 64 * rw.second + 31 - i : i) : i]);
    live_threads = n_threads * l->cluster;
    emu_switch(&main_sp, take_context()->sp);
    return 0;
}

API int emu_launch(const Launch *l)
{
    now = l;
    rng_state = 88172645463325252ull ^ ((u64)l->order << 32);
    blockDim = {l->block[0], l->block[1], l->block[2]};
    gridDim = {l->grid[0], l->grid[1], l->grid[2]};
    for (u32 r = 0; r < l->cluster; r++)
        if (shared_room[r] < up(l->n_dynamic, kPage) + kPage) {
            const size_t room = up(l->n_dynamic, kPage) + kPage;
            u8 *m = (u8 *)mmap(nullptr, room + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            mprotect(m, kPage, PROT_NONE);
            mprotect(m + kPage + room, kPage, PROT_NONE);
            shared_map[r] = m + kPage, shared_room[r] = room;
        }
    static u8 alternate[1 << 16];
    stack_t old_stack, stack{};
    stack.ss_sp = alternate, stack.ss_size = sizeof alternate;
    sigaltstack(&stack, &old_stack);
    struct sigaction action{}, old[4];
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int numbers[4] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (int i = 0; i < 4; i++)
        sigaction(numbers[i], &action, &old[i]);
    int status = 0;
    if (sigsetjmp(main_jump, 1) == 0) {
        const u64 n = (u64)l->grid[0] * l->grid[1] * l->grid[2];
        for (u64 first = 0; first < n; first += l->cluster)
            run_cluster(l, first);
    } else {
        status = 1;
        pool = all_contexts;
        for (Context *c : pool)
            fresh(c);
        blocks.clear();
        runnable.clear();
        engine.clear();
    }
    cur = nullptr;
    for (int i = 0; i < 4; i++)
        sigaction(numbers[i], &old[i], nullptr);
    sigaltstack(&old_stack, nullptr);
    return status;
}

// ---- what -fsanitize reports
struct Source {
    const char *file;
    u32 line, column;
};
#define BAD(name, text) \
    API void name(Source *s, u64 a, u64 b) { emu_fail("%s:%u:%u: " text " (%llx, %llx)", s->file, s->line, s->column, a, b); }
BAD(__ubsan_handle_type_mismatch_v1, "misaligned or null access")
BAD(__ubsan_handle_shift_out_of_bounds, "shift by the width or more, or of a negative amount")
BAD(__ubsan_handle_out_of_bounds, "array index out of bounds")
BAD(__ubsan_handle_divrem_overflow, "division by zero or overflow")
