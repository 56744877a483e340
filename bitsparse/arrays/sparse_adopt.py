"""Component arrays that come from outside: checked where they lie before they are believed."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.indices import devices_of, index_array, index_dtype
from bitsparse.errors import DTypeError

__all__ = ["adopt_blocks", "adopt_translated"]


def adopt_translated(
    function: str, parts: tuple[Any, ...], sizes: tuple[int, int], window: int
) -> tuple[tuple[Any, ...], interop.Family]:
    """``(cols_indptr, cols, edge_indptr, edge_row, edge_col, perm)`` in C order and one index dtype, and their family.

    Raises
    ------
    ValueError
        They are not what translating any pattern of this shape gives.
    DTypeError, DeviceError
        A dtype is another, or not all of them are on one device.
    """
    names = ("cols_indptr", "cols", "edge_indptr", "perm")
    given = (*parts[:3], parts[5])
    indices = [index_array(function, name, part) for name, part in zip(names, given, strict=True)]
    row, _ = interop.as_array(parts[3], function, "edge_row")
    col, family = interop.as_array(parts[4], function, "edge_col")
    device, space = _check.same_device(function, devices_of(*indices, row, col)), interop.namespace(row)
    dtype = index_dtype(function, sizes, indices[3].size, np.result_type(*(array.dtype for array in indices)))
    starts, cols, edges, perm = (space.ascontiguousarray(array, dtype=dtype) for array in indices)
    row, col = space.ascontiguousarray(row), space.ascontiguousarray(col)
    if row.dtype != np.uint8 or col.dtype != np.int32 or row.ndim != 1 or col.ndim != 1:
        raise DTypeError(
            f"{function}: edge_row is {row.dtype} and edge_col {col.dtype} of shapes {row.shape} and {col.shape}, but uint8 "
            f"and int32 of one dimension are needed"
        )
    try:
        backends.family(device, "sparse.build").translated_to_csr(starts, cols, edges, row, col, perm, sizes, window)
    except ValueError as error:
        raise ValueError(f"{function}: {error}") from None
    return (starts, cols, edges, row, col, perm), family


def adopt_blocks(
    function: str, indptr: Any, indices: Any, tiles: Any, sizes: tuple[int, int]
) -> tuple[tuple[Any, Any, Any], interop.Family, int]:
    """``(indptr, indices, tiles)`` of 4 x 4 blocks in C order and one index dtype, their family, and how many bits are set.

    Raises
    ------
    ValueError
        They are not what the blocks of any pattern of this shape are.
    DTypeError, DeviceError
        A dtype is another, or not all of them are on one device.
    """
    starts, blocks = index_array(function, "indptr", indptr), index_array(function, "indices", indices)
    bits, family = interop.as_array(tiles, function, "tiles")
    device, space = _check.same_device(function, devices_of(starts, blocks, bits)), interop.namespace(bits)
    if bits.dtype != np.uint16 or bits.ndim != 1:
        raise DTypeError(
            f"{function}: tiles have dtype {bits.dtype} and shape {bits.shape}, but uint16 of one dimension is needed"
        )
    nnz = int(space.bitwise_count(bits).sum(dtype=np.int64))
    dtype = index_dtype(function, sizes, nnz, np.result_type(starts.dtype, blocks.dtype))
    starts, blocks = (space.ascontiguousarray(array, dtype=dtype) for array in (starts, blocks))
    bits = space.ascontiguousarray(bits)
    try:
        backends.family(device, "sparse.build").frdc_to_csr(starts, blocks, bits, sizes)
    except ValueError as error:
        raise ValueError(f"{function}: {error}") from None
    return (starts, blocks, bits), family, nnz
