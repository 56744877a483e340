"""Component arrays that come from outside: checked where they lie before they are believed."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.indices import devices_of, index_array, index_dtype
from bitsparse.errors import DTypeError

__all__ = ["adopt_blocks", "adopt_csr"]


def adopt_csr(
    function: str, indptr: Any, indices: Any, sizes: tuple[int, int]
) -> tuple[tuple[Any, Any], interop.Family]:
    """``(indptr, indices)`` of a canonical CSR array in C order and one index dtype, and their family.

    Raises
    ------
    ValueError
        They are not those of a canonical CSR array of this shape.
    DTypeError, DeviceError
        A dtype is another, or not both of them are on one device.
    """
    starts, family = interop.as_array(indptr, function, "indptr")
    starts, columns = index_array(function, "indptr", starts), index_array(function, "indices", indices)
    device, space = _check.same_device(function, devices_of(starts, columns)), interop.namespace(starts)
    dtype = index_dtype(function, sizes, columns.size, np.result_type(starts.dtype, columns.dtype))
    starts, columns = (space.ascontiguousarray(array, dtype=dtype) for array in (starts, columns))
    try:
        state = backends.family(device, "sparse.build").validate_csr(starts, columns, sizes)
    except ValueError as error:
        raise ValueError(f"{function}: {error}") from None
    if state != "canonical":
        raise ValueError(f"{function}: columns must ascend in every row, but they are {state}; use from_csr_arrays")
    return (starts, columns), family


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
