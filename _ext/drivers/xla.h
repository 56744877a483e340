/* Foreign functions as XLA calls them: the part of its C interface (xla/ffi/api/c_api.h, shipped with jaxlib) that is needed, in our own
 * declarations, so that nothing is compiled against jaxlib; and recorded launches, which such a call enqueues again.
 *
 * The interface states the sizes of its structures and keeps their layout within a major version, which has been 0 since it exists. A
 * test compares every offset with the header of the installed jaxlib. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* The version that we implement: fields added later are not read. */
enum { XLA_MAJOR = 0, XLA_MINOR = 1 };
enum { XLA_ASKS_ABOUT_HANDLER = 1 };                     /* kinds of extensions */
enum { XLA_INITIALIZE = 2, XLA_EXECUTE = 3 };            /* stages */
enum { XLA_INVALID_ARGUMENT = 3, XLA_INTERNAL = 13 };    /* codes of errors */
enum { XLA_BUFFER = 1, XLA_STRING = 4 };                 /* kinds of arguments, of results and of attributes */
enum { XLA_COMMAND_BUFFER_COMPATIBLE = 1 };              /* traits of handlers */

typedef struct xla_extension {
    size_t size;
    int kind;
    struct xla_extension *next;
} xla_extension;

typedef struct {
    size_t size;
    xla_extension *extension;
    int major, minor;
} xla_version;

typedef struct {
    size_t size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct {
    const char *start;
    size_t length;
} xla_text;

typedef struct {
    size_t size;
    xla_extension *extension;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

/* Arguments and results. */
typedef struct {
    size_t size;
    xla_extension *extension;
    int64_t count;
    int *kinds;
    xla_buffer **parts;
} xla_buffers;

/* Sorted by name. */
typedef struct {
    size_t size;
    xla_extension *extension;
    int64_t count;
    int *kinds;
    xla_text **names;
    xla_text **parts;
} xla_attributes;

typedef struct {
    size_t size;
    xla_extension *extension;
    const char *message;
    int code;
} xla_error_arguments;

typedef struct {
    size_t size;
    xla_extension *extension;
    void *context;
    void *stream;
} xla_stream_arguments;

typedef struct {
    size_t size;
    xla_extension *extension;
    void *context;
    int32_t ordinal;
} xla_device_arguments;

typedef struct {
    size_t size;
    xla_extension *extension;
    xla_version version;
    const void *internal;
    void *(*error_create)(xla_error_arguments *);
    void *error_get_message;
    void *error_destroy;
    void *handler_register;
    void *(*stream_get)(xla_stream_arguments *);
    void *others[12];
    void *(*device_ordinal_get)(xla_device_arguments *);
} xla_api;

typedef struct {
    size_t size;
    xla_extension *extension;
    const xla_api *api;
    void *context;
    int stage;
    xla_buffers arguments, results;
    xla_attributes attributes;
} xla_frame;

/* ---- the request of a call */
enum { BS_KEY_BYTES = 16, BS_KEPT_OPERANDS = 10 };

/* A call, decoded. Its attribute "call" is the text that says what to compute. Its attribute "digest" says how many of the first
 * operands the launches depend on by address ('a' for none, 'b' for one, ...), followed by BS_KEY_BYTES characters derived from the
 * text. */
typedef struct {
    const xla_frame *frame;
    xla_text text, digest;
    int stage, device; /* -1: the CPU */
    void *stream;
} bs_call;

/* Computes a call or, in the earlier stage, prepares for it; returns 0, or the code of an error whose message is written. */
typedef int (*bs_serve)(const bs_call *call, char *message, size_t room);
/* Whether the memory that launches were recorded for still has the same contents; `owner` is a number that Python assigned, not 0. */
typedef int (*bs_holds)(uint64_t owner);

/* ---- launches */
/* A pointer among the parameters of a launch: that of a buffer of the call, arguments first, plus an offset in bytes. */
typedef struct {
    uint32_t at, slot;
    uint64_t beyond;
} bs_patch;

/* The driver's CUlaunchConfig. */
typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    const void *attributes;
    uint32_t attribute_count;
} bs_config;

/* One launch or, without a function, memory to be set to zero: its only patch says where, `bytes` how much. */
typedef struct {
    const char *name;
    void *function;
    bs_config config;
    const unsigned char *params;
    size_t bytes, patch_count;
    const bs_patch *patches;
} bs_node;

enum { BS_PARAMETER_BYTES = 4096 }; /* the most that a kernel takes */

typedef struct bs_launches bs_launches;
struct bs_launches {
    bs_launches *next;
    size_t users; /* the table, and calls in progress */
    unsigned char key[BS_KEY_BYTES];
    int device;
    void *stream;
    uint32_t slots, operand_count;
    void *operands[BS_KEPT_OPERANDS];
    uint64_t owner;
    size_t count;
    bs_node *nodes;
    void *memory; /* all that nodes point to */
};

/* The driver's functions, as pointers so that tests can replace them. */
typedef int (*bs_launch)(const bs_config *, void *function, void **arguments, void **extra); /* cuLaunchKernelEx */
typedef int (*bs_set)(uint64_t address, unsigned char value, size_t bytes, void *stream);    /* cuMemsetD8Async */
typedef int (*bs_name)(int status, const char **name);                                      /* cuGetErrorName */
typedef struct {
    bs_launch launch;
    bs_set set;
    bs_name name;
} bs_driver;

void bs_xla_setup(bs_serve serve, bs_holds holds);
/* Stop calling Python, and wait until no call is in it: XLA's threads that ask for Python while it shuts down would wait for ever, and
 * XLA for them. The caller has released the GIL. */
void bs_xla_end(void);
void bs_xla_driver(bs_driver driver);
/* Make launches available, before others for the same call; and withdraw them, after which they are freed with the last call that uses
 * them. */
void bs_launches_keep(bs_launches *launches);
void bs_launches_drop(bs_launches *launches);
/* Free launches that were not kept. */
void bs_launches_free(bs_launches *launches);

/* The handlers: for the CPU; for a GPU; and for a GPU where every call enqueues the same, so that XLA may record and replay it. */
void *bs_xla_on_host(xla_frame *frame);
void *bs_xla_on_gpu(xla_frame *frame);
void *bs_xla_recorded(xla_frame *frame);
