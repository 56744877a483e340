"""Results in the caller's family, and arrays of NumPy's or CuPy's where and as somebody wants them."""

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
    """The family that results come back in: the first that is neither NumPy nor CuPy, else the first.

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
    """``result`` as an array of ``family`` on the device where it lies, without a copy where the library can adopt the memory.

    A family that knows one device only gives way on the other: NumPy's results on a GPU are CuPy's, and the other way round.

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
        if result.dtype.name == "bfloat16":  # which NumPy and not every CuPy export
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
        return result  # a library of the host


def _adopted(result: Any, family: Family, function: str) -> Any:
    """A result in a library that knows DLPack alone; TensorFlow takes what an array exports, without gaps, and others the array itself."""
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
    """A NumPy or CuPy array on ``device`` (as :func:`parse_device` writes it); itself if it is there, and None if it is None.

    Host memory has been read when this returns, unless it is page-locked and ``later`` allows to read it in stream order.
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
    """A NumPy or CuPy array in C order, itself if it is; CuPy copies bfloat16 only as bits."""
    space = namespace(x)
    if space is np:
        return np.ascontiguousarray(x)
    if x.flags.c_contiguous:
        return x
    bits = x.view(np.uint16) if x.dtype.name == "bfloat16" else x
    return space.ascontiguousarray(bits).view(x.dtype)


def as_bits(array: Any) -> Any:
    """bfloat16 as 16-bit integers, which is how CuPy moves it; anything else as it is."""
    dtype = array.dtype  # whose name takes longer to find out than its size
    return array.view(np.uint16) if dtype.itemsize == 2 and dtype.name == "bfloat16" else array


def converted(array: Any, dtype: Any, *, copy: bool = False) -> Any:
    """A NumPy or CuPy array as `dtype`, itself if it is of that already and no copy is asked for.

    CuPy moves bfloat16 but does not convert it, so that on a GPU this goes through the bits, by way of float32 and with one rounding to
    nearest even from there.

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
        # CuPy's conversion takes subnormal numbers for zero: these are mantissas times 2**-133.
        small = (bits & 0x7F).astype(np.float64) * 2.0**-133
        return space.where(bits & 0x7F80, single.astype(wanted), space.where(bits & 0x8000, -small, small))
    wide = contiguous(array.astype(np.float32, copy=False)).view(np.uint32)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    quiet = (wide >> 16) | 0x40
    return space.where((wide & 0x7FFFFFFF) > _INFINITY, quiet, rounded).astype(np.uint16).view(wanted)


def aligned(words: Any) -> Any:
    """C-contiguous and 16-byte aligned, copied only if it is not."""
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
