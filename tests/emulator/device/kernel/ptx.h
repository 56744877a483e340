// The functions that translated PTX calls.
#pragma once

typedef unsigned emu_u32;
typedef unsigned long long emu_u64;
template <class T> static inline emu_u32 emu_in32(T x)
{
    if constexpr (sizeof(T) == 4) {
        emu_u32 r;
        __builtin_memcpy(&r, &x, 4);
        return r;
    } else {
        static_assert(sizeof(T) < 4, "a 32-bit register holds no 8 bytes");
        return (emu_u32)x;
    }
}
template <class T> static inline emu_u64 emu_in64(T x)
{
    if constexpr (sizeof(T) == 8) {
        emu_u64 r;
        __builtin_memcpy(&r, &x, 8);
        return r;
    } else
        return (emu_u64)x;
}
template <class T> static inline void emu_out32(T &to, emu_u32 v)
{
    if constexpr (sizeof(T) == 4)
        __builtin_memcpy(&to, &v, 4);
    else
        to = (T)v;
}
template <class T> static inline void emu_out64(T &to, emu_u64 v)
{
    if constexpr (sizeof(T) == 8)
        __builtin_memcpy(&to, &v, 8);
    else
        to = (T)v;
}
// 16-bit floats; every NaN becomes the one that the hardware makes.
static inline float emu_from_half(unsigned short h)
{
    _Float16 f;
    __builtin_memcpy(&f, &h, 2);
    return (float)f;
}
static inline emu_u32 emu_to_half(float x)
{
    const _Float16 f = (_Float16)x;
    unsigned short h;
    __builtin_memcpy(&h, &f, 2);
    return x != x ? 0x7fff : h;
}
static inline emu_u32 emu_to_bfloat(float x)
{
    const emu_u32 u = emu_in32(x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline emu_u32 emu_halves(float high, float low) { return emu_to_half(high) << 16 | emu_to_half(low); }
static inline emu_u32 emu_bfloats(float high, float low) { return emu_to_bfloat(high) << 16 | emu_to_bfloat(low); }
struct EmuMma {
    int kind, m, n, k;
    emu_u32 a[4], b[2];
    int c[4];
    int d[4];
};
struct EmuLdmatrix {
    int n, trans;
    emu_u32 address;
    emu_u32 d[4];
};
extern "C" {
void emu_mma(EmuMma *);
void emu_ldmatrix(EmuLdmatrix *);
emu_u32 emu_cluster_rank();
emu_u32 emu_cluster_size();
void emu_cluster_arrive();
void emu_cluster_wait();
emu_u32 emu_mapa(emu_u32, emu_u32);
void *emu_mapa_pointer(const void *, emu_u32);
void emu_cp_async(emu_u32, const void *, emu_u32, emu_u32);
void emu_cp_async_commit();
void emu_cp_async_wait(int);
void emu_cp_async_wait_all();
void emu_bar_init(emu_u32, emu_u32);
void emu_bar_inval(emu_u32);
void emu_bar_arrive(emu_u32, emu_u32);
void emu_bar_expect_tx(emu_u32, emu_u32, emu_u32);
void emu_bar_complete_tx(emu_u32, emu_u32);
emu_u32 emu_bar_test(emu_u32, emu_u32, int);
void emu_tma_load(emu_u32, const void *, emu_u32, emu_u32, const int *, int, emu_u32);
void emu_tma_store(const void *, emu_u32, emu_u32, const int *, int);
void emu_bulk_load(emu_u32, const void *, emu_u32, emu_u32);
void emu_bulk_store(void *, emu_u32, emu_u32);
void emu_bulk_commit();
void emu_bulk_wait(int);
void emu_st_async(emu_u32, emu_u32, const emu_u32 *, int);
void emu_wgmma(int, int, int *const *, emu_u64, emu_u64, int);
void emu_wgmma_a(int, int, int *const *, const emu_u32 *, emu_u64, int);
void emu_wgmma_fence();
void emu_wgmma_commit();
void emu_wgmma_wait(int);
}
template <class T> static inline T emu_load_shared(emu_u32 a, int whole) { return *(T *)emu_shared_at(a, whole, whole); }
static inline emu_u32 emu_lop3(emu_u32 a, emu_u32 b, emu_u32 c, int f)
{
    emu_u32 r = 0;
    for (int i = 0; i < 8; i++)
        if (f >> i & 1)
            r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}
