"""Stand-ins: arrays without memory that represent the arrays of future calls while the launches of such a call are recorded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

#: Address of the first stand-in, which no real memory has, and the distance in bytes between two stand-ins.
_FIRST, _APART = 0x7B << 56, 1 << 48
_MOST = 1 << 7


class NotRecordable(Exception):
    """Raised if a call does more than launch kernels over its arrays."""


class _Pointer(NamedTuple):
    ptr: int


class _Flags(NamedTuple):
    c_contiguous: bool = True


class StandIn:
    """A future array in C order in a GPU's memory, of which only shape, dtype and buffer number are known.

    It has the attributes that launches of kernels need. Any other use that would read it or compute with it raises
    :class:`~bitsparse.interop.NotRecordable`.

    Parameters
    ----------
    number : int
        Number of the buffer that it stands for.
    shape : tuple of int
    dtype : dtype

    Examples
    --------
    >>> one = StandIn(2, (3, 4), np.float32)
    >>> one.reshape(12).shape, one.nbytes, place_of(one.data.ptr + 16)
    ((12,), 48, (2, 16))
    >>> one + one
    Traceback (most recent call last):
        ...
    bitsparse.interop.stand_ins.NotRecordable: something but a kernel reads an array
    """

    __slots__ = ("data", "dtype", "number", "shape")
    flags = _Flags()

    def __init__(self, number: int, shape: tuple[int, ...], dtype: Any) -> None:
        if number >= _MOST:
            raise NotRecordable(f"a call has more than {_MOST} arrays")
        self.number, self.shape, self.dtype = number, tuple(shape), np.dtype(dtype)
        self.data = _Pointer(_FIRST + number * _APART if self.size else 0)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.size * int(self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: Any) -> StandIn:
        """The same memory in another shape with the same number of elements."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if math.prod(sizes) != self.size:
            raise NotRecordable(f"an array of {self.shape} is reshaped to {sizes}")
        return StandIn(self.number, sizes, self.dtype)

    def view(self, dtype: Any) -> StandIn:
        """The same memory as elements of another dtype."""
        wanted = np.dtype(dtype)
        if self.ndim == 0 or self.shape[-1] * self.dtype.itemsize % wanted.itemsize:
            raise NotRecordable(f"an array of {self.shape} and {self.dtype} is viewed as {wanted}")
        last = self.shape[-1] * self.dtype.itemsize // wanted.itemsize
        return StandIn(self.number, (*self.shape[:-1], last), wanted)

    def astype(self, dtype: Any, copy: bool = True) -> StandIn:
        """The stand-in itself, if it has this dtype already; a conversion cannot be recorded."""
        if copy or np.dtype(dtype) != self.dtype:
            raise NotRecordable(f"an array of {self.dtype} is copied as {np.dtype(dtype)}")
        return self

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotRecordable("something but a kernel reads an array")

    __getitem__ = __setitem__ = __iter__ = __bool__ = __int__ = __float__ = __index__ = __eq__ = __lt__ = __le__ = (
        __gt__
    ) = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = (
        __rmatmul__
    ) = _refuse
    __array__ = __dlpack__ = __array_ufunc__ = __array_function__ = __getattr__ = _refuse
    __cuda_array_interface__ = __array_interface__ = property(_refuse)
    __hash__ = object.__hash__


def place_of(address: int) -> tuple[int, int] | None:
    """The number of the stand-in that contains an address, and the offset in it; None for an address of real memory.

    Examples
    --------
    >>> place_of(0x7F0000001000) is None
    True
    """
    beyond = address - _FIRST
    return divmod(beyond, _APART) if 0 <= beyond < _MOST * _APART else None
