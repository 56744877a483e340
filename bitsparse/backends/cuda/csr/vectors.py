"""Feature rows as the kernels over edges see them: kinds of elements, vectors, and lanes per row."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.params import SIXTEEN

_TYPES = {name: i for i, name in enumerate(("float32", "float16", "bfloat16", "float64", "int32", "int64"))}


@functools.cache
def element_type(dtype: Any) -> int:
    """``BS_TYPE`` of a dtype, or of its name.

    Examples
    --------
    >>> element_type(np.dtype(np.float64))
    3
    """
    return _TYPES[dtype if isinstance(dtype, str) else np.dtype(dtype).name]


@functools.cache
def sum_dtype(dtype: Any) -> Any:
    """The dtype in which the kernels sum elements of `dtype`.

    Examples
    --------
    >>> sum_dtype(np.float16)
    dtype('float32')
    """
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype.name in SIXTEEN else dtype


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`.

    Examples
    --------
    >>> [power_of_two(n) for n in (0, 1, 3, 32)]
    [1, 1, 4, 32]
    """
    return 1 << max(0, n - 1).bit_length()


def vector_bytes(row_bytes: int, itemsize: int, arrays: Iterable[Any]) -> int:
    """The number of bytes that are moved at once: 16, or less if rows of `row_bytes` or arrays are not aligned to that.

    Examples
    --------
    >>> vector_bytes(400, 4, ()), vector_bytes(602 * 4, 4, ()), vector_bytes(3, 1, ())
    (16, 8, 1)
    """
    bits = row_bytes | 16
    for array in arrays:
        bits |= array.data.ptr
    return max(itemsize, bits & -bits)


def rows_defines(dtype: Any, vector: int, vectors: int, most_lanes: int = 32) -> dict[str, int]:
    """Constants of kernels for rows of `vectors` vectors of `vector` bytes, with one vector per lane of a group.

    Examples
    --------
    >>> rows_defines(np.float32, 16, 5)
    {'BS_TYPE': 0, 'BS_VECTOR': 16, 'BS_LANES': 8}
    """
    lanes = min(most_lanes, power_of_two(vectors))
    return {"BS_TYPE": element_type(dtype), "BS_VECTOR": vector, "BS_LANES": lanes}


def lanes_for(vectors: int) -> int:
    """Lanes of a group for rows of `vectors` vectors: all vectors at once, or else in rounds that leave few lanes idle.

    Examples
    --------
    >>> [lanes_for(n) for n in (1, 4, 25, 33, 64, 72)]
    [1, 4, 32, 8, 32, 8]
    """
    if vectors <= 32:
        return power_of_two(vectors)
    return min((32, 16, 8), key=lambda lanes: -(-vectors // lanes) * lanes)


def widened(schedule: Schedule, heads: int) -> Schedule:
    """The pattern with explicit columns of edges, and with 64-bit indices if heads of rows cannot be numbered in 32 bits."""
    schedule = schedule.indexed()
    if schedule.large or max(*schedule.shape, 1) * heads < 1 << 31:
        return schedule
    indptr, indices = (part.astype(np.int64) for part in (schedule.indptr, schedule.indices))
    return Schedule(indptr, indices, schedule.shape, schedule.nnz)


def fill(array: Any, value: float) -> None:
    """Set every element. Arrays of bfloat16, which CuPy sees as bits, can be set only to 0."""
    (array.view(np.uint16) if array.dtype.name == "bfloat16" else array).fill(value)


def widened_features(x: Any) -> Any:
    """The elements in the dtype in which they are summed."""
    if x.dtype.name == "bfloat16":
        return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x.astype(sum_dtype(x.dtype), copy=False)
