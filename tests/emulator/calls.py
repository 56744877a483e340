"""Reads the ctypes arguments of C functions, for the Python functions that stand in for them."""

from __future__ import annotations

import ctypes
from typing import Any


def address_of(x: Any) -> int:
    """The address that a pointer holds."""
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
    """The value of a number, whatever ctypes type holds it."""
    return int(getattr(x, "value", x) or 0)


class Call:
    """A function of a library; the attributes argtypes and restype may be set, but are ignored."""

    def __init__(self, function: Any) -> None:
        self._function, self.argtypes, self.restype = function, None, None

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)
