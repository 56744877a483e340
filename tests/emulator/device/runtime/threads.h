// The threads of a cluster as fibers: their state, which one runs next, and what happens if none can run.
#pragma once

struct Thread;
struct Block;
struct Request {
    int kind;
    u32 mask;
    u64 a, b, c; // inputs
    u64 r;       // result
    void *p;     // operands of mma.sync or ldmatrix
};
struct Copy {
    u8 *to;
    const u8 *from;
    u32 bytes, take;
};
struct Product {
    int n, kind, keep;
    u64 a, b;
    int *first;
    std::vector<int *> d;
    u32 words[16]; // of A in registers: words 0 to 3 of row g, of row g + 8, words 4 to 7 of row g, of row g + 8
}; // d is empty if the accumulators lie side by side

struct Context {
    void *sp;
    u8 *stack;
    Thread *next;
};
struct Thread {
    Block *block;
    U3 at;
    int tid, lane, warp;
    Context *ctx;
    const char *waits; // what the thread waits for, or null
    u64 wait_a, wait_b;
    u64 answer;
    bool done;
    std::deque<std::vector<Copy>> copies; // committed groups of cp.async
    std::vector<Copy> open_copies;
    std::deque<std::vector<std::function<void()>>> bulk;
    std::vector<std::function<void()>> open_bulk;
    std::deque<std::vector<Product>> products;
    std::vector<Product> open_products;
    bool fenced;
};
struct Warp {
    u32 live, waiting;
    Request *req[32];
    Thread *lane[32];
};
struct Barrier {
    int arrived, expected;
    u64 value;
    std::vector<Thread *> waiting;
};
struct Block {
    U3 index;
    u32 rank;
    u8 *s_static;
    size_t n_static;
    u8 *s_dynamic;
    size_t n_dynamic;
    u32 at_dynamic;
    int live;
    Barrier barrier[16];
    std::vector<Warp> warps;
    std::vector<Thread> threads;
};

struct Launch {
    void (*entry[16])(const void *);
    u8 *s_static[16];
    u64 n_static;
    u32 grid[3], block[3];
    u64 n_dynamic, align_dynamic;
    const void *params;
    u32 cluster;
    u32 order; // 0 forward, 1 reverse, else a seed
    const char *name;
};

static Thread *cur;
static const Launch *now;
static std::vector<Block> blocks;
static std::vector<Context *> pool, all_contexts;
static std::deque<Thread *> runnable;
static std::vector<Thread *> order_of;
static size_t started;
static int live_threads;
static void *main_sp;
static sigjmp_buf main_jump;
static u64 rng_state;
struct Waiter {
    u64 *bar;
    u32 parity;
    Thread *t;
};
static std::vector<Waiter> waiters;
static std::deque<std::function<void()>> engine; // copies under way
static int cluster_arrived;
static std::vector<Thread *> cluster_waiting;
static const size_t kStack = 192 << 10;

static u32 rnd()
{
    rng_state ^= rng_state << 13, rng_state ^= rng_state >> 7, rng_state ^= rng_state << 17;
    return (u32)(rng_state >> 16);
}

extern "C" void emu_switch(void **save, void *to);
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch,.-emu_switch
)");

static std::string where()
{
    char text[300];
    if (!cur)
        return std::string(now ? now->name : "?");
    snprintf(text, sizeof text, "%s, block (%u,%u,%u) thread %d (warp %d lane %d)%s", now->name, cur->block->index.x, cur->block->index.y,
             cur->block->index.z, cur->tid, cur->warp, cur->lane,
             now->cluster > 1 ? (" rank " + std::to_string(cur->block->rank)).c_str() : "");
    return text;
}

API __attribute__((noreturn)) void emu_fail(const char *format, ...)
{
    char text[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(error_text, sizeof error_text, "%s: %s", where().c_str(), text);
    siglongjmp(main_jump, 1);
}

static void set_current(Thread *t)
{
    cur = t;
    threadIdx = t->at;
    blockIdx = t->block->index;
}

static Context *take_context();

static void deadlock()
{
    std::string text = "deadlock; threads wait for:";
    std::map<std::string, std::pair<int, std::string>> kinds;
    for (auto &b : blocks)
        for (auto &t : b.threads)
            if (!t.done) {
                char what[200];
                snprintf(what, sizeof what, "%s %llx/%llx", t.waits ? t.waits : "nothing?", t.wait_a, t.wait_b);
                auto &k = kinds["rank " + std::to_string(b.rank) + " " + what];
                k.first++;
                if (k.second.size() < 60)
                    k.second += " " + std::to_string(t.tid);
            }
    int n = 0;
    for (auto &k : kinds) {
        text += "\n  " + k.first + ": " + std::to_string(k.second.first) + " threads:" + k.second.second;
        if (++n > 24)
            break;
    }
    cur = nullptr;
    emu_fail("%s", text.c_str());
}

// The next thread to run; null when all are done.
static Thread *pick()
{
    for (;;) {
        const bool random = now->order > 1;
        if (random && !engine.empty() && rnd() % 8 == 0) {
            auto op = std::move(engine.front());
            engine.pop_front();
            op();
            continue;
        }
        if (!runnable.empty() && !(random && started < order_of.size() && rnd() % 4 == 0)) {
            size_t i = random ? rnd() % runnable.size() : 0;
            Thread *t = runnable[i];
            if (i)
                runnable[i] = runnable.front();
            runnable.pop_front();
            return t;
        }
        if (started < order_of.size())
            return order_of[started++];
        if (!engine.empty()) {
            auto op = std::move(engine.front());
            engine.pop_front();
            op();
            continue;
        }
        if (live_threads == 0)
            return nullptr;
        deadlock();
    }
}

static void wake(Thread *t)
{
    t->waits = nullptr;
    runnable.push_back(t);
}

// Blocks the current thread until wake().
static void wait_for(const char *what, u64 a = 0, u64 b = 0)
{
    Thread *me = cur;
    me->waits = what, me->wait_a = a, me->wait_b = b;
    Thread *t = pick();
    if (!t) {
        cur = nullptr;
        emu_fail("internal: a waiting thread, but none is alive");
    }
    if (t == me) {
        set_current(me);
        return;
    }
    Context *to = t->ctx;
    if (!to) {
        to = take_context();
        to->next = t;
    } else
        set_current(t);
    emu_switch(&me->ctx->sp, to->sp);
    set_current(me);
}

static void yield_now()
{
    runnable.push_back(cur);
    Thread *me = cur;
    if (started >= order_of.size() && runnable.size() == 1 && !engine.empty()) {
        auto op = std::move(engine.front());
        engine.pop_front();
        op();
    }
    wait_for("a turn");
    (void)me;
}

static void thread_exit(Thread *t);

static void fiber_main(Context *me)
{
    for (;;) {
        Thread *t = me->next;
        me->next = nullptr;
        if (!t)
            t = pick();
        if (!t) {
            pool.push_back(me);
            emu_switch(&me->sp, main_sp); // back to the launcher
            continue;
        }
        if (t->ctx) {
            pool.push_back(me);
            set_current(t);
            emu_switch(&me->sp, t->ctx->sp);
            continue;
        }
        t->ctx = me;
        set_current(t);
        now->entry[t->block->rank](now->params);
        thread_exit(t);
        t->ctx = nullptr;
    }
}

extern "C" void emu_fiber_entry(Context *c) { fiber_main(c); }
asm(R"(
.text
.globl emu_fiber_start
.type emu_fiber_start,@function
emu_fiber_start:
    movq %rbx, %rdi
    xorl %ebp, %ebp
    call emu_fiber_entry
    ud2
.size emu_fiber_start,.-emu_fiber_start
)");
extern "C" void emu_fiber_start();

static void fresh(Context *c)
{
    u64 *top = (u64 *)(c->stack + kStack);
    *--top = 0;
    *--top = 0;
    *--top = (u64)emu_fiber_start; // return address
    *--top = 0;                    // rbp
    *--top = (u64)c;               // rbx
    *--top = 0, *--top = 0, *--top = 0, *--top = 0;
    c->sp = top;
    c->next = nullptr;
}

static Context *new_context()
{
    u8 *map = (u8 *)mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        emu_fail("no memory for stacks");
    mprotect(map, kPage, PROT_NONE);
    Context *c = new Context{nullptr, map + kPage, nullptr};
    all_contexts.push_back(c);
    fresh(c);
    return c;
}

static Context *take_context()
{
    if (pool.empty())
        return new_context();
    Context *c = pool.back();
    pool.pop_back();
    return c;
}
