"""Identity of the memory behind an array: recognising it again, noticing when it is freed, and counting our own writes to it."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitsparse._fork import fresh_in_children
from bitsparse.interop.devices import is_cupy


@dataclass(frozen=True)
class Memory:
    """The memory behind an array.

    Attributes
    ----------
    owner : hashable
        The same for all arrays that share an allocation, as long as it lives.
    view : hashable
        Where the elements are in the allocation.
    alive : callable
        Whether the allocation still exists. If not, another one may have its address.
    version : int or None
        A number that grows with every change that the array's library notices; 0 for arrays that cannot change; None if it does not count.
    """

    owner: Hashable
    view: Hashable
    alive: Callable[[], bool]
    version: int | None


def memory_of(x: Any) -> Memory | None:
    """The memory of an array of NumPy, CuPy, PyTorch or JAX, or of any object that takes weak references; None for everything else.

    Examples
    --------
    >>> x = np.zeros((2, 3))
    >>> one, other = memory_of(x), memory_of(x.T)
    >>> one.owner == other.owner, one.view == other.view, one.version
    (True, False, None)
    >>> del x
    >>> one.alive()
    False
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x)
    if isinstance(x, np.ndarray):
        owner: Any = x
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        place: Any = x.__array_interface__["data"][0]
        for candidate in (owner, x.base, x):
            found = _weakly("numpy", candidate, (place, x.shape, x.strides, x.dtype.str), None)
            if found is not None:
                return found
        return None
    if is_cupy(x):
        owner = x if x.base is None else x.base
        return _weakly("cupy", owner, (x.data.ptr, x.shape, x.strides, x.dtype.str), None)
    jax = sys.modules.get("jax")
    immutable = jax is not None and isinstance(x, jax.Array)
    return _weakly(type(x).__module__, x, (), 0 if immutable else None) if hasattr(x, "dtype") else None


def _weakly(library: str, owner: Any, view: Hashable, version: int | None) -> Memory | None:
    try:
        reference = weakref.ref(owner)
    except TypeError:
        return None
    return Memory((library, id(owner)), view, lambda: reference() is not None, version)


def _of_torch(x: Any) -> Memory | None:
    # A weak reference to the storage, not to the tensor: x.detach() and every view are new tensors over the same storage, and share
    # its counter. The reference prevents reuse of the storage's address, but does not keep its memory.
    try:
        storage = sys.modules["torch.multiprocessing.reductions"].StorageWeakRef(x.untyped_storage())
        version: int | None = x._version
    except (AttributeError, KeyError, NotImplementedError, RuntimeError):
        return None  # sparse tensors have no storage; tensors made under inference_mode() no counter
    view = (x.data_ptr(), tuple(x.shape), tuple(x.stride()), str(x.dtype), x.is_neg())
    return Memory(("torch", storage.cdata), view, lambda: not storage.expired(), version)


class Contents:
    """The contents of one allocation, identified by a version: code that caches something made from them compares versions.

    All arrays over an allocation share one such object, as long as somebody refers to it. Writing to a part changes the version of the
    whole.

    Attributes
    ----------
    version : int
        A number that changes with every :meth:`changed` and never repeats.
    """

    __slots__ = ("__weakref__", "version")

    _versions = itertools.count()

    def __init__(self) -> None:
        self.version = next(self._versions)

    def changed(self) -> None:
        """Give the contents a new version; must be called before the memory is written to."""
        self.version = next(self._versions)


class Seen:
    """The contents from which something was made, and the version at that time, to make it anew once they have changed."""

    _lock: threading.Lock

    def __init__(self, contents: Contents) -> None:
        self._contents, self._version = contents, contents.version
        fresh_in_children(self, _lock=threading.Lock)

    def keep_up(self, renew: Callable[[], None]) -> None:
        """Call `renew` if the contents have changed since the last call; of several threads, one calls it and the others wait."""
        if self._contents.version == self._version:
            return
        with self._lock:
            version = self._contents.version
            if version != self._version:
                renew()
                self._version = version


_contents: weakref.WeakValueDictionary[Hashable, Contents] = weakref.WeakValueDictionary()
_contents_lock = threading.Lock()
fresh_in_children(sys.modules[__name__], _contents_lock=threading.Lock)


def contents_of(x: Any) -> Contents:
    """The contents of the allocation that a NumPy or CuPy array is in.

    Whether arrays allocated by other libraries share memory is unknown, so all of them on one device share a single version.

    Examples
    --------
    >>> x = np.zeros((4, 2))
    >>> one, other = contents_of(x), contents_of(x[2:].T)
    >>> one is other, one is contents_of(np.zeros((4, 2)))
    (True, False)
    """
    key = _cupy_allocation(x) if is_cupy(x) else _numpy_allocation(x)
    with _contents_lock:
        found = _contents.get(key)
        if found is None:
            found = _contents[key] = Contents()
        return found


def _cupy_allocation(x: Any) -> Hashable:
    memory = x.data.mem
    foreign = type(memory).__name__ == "UnownedMemory"
    return ("cupy", x.data.device_id, 0 if foreign else id(memory))


def _numpy_allocation(x: Any) -> Hashable:
    owner = x
    while True:
        below = owner.base if isinstance(owner, np.ndarray) else owner.obj if isinstance(owner, memoryview) else None
        if below is None:
            break
        owner = below
    foreign = type(owner).__name__ == "PyCapsule" or hasattr(owner, "untyped_storage")
    return ("numpy", 0 if foreign else id(owner))
