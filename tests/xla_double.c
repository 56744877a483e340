/* Stands in for a GPU in tests of XLA's compiled handlers: a driver that computes launches in host memory and records them, and a handler
 * that adds a stream and a device to calls by XLA's CPU client. */
#include "drivers/xla.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* WRITTEN launches fit in the book; the others are addresses of the "kernels" that launch() knows. */
enum { WRITTEN = 256, DOUBLE = 1, ADD = 2, COUNT = 3, WAIT = 4, FAILING = 700 };

typedef struct {
    uint64_t function, stream, bytes;
    uint32_t grid[3], block[3], shared, attribute_count, first_attribute, pad;
} written;

typedef struct {
    float *a, *b, *out;
    int64_t count;
    int32_t *counter;
} parameters;

static written book[WRITTEN];
static atomic_int used, arrived, going;
static void *(*inner)(xla_frame *);
static int device;
static uint64_t stream;

int launch(const bs_config *config, void *function, void **arguments, void **extra)
{
    (void)extra;
    const int number = atomic_fetch_add(&used, 1);
    const uint64_t which = (uint64_t)(uintptr_t)function;
    written *one = &book[number % WRITTEN];
    memset(one, 0, sizeof *one);
    one->function = which;
    one->stream = (uint64_t)(uintptr_t)config->stream;
    memcpy(one->grid, config->grid, sizeof one->grid);
    memcpy(one->block, config->block, sizeof one->block);
    one->shared = config->shared;
    one->attribute_count = config->attribute_count;
    if (config->attribute_count)
        memcpy(&one->first_attribute, config->attributes, sizeof one->first_attribute);
    if (which == FAILING)
        return FAILING;
    if (which == WAIT) {
        atomic_store(&arrived, 1);
        while (!atomic_load(&going))
            sched_yield();
        return 0;
    }
    parameters p;
    memcpy(&p, arguments[0], sizeof p);
    for (int64_t i = 0; i < p.count; i++) {
        if (which == DOUBLE)
            p.out[i] = 2 * p.a[i];
        else if (which == ADD)
            p.out[i] = p.a[i] + p.b[i];
        else if (which == COUNT)
            p.out[i] = p.a[i] + (float)(*p.counter)++;
    }
    return 0;
}

int set(uint64_t address, unsigned char value, size_t bytes, void *on)
{
    const int number = atomic_fetch_add(&used, 1);
    book[number % WRITTEN] = (written){.stream = (uint64_t)(uintptr_t)on, .bytes = bytes};
    memset((void *)(uintptr_t)address, value, bytes);
    return 0;
}

int name(int status, const char **text)
{
    *text = status == FAILING ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return status == FAILING ? 0 : 1;
}

static void *give_stream(xla_stream_arguments *arguments)
{
    arguments->stream = (void *)(uintptr_t)stream;
    return NULL;
}

static void *give_device(xla_device_arguments *arguments)
{
    arguments->ordinal = device;
    return NULL;
}

void *handler(xla_frame *frame)
{
    if (frame->extension) /* a question about the handler */
        return inner(frame);
    xla_api api = *frame->api;
    xla_frame mine = *frame;
    api.stream_get = give_stream;
    api.device_ordinal_get = give_device;
    mine.api = &api;
    return inner(&mine);
}

void place(void *(*of)(xla_frame *), int on, uint64_t along)
{
    inner = of;
    device = on;
    stream = along;
}

/* waits(): whether a launch of WAIT is running; go(1) lets it return. */
int waits(void) { return atomic_exchange(&arrived, 0); }
void go(int on) { atomic_store(&going, on); }

int take(written *to)
{
    const int count = atomic_exchange(&used, 0);
    memcpy(to, book, sizeof book);
    return count;
}
