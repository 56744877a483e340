"""Arguments of C functions as their stand-ins in Python take them."""

from __future__ import annotations

import ctypes
from typing import Any


def address_of(x: Any) -> int:
    """Where a pointer leads."""
    if x is None:
        return 0
    if isinstance(x, int):
        return x
    if isinstance(x, ctypes.c_void_p):
        return x.value or 0
    if hasattr(x, "_obj"):  # byref
        return ctypes.addressof(x._obj)
    return ctypes.addressof(x)


def number_of(x: Any) -> int:
    """A number, whatever type of ctypes holds it."""
    return int(getattr(x, "value", x) or 0)


class Call:
    """A function of a library: takes attributes argtypes and restype without minding them."""

    def __init__(self, function: Any) -> None:
        self._function, self.argtypes, self.restype = function, None, None

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)
