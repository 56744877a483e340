# cython: language_level=3
"""Calls of the CUDA driver by address, without the conversions of ctypes: a launch is most of what a small product costs the host."""

from libc.string cimport memcpy

ctypedef int (*launch_kernel)(const void *, void *, void **, void **) noexcept nogil


def launch(size_t entry, size_t config, size_t function, size_t arguments) -> int:
    """``cuLaunchKernelEx``, which lies at ``entry``; returns its status.

    The other arguments are addresses too: of the configuration, the function and the array of pointers to the kernel's arguments.
    """
    if not entry or not config or not function or not arguments:
        raise ValueError("launch: an address is null; load the kernel and the driver first")
    cdef int status
    with nogil:  # a full queue makes the driver wait
        status = (<launch_kernel>entry)(<const void *>config, <void *>function, <void **>arguments, NULL)
    return status


cdef struct config_of_launch:  # CUlaunchConfig
    unsigned int grid[3]
    unsigned int block[3]
    unsigned int shared
    size_t stream
    void *attributes
    unsigned int attribute_count


def once(
    size_t entry, size_t function, unsigned int blocks, unsigned int threads, unsigned int shared, size_t stream, size_t params
) -> int:
    """One launch along x of a kernel with one argument, which lies at ``params``; returns the driver's status."""
    if not entry or not function or not params:
        raise ValueError("launch: an address is null; load the kernel and the driver first")
    cdef config_of_launch config
    cdef void *arguments[1]
    cdef int status
    config.grid[0], config.grid[1], config.grid[2] = blocks, 1, 1
    config.block[0], config.block[1], config.block[2] = threads, 1, 1
    config.shared, config.stream, config.attributes, config.attribute_count = shared, stream, NULL, 0
    arguments[0] = <void *>params
    with nogil:  # a full queue makes the driver wait
        status = (<launch_kernel>entry)(&config, <void *>function, arguments, NULL)
    return status


cdef enum:
    CONFIG_WORDS = 16  # of eight bytes
    PARAMETER_WORDS = 512


cdef class Quick:
    """One launch, again and again, with another result: it takes copies of a configuration and of parameters, so that calls of
    several threads need not wait for each other.

    Parameters
    ----------
    entry : int
        The address of ``cuLaunchKernelEx``.
    config, config_bytes, stream_at : int
        The address and size of the configuration and where in it the stream stands.
    function : int
    params, params_bytes, out_at : int
        The same of the parameters and the result.
    """
    cdef size_t _entry, _config, _config_bytes, _stream_at, _function, _params, _params_bytes, _out_at
    cdef public size_t operand

    def __init__(
        self,
        size_t entry,
        size_t config,
        size_t config_bytes,
        size_t stream_at,
        size_t function,
        size_t params,
        size_t params_bytes,
        size_t out_at,
    ):
        if not entry or not config or not function or not params:
            raise ValueError("launch: an address is null; load the kernel and the driver first")
        if config_bytes > 8 * CONFIG_WORDS or params_bytes > 8 * PARAMETER_WORDS:
            raise ValueError(f"launch: {config_bytes} and {params_bytes} bytes are too many for a configuration and parameters")
        if stream_at + sizeof(void *) > config_bytes or out_at + sizeof(void *) > params_bytes:
            raise ValueError("launch: the stream or the result lies outside of its structure")
        self._entry, self._config, self._config_bytes, self._stream_at = entry, config, config_bytes, stream_at
        self._function, self._params, self._params_bytes, self._out_at = function, params, params_bytes, out_at
        self.operand = 0

    def launch(self, size_t stream, size_t operand, size_t out) -> int:
        """The driver's status, or -1 and no launch if the parameters are not made for ``operand``."""
        cdef unsigned long long config[CONFIG_WORDS]
        cdef unsigned long long params[PARAMETER_WORDS]
        cdef void *arguments[1]
        cdef int status
        if operand != self.operand or not operand:
            return -1
        memcpy(config, <const void *>self._config, self._config_bytes)
        memcpy(<char *>config + self._stream_at, &stream, sizeof(stream))
        memcpy(params, <const void *>self._params, self._params_bytes)
        memcpy(<char *>params + self._out_at, &out, sizeof(out))
        arguments[0] = params
        with nogil:
            status = (<launch_kernel>self._entry)(config, <void *>self._function, arguments, NULL)
        return status
