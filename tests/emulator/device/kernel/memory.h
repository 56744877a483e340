// Loads and stores with cache hints, atomics.
#pragma once

#define EMU_LD(name) \
    template <class T> static inline T name(const T *p) { return *p; }
EMU_LD(__ldg)
EMU_LD(__ldca)
EMU_LD(__ldcg)
EMU_LD(__ldcs)
EMU_LD(__ldlu)
EMU_LD(__ldcv)
#define EMU_ST(name) \
    template <class T> static inline void name(T *p, T v) { *p = v; }
EMU_ST(__stwb)
EMU_ST(__stcg)
EMU_ST(__stcs)
EMU_ST(__stwt)
template <class T> struct emu_same {
    typedef T type;
};
#define EMU_ATOMIC(name, expr)                                                  \
    template <class T> static inline T name(T *p, typename emu_same<T>::type v) \
    {                                                                           \
        T old = *p;                                                             \
        *p = expr;                                                              \
        return old;                                                             \
    }
EMU_ATOMIC(atomicAdd, (T)(old + v))
EMU_ATOMIC(atomicSub, (T)(old - v))
EMU_ATOMIC(atomicMin, v < old ? v : old)
EMU_ATOMIC(atomicMax, v > old ? v : old)
EMU_ATOMIC(atomicAnd, (T)(old & v))
EMU_ATOMIC(atomicOr, (T)(old | v))
EMU_ATOMIC(atomicXor, (T)(old ^ v))
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
EMU_ATOMIC(atomicAdd_block, (T)(old + v))
EMU_ATOMIC(atomicOr_block, (T)(old | v))
EMU_ATOMIC(atomicMax_block, v > old ? v : old)
EMU_ATOMIC(atomicMin_block, v < old ? v : old)
template <class T> static inline T atomicCAS(T *p, typename emu_same<T>::type expected, typename emu_same<T>::type v)
{
    T old = *p;
    if (old == expected)
        *p = v;
    return old;
}
