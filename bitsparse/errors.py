"""Exceptions raised by bitsparse. Each one is also a subclass of the built-in error that a NumPy or SciPy user would expect.

Values out of range, NaN where it is not allowed, and unknown names of options raise a plain :class:`ValueError`.
"""

__all__ = [
    "BitsparseError",
    "CommunicationError",
    "DTypeError",
    "DeviceError",
    "FileFormatError",
    "KernelError",
    "LockError",
    "ShapeError",
]


class BitsparseError(Exception):
    """Base class of every exception defined by bitsparse."""


class ShapeError(BitsparseError, ValueError):
    """Shapes, axes or sizes do not match."""


class DTypeError(BitsparseError, TypeError):
    """A dtype, or the type of an argument, is not supported by the function."""


class DeviceError(BitsparseError, RuntimeError):
    """Arrays live on different devices, or the device asked for is not available."""


class FileFormatError(BitsparseError, ValueError):
    """A file is damaged, malicious, or written by another program."""


class KernelError(BitsparseError, RuntimeError):
    """A kernel could not be compiled, loaded or run, or the kernel asked for does not exist."""


class LockError(BitsparseError, RuntimeError):
    """Another run is writing to the same file, or is under way on the same object."""


class CommunicationError(BitsparseError, RuntimeError):
    """Processes that compute one result together lost contact, or were called with different arguments."""
