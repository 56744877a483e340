"""Short ways for calls per edge on a GPU: CuPy arrays that leave nothing to be decided go straight to a kernel kept with the pattern."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.sparse import as_csr

__all__ = ["EdgeWay", "edge_product", "is_kept"]

Array = NDArray[Any]
#: Calls and products of each kind that a pattern keeps.
_KEPT = 16
#: Dtypes of arrays that the kernels take as they are.
_FLOATS = ("float32", "float64", "float16", "bfloat16")


class EdgeWay:
    """A call with arrays of certain shapes and dtypes, without gaps and aligned to 16 bytes, on the GPU of one pattern.

    Parameters
    ----------
    operand : CSROperand
    run : callable
        ``run(*arrays, out)``
    arrays : tuple of cupy.ndarray
        What the call brought.
    shape, dtype
        Of the result.
    in_place : bool
        The result may lie where the first array does.
    scaled : bool
        The result depends on the scales of the matrix, in which containers of one pattern may differ.
    """

    def __init__(
        self,
        operand: CSROperand,
        run: Callable[..., Any],
        arrays: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        in_place: bool = False,
        scaled: bool = False,
    ) -> None:
        self._run, self._ready, self._in_place = run, operand.ready, in_place
        self._kinds = tuple((array.shape, array.dtype) for array in arrays)
        self._scales = (operand.row_scale, operand.col_scale) if scaled else None
        self._result = (shape, np.dtype(dtype))
        self._space: Any = interop.namespace(operand.indptr)
        self._gpu, self._current_gpu = int(operand.device[5:]), interop.current_gpu()

    def fits(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Whether these are such arrays; all others go the long way."""
        if self._current_gpu() != self._gpu:
            return False
        for array, kind in zip(arrays, self._kinds, strict=True):
            if not self._is(array, *kind):
                return False
        if out is None:
            return True
        if not self._is(out, *self._result):
            return False
        start, stop = out.data.ptr, out.data.ptr + out.nbytes
        for array in arrays:
            other = array.data.ptr
            same = self._in_place and other == start
            if not (same or start >= other + array.nbytes or stop <= other):
                return False
        return True

    def _is(self, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        if array.__class__ is not self._space.ndarray or array.dtype != dtype or array.shape != shape:
            return False
        data = array.data
        return bool(array.flags.c_contiguous and data.ptr % 16 == 0 and data.device_id == self._gpu)

    @staticmethod
    def kept(A: Any, how: tuple[Any, ...] | None, arrays: tuple[Any, ...]) -> EdgeWay | None:
        """The one that a container's pattern keeps for a call like this; None as well where `how` is."""
        if how is None or not isinstance(A, SparseArray) or not A._prepared:
            return None
        ways: dict[Any, EdgeWay] | None = A._prepared.get("edge ways")
        first = arrays[0]
        if ways is None or interop.namespace(first) is np:
            return None
        way = ways.get((how, first.shape, first.dtype, len(arrays)))
        if way is None or way._scales is None:
            return way
        row_scale, col_scale = way._scales
        return way if row_scale is A._row_scale and col_scale is A._col_scale else None

    @staticmethod
    def learn(
        A: Any, how: tuple[Any, ...] | None, arrays: tuple[Any, ...], make: Callable[..., EdgeWay | None]
    ) -> None:
        """Keep what ``make(operand, how, *arrays)`` gives for a call that was right, if it brought a container and floating CuPy arrays."""
        if how is None or not isinstance(A, SparseArray) or A.device == "cpu":
            return
        kind = sys.modules["cupy"].ndarray
        for one in arrays:
            if one.__class__ is not kind or one.dtype.name not in _FLOATS or not one.size:
                return
            if not one.flags.c_contiguous or one.data.ptr % 16:
                return
        operand = as_csr(str(how[0]), A)
        if operand.order is not None or operand.nnz == 0:
            return
        with operand.division(str(how[0])):
            way = make(operand, how, *arrays)
        if way is not None:
            ways = A._prepared.setdefault("edge ways", {})
            if len(ways) >= _KEPT:
                ways.clear()
            ways[how, arrays[0].shape, arrays[0].dtype, len(arrays)] = way

    def __call__(self, arrays: tuple[Any, ...], out: Any) -> Any:
        """The result, in `out` if it is given."""
        self._ready.wait()
        made = self._space.empty(*self._result) if out is None else out
        self._run(*arrays, made)
        return made


def is_kept(A: Any, operand: CSROperand, heads: int) -> bool:
    """Whether a pattern keeps products per edge: that of a container whose heads of rows are numbered with its own indices."""
    if operand.device == "cpu" or not isinstance(A, SparseArray) or operand.order is not None:
        return False
    return operand.indptr.dtype.itemsize == 8 or max(*operand.shape, 1) * heads < 1 << 31


def edge_product(operand: CSROperand, op: str, dtype: np.dtype[Any], columns: int, heads: int) -> Callable[..., Any]:
    """``product(x, y, out)`` per edge for a pattern that is kept, of arrays (rows, columns) aligned to 16 bytes; made once."""
    products: dict[Any, Callable[..., Any]] = operand.prepared.setdefault("edge products", {})
    key = (op, dtype.name, columns, heads)
    if key not in products:
        if len(products) >= _KEPT:
            products.clear()
        operand.ready.wait()
        products[key] = _made(operand, op, dtype, columns, heads)
        operand.ready.renew()
    return products[key]


def _made(operand: CSROperand, op: str, dtype: np.dtype[Any], columns: int, heads: int) -> Any:
    backend, kept = backends.family(operand.device, "edges.sddmm"), operand.prepared
    if backend.windows_can(op, dtype, columns, heads, operand.shape, operand.nnz):
        if ("shared", 8) not in kept:
            choice = backends.family(operand.device, "spmm.choice")
            kept["shared", 8] = choice.shared_columns(operand.indptr, operand.indices, operand.shape, 8)
        if backend.windows_pay(operand.nnz, kept["shared", 8].entries):
            if ("spmm.windows",) not in kept:
                family = backends.family(operand.device, "spmm.windows")
                kept["spmm.windows",] = family.Windows(operand.indptr, operand.indices, operand.shape)
            return backend.window_product(kept["spmm.windows",], operand.indptr, columns)
    return backend.EdgeProduct(operand.schedule, operand.columns, op=op, dtype=dtype, columns=columns, heads=heads)
