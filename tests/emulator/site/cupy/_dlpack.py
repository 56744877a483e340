"""Exports arrays to DLPack and imports them from it, through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

_alive: dict[int, Any] = {}


def _deleted(pointer: Any) -> None:
    _alive.pop(ctypes.addressof(pointer.contents), None)


_deleter = _DELETER(_deleted)
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def export(array: Any) -> Any:
    a = array._a
    m = _Managed()
    shape, strides = (
        (ctypes.c_int64 * max(a.ndim, 1))(*a.shape),
        (ctypes.c_int64 * max(a.ndim, 1))(*(s // a.itemsize for s in a.strides)),
    )
    t = m.tensor
    t.data, t.device_type, t.device_id, t.ndim = array.data.ptr, 2, array._device, a.ndim
    t.code, t.bits, t.lanes = 4 if a.dtype.name == "bfloat16" else _CODES[a.dtype.kind], 8 * a.itemsize, 1
    t.shape, t.strides, t.byte_offset = (
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    m.deleter = _deleter
    address = ctypes.addressof(m)
    _alive[address] = (m, shape, strides, array)
    return _api.PyCapsule_New(address, b"dltensor", None)


def import_(x: Any) -> Any:
    from cupy._array import ndarray
    from cupy._parts import View

    if isinstance(x, ndarray):
        return x._view(x._a.view())
    if hasattr(x, "__dlpack_device__"):
        device = x.__dlpack_device__()
        if int(device[0]) != 2:
            raise ValueError(f"emulator: from_dlpack of device {device}: the fake CuPy takes CUDA memory only")
        try:
            capsule = x.__dlpack__(stream=1)
        except TypeError:
            capsule = x.__dlpack__()
    else:
        capsule = x
    pointer = _api.PyCapsule_GetPointer(capsule, b"dltensor")
    m = _Managed.from_address(pointer)
    t = m.tensor
    name = (
        "bfloat16"
        if t.code == 4
        else {0: "int", 1: "uint", 2: "float", 5: "complex", 6: "bool"}[t.code] + ("" if t.code == 6 else str(t.bits))
    )
    if name == "bfloat16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(name)
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] * dtype.itemsize for i in range(t.ndim)) if t.strides else None
    held = _alive.get(pointer)
    source = held[3] if held else x
    _api.PyCapsule_SetName(capsule, b"used_dltensor")
    view = View((t.data or 0) + t.byte_offset, shape, dtype, strides, (source, x))
    result = ndarray._of(view.array(), getattr(source, "_memory", None), source)
    if m.deleter:
        m.deleter(ctypes.pointer(m))
    return result
