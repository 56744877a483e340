// From eight planes to bytes: transposes 8 x 8 bits.
#ifndef BITSPARSE_OCTET_TURN_CUH
#define BITSPARSE_OCTET_TURN_CUH

#include "common/ptx.cuh"

// Bits of `a` where the mask is set, else those of `b`: one instruction, where the compiler emits two.
BS_INLINE u32 chosen_bits(u32 a, u32 b, u32 mask)
{
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
    return r;
}

// One step of a transposition: bits of `a` at positions with bit d set swap with bits of `b` at positions without it.
BS_INLINE void exchange(u32 &a, u32 &b, int d, u32 mask)
{
    const u32 was = a;
    a = chosen_bits(was, b << d, mask);
    b = chosen_bits(was >> d, b, mask);
}

// The same where `b` is zero.
BS_INLINE void spread(u32 &a, u32 &b, int d, u32 mask)
{
    b = (a >> d) & mask;
    a &= mask;
}

// Turns plane words of 32 elements into bytes; planes from `planes` on are zero. Byte c of word i becomes element 8 c + i, which is the
// order that a transposition of 8 x 8 bits yields.
template <int planes = 8> BS_INLINE void turn_octets(u32 (&w)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        (planes <= i + 4 ? spread : exchange)(w[i], w[i + 4], 4, 0x0f0f0f0fu);
#pragma unroll
    for (int i = 0; i < 8; i += i & 1 ? 3 : 1)
        (planes <= (i & 1) + 2 ? spread : exchange)(w[i], w[i + 2], 2, 0x33333333u);
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        (planes <= 1 ? spread : exchange)(w[i], w[i + 1], 1, 0x55555555u);
}

#endif
