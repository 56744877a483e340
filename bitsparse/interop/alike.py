"""Arrays of one library on one device as calls that are like earlier ones ask about them: quickly, and believing nothing."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bitsparse.interop.devices import TORCH, Family, is_cupy, require_cupy
from bitsparse.interop.streams import current_gpu
from bitsparse.interop.tensors import nothing_recorded

#: Shape and dtype of an array, as its library names it.
ArrayKind = tuple[tuple[int, ...], Any]


class Bounds(NamedTuple):
    """What a result must keep to: all arrays on a GPU are aligned to so many bytes, and it lies outside of these addresses.

    `in_place`: it may lie where the first array does.
    """

    alignment: int
    beside: tuple[tuple[int, int], ...]
    in_place: bool


class Arrays(ABC):
    """Arrays of one library on one device."""

    #: What kernels take for an array, if it is not the array itself.
    address: Callable[[Any], int] | None = None

    def kind(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayKind:
        """Of arrays with this shape and dtype."""
        return shape, dtype

    @abstractmethod
    def here(self) -> bool:
        """Whether a call computes where they are, and nobody but its caller is to learn of it."""

    @abstractmethod
    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether this is an array of a kind, in C order and aligned, which can be read or written where it lies."""

    @abstractmethod
    def span(self, array: Any) -> tuple[int, int]:
        """The addresses where an array begins and ends."""

    @abstractmethod
    def empty(self, kind: ArrayKind) -> Any:
        """Memory for a result."""

    def takes(
        self, arrays: Sequence[Any], kinds: Sequence[ArrayKind], out: Any, result: ArrayKind, about: Bounds
    ) -> bool:
        """Whether arrays are of their kinds, and the result can be written to `out`, if it is given, beside what is read."""
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
    """CuPy's on one GPU."""

    def __init__(self, device: str) -> None:
        space = require_cupy("plan")
        self._ndarray, self._empty, self._current_gpu = space.ndarray, space.empty, current_gpu()
        self._gpu = int(device[5:])

    def here(self) -> bool:
        """Whether their GPU is the current one."""
        return bool(self._current_gpu() == self._gpu)

    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether this is an array of a kind, in C order and aligned."""
        if array.__class__ is not self._ndarray or array.shape != kind[0] or array.dtype != kind[1]:
            return False
        memory = array.data
        aligned = alignment == 1 or memory.ptr % alignment == 0
        return bool(aligned and array.flags.c_contiguous and memory.device_id == self._gpu)

    def span(self, array: Any) -> tuple[int, int]:
        """The addresses where an array begins and ends."""
        start = array.data.ptr
        return start, start + array.nbytes

    def empty(self, kind: ArrayKind) -> Any:
        """Memory for a result."""
        return self._empty(*kind)


class NumPyArrays(Arrays):
    """NumPy's, which kernels of the CPU take aligned to their items."""

    def here(self) -> bool:
        """Always."""
        return True

    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether this is an array of a kind, in C order and aligned, and writable if it has to be."""
        if array.__class__ is not np.ndarray or array.shape != kind[0] or array.dtype != kind[1]:
            return False
        flags = array.flags
        return flags.carray if writable else flags.c_contiguous and flags.aligned

    def span(self, array: Any) -> tuple[int, int]:
        """The addresses where an array begins and ends."""
        return span(array)

    def empty(self, kind: ArrayKind) -> Any:
        """Memory for a result."""
        return np.empty(*kind)


class Tensors(Arrays):
    """PyTorch's in host memory, which kernels of the CPU take by their addresses."""

    def __init__(self) -> None:
        torch = self._torch = sys.modules["torch"]
        self.address = torch.Tensor.data_ptr
        self._classes, self._strided = (torch.Tensor, torch.nn.Parameter), torch.strided

    def kind(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayKind:
        """Of tensors with this shape and dtype."""
        return shape, getattr(self._torch, dtype.name)

    def here(self) -> bool:
        """Whether nobody records, traces or transforms what becomes of tensors."""
        return nothing_recorded(self._torch)

    def alike(self, array: Any, kind: ArrayKind, alignment: int, writable: bool = False) -> bool:
        """Whether this is a tensor of a kind, in C order, whose memory is its values, and no gradient would be lost."""
        if array.__class__ not in self._classes or array.dtype is not kind[1] or array.layout is not self._strided:
            return False
        if not (array.is_cpu and array.shape == kind[0] and array.is_contiguous()) or array.is_neg():
            return False
        return not array.requires_grad or not (writable or self._torch.is_grad_enabled())

    def span(self, array: Any) -> tuple[int, int]:
        """The addresses where a tensor begins and ends."""
        start = array.data_ptr()
        return start, start + array.nbytes

    def empty(self, kind: ArrayKind) -> Any:
        """Memory for a result."""
        return self._torch.empty(kind[0], dtype=kind[1])


def arrays_on(device: str, family: Family) -> Arrays:
    """CuPy's on a GPU, PyTorch's or NumPy's on the CPU.

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
    """The addresses where an array of NumPy's or CuPy's in C order begins and ends."""
    start: int = array.data.ptr if is_cupy(array) else array.__array_interface__["data"][0]
    return start, start + array.nbytes
