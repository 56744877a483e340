"""CuPy arrays as the packing kernels see them: kinds of elements, strides, directions, and numbers passed by value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.jit import cupy

#: Elements of a chunk: one quad (four elements) for each lane of a warp.
GROUP = 128
#: The most blocks of a launch; kernels loop if there is more to do.
MAX_BLOCKS = 1 << 30

HALF, FLOAT, DOUBLE = 4, 5, 6
#: ``BS_KIND`` of a dtype's name. In `KINDS`, float16 and bfloat16 share a kind and kernels tell them apart by the bits of infinity; in
#: `KINDS_APART` they are two kinds.
KINDS = {"bool": 0, "float16": HALF, "bfloat16": HALF, "float32": FLOAT, "float64": DOUBLE} | {
    f"{sign}int{8 << kind}": kind for sign in ("", "u") for kind in range(4)
}
KINDS_APART = KINDS | {"bfloat16": 7}


def kind_of(dtype: Any) -> int:
    """``BS_KIND`` of a dtype.

    Raises
    ------
    DTypeError
        If the kernels do not support the dtype.

    Examples
    --------
    >>> kind_of(np.dtype(np.uint16)), kind_of(np.dtype(np.float32))
    (1, 5)
    """
    try:
        return KINDS[np.dtype(dtype).name]
    except KeyError:
        raise DTypeError(
            f"cuda backend: dtype {dtype} is not supported; convert to one of {', '.join(KINDS)}"
        ) from None


def infinity_of(dtype: Any) -> int:
    """The bits of infinity, by which kernels tell float16 from bfloat16; 0 for all other dtypes.

    Examples
    --------
    >>> hex(infinity_of(np.float16))
    '0x7c00'
    """
    return {"float16": 0x7C00, "bfloat16": 0x7F80}.get(np.dtype(dtype).name, 0)


def quad_alignment(dtype: Any) -> int:
    """The alignment in bytes that four adjacent elements need to be loaded or stored together.

    Examples
    --------
    >>> quad_alignment(np.int8), quad_alignment(np.float64)
    (4, 16)
    """
    return min(16, 4 * int(np.dtype(dtype).itemsize))


def output(function: str, out: Any, shape: tuple[int, ...], dtype: Any, alignment: int = 16) -> Any:
    """``out`` after checks, or a new array if it is None.

    Raises
    ------
    ShapeError, DTypeError
        If `out` has another shape or dtype, has gaps or is not aligned.
    """
    if out is None:
        return cupy.empty(shape, dtype)
    if tuple(out.shape) != tuple(shape):
        raise ShapeError(f"{function}: out has shape {out.shape}, but the result has {shape}")
    if out.dtype != np.dtype(dtype):
        raise DTypeError(f"{function}: out has dtype {out.dtype}, but the result has {np.dtype(dtype)}")
    if not out.flags.c_contiguous or out.data.ptr % alignment:
        raise ShapeError(f"{function}: out must be C-contiguous and aligned to {alignment} bytes")
    return out


class Source(NamedTuple):
    """An array folded to (batches, rows, cols), transposed if necessary so that elements adjacent in memory lie along cols if possible."""

    array: Any  # owns the memory
    batches: int
    rows: int
    cols: int
    strides: tuple[int, int, int]  # elements
    turned: bool  # whether rows and cols are the array's last and second-to-last dimension
    vector: bool  # whether four adjacent elements can be loaded together

    def turn(self, triple: tuple[int, int, int]) -> tuple[int, int, int]:
        """Convert (batch, row, col) of the array to (batch, row, col) of this view.

        Examples
        --------
        >>> Source(None, 1, 4, 3, (12, 3, 1), True, False).turn((7, 8, 9))
        (7, 9, 8)
        """
        batch, row, col = triple
        return (batch, col, row) if self.turned else (batch, row, col)

    @property
    def index_strides(self) -> tuple[int, int, int]:
        """Steps of the array's C-order index along batches, rows and cols of this view."""
        last = self.rows if self.turned else self.cols
        return self.turn((self.rows * self.cols, last, 1))


def source(array: Any) -> Source:
    """Fold an array of at least two dimensions. It is copied only if it is misaligned or its batch dimensions cannot be folded."""
    item = array.dtype.itemsize
    folded = _fold_batches(array)
    if folded is None or any(s % item for s in array.strides) or array.data.ptr % item:
        array = array.copy() if array.flags.c_contiguous else interop.contiguous(array)
        folded = math.prod(array.shape[:-2]), math.prod(array.shape[-2:]) * item
    batches, step = folded
    rows, cols = int(array.shape[-2]), int(array.shape[-1])
    row, col = (int(s) // item for s in array.strides[-2:])
    row, col = (1 if rows == 1 else row), (1 if cols == 1 else col)
    turned = (col != 1 and row == 1 and rows > 1) or (cols == 1 and rows > 1 and row == 1)
    if turned:
        rows, cols, row, col = cols, rows, col, row
    align = quad_alignment(array.dtype)
    spread = [s * item for s, n in ((row, rows), (step // item, batches)) if n > 1]
    vector = col == 1 and all(s % align == 0 for s in (*spread, array.data.ptr))
    return Source(array, batches, rows, cols, (step // item, row, col), turned, vector)


def _fold_batches(array: Any) -> tuple[int, int] | None:
    """The number of batches and the bytes from one to the next, or None if the batches are not evenly spaced."""
    batches, step = 1, 0
    for size, stride in zip(reversed(array.shape[:-2]), reversed(array.strides[:-2]), strict=True):
        if size == 1:
            continue
        if batches > 1 and stride != step * batches:
            return None
        step = stride if batches == 1 else step
        batches *= size
    return int(batches), int(step)


def stream_of_draws(stream: Any) -> tuple[int, int | None]:
    """The number of a stream of draws as kernels take it: its value, and the address of the uint32 array that holds it instead, or None."""
    if isinstance(stream, (int, np.integer)):
        return int(stream) & 0xFFFFFFFF, None
    return 0, stream.data.ptr


class Operand(NamedTuple):
    """A vector that broadcasts over an array: an address and strides in elements, or a number passed by value (address 0)."""

    keep: Any
    address: int
    value: float
    strides: tuple[int, int, int]


def operand(vector: Any, shape: tuple[int, ...], dtype: Any) -> Operand:
    """``vector`` as `dtype`, to be read along (batch, rows, cols) of ``shape``; a single number on the host is passed by value."""
    on_device = hasattr(vector, "__cuda_array_interface__")
    if not on_device:
        array = np.asarray(vector, dtype)
        if array.size == 1:
            return Operand(None, 0, float(array.reshape(())), (0, 0, 0))
        vector = interop.uploaded(array, "epilogue")
    array = interop.contiguous(vector.astype(dtype, copy=False))
    if array.size == 1:
        return Operand(array, array.data.ptr, 0.0, (0, 0, 0))
    rows, cols = ((1, 1) + tuple(array.shape))[-2:]
    batch = 0
    if math.prod(array.shape[:-2]) != 1:
        array = cupy.ascontiguousarray(cupy.broadcast_to(array, (*shape[:-2], rows, cols)))
        batch = rows * cols
    return Operand(array, array.data.ptr, 0.0, (batch, cols if rows != 1 else 0, 1 if cols != 1 else 0))
