"""Products per edge that the pattern of a container on a GPU keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.spmm.gpu import shared_columns, windows_of

__all__ = ["EDGE_PRODUCTS", "edge_product", "is_kept"]


class EdgeKey(NamedTuple):
    """What tells apart the products per edge that a pattern keeps."""

    op: str
    dtype: str
    columns: int
    heads: int


EDGE_PRODUCTS: Slot[Callable[..., Any]] = Slot("products per edge")


def is_kept(A: Any, operand: CSROperand, heads: int) -> bool:
    """Whether a pattern keeps products per edge: that of a container whose heads of rows are numbered with its own indices."""
    if operand.device == "cpu" or not isinstance(A, SparseArray) or operand.order is not None:
        return False
    return operand.indptr.dtype.itemsize == 8 or max(*operand.shape, 1) * heads < 1 << 31


def edge_product(operand: CSROperand, op: str, dtype: np.dtype[Any], columns: int, heads: int) -> Callable[..., Any]:
    """``product(x, y, out)`` per edge for a pattern that is kept, of arrays (rows, columns) aligned to 16 bytes; made once."""
    key = EdgeKey(op, dtype.name, columns, heads)
    product = EDGE_PRODUCTS.get(operand.prepared, key)
    if product is None:
        operand.ready.wait()
        product = EDGE_PRODUCTS.keep(operand.prepared, _product(operand, op, dtype, columns, heads), key)
        operand.ready.renew()
    return product


def _product(operand: CSROperand, op: str, dtype: np.dtype[Any], columns: int, heads: int) -> Any:
    """By windows of rows that share columns where that pays, else an edge at a time."""
    backend = backends.family(operand.device, "edges.sddmm")
    possible = backend.windows_can(op, dtype, columns, heads, operand.shape, operand.nnz)
    if possible and backend.windows_pay(operand.nnz, shared_columns(operand, 8).entries):
        return backend.window_product(windows_of(operand), operand.indptr, columns)
    return backend.EdgeProduct(operand.schedule, operand.columns, op=op, dtype=dtype, columns=columns, heads=heads)
