"""NumPy arrays as the flat byte buffers, dtype codes and strides that the compiled functions take."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import DTYPES, Array, Pattern
from bitsparse.errors import DTypeError

_BYTE = np.dtype(np.uint8)
_CODES = {name: code for code, name in enumerate(DTYPES)}


@functools.cache  # NumPy builds a dtype's name at every access
def dtype_code(dtype: np.dtype[Any]) -> int:
    """The compiled part's number for a dtype.

    Raises
    ------
    DTypeError
        If the compiled part does not support the dtype.

    Examples
    --------
    >>> dtype_code(np.dtype(np.float32))
    11
    """
    try:
        return _CODES[dtype.name]
    except KeyError:
        raise DTypeError(
            f"host backend: dtype {dtype} is not supported; convert to one of {', '.join(_CODES)}"
        ) from None


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether the compiled part treats the dtype as floating point (bfloat16 included).

    Examples
    --------
    >>> is_float(np.dtype(np.float16)), is_float(np.dtype(np.int8))
    (True, False)
    """
    return dtype_code(dtype) >= _CODES["float16"]


def in_order(array: Array) -> Array:
    """The array itself if it is C-contiguous and aligned, else a copy that is.

    Examples
    --------
    >>> in_order(np.ones((2, 3)).T).flags.c_contiguous
    True
    """
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=("C", "A"))


def as_bytes(array: Array) -> NDArray[np.uint8]:
    """The array's bytes in C order: a view of the array if it is C-contiguous and aligned, else of a copy.

    Examples
    --------
    >>> as_bytes(np.ones((2, 3), np.int16)).shape
    (12,)
    """
    return in_order(array).reshape(-1).view(_BYTE)


def items_of(values: Array | None) -> tuple[NDArray[np.uint8] | None, int]:
    """The bytes of the values of entries, and the number of bytes per entry.

    Examples
    --------
    >>> items_of(np.zeros((3, 2), np.float32))[1], items_of(None)
    (8, (None, 0))
    """
    if values is None:
        return None, 0
    return as_bytes(values), values.itemsize * math.prod(values.shape[1:])


def pattern_bytes(indptr: Array, indices: Array) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """The bytes of a CSR pattern, and whether its index arrays, which share one dtype, are int64."""
    return as_bytes(indptr), as_bytes(indices), indptr.dtype.itemsize == 8


def fold_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """``(batch, rows, cols)`` of a shape of at least two dimensions.

    Examples
    --------
    >>> fold_shape((2, 3, 4, 5))
    (6, 4, 5)
    """
    return math.prod(shape[:-2]), int(shape[-2]), int(shape[-1])


def strided(vector: Any, shape: tuple[int, ...], dtype: Any) -> tuple[NDArray[np.uint8], tuple[int, int, int]]:
    """Bytes and element strides along (batch, rows, cols) of an operand that broadcasts against ``shape``.

    Only batch dimensions are ever expanded in memory; a constant has three zero strides.

    Examples
    --------
    >>> strided(np.ones((3, 1), np.float32), (2, 3, 4), np.float32)[1]
    (0, 1, 0)
    """
    array = np.ascontiguousarray(vector, dtype=dtype)
    if array.size == 1:
        return as_bytes(array), (0, 0, 0)
    last = ((1, 1) + array.shape)[-2:]
    if math.prod(array.shape[:-2]) != 1:
        array = np.ascontiguousarray(np.broadcast_to(array, (*shape[:-2], *last)))
        batch_stride = last[0] * last[1]
    else:
        batch_stride = 0
    return as_bytes(array), (batch_stride, last[1] if last[0] != 1 else 0, 1 if last[1] != 1 else 0)


def arrays_of(pattern: Pattern) -> tuple[NDArray[np.uint8], Any, bool, tuple[int, int], int]:
    """A pattern as compiled code takes it: the bytes of both arrays, whether indices have 64 bits, the shape and the number of edges."""
    indptr, indices, shape, edges = pattern
    columns = None if indices is None else as_bytes(indices)
    return as_bytes(indptr), columns, indptr.dtype.itemsize == 8, shape, indices.size if edges is None else edges
