"""Quick checks by which a prepared call decides whether new arrays are like those it was prepared for; all properties are checked."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bitsparse.interop.devices import TORCH, Family, is_cupy, require_cupy
from bitsparse.interop.streams import current_gpu
from bitsparse.interop.tensors import nothing_recorded

#: Shape of an array, and its dtype as the array's library represents it.
ArrayKind = tuple[tuple[int, ...], Any]


class Bounds(NamedTuple):
    """Conditions on the memory of a call.

    Attributes
    ----------
    alignment : int
        Bytes to which all arrays on a GPU must be aligned.
    beside : tuple of (start, stop)
        Address ranges that the result must not overlap.
    in_place : bool
        Whether the result may start at the same address as an array that is read, and so overwrite it.
    """

    alignment: int
    beside: tuple[tuple[int, int], ...]
    in_place: bool


class Arrays(ABC):
    """How to check and make arrays of one library on one device."""

    #: Function that returns the address of an array, for kernels that do not take the array itself.
    address: Callable[[Any], int] | None = None

    def kind(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayKind:
        """The kind of arrays with this shape and dtype."""
        return shape, dtype

    def here(self) -> bool:
        """Whether the arrays' device is the current one, and no tracing, transform or recording has to see the call."""
        return True

    @abstractmethod
    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether `array` has the kind, is in C order and aligned, and can be read (or written, if `writable`) in place."""

    def span(self, array: Any) -> tuple[int, int]:
        """The addresses of the first byte of an array and of the byte after its last."""
        return span(array)

    @abstractmethod
    def empty(self, kind: ArrayKind) -> Any:
        """A new array for a result."""

    def takes(
        self, arrays: Sequence[Any], kinds: Sequence[ArrayKind], out: Any, result: ArrayKind, about: Bounds
    ) -> bool:
        """Whether all arrays have their kinds, and `out`, if given, has the kind of the result and shares no memory with them."""
        alike, alignment = self.alike, about.alignment
        for i, array in enumerate(arrays):
            if not alike(array, kinds[i], alignment):
                return False
        if out is None:
            return True
        if not alike(out, result, alignment, writable=True):
            return False
        start, stop = self.span(out)
        for array in arrays:
            first, last = self.span(array)
            if start < last and stop > first and not (about.in_place and first == start):
                return False
        return all(start >= end or stop <= begin for begin, end in about.beside)


class CuPyArrays(Arrays):
    """CuPy arrays on one GPU."""

    def __init__(self, device: str) -> None:
        space = require_cupy("plan")
        self._ndarray, self._empty, self._current_gpu = space.ndarray, space.empty, current_gpu()
        self._gpu = int(device[5:])

    def here(self) -> bool:
        """Whether the arrays' GPU is the current one."""
        return bool(self._current_gpu() == self._gpu)

    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether `array` has the kind, is in C order and aligned, and lies on this GPU."""
        if array.__class__ is not self._ndarray or array.shape != kind[0] or array.dtype != kind[1]:
            return False
        memory = array.data
        aligned = alignment == 1 or memory.ptr % alignment == 0
        return bool(aligned and array.flags.c_contiguous and memory.device_id == self._gpu)

    def span(self, array: Any) -> tuple[int, int]:
        """The addresses of the first byte of an array and of the byte after its last."""
        start = array.data.ptr
        return start, start + array.nbytes

    def empty(self, kind: ArrayKind) -> Any:
        """New memory for a result."""
        return self._empty(*kind)


class NumPyArrays(Arrays):
    """NumPy arrays; CPU kernels need them aligned to their items only, and work on the host needs no current device."""

    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether `array` has the kind, is in C order and aligned, and is writable if it has to be."""
        if array.__class__ is not np.ndarray or array.shape != kind[0]:
            return False
        if array.dtype is not kind[1] and array.dtype != kind[1]:  # the comparison itself takes longer
            return False
        flags = array.flags
        return flags.carray if writable else flags.c_contiguous and flags.aligned

    def empty(self, kind: ArrayKind) -> Any:
        """New memory for a result."""
        return np.empty(*kind)


class Tensors(Arrays):
    """PyTorch tensors in host memory; CPU kernels take their addresses."""

    def __init__(self) -> None:
        torch = self._torch = sys.modules["torch"]
        self.address = torch.Tensor.data_ptr
        self._classes, self._strided = (torch.Tensor, torch.nn.Parameter), torch.strided

    def kind(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayKind:
        """The kind of tensors with this shape and dtype."""
        return shape, getattr(self._torch, dtype.name)

    def here(self) -> bool:
        """Whether PyTorch is not tracing, transforming or recording tangents of what happens to tensors."""
        return nothing_recorded(self._torch)

    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether `array` has the kind, is in C order and has no pending negation, and no gradient would be lost."""
        if array.__class__ not in self._classes or array.dtype is not kind[1] or array.layout is not self._strided:
            return False
        if not (array.is_cpu and array.shape == kind[0] and array.is_contiguous()) or array.is_neg():
            return False
        return not array.requires_grad or not (writable or self._torch.is_grad_enabled())

    def span(self, array: Any) -> tuple[int, int]:
        """The addresses of the first byte of a tensor and of the byte after its last."""
        start = array.data_ptr()
        return start, start + array.nbytes

    def empty(self, kind: ArrayKind) -> Any:
        """New memory for a result."""
        return self._torch.empty(kind[0], dtype=kind[1])


def arrays_on(device: str, family: Family) -> Arrays:
    """The checks for arrays of a library on a device: CuPy's for every GPU, PyTorch's or NumPy's for the CPU.

    Examples
    --------
    >>> one = arrays_on("cpu", Family("numpy"))
    >>> kind = one.kind((2, 3), np.dtype(np.float64))
    >>> one.alike(np.zeros((2, 3)), kind, 1), one.alike(np.zeros((3, 2)).T, kind, 1)
    (True, False)
    """
    if device != "cpu":
        return CuPyArrays(device)
    return Tensors() if family == TORCH else NumPyArrays()


def span(array: Any) -> tuple[int, int]:
    """The addresses of the first byte of a NumPy or CuPy array in C order and of the byte after its last."""
    start: int = array.data.ptr if is_cupy(array) else array.__array_interface__["data"][0]
    return start, start + array.nbytes
