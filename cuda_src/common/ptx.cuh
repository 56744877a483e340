// One wrapper per PTX instruction that the kernels use: barriers in shared memory, copies, matrices of a warp, clusters. Includes no other
// header.
#ifndef BITSPARSE_PTX_CUH
#define BITSPARSE_PTX_CUH

typedef unsigned int u32;
typedef unsigned long long u64;

#define BS_INLINE static __device__ __forceinline__

// A TMA descriptor as the driver encodes it: opaque, 64-byte aligned, passed by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

BS_INLINE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

BS_INLINE u32 cluster_rank()
{
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

// ---- numbers
#if __CUDA_ARCH__ >= 900
// The minimum of the lower halves and, separately, of the upper halves.
BS_INLINE u32 least_of_halves(u32 a, u32 b)
{
    u32 least;
    asm("min.u16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
    return least;
}
#endif

// ---- barriers in shared memory
BS_INLINE void barrier_init(u32 bar, u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes barrier_init visible to the copy engine and to the other blocks of the cluster.
BS_INLINE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

BS_INLINE void barrier_expect(u32 bar, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

BS_INLINE bool barrier_test(u32 bar, u32 parity)
{
    u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

// Orders what this thread did, and what its warp did before __syncwarp(), before whatever the waiting threads do next.
BS_INLINE void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }

BS_INLINE void barrier_wait(u32 bar, u32 parity)
{
    while (!barrier_test(bar, parity)) {
    }
}

// Arrives at the barrier of the same offset in block `rank` of the cluster. It orders reads by the matrix units that have already been
// waited for, so the scope stays the block: a release at cluster scope costs a fence of the whole GPU each time.
BS_INLINE void barrier_arrive_remote(u32 bar, u32 rank)
{
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

BS_INLINE void store_shared(u32 to, int x, int y) { asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory"); }

BS_INLINE void store_shared(u32 to, int x, int y, int z, int w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

BS_INLINE void store_shared_word(u32 to, int x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }

BS_INLINE void store_shared_half(u32 to, unsigned short x) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory"); }

BS_INLINE int4 load_shared(u32 from)
{
    int4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

BS_INLINE int load_shared_word(u32 from)
{
    int v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

BS_INLINE int2 load_shared_pair(u32 from)
{
    int2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

BS_INLINE void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Stores vectors to global memory that the compiler must not split.
BS_INLINE void store_global(void *to, u32 x, u32 y)
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(x), "r"(y) : "memory");
}

BS_INLINE void store_global(void *to, u32 x, u32 y, u32 z, u32 w)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// ---- copies of 16 bytes to shared memory that complete in groups, matrices in registers of a warp (sm_80 and later)
// Copies the first `bytes` of 16 and writes zeros for the others.
BS_INLINE void copy_bytes_async(u32 to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Writes zeros if not `valid`, and then does not read `from`.
BS_INLINE void copy_async(u32 to, const void *from, bool valid) { copy_bytes_async(to, from, valid ? 16 : 0); }

BS_INLINE void copy_word_async(u32 to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

BS_INLINE void copy_word_async(u32 to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

BS_INLINE void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

BS_INLINE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last `pending` groups of this thread are complete.
template <int pending> BS_INLINE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// Loads four matrices of 8 rows of 16 bytes: lane 8 i + r gives the address of row r of matrix i; lane 4 r + t receives word t of row r of
// each.
BS_INLINE void load_matrices(u32 (&d)[4], u32 row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(row)
                 : "memory");
}

// D (16 x 8, int32) += A (16 x 32 bytes) B^T (8 x 32 bytes). Lane 4 g + t holds words t and t + 4 of row g (a[0], a[2]) and of row g + 8
// (a[1], a[3]) of A, the same words of row g of B, and the columns 2 t and 2 t + 1 of row g (d[0], d[1]) and of row g + 8 (d[2], d[3]) of
// D.
BS_INLINE void mma_m16n8k256_b1(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BS_INLINE void mma_m16n8k32_u8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BS_INLINE void mma_m16n8k32_s8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BS_INLINE void mma_m16n8k32_s8u8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BS_INLINE void mma_m16n8k32_u8s8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// D (16 x 8, float) += A (16 x 8, TF32: the last 13 bits of the floats are ignored) B^T (8 x 8), or for 16-bit floats A (16 x 16) and B^T
// (8 x 16). Lanes hold words as in the products of integers.
BS_INLINE void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BS_INLINE void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

BS_INLINE void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- floats of fewer bits, rounded to nearest: TF32 with ties away from zero, a pair of 16-bit floats with ties to even
BS_INLINE u32 tf32_of(float x)
{
    u32 r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

BS_INLINE u32 f16x2_of(float low, float high)
{
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

BS_INLINE u32 bf16x2_of(float low, float high)
{
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

BS_INLINE float float_of_f16(unsigned short h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// ---- bulk tensor copies, four coordinates, completing on a barrier
BS_INLINE void tma_prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

BS_INLINE void tma_load(u32 dst, const TensorMap *map, u32 bar, int c0, int c1, int c2, int c3)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
        "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

// The same, with a policy for the L2.
constexpr u64 kEvictNormally = 0x1000000000000000ull, kEvictFirst = 0x12f0000000000000ull;
BS_INLINE void tma_load_hinted(u32 dst, const TensorMap *map, u32 bar, int c0, int c1, int c2, int c3, u64 policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
}

// tma_load into every block of the cluster whose bit in `mask` is set, at the same offsets of data and barrier.
BS_INLINE void tma_load_multicast(u32 dst, const TensorMap *map, u32 bar, int c0, int c1, int c2, int c3, unsigned short mask)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(mask)
                 : "memory");
}

// Shared to global memory, three coordinates; what lies beyond the array is left out. Results are the first to leave the L2 again, so that
// operands stay.
BS_INLINE void tma_store(const TensorMap *map, u32 src, int c0, int c1, int c2)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;" ::"l"(map),
                 "r"(src), "r"(c0), "r"(c1), "r"(c2), "l"(kEvictFirst)
                 : "memory");
}

BS_INLINE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last `pending` groups of this thread have read their shared memory.
template <int pending> BS_INLINE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory"); }

// Makes ordinary stores to shared memory visible to the copy engine.
BS_INLINE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- the cluster
// All blocks start together (after fence_barrier_init) and leave together. This does not order memory.
BS_INLINE void cluster_meet() { asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }

BS_INLINE u32 remote_address(u32 address, u32 rank)
{
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// Stores four words into another block's shared memory; that block's barrier counts the bytes.
BS_INLINE void store_remote(u32 remote, int x, int y, int z, int w, u32 remote_barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote), "r"(x),
                 "r"(y), "r"(z), "r"(w), "r"(remote_barrier)
                 : "memory");
}

// ---- parts of a block, dependent launches
// Gives registers back to the block's pool, or takes them from it. Executed by all warps of a warpgroup.
template <int n> BS_INLINE void registers_release() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n> BS_INLINE void registers_claim() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }

BS_INLINE void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
BS_INLINE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
BS_INLINE void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

#endif
