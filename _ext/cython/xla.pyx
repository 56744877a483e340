# cython: language_level=3
"""Foreign functions as XLA calls them: handlers whose calls enqueue recorded launches, and all else in Python."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, malloc
from libc.string cimport memcpy


cdef enum:
    ATTRIBUTE_BYTES = 72  # of a launch, as the driver has it


cdef extern from "drivers/aligned.h" nogil:
    void bs_large_pages(void *memory, size_t bytes)


cdef extern from "drivers/xla.h" nogil:
    enum:
        XLA_INVALID_ARGUMENT
        XLA_INTERNAL
        XLA_EXECUTE
        BS_KEY_BYTES
        BS_KEPT_OPERANDS
        BS_PARAMETER_BYTES

    ctypedef struct xla_text:
        const char *start
        size_t length

    ctypedef struct xla_buffer:
        void *data

    ctypedef struct xla_buffers:
        long long count
        xla_buffer **parts

    ctypedef struct xla_frame:
        xla_buffers arguments
        xla_buffers results

    ctypedef struct bs_call:
        const xla_frame *frame
        xla_text text
        xla_text digest
        int stage
        int device
        void *stream

    ctypedef int (*bs_serve)(const bs_call *call, char *message, size_t room) noexcept
    ctypedef int (*bs_holds)(uint64_t owner) noexcept

    ctypedef struct bs_patch:
        uint32_t at
        uint32_t slot
        uint64_t beyond

    ctypedef struct bs_config:
        uint32_t grid[3]
        uint32_t block[3]
        uint32_t shared
        void *stream
        const void *attributes
        uint32_t attribute_count

    ctypedef struct bs_node:
        const char *name
        void *function
        bs_config config
        const unsigned char *params
        size_t bytes
        size_t patch_count
        const bs_patch *patches

    ctypedef struct bs_launches:
        unsigned char key[16]
        int device
        void *stream
        uint32_t slots
        uint32_t operand_count
        void *operands[10]
        uint64_t owner
        size_t count
        bs_node *nodes
        void *memory

    ctypedef int (*bs_launch)(const bs_config *, void *, void **, void **) noexcept
    ctypedef int (*bs_set)(uint64_t, unsigned char, size_t, void *) noexcept
    ctypedef int (*bs_name)(int, const char **) noexcept

    ctypedef struct bs_driver:
        bs_launch launch
        bs_set set
        bs_name name

    void bs_xla_setup(bs_serve serve, bs_holds holds)
    void bs_xla_end()
    void bs_xla_driver(bs_driver driver)
    void bs_launches_keep(bs_launches *launches)
    void bs_launches_drop(bs_launches *launches)
    void bs_launches_free(bs_launches *launches)
    void *bs_xla_on_host(xla_frame *frame)
    void *bs_xla_on_gpu(xla_frame *frame)
    void *bs_xla_recorded(xla_frame *frame)


KEY_BYTES, KEPT_OPERANDS = BS_KEY_BYTES, BS_KEPT_OPERANDS

cdef object _serves = None
cdef object _holds = None


cdef list _addresses(const xla_buffers *buffers):
    return [<size_t>buffers.parts[i].data for i in range(buffers.count)]


cdef int _serve(const bs_call *call, char *message, size_t room) noexcept with gil:
    """Have Python compute a call; what it raises becomes a code and a message."""
    try:
        text = call.text.start[:call.text.length] if call.text.start else b""
        digest = call.digest.start[:call.digest.length] if call.digest.start else b""
        _serves(
            call.stage == XLA_EXECUTE,
            text,
            digest,
            _addresses(&call.frame.arguments),
            _addresses(&call.frame.results),
            call.device,
            <size_t>call.stream,
        )
        return 0
    except BaseException as error:  # nothing may pass through XLA, which raises it again
        known = isinstance(error, (ValueError, TypeError, RuntimeError, MemoryError)) and str(error)
        said = (str(error) if known else f"{type(error).__name__}: {error}").encode("utf-8", "replace")[: room - 1]
        memcpy(message, <const char *>said, len(said))
        message[len(said)] = 0
        return XLA_INVALID_ARGUMENT if isinstance(error, (ValueError, TypeError)) else XLA_INTERNAL


cdef int _owner_holds(uint64_t owner) noexcept with gil:
    try:
        return 1 if _holds(owner) else 0
    except BaseException:
        return 0


def setup(serves, holds) -> dict:
    """The addresses of the handlers "host", "gpu" and "recorded".

    Parameters
    ----------
    serves : callable
        ``serves(executes, text, digest, arguments, results, device, stream)`` computes a call for which there are no launches, or, where
        it does not execute yet, prepares for it.
    holds : callable
        ``holds(owner)``: whether the memory that launches depend on has the contents that they were recorded with.
    """
    global _serves, _holds
    _serves, _holds = serves, holds
    bs_xla_setup(_serve, _owner_holds)
    return {
        "host": <size_t>bs_xla_on_host,
        "gpu": <size_t>bs_xla_on_gpu,
        "recorded": <size_t>bs_xla_recorded,
    }


def end():
    """Call Python no more, and wait until no call is there: for the end of the process, before Python's own."""
    with nogil:
        bs_xla_end()


def large_pages(size_t address, size_t nbytes):
    """Have the system use large pages, where it has them, for the memory of a result that is about to be written."""
    bs_large_pages(<void *>address, nbytes)


def set_driver(size_t launch, size_t zero, size_t name):
    """The addresses of ``cuLaunchKernelEx``, ``cuMemsetD8Async`` and ``cuGetErrorName``."""
    if not launch or not zero or not name:
        raise ValueError("set_driver: an address is null; load the driver first")
    cdef bs_driver driver
    driver.launch, driver.set, driver.name = <bs_launch>launch, <bs_set>zero, <bs_name>name
    bs_xla_driver(driver)


cdef class Launches:
    """Launches of one call, found by it from :meth:`keep` on, as long as this object lives.

    Parameters
    ----------
    digest : bytes
        Of the call, as its attribute has it: how many of the first operands the launches depend on, then a key.
    device : int
    stream : int
        That the launches belong to, if they depend on operands.
    operands : sequence of int
        The addresses of these operands.
    owner : int
        What ``holds`` of :func:`setup` is asked about before every call; 0 for nothing.
    slots : int
        Buffers of a call, arguments and results.
    nodes : sequence of (name, function, grid, threads, shared, attributes, params, patches)
        A name, an address, numbers, bytes, and of every pointer to a buffer where it stands in `params`, the number of the buffer and how
        far behind its start it points; function 0 sets memory to zero: `shared` bytes where the only patch says.
    """

    cdef bs_launches *_launches
    cdef bint _kept

    def __cinit__(self, bytes digest, int device, size_t stream, operands, uint64_t owner, uint32_t slots, nodes):
        if len(digest) != 1 + BS_KEY_BYTES or digest[0] - 97 != len(operands) or len(operands) > BS_KEPT_OPERANDS:
            raise ValueError(f"Launches: {len(operands)} operands do not go with the digest {digest!r}")
        cdef size_t count = len(nodes), room = 0
        for name, function, _, _, _, attributes, params, patches in nodes:
            self._check(function, attributes, params, patches, slots)
            room += len(name) + 1 + len(attributes) + len(params) + sizeof(bs_patch) * len(patches) + 32
        self._launches = <bs_launches *>calloc(1, sizeof(bs_launches))
        if self._launches == NULL:
            raise MemoryError()
        self._launches.nodes = <bs_node *>calloc(count + 1, sizeof(bs_node))
        self._launches.memory = malloc(room + 1)
        if self._launches.nodes == NULL or self._launches.memory == NULL:
            raise MemoryError()
        memcpy(self._launches.key, <const char *>digest + 1, BS_KEY_BYTES)
        self._launches.device, self._launches.stream = device, <void *>stream
        self._launches.slots, self._launches.owner, self._launches.count = slots, owner, count
        for operand in operands:
            self._launches.operands[self._launches.operand_count] = <void *><size_t>operand
            self._launches.operand_count += 1
        cdef size_t at = 0, i
        for i in range(count):
            at = self._fill(&self._launches.nodes[i], nodes[i], at)

    def _check(self, function, bytes attributes, bytes params, patches, uint32_t slots):
        if not function and len(patches) != 1:
            raise ValueError("Launches: memory that is set to zero lies in one buffer")
        if len(params) > BS_PARAMETER_BYTES or len(attributes) % ATTRIBUTE_BYTES:
            raise ValueError(f"Launches: {len(params)} bytes of parameters and {len(attributes)} of attributes are no launch")
        for place, slot, _ in patches:
            if not 0 <= slot < slots or (function and not 0 <= place <= len(params) - 8):
                raise ValueError(f"Launches: buffer {slot} of {slots} at byte {place} of {len(params)} is out of range")

    cdef size_t _fill(self, bs_node *node, told, size_t at):
        """Copy what one launch needs to where there is room for it; where the next one begins."""
        cdef char *memory = <char *>self._launches.memory
        name, function, grid, threads, shared, attributes, params, patches = told
        node.function = <void *><size_t>function
        node.config.grid[0], node.config.grid[1], node.config.grid[2] = grid
        node.config.block[0], node.config.block[1], node.config.block[2] = threads, 1, 1
        node.config.shared = shared if function else 0
        node.patches, node.patch_count = <bs_patch *>(memory + at), len(patches)
        cdef bs_patch *patch
        for place, slot, beyond in patches:
            patch = <bs_patch *>(memory + at)
            patch.at, patch.slot, patch.beyond = place, slot, beyond
            at += sizeof(bs_patch)
        node.config.attributes, node.config.attribute_count = memory + at, len(attributes) // ATTRIBUTE_BYTES
        memcpy(memory + at, <const char *>(<bytes>attributes), len(attributes))
        at += len(attributes)
        node.params, node.bytes = <unsigned char *>memory + at, len(params) if function else shared
        memcpy(memory + at, <const char *>(<bytes>params), len(params))
        at += len(params)
        node.name = memory + at
        memcpy(memory + at, <const char *>(<bytes>name), len(name) + 1)
        return (at + len(name) + 1 + 15) // 16 * 16

    def keep(self):
        """Have calls find them."""
        if not self._kept:
            self._kept = True
            bs_launches_keep(self._launches)

    def __dealloc__(self):
        if self._launches == NULL:
            return
        if self._kept:
            bs_launches_drop(self._launches)
        else:
            bs_launches_free(self._launches)
