/* The handlers that XLA calls. If launches were recorded for a call, they are enqueued: their parameters are copied, and the addresses of
 * the call's buffers are written into the copies. This allocates nothing and does not take the GIL; the table of recorded launches is
 * locked only while it is searched. All other calls go to Python. */
#include "drivers/xla.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
static SRWLOCK lock = SRWLOCK_INIT;
static void hold(void) { AcquireSRWLockExclusive(&lock); }
static void leave(void) { ReleaseSRWLockExclusive(&lock); }
static void nap(void) { Sleep(1); }
#else
#include <pthread.h>
#include <time.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void hold(void) { pthread_mutex_lock(&lock); }
static void leave(void) { pthread_mutex_unlock(&lock); }
static void nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }
#endif

enum { CHAINS = 1024, MESSAGE_BYTES = 4096, ALIGNMENT = 16 };

static bs_launches *table[CHAINS];
static bs_driver driver;
static bs_serve serve;
static bs_holds holds;
static size_t in_python; /* number of calls that are in Python or wait for the GIL */

void bs_xla_setup(bs_serve of_python, bs_holds of_owners)
{
    hold();
    serve = of_python;
    holds = of_owners;
    leave();
}

void bs_xla_end(void)
{
    bs_xla_setup(NULL, NULL);
    for (int empty = 0; !empty;) {
        hold();
        empty = in_python == 0;
        leave();
        if (!empty)
            nap();
    }
}

void bs_xla_driver(bs_driver functions)
{
    hold();
    driver = functions;
    leave();
}

/* ---- the table */
static size_t chain_of(const unsigned char *key)
{
    uint32_t first;
    memcpy(&first, key, sizeof first);
    return (first * 2654435761u) >> 22;
}

static int is_of(const bs_launches *one, const unsigned char *key, int device, void *stream, uint32_t count, xla_buffer *const *operands)
{
    if (memcmp(one->key, key, BS_KEY_BYTES) != 0 || one->device != device || one->operand_count != count)
        return 0;
    if (count && one->stream != stream) /* the recorded launches use workspaces that belong to one stream */
        return 0;
    for (uint32_t i = 0; i < count; i++)
        if (one->operands[i] != operands[i]->data)
            return 0;
    return 1;
}

void bs_launches_free(bs_launches *launches)
{
    free(launches->memory);
    free(launches->nodes);
    free(launches);
}

/* Release one use of the launches, and free them if it was the last. */
static void release(bs_launches *launches)
{
    hold();
    const size_t users = --launches->users;
    leave();
    if (users == 0)
        bs_launches_free(launches);
}

void bs_launches_keep(bs_launches *launches)
{
    hold();
    launches->users = 1;
    launches->next = table[chain_of(launches->key)];
    table[chain_of(launches->key)] = launches; /* at the front, so that it is found before older ones */
    leave();
}

void bs_launches_drop(bs_launches *launches)
{
    hold();
    bs_launches **at = &table[chain_of(launches->key)];
    while (*at && *at != launches)
        at = &(*at)->next;
    if (*at)
        *at = launches->next;
    leave();
    release(launches);
}

static bs_launches *find(const bs_call *call)
{
    const xla_buffers *arguments = &call->frame->arguments;
    if (call->digest.length != 1 + BS_KEY_BYTES)
        return NULL;
    const uint32_t count = (uint32_t)(call->digest.start[0] - 'a');
    const unsigned char *key = (const unsigned char *)call->digest.start + 1;
    if (count > BS_KEPT_OPERANDS || count > arguments->count)
        return NULL;
    hold();
    bs_launches *one = table[chain_of(key)];
    while (one && !is_of(one, key, call->device, call->stream, count, arguments->parts))
        one = one->next;
    if (one)
        one->users++;
    leave();
    return one;
}

/* ---- errors */
static void *failed(const xla_api *api, int code, const char *message)
{
    xla_error_arguments arguments = {sizeof arguments, NULL, message, code};
    return api->error_create(&arguments);
}

static void *refused(const xla_api *api, const char *name, int status)
{
    const char *what = NULL;
    char message[256];
    if (!driver.name || driver.name(status, &what) != 0 || !what)
        what = "unknown error";
    snprintf(message, sizeof message, "bitsparse.jax: launching %.64s failed: %.96s (CUresult %d)", name, what, status);
    return failed(api, XLA_INTERNAL, message);
}

/* ---- launches */
/* The address of a buffer of a call; slots count the arguments first, then the results. */
static char *buffer_of(const xla_frame *frame, uint32_t slot)
{
    const uint32_t arguments = (uint32_t)frame->arguments.count;
    return slot < arguments ? frame->arguments.parts[slot]->data : frame->results.parts[slot - arguments]->data;
}

/* Whether a call has as many buffers as were recorded, each aligned to whole vectors. */
static int fits(const bs_launches *launches, const xla_frame *frame)
{
    if ((uint64_t)(frame->arguments.count + frame->results.count) != launches->slots)
        return 0;
    for (uint32_t slot = 0; slot < launches->slots; slot++)
        if ((uintptr_t)buffer_of(frame, slot) % ALIGNMENT)
            return 0;
    return 1;
}

static int enqueue(const bs_node *node, const xla_frame *frame, void *stream)
{
    if (!node->function) {
        const bs_patch *where = node->patches;
        return driver.set((uint64_t)(uintptr_t)buffer_of(frame, where->slot) + where->beyond, 0, node->bytes, stream);
    }
    uint64_t params[BS_PARAMETER_BYTES / 8];
    void *arguments[1] = {params};
    memcpy(params, node->params, node->bytes);
    for (size_t i = 0; i < node->patch_count; i++) {
        const bs_patch *patch = &node->patches[i];
        const uint64_t address = (uint64_t)(uintptr_t)buffer_of(frame, patch->slot) + patch->beyond;
        memcpy((char *)params + patch->at, &address, sizeof address);
    }
    bs_config config = node->config;
    config.stream = stream;
    return driver.launch(&config, node->function, arguments, NULL);
}

/* ---- handlers */
static void *answered(const xla_frame *frame, uint32_t traits)
{
    for (xla_extension *one = frame->extension; one; one = one->next)
        if (one->kind == XLA_ASKS_ABOUT_HANDLER) {
            xla_metadata *about = ((xla_metadata_extension *)one)->metadata;
            about->version.major = XLA_MAJOR;
            about->version.minor = XLA_MINOR;
            about->traits = traits;
            return (void *)frame;
        }
    return NULL;
}

static xla_text attribute(const xla_frame *frame, const char *name)
{
    const xla_attributes *all = &frame->attributes;
    const size_t length = strlen(name);
    for (int64_t i = 0; i < all->count; i++)
        if (all->kinds[i] == XLA_STRING && all->names[i]->length == length && memcmp(all->names[i]->start, name, length) == 0)
            return *all->parts[i];
    return (xla_text){NULL, 0};
}

/* Find the GPU and the stream of a call; returns an XLA error, or NULL. */
static void *locate(const xla_frame *frame, bs_call *call)
{
    if (frame->api->size < sizeof(xla_api))
        return failed(frame->api, XLA_INTERNAL,
                      "bitsparse.jax: this jaxlib does not tell on which GPU a call runs; install a newer jaxlib");
    xla_device_arguments device = {sizeof device, NULL, frame->context, -1};
    void *error = frame->api->device_ordinal_get(&device);
    call->device = device.ordinal;
    if (!error && device.ordinal < 0)
        error = failed(frame->api, XLA_INTERNAL, "bitsparse.jax: XLA does not tell on which GPU a call runs");
    if (error || frame->stage != XLA_EXECUTE)
        return error;
    xla_stream_arguments stream = {sizeof stream, NULL, frame->context, NULL};
    error = frame->api->stream_get(&stream);
    call->stream = stream.stream;
    return error;
}

/* Count a call that goes to Python, and return whether it may: not before the setup, and not while Python shuts down. */
static int enter(bs_serve *serves, bs_holds *asks)
{
    hold();
    *serves = serve;
    *asks = holds;
    in_python += serve != NULL;
    leave();
    return *serves != NULL;
}

static void come_back(void)
{
    hold();
    in_python--;
    leave();
}

static void *by_python(const bs_call *call)
{
    char message[MESSAGE_BYTES];
    bs_serve serves;
    bs_holds asks;
    if (!enter(&serves, &asks))
        return failed(call->frame->api, XLA_INTERNAL,
                      "bitsparse.jax is not imported, or Python is shutting down; import it, and wait for results before Python ends");
    message[0] = '\0';
    const int code = serves(call, message, sizeof message);
    come_back();
    return code ? failed(call->frame->api, code, message) : NULL;
}

/* Whether the graph that the launches were recorded for still has the same contents. */
static int still_holds(uint64_t owner)
{
    bs_serve serves;
    bs_holds asks;
    if (!owner)
        return 1;
    if (!enter(&serves, &asks))
        return 0;
    const int held = asks(owner);
    come_back();
    return held;
}

static void *handle(const xla_frame *frame, int on_gpu)
{
    bs_call call = {frame, attribute(frame, "call"), attribute(frame, "digest"), frame->stage, -1, NULL};
    if (frame->stage != XLA_EXECUTE && !(frame->stage == XLA_INITIALIZE && on_gpu))
        return NULL;
    for (int64_t i = 0; i < frame->arguments.count; i++)
        if (frame->arguments.kinds[i] != XLA_BUFFER)
            return failed(frame->api, XLA_INVALID_ARGUMENT, "bitsparse.jax: an argument of a call is not a buffer");
    void *error = on_gpu ? locate(frame, &call) : NULL;
    if (error)
        return error;
    bs_launches *found = on_gpu ? find(&call) : NULL;
    if (!found)
        return by_python(&call);
    const int usable = frame->stage == XLA_EXECUTE ? fits(found, frame) && still_holds(found->owner) : 1;
    for (size_t i = 0; usable && !error && frame->stage == XLA_EXECUTE && i < found->count; i++) {
        const int status = enqueue(&found->nodes[i], frame, call.stream);
        if (status)
            error = refused(frame->api, found->nodes[i].name, status);
    }
    release(found);
    return usable ? error : by_python(&call);
}

void *bs_xla_on_host(xla_frame *frame) { return answered(frame, 0) ? NULL : handle(frame, 0); }
void *bs_xla_on_gpu(xla_frame *frame) { return answered(frame, 0) ? NULL : handle(frame, 1); }
void *bs_xla_recorded(xla_frame *frame) { return answered(frame, XLA_COMMAND_BUFFER_COMPATIBLE) ? NULL : handle(frame, 1); }
