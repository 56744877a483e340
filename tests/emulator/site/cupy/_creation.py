"""Functions that make and copy arrays, and functions that compare two arrays or their memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from emulator import runtime

from cupy import _dlpack, cuda
from cupy._array import allocate, bare, contains_device, effect, ndarray, run, upload
from cupy._parts import View

__all__ = [
    "array",
    "array_equal",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "asfortranarray",
    "asnumpy",
    "copy",
    "copyto",
    "empty",
    "empty_like",
    "fromDlpack",
    "from_dlpack",
    "full",
    "full_like",
    "get_array_module",
    "may_share_memory",
    "ones",
    "ones_like",
    "shares_memory",
    "zeros",
    "zeros_like",
]


def array(
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    if isinstance(obj, ndarray):
        r = obj
        if dtype is not None and np.dtype(dtype) != obj.dtype:
            r = obj.astype(dtype)
        elif copy or (order == "C" and not obj.flags.c_contiguous) or (order == "F" and not obj.flags.f_contiguous):
            r = obj.copy("C" if order == "K" and not obj.flags.fnc else order)
        while r.ndim < ndmin:
            r = r[None]
        return r
    if hasattr(obj, "__cuda_array_interface__"):
        return array(_from_interface(obj), dtype, copy, order, ndmin=ndmin)
    if isinstance(obj, (list, tuple)) and contains_device(obj):
        return run(lambda: np.array(bare(obj), dtype=dtype, ndmin=ndmin))
    if cuda.get_current_stream()._capturing() and isinstance(obj, np.ndarray):
        raise cuda.runtime.CUDARuntimeError(900, "emulator: an upload of host memory while the stream is capturing")
    runtime.counts["to_device"] += 1
    a = np.array(obj, dtype=dtype, ndmin=ndmin, copy=None, order=None if order == "K" else order)
    return upload(a, order)


def _from_interface(obj: Any) -> ndarray:
    i = obj.__cuda_array_interface__
    view = View(i["data"][0], i["shape"], np.dtype(i["typestr"]), i.get("strides"), obj)
    return ndarray._of(view.array(), None, obj)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    if isinstance(a, ndarray) and (dtype is None or np.dtype(dtype) == a.dtype) and order in (None, "K") and not copy:
        return a
    return array(a, dtype, copy=bool(copy), order=order or "K")


def asanyarray(a: Any, dtype: Any = None, order: Any = None, **options: Any) -> ndarray:
    return asarray(a, dtype, order)


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    a = asarray(a, dtype)
    if a.ndim == 0:
        a = a.reshape(1)
    return a if a.flags.c_contiguous else a.copy("C")


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    a = asarray(a, dtype)
    return a if a.flags.f_contiguous else a.copy("F")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out)
    if hasattr(a, "__cuda_array_interface__"):
        return _from_interface(a).get(stream=stream, order=order, out=out)
    r = np.asarray(a, order=order)
    if out is not None:
        out[...] = r
        return out
    return r


def get_array_module(*args: Any) -> Any:
    return (
        sys.modules["cupy"]
        if any(isinstance(a, ndarray) or hasattr(a, "__cuda_array_interface__") for a in args)
        else np
    )


get_array_module.__module__ = "cupy"


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> ndarray:
    r = _dlpack.import_(array)
    return r.copy() if copy else r


fromDlpack = from_dlpack


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return allocate(shape, dtype, order)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 0, dtype, order)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype, order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, (ndarray, np.generic)) else np.array(fill_value).dtype
    r = allocate(shape, dtype, order)
    r.fill(fill_value)
    return r


def _like(a: Any, dtype: Any, order: str, shape: Any) -> ndarray:
    if not isinstance(a, ndarray):
        raise TypeError(f"Unsupported type {type(a)}")
    return allocate(
        a.shape if shape is None else shape,
        a.dtype if dtype is None else dtype,
        "F" if order == "F" or (order in "AK" and a.flags.fnc) else "C",
    )


def empty_like(prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return _like(prototype, dtype, order, shape)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    r = _like(a, dtype, order, shape)
    r.fill(fill_value)
    return r


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return full_like(a, 0, dtype, order, subok, shape)


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return full_like(a, 1, dtype, order, subok, shape)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    if not isinstance(dst, ndarray):
        raise TypeError("copyto: dst must be a cupy.ndarray")
    value, mask = bare(src, "copyto"), bare(where, "copyto")
    effect(lambda: np.copyto(dst._a, value, casting=casting, **({} if mask is None else {"where": mask})))


def copy(a: ndarray, order: str = "K") -> ndarray:
    return a.copy(order="C" if order == "K" and not a.flags.fnc else order)


def may_share_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    return bool(np.may_share_memory(bare(a), bare(b)))


def shares_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    return bool(np.shares_memory(bare(a), bare(b)))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> ndarray:
    return run(
        lambda: np.asarray(np.array_equal(bare(a1, "array_equal"), bare(a2, "array_equal"), equal_nan=equal_nan))
    )
