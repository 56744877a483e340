/* The choice of an instruction set at run time, and loops over units of work with or without threads. */
#include "drivers/parallel.h"

#ifdef BS_X86
#include <cpuid.h>
#endif
#ifdef BS_AMX_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef BS_X86
/* CPUID is used directly, since __builtin_cpu_supports needs a compiler library that is not linked on Windows. The names end in the leaf
 * of CPUID (71 is leaf 7, subleaf 1) and the register that holds the bit. */
#define POPCNT_1C (1u << 23)
#define OSXSAVE_1C (1u << 27)
#define F16C_1C (1u << 29)
#define AVX2_7B (1u << 5)
#define BMI2_7B (1u << 8)
#define AVX512F_7B (1u << 16)
#define AVX512DQ_7B (1u << 17)
#define AVX512BW_7B (1u << 30)
#define AVX512VL_7B (1u << 31)
#define VNNI_7C (1u << 11)
#define VPOPCNTDQ_7C (1u << 14)
#define AVXVNNI_71A (1u << 4)
#define AMX_7D (3u << 24) /* tiles, and products of tiles of bytes */
/* Bits of XCR0 for the registers that the operating system saves for each thread: 256-bit ones, those plus masks and 512-bit ones, and tiles. */
#define KEEPS_AVX 0x06u
#define KEEPS_AVX512 0xe6u
#define KEEPS_AMX 0x60000u

static int has_all(unsigned have, unsigned needed) { return (have & needed) == needed; }

static unsigned kept_registers(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

#ifdef BS_AMX_TILES
/* Linux lets a process use tiles once it has asked, since each thread then needs 8 KB more to be saved. */
static int may_use_tiles(void)
{
    const long ask_for_state = 0x1023, tiles = 18;
    return syscall(SYS_arch_prctl, ask_for_state, tiles) == 0;
}
#endif

/* The bit of a level in a set of levels. */
#define LEVEL(level) (1u << (level))

static unsigned asked_levels(void)
{
    unsigned a, b, c, d, b7, c7, d7, a71;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !__get_cpuid(1, &a, &b, &c, &d))
        return LEVEL(BS_SCALAR);
    if (!has_all(c, POPCNT_1C | OSXSAVE_1C | F16C_1C) || !has_all(b7, AVX2_7B | BMI2_7B) || !has_all(kept_registers(), KEEPS_AVX))
        return LEVEL(BS_SCALAR);
    unsigned levels = LEVEL(BS_SCALAR) | LEVEL(BS_AVX2);
#ifdef BS_AVXVNNI
    if (__get_cpuid_count(7, 1, &a71, &b, &c, &d) && has_all(a71, AVXVNNI_71A))
        levels |= LEVEL(BS_AVX2_VNNI);
#else
    (void)a71;
#endif
    const int wide = has_all(b7, AVX512F_7B | AVX512DQ_7B | AVX512BW_7B | AVX512VL_7B) && has_all(c7, VNNI_7C | VPOPCNTDQ_7C);
    if (!wide || !has_all(kept_registers(), KEEPS_AVX512))
        return levels;
#ifdef BS_AMX_TILES
    if (has_all(d7, AMX_7D) && has_all(kept_registers(), KEEPS_AMX) && may_use_tiles())
        levels |= LEVEL(BS_AMX);
#else
    (void)d7;
#endif
    return levels | LEVEL(BS_AVX512);
}
#endif

static unsigned known_levels(void)
{
#ifdef BS_X86
    static unsigned known; /* CPUID takes microseconds on a virtual machine; threads that ask at the same time find the same answer */
    unsigned levels = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!levels) {
        levels = asked_levels();
        __atomic_store_n(&known, levels, __ATOMIC_RELAXED);
    }
    return levels;
#else
    return 1u << BS_SCALAR;
#endif
}

int bs_runs_level(int level)
{
    const unsigned levels = known_levels();
    if (level >= BS_LEVELS)
        level = BS_LEVELS - 1;
    while (level > BS_SCALAR && !(levels >> level & 1u))
        level--;
    return level;
}

const bs_kernels *bs_table(int level)
{
#ifdef BS_X86
    level = bs_runs_level(level);
#ifdef BS_AMX_TILES
    if (level == BS_AMX)
        return &bs_kernels_amx;
#endif
    if (level == BS_AVX512)
        return &bs_kernels_avx512;
#ifdef BS_AVXVNNI
    if (level == BS_AVX2_VNNI)
        return &bs_kernels_avxvnni;
#endif
    if (level == BS_AVX2)
        return &bs_kernels_avx2;
#else
    (void)level;
#endif
    return &bs_kernels_scalar;
}

int bs_has_openmp(void)
{
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

int bs_default_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void bs_parallel(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, int threads)
{
    if (threads > 1 && units > 1) {
        const int team = units < (size_t)threads ? (int)units : threads;
        /* If there are very many units, threads take several at a time, since each request costs an atomic operation. */
        bs_share_out(body, context, units, bs_max(1, units / ((size_t)team * 16)), team);
        return;
    }
    for (size_t unit = 0; unit < units; unit++)
        body(context, unit, 0);
}
