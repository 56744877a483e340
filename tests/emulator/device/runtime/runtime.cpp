// The emulator's runtime library, one translation unit: what kernels compiled for the CPU call.
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <deque>
#include <string>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>
#include <ucontext.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
struct U3 {
    u32 x, y, z;
};

#define API extern "C" __attribute__((visibility("default")))

API U3 threadIdx, blockIdx, blockDim, gridDim;
U3 threadIdx, blockIdx, blockDim, gridDim;

#include "memory.h"
#include "threads.h"
#include "block.h"
#include "warp.h"
#include "mbarrier.h"
#include "bulk.h"
#include "wgmma.h"
#include "launch.h"
