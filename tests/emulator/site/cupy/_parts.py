"""Parts of an array: its pointer and its flags, and memory of other owners seen as an array."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cupy._array import ndarray


class Pointer:
    """The value of ``ndarray.data``."""

    def __init__(self, array: ndarray) -> None:
        self._array = array
        self.ptr = array._a.ctypes.data if array._a.size else 0  # as in CuPy
        self.device_id = array._device
        self.device = array.device
        self.mem = array._memory

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, n: int) -> Any:
        from cupy.cuda import MemoryPointer

        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + n)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        from cupy._array import effect

        to = self.ptr
        effect(lambda: ctypes.memset(to, value, size))

    memset = memset_async


class View:
    """Device memory at an address, kept alive by ``owner``."""

    def __init__(self, ptr: int, shape: Any, dtype: Any, strides: Any, owner: Any) -> None:
        self.owner, self.dtype = owner, np.dtype(dtype)
        count = 1
        for n in shape:
            count *= n
        self._empty = count == 0
        raw = np.dtype(f"V{self.dtype.itemsize}") if self.dtype.kind == "V" else self.dtype
        self.__array_interface__ = {
            "shape": tuple(shape),
            "typestr": raw.str,
            "data": (ptr or 16, False),
            "strides": strides,
            "version": 3,
        }

    def array(self) -> Any:
        if self._empty:
            return np.empty(self.__array_interface__["shape"], self.dtype)
        return np.asarray(self).view(self.dtype)


class Flags:
    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata, self.fnc, self.forc = flags.owndata, flags.fnc, flags.forc

    def __getitem__(self, name: str) -> Any:
        return {"C_CONTIGUOUS": self.c_contiguous, "F_CONTIGUOUS": self.f_contiguous, "OWNDATA": self.owndata}[name]
