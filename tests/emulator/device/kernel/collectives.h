// Functions that the threads of a warp or block call together.
#pragma once

static inline void __syncthreads() { emu_barrier(0, -1, 0, 0); }
static inline int __syncthreads_or(int p) { return (int)emu_barrier(0, -1, 1, p != 0); }
static inline int __syncthreads_and(int p) { return (int)emu_barrier(0, -1, 2, p != 0); }
static inline int __syncthreads_count(int p) { return (int)emu_barrier(0, -1, 3, p != 0); }
static inline void __syncwarp(unsigned mask = ~0u) { emu_collective(0, mask, 0, 0, 0); }
template <class T> static inline unsigned long long emu_bits(T x)
{
    static_assert(sizeof(T) <= 8, "shuffles take 4 or 8 bytes");
    unsigned long long r = 0;
    __builtin_memcpy(&r, &x, sizeof x);
    return r;
}
template <class T> static inline T emu_from(unsigned long long x)
{
    T r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
#define EMU_SHFL(name, kind, type)                                                                                      \
    template <class T> static inline T name(unsigned mask, T v, type x, int width = 32)                                 \
    {                                                                                                                   \
        return emu_from<T>(emu_collective(kind, mask, emu_bits(v), (unsigned long long)(long long)x, (unsigned)width)); \
    }
EMU_SHFL(__shfl_sync, 1, int)
EMU_SHFL(__shfl_up_sync, 2, unsigned)
EMU_SHFL(__shfl_down_sync, 3, unsigned)
EMU_SHFL(__shfl_xor_sync, 4, int)
static inline unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)emu_collective(5, mask, p != 0, 0, 0); }
static inline int __any_sync(unsigned mask, int p) { return (int)emu_collective(6, mask, p != 0, 0, 0); }
static inline int __all_sync(unsigned mask, int p) { return (int)emu_collective(7, mask, p != 0, 0, 0); }
template <class T> static inline unsigned __match_any_sync(unsigned mask, T v)
{
    return (unsigned)emu_collective(8, mask, emu_bits(v), 0, 0);
}
template <class T> static inline unsigned __match_all_sync(unsigned mask, T v, int *p)
{
    unsigned r = (unsigned)emu_collective(9, mask, emu_bits(v), 0, 0);
    *p = r != 0;
    return r;
}
static inline unsigned __reduce_add_sync(unsigned m, unsigned v) { return (unsigned)emu_collective(10, m, v, 0, 0); }
static inline unsigned __reduce_min_sync(unsigned m, unsigned v) { return (unsigned)emu_collective(11, m, v, 0, 0); }
static inline unsigned __reduce_max_sync(unsigned m, unsigned v) { return (unsigned)emu_collective(12, m, v, 0, 0); }
static inline int __reduce_add_sync(unsigned m, int v) { return (int)emu_collective(10, m, (unsigned)v, 0, 0); }
static inline int __reduce_min_sync(unsigned m, int v) { return (int)emu_collective(16, m, (unsigned)v, 0, 0); }
static inline int __reduce_max_sync(unsigned m, int v) { return (int)emu_collective(17, m, (unsigned)v, 0, 0); }
static inline unsigned __reduce_and_sync(unsigned m, unsigned v) { return (unsigned)emu_collective(13, m, v, 0, 0); }
static inline unsigned __reduce_or_sync(unsigned m, unsigned v) { return (unsigned)emu_collective(14, m, v, 0, 0); }
static inline unsigned __reduce_xor_sync(unsigned m, unsigned v) { return (unsigned)emu_collective(15, m, v, 0, 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) {}
static inline void __trap() { emu_fail("__trap()"); }
#define __brkpt() __trap()
#define assert(x) ((x) ? (void)0 : emu_fail("assertion %s, line %d", #x, __LINE__))
static inline unsigned long long __cvta_generic_to_shared(const void *p) { return emu_to_shared(p); }
static inline void *__cvta_shared_to_generic(unsigned long long a) { return emu_shared((unsigned)a, 0); }
static inline unsigned long long __cvta_generic_to_global(const void *p) { return (unsigned long long)p; }
#define __isShared(p) 0
static inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
static inline int clock() { return (int)__builtin_ia32_rdtsc(); }
#define __assume(x)
#define __builtin_assume(x)
