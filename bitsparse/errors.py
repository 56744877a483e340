"""Exceptions raised by bitsparse. Each is also the built-in error a NumPy or SciPy user would expect.

Values out of range, NaN where numbers are needed and unknown option names raise plain :class:`ValueError`.
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
    """Shapes, axes or sizes do not fit together."""


class DTypeError(BitsparseError, TypeError):
    """A dtype, or the type of an argument, is not supported by the function."""


class DeviceError(BitsparseError, RuntimeError):
    """Arrays live on different devices, or the device asked for is not available."""


class FileFormatError(BitsparseError, ValueError):
    """A file is damaged, was made to do harm, or comes from another program."""


class KernelError(BitsparseError, RuntimeError):
    """A kernel could not be built, loaded or run, or the kernel asked for does not exist."""


class LockError(BitsparseError, RuntimeError):
    """Another run is writing the file, or under way on the same object."""


class CommunicationError(BitsparseError, RuntimeError):
    """Processes that work on one result lost each other, or were asked for different things."""
