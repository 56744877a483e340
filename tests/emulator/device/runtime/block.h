// What the threads of a block and of a cluster share: barriers and addresses of shared memory.
#pragma once

static void barrier_release(Barrier &b)
{
    for (Thread *t : b.waiting) {
        t->answer = b.value;
        wake(t);
    }
    b.waiting.clear();
    b.arrived = 0, b.expected = 0, b.value = 0;
}

// kind 0 sync, 1 or, 2 and, 3 count
API u64 emu_barrier(int id, int threads, int kind, u64 value)
{
    Block &k = *cur->block;
    if (id < 0 || id > 15)
        emu_fail("barrier %d does not exist", id);
    Barrier &b = k.barrier[id];
    if (threads >= 0 && (threads == 0 || threads % 32 || threads > (int)k.threads.size()))
        emu_fail("barrier %d: %d threads is no multiple of the warp or more than the block has", id, threads);
    const int expected = threads < 0 ? -1 : threads;
    if (b.arrived && b.expected != expected)
        emu_fail("barrier %d: %d threads expected here, %d elsewhere (-1: all)", id, expected, b.expected);
    b.expected = expected;
    if (b.arrived == 0)
        b.value = kind == 2 ? 1 : 0;
    if (kind == 1)
        b.value |= value != 0;
    else if (kind == 2)
        b.value &= value != 0;
    else if (kind == 3)
        b.value += value != 0;
    b.arrived++;
    if (b.arrived == (expected < 0 ? k.live : expected)) {
        const u64 answer = b.value;
        barrier_release(b);
        return answer;
    }
    b.waiting.push_back(cur);
    wait_for("barrier", id, expected);
    return cur->answer;
}

API void emu_barrier_arrive(int id, int threads)
{
    Block &k = *cur->block;
    if (id < 0 || id > 15)
        emu_fail("barrier %d does not exist", id);
    Barrier &b = k.barrier[id];
    if (b.arrived && b.expected != threads)
        emu_fail("barrier %d: %d threads expected here, %d elsewhere (-1: all)", id, threads, b.expected);
    b.expected = threads;
    if (++b.arrived == threads)
        barrier_release(b);
}

// ---- the cluster
API u32 emu_cluster_rank() { return cur->block->rank; }
API u32 emu_cluster_size() { return now->cluster; }

static int live_of_cluster()
{
    int n = 0;
    for (auto &b : blocks)
        n += b.live;
    return n;
}
static void cluster_release()
{
    cluster_arrived = 0;
    for (Thread *t : cluster_waiting)
        wake(t);
    cluster_waiting.clear();
}
static std::vector<u64> cluster_phase_arrived;
static u64 cluster_phase;
API void emu_cluster_arrive()
{
    cur->answer = cluster_phase;
    cluster_arrived++;
    if (cluster_arrived == live_of_cluster()) {
        cluster_phase++;
        cluster_release();
    }
}
API void emu_cluster_wait()
{
    if (cur->answer != cluster_phase)
        return;
    cluster_waiting.push_back(cur);
    wait_for("cluster barrier");
}

// ---- shared memory addresses
static const u32 kReserved = 1024;

API void *emu_dynamic_shared() { return cur->block->s_dynamic; }

API u64 emu_to_shared(const void *p)
{
    Block &b = *cur->block;
    const u8 *q = (const u8 *)p;
    if (q >= b.s_static && q < b.s_static + b.n_static)
        return kReserved + (q - b.s_static);
    if (q >= b.s_dynamic && q <= b.s_dynamic + b.n_dynamic)
        return b.at_dynamic + (q - b.s_dynamic);
    if (q == b.s_static + b.n_static)
        return kReserved + (q - b.s_static);
    emu_fail("%p is not in this block's shared memory", p);
}

API void *emu_shared(u32 address, u32 bytes)
{
    const u32 top = address >> 24, off = address & 0xffffff;
    if (top > blocks.size())
        emu_fail("shared address %08x: no such block in the cluster", address);
    Block &b = top ? blocks[top - 1] : *cur->block;
    if (off >= kReserved && off + bytes <= kReserved + b.n_static)
        return b.s_static + (off - kReserved);
    if (off >= b.at_dynamic && off + bytes <= b.at_dynamic + b.n_dynamic)
        return b.s_dynamic + (off - b.at_dynamic);
    emu_fail("shared address %08x, %u bytes: beyond the block's shared memory (static %llu at 1024, dynamic %llu at %u)", address, bytes,
             (u64)b.n_static, (u64)b.n_dynamic, b.at_dynamic);
}

static u8 *aligned_shared(u32 address, u32 bytes, u32 align, const char *what)
{
    if (address % align)
        emu_fail("%s: shared address %08x is not a multiple of %u", what, address, align);
    return (u8 *)emu_shared(address, bytes);
}
API void *emu_shared_at(u32 address, u32 bytes, u32 align) { return aligned_shared(address, bytes, align, "shared access"); }

API u32 emu_mapa(u32 address, u32 rank)
{
    if (rank >= blocks.size())
        emu_fail("mapa: rank %u of a cluster of %zu", rank, blocks.size());
    emu_shared(address, 1);
    return (rank + 1) << 24 | (address & 0xffffff);
}
API void *emu_mapa_pointer(const void *p, u32 rank) { return emu_shared(emu_mapa((u32)emu_to_shared(p), rank), 0); }
