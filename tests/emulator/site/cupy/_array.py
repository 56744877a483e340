"""The fake device array: it wraps a NumPy array over the emulator's memory, and refuses to be mixed with NumPy's own arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from emulator import runtime as _runtime

from cupy._parts import Flags, Pointer, View

_DLPACK_CUDA = 2


def _cuda() -> Any:
    return sys.modules["cupy.cuda"]


# ---- memory
def allocate(shape: Any, dtype: Any, order: str = "C", strides: Any = None) -> ndarray:
    """An array over uninitialised (poisoned) device memory."""
    dtype = np.dtype(dtype)
    _check_dtype(dtype)
    shape = (int(shape),) if np.ndim(shape) == 0 and not isinstance(shape, tuple) else tuple(int(n) for n in shape)
    if any(n < 0 for n in shape):
        raise ValueError("Negative dimensions are not allowed")
    count = 1
    for n in shape:
        count *= n
    memory = _runtime.Memory(count * dtype.itemsize, _cuda().runtime.getDevice())
    _cuda().keep(memory)
    flat = np.asarray(memory)[: count * dtype.itemsize].view(dtype) if count else np.empty(0, dtype)
    a = flat.reshape(shape, order="F" if order == "F" else "C")
    return ndarray._of(a, memory)


def _check_dtype(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "?biufc" and dtype.name not in ("bfloat16",):
        raise ValueError(f"Unsupported dtype {dtype}")


def upload(a: Any, order: str = "C") -> ndarray:
    """A device copy of a NumPy array, C-contiguous or, if ``order`` asks for it, Fortran-contiguous."""
    a = np.asarray(a)
    if not a.dtype.isnative:
        a = a.astype(a.dtype.newbyteorder("="))
    out = allocate(a.shape, a.dtype, order="F" if order in ("F",) or (order in "AK" and a.flags.fnc) else "C")
    out._a[...] = a
    return out


def bare(x: Any, where: str = "") -> Any:
    """Arguments with the NumPy arrays inside device arrays in their place; arrays of NumPy itself are refused."""
    if isinstance(x, ndarray):
        return x._a
    if isinstance(x, np.ndarray):
        if x.ndim == 0:
            return x
        raise TypeError(f"Unsupported type {type(x)}" + (f" in cupy.{where}" if where else ""))
    if isinstance(x, tuple):
        return type(x)(*(bare(v, where) for v in x)) if hasattr(x, "_fields") else tuple(bare(v, where) for v in x)
    if isinstance(x, list):
        return [bare(v, where) for v in x]
    if isinstance(x, dict):
        return {k: bare(v, where) for k, v in x.items()}
    return x


def contains_device(x: Any) -> bool:
    if isinstance(x, ndarray):
        return True
    return isinstance(x, (list, tuple)) and any(contains_device(v) for v in x)


def wrap(r: Any) -> Any:
    """Copy NumPy results to device arrays."""
    if isinstance(r, np.ndarray):
        return r if r.dtype.kind in "OSUMmV" and r.dtype.name != "bfloat16" else upload(r)
    if isinstance(r, np.generic):
        return upload(np.asarray(r))
    if isinstance(r, tuple):
        return type(r)(*(wrap(v) for v in r)) if hasattr(r, "_fields") else tuple(wrap(v) for v in r)
    if isinstance(r, list):
        return [wrap(v) for v in r]
    return r


def run(compute: Any) -> Any:
    """Run ``compute()`` on the current stream, and return device arrays; while the stream is capturing, record the call as well."""
    stream = _cuda().get_current_stream()
    _cuda()._settle(stream.ptr)
    result = wrap(compute())
    if stream._capturing():
        targets = [v for v in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(v, ndarray)]

        def again() -> None:
            values = compute()
            for to, v in zip(targets, values if isinstance(values, (tuple, list)) else [values], strict=True):
                to._a[...] = v

        stream._record(again)
    return result


def effect(do: Any) -> None:
    """Run ``do()`` on the current stream, or only record it while the stream is capturing."""
    _cuda().get_current_stream()._enqueue(do)


def host_copy(a: np.ndarray[Any, Any], stream: Any = None) -> Any:
    s = stream or _cuda().get_current_stream()
    if s._capturing():
        raise _cuda().runtime.CUDARuntimeError(
            900, "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
        )
    _cuda()._settle(s.ptr)
    _runtime.counts["to_host"] += 1
    return a.copy(order="K")


class ndarray:
    """A CuPy array, as far as callers can tell."""

    __slots__ = ("__weakref__", "_a", "_base", "_device", "_memory")
    __array_priority__ = 100

    def __new__(
        cls, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> ndarray:
        if memptr is None:
            return allocate(shape, dtype, order)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        if strides is None:
            steps, n = [], dtype.itemsize
            for size in reversed(shape):
                steps.append(n)
                n *= size
            strides = tuple(reversed(steps))
        holder = View(memptr.ptr, shape, dtype, strides, memptr)
        return cls._of(holder.array(), memptr.mem)

    @classmethod
    def _of(cls, a: np.ndarray[Any, Any], memory: Any, base: Any = None) -> ndarray:
        self = object.__new__(cls)
        self._a, self._memory, self._base = a, memory, base
        self._device = memory.device if memory is not None else 0
        return self

    def _view(self, a: Any) -> ndarray:
        return ndarray._of(a, self._memory, self._base if self._base is not None else self)

    def _maybe_view(self, a: Any) -> ndarray:
        """A view if ``a`` lies in this array's memory, else a device copy."""
        return self._view(a) if (a.base is not None and np.may_share_memory(a, self._a)) or a.size == 0 else wrap(a)

    # ---- properties
    @property
    def data(self) -> Pointer:
        return Pointer(self)

    @property
    def base(self) -> Any:
        return self._base

    @property
    def device(self) -> Any:
        return _cuda().Device(self._device)

    @property
    def flags(self) -> Any:
        return Flags(self._a.flags)

    @property
    def T(self) -> ndarray:
        return self._view(self._a.T)

    @property
    def mT(self) -> ndarray:
        return self._view(self._a.swapaxes(-1, -2))

    @property
    def real(self) -> ndarray:
        return self._maybe_view(self._a.real)

    @property
    def imag(self) -> ndarray:
        return self._maybe_view(self._a.imag)

    @property
    def flat(self) -> Any:
        raise NotImplementedError("emulator: cupy.ndarray.flat")

    # ---- host
    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        r = host_copy(self._a, stream)
        r = np.array(r, order="F" if order == "F" or (order == "A" and r.flags.fnc) else "C")
        if out is not None:
            out[...] = r
            return out
        return r

    def set(self, arr: Any, stream: Any = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError("Shape mismatch")
        self._a[...] = arr

    def item(self, *args: Any) -> Any:
        return host_copy(self._a).item(*args)

    def tolist(self) -> Any:
        return host_copy(self._a).tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return host_copy(self._a).tobytes(order)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
        )

    def __int__(self) -> int:
        return int(host_copy(self._a).item() if self.size == 1 else host_copy(self._a))

    def __float__(self) -> float:
        return float(host_copy(self._a).item() if self.size == 1 else host_copy(self._a))

    def __complex__(self) -> complex:
        return complex(host_copy(self._a))

    def __index__(self) -> int:
        return host_copy(self._a).__index__()

    def __bool__(self) -> bool:
        return bool(host_copy(self._a))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of unsized object")
        return len(self._a)

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(len(self._a))])

    def __contains__(self, x: Any) -> bool:
        return bool((self == x).any())

    def __repr__(self) -> str:
        return repr(self._a)

    def __str__(self) -> str:
        return str(self._a)

    def __format__(self, spec: str) -> str:
        return format(self._a, spec) if self.ndim == 0 else str(self._a)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    def __reduce__(self) -> Any:
        from cupy import array

        return array, (self.get(),)

    __hash__ = None  # type: ignore[assignment]

    # ---- interchange
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        desc = self._a.__array_interface__
        return {
            "shape": self.shape,
            "typestr": desc["typestr"],
            "descr": desc["descr"],
            "stream": 1,
            "version": 3,
            "strides": None if self._a.flags.c_contiguous else self.strides,
            "data": (self.data.ptr, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DLPACK_CUDA, self._device)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        from cupy import _dlpack

        if stream is not None and (not isinstance(stream, int) or stream < -1 or stream == 0):
            raise ValueError("On CUDA, the valid stream for the DLPack protocol is -1, 1, 2, or any larger value")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if int(dl_device[0]) == 1:
                return self.get().__dlpack__()
            raise BufferError("emulator: __dlpack__ to another device")
        return _dlpack.export(self.copy() if copy else self)

    def __array_namespace__(self, api_version: Any = None) -> Any:
        return sys.modules["cupy"]

    def to_device(self, device: Any, /, *, stream: Any = None) -> ndarray:
        return self

    # ---- indexing
    @staticmethod
    def _index(key: Any) -> Any:
        def one(k: Any) -> Any:
            if isinstance(k, ndarray):
                if k.dtype.kind not in "biu":
                    raise IndexError("arrays used as indices must be of integer or boolean type")
                return k._a
            if isinstance(k, np.ndarray) and k.ndim:
                raise TypeError(f"Unsupported type {type(k)} as an index of a cupy array")
            return k

        return tuple(one(k) for k in key) if isinstance(key, tuple) else one(key)

    def __getitem__(self, key: Any) -> ndarray:
        index = self._index(key)
        keys = index if isinstance(index, tuple) else (index,)
        basic = all(
            k is None or k is Ellipsis or (isinstance(k, (slice, int, np.integer)) and not isinstance(k, bool))
            for k in keys
        )
        if basic:
            if any(isinstance(k, (int, np.integer)) for k in keys):
                r = self._a[(*keys, Ellipsis)] if Ellipsis not in keys else self._a[keys]
            else:
                r = self._a[keys]
            return self._view(r)
        if any(isinstance(k, np.ndarray) and k.dtype == bool for k in keys) or any(
            isinstance(k, np.ndarray) for k in keys
        ):
            return run(lambda: self._a[index])
        return run(lambda: np.asarray(self._a[index]))

    def __setitem__(self, key: Any, value: Any) -> None:
        index = self._index(key)
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")
        v = bare(value)

        def do() -> None:
            self._a[index] = v

        effect(do)

    # ---- shapes and copies
    def view(self, dtype: Any = None, *args: Any) -> ndarray:
        if dtype is None or dtype is ndarray:
            return self._view(self._a.view())
        return self._view(self._a.view(np.dtype(dtype)))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        return self._maybe_view(self._a.reshape(tuple(int(n) for n in shape), order=order))

    def ravel(self, order: str = "C") -> ndarray:
        return self._maybe_view(self._a.ravel(order))

    def flatten(self, order: str = "C") -> ndarray:
        return run(lambda: self._a.flatten(order))

    def squeeze(self, axis: Any = None) -> ndarray:
        return self._view(self._a.squeeze(axis))

    def transpose(self, *axes: Any) -> ndarray:
        return self._view(self._a.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> ndarray:
        return self._view(self._a.swapaxes(a, b))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
        return self._view(self._a.diagonal(offset, axis1, axis2))

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        dtype = np.dtype(dtype)
        _check_dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        return self._new(lambda: self._a.astype(dtype), order)

    def copy(self, order: str = "C") -> ndarray:
        return self._new(lambda: self._a, order)

    def _new(self, compute: Any, order: str) -> ndarray:
        s = _cuda().get_current_stream()
        _cuda()._settle(s.ptr)
        a = compute()
        out = allocate(a.shape, a.dtype, "F" if order == "F" or (order in "AK" and self._a.flags.fnc) else "C")
        out._a[...] = a

        def again() -> None:
            out._a[...] = compute()

        if s._capturing():
            s._record(again)
        return out

    def fill(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("fill: a NumPy array")
        v = bare(value)

        def do() -> None:
            self._a[...] = v

        effect(do)

    def sort(self, axis: int = -1) -> None:
        effect(lambda: self._a.sort(axis))

    def put(self, indices: Any, values: Any, mode: str = "wrap") -> None:
        i, v = bare(indices), bare(values)
        effect(lambda: self._a.put(i, v, mode=mode))

    def scatter_add(self, slices: Any, value: Any) -> None:
        i, v = self._index(slices), bare(value)
        effect(lambda: np.add.at(self._a, i, v))

    # ---- NumPy's protocols
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method not in ("__call__", "reduce", "accumulate", "at", "outer", "reduceat"):
            return NotImplemented
        for x in inputs:
            if not isinstance(x, (ndarray, np.generic, int, float, complex, bool)) and not (
                isinstance(x, np.ndarray) and x.ndim == 0
            ):
                if isinstance(x, np.ndarray):
                    raise TypeError(f"Unsupported type {type(x)}")
                return NotImplemented
        return apply_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        module = sys.modules["cupy"]
        path = func.__module__.split(".")
        if path[:1] != ["numpy"]:
            return NotImplemented
        for name in path[1:]:
            if name in ("lib", "core", "_core") or name.startswith("_"):
                continue
            module = getattr(module, name, None)
            if module is None:
                break
        found = getattr(module, func.__name__, None)
        if found is None:
            raise TypeError(f"cupy has no function {func.__module__}.{func.__name__}")
        if any(issubclass(t, np.ndarray) for t in types):
            raise TypeError(
                f"no implementation found for 'numpy.{func.__name__}' on types {list(types)} (NumPy and CuPy arrays mixed)"
            )
        return found(*args, **kwargs)


def apply_ufunc(ufunc: Any, method: str, inputs: Any, kwargs: Any) -> Any:
    values = [bare(x) for x in inputs]
    out = kwargs.pop("out", None)
    kwargs = {k: bare(v) for k, v in kwargs.items()}
    if out is not None:
        outs = out if isinstance(out, tuple) else (out,)
        if any(not isinstance(o, ndarray) for o in outs if o is not None):
            raise TypeError("return arrays must be of cupy.ndarray")
        target = tuple(None if o is None else o._a for o in outs)
        effect(lambda: getattr(ufunc, method)(*values, out=target, **kwargs))
        return outs[0] if len(outs) == 1 else outs
    if method == "at":
        effect(lambda: ufunc.at(*values))
        return None
    with np.errstate(all="ignore"):
        return run(lambda: getattr(ufunc, method)(*values, **kwargs))


ndarray.__module__ = "cupy"

from cupy import _operators  # noqa: E402, F401  (adds the operators to the class)
