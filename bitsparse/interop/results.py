"""Results in the caller's array library, and NumPy or CuPy arrays moved, aligned or converted as needed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from bitsparse._check import brief
from bitsparse.errors import DTypeError
from bitsparse.interop import streams
from bitsparse.interop.devices import CUPY, NUMPY, Family, device_of, namespace
from bitsparse.interop.transfers import aligned_bytes, to_gpu

#: Packed words start at addresses that are multiples of this.
_ALIGNMENT = 16
#: Bits of infinity in float32.
_INFINITY = 0x7F800000


def common_family(families: Iterable[Family]) -> Family:
    """The family of a result: the first of its operands' families that is neither NumPy nor CuPy, else the first.

    Examples
    --------
    >>> common_family([NUMPY, Family("torch")])
    Family('torch')
    """
    first = None
    for family in families:
        if family.name not in ("numpy", "cupy"):
            return family
        first = first or family
    return first or NUMPY


def from_array(result: Any, family: Family, function: str) -> Any:
    """``result`` as an array of ``family`` on the same device, without a copy if the library can adopt the memory.

    NumPy's family has CuPy arrays on a GPU, and CuPy's has NumPy arrays on the CPU.

    Raises
    ------
    DTypeError
        The library cannot hold ``result.dtype`` without changing values (64-bit results in JAX without x64 mode).
    """
    if family.name in ("numpy", "cupy"):
        return result
    on_host = isinstance(result, np.ndarray)
    if family.name == "torch":
        torch = sys.modules["torch"]
        adopt = torch.from_numpy if on_host else torch.from_dlpack
        if result.dtype.name == "bfloat16":  # NumPy and some versions of CuPy cannot export it
            return adopt(result.view(np.int16)).view(torch.bfloat16)
        return adopt(result)
    if family.name == "jax":
        jax = sys.modules["jax"]
        if result.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            raise DTypeError(
                f"{function}: the result is {result.dtype}, which JAX would cut to 32 bits; "
                f"call jax.config.update('jax_enable_x64', True) first, or pass {'NumPy' if on_host else 'CuPy'} arrays"
            )
        return jax.numpy.asarray(result) if on_host else jax.dlpack.from_dlpack(result)
    if family.adopt is not None:
        return _adopted(result, family, function)
    if on_host:
        return family.namespace.asarray(result)
    try:
        return family.namespace.from_dlpack(result)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return result  # the library works on the host only


def _adopted(result: Any, family: Family, function: str) -> Any:
    """A result in a library that supports only DLPack; TensorFlow adopts the capsule of a contiguous array, others the array itself."""
    result = contiguous(result)
    exported = result.__dlpack__ if family.name == "tensorflow" else lambda: result
    try:
        return family.adopt(exported())
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = "NumPy" if isinstance(result, np.ndarray) else "CuPy"
        raise DTypeError(
            f"{function}: {family.name} does not take the result, an array of {result.dtype} ({brief(error)}); pass {kind} arrays"
        ) from None


def move(x: Any, device: str, *, later: bool = False) -> Any:
    """A NumPy or CuPy array on ``device`` (as returned by :func:`parse_device`); itself if it is there already, and None for None.

    Host memory has been read when this returns, unless it is page-locked and ``later`` allows reading it in stream order.
    """
    if x is None or device_of(x) == device:
        return x
    if device == "cpu":
        with streams.working_on(device_of(x), CUPY):
            return x.get()
    if isinstance(x, np.ndarray):
        return to_gpu(x, device, later=later)
    with streams.working_on(device, CUPY):
        return sys.modules["cupy"].asarray(x)


def contiguous(x: Any) -> Any:
    """A NumPy or CuPy array in C order, itself if it is so already; CuPy can copy bfloat16 only as bits."""
    space = namespace(x)
    if space is np:
        return np.ascontiguousarray(x)
    if x.flags.c_contiguous:
        return x
    bits = x.view(np.uint16) if x.dtype.name == "bfloat16" else x
    return space.ascontiguousarray(bits).view(x.dtype)


def as_bits(array: Any) -> Any:
    """bfloat16 viewed as 16-bit integers, which CuPy can move; anything else as it is."""
    dtype = array.dtype  # the size is checked first because it is faster to get than the name
    return array.view(np.uint16) if dtype.itemsize == 2 and dtype.name == "bfloat16" else array


def converted(array: Any, dtype: Any, *, copy: bool = False) -> Any:
    """A NumPy or CuPy array as `dtype`; itself if it has that dtype already and no copy is asked for.

    CuPy can move bfloat16 but not convert it, so on a GPU this function works on the bits: it goes through float32, and rounds once from
    there, to nearest even.

    Examples
    --------
    >>> converted(np.array([1.5, -2.0], np.float32), np.float16)
    array([ 1.5, -2. ], dtype=float16)
    """
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array.copy() if copy else array
    space = namespace(array)
    if space is np or "bfloat16" not in (array.dtype.name, wanted.name):
        return array.astype(wanted)
    if array.dtype.name == "bfloat16":
        bits = contiguous(array).view(np.uint16)
        single = (bits.astype(np.uint32) << 16).view(np.float32)
        if wanted != np.float64:
            return single.astype(wanted, copy=False)
        # CuPy's conversion turns subnormal numbers into zero, so they are computed here as mantissas times 2**-133.
        small = (bits & 0x7F).astype(np.float64) * 2.0**-133
        return space.where(bits & 0x7F80, single.astype(wanted), space.where(bits & 0x8000, -small, small))
    wide = contiguous(array.astype(np.float32, copy=False)).view(np.uint32)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    quiet = (wide >> 16) | 0x40
    return space.where((wide & 0x7FFFFFFF) > _INFINITY, quiet, rounded).astype(np.uint16).view(wanted)


def aligned(words: Any) -> Any:
    """An array that is C-contiguous and 16-byte aligned, copied only if it is not so already."""
    space = namespace(words)
    words = contiguous(words)
    address = words.ctypes.data if space is np else words.data.ptr
    if address % _ALIGNMENT == 0:
        return words
    if space is not np:
        return words.copy()  # CuPy's allocations are aligned to 512 bytes
    placed = aligned_bytes(words.nbytes, _ALIGNMENT).view(words.dtype).reshape(words.shape)
    placed[...] = words
    return placed
