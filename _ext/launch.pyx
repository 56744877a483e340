# cython: language_level=3
"""Calls of the CUDA driver by address, without the conversions of ctypes: a launch is most of what a small product costs the host."""

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
