"""Arrays over memory that another library owns and of which only the address is known."""

from __future__ import annotations

import ctypes
import math
import sys
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from bitsparse.interop import streams
from bitsparse.interop.devices import require_cupy


class ArraysAt:
    """Makes arrays of one shape and dtype in C order over memory at any address.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype

    Examples
    --------
    >>> x = np.arange(6.0)
    >>> ArraysAt((2, 3), np.dtype(np.float64)).on_host(x.ctypes.data)
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """

    __slots__ = ("_bytes", "dtype", "nbytes", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._bytes = ctypes.c_char * self.nbytes

    def on_host(self, address: int) -> Any:
        """The NumPy array at an address, whose owner must outlive it."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        memory: Any = self._bytes.from_address(address)
        return np.ndarray(self.shape, self.dtype, memory)

    def on_gpu(self, address: int, gpu: int) -> Any:
        """The CuPy array at an address in the memory of a GPU, whose owner must outlive it."""
        cupy = require_cupy("arrays of another library")
        if not self.nbytes:
            return cupy.empty(self.shape, self.dtype)
        memory = cupy.cuda.UnownedMemory(address, self.nbytes, None, gpu)
        return cupy.ndarray(self.shape, self.dtype, cupy.cuda.MemoryPointer(memory, 0))


def on_stream(gpu: int, pointer: int) -> AbstractContextManager[Any]:
    """A context that makes a GPU, and the stream with this address on it, CuPy's current ones."""
    cupy = sys.modules.get("cupy") or require_cupy("bitsparse")
    switch = None if cupy.cuda.runtime.getDevice() == gpu else cupy.cuda.Device(gpu)
    return streams.switched(cupy, switch, pointer)
