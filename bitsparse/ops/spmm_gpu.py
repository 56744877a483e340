"""Sparse times dense on a GPU: which kernel computes a product, why, and what it keeps between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.errors import KernelError
from bitsparse.ops.csr_operand import CSROperand
from bitsparse.ops.features import converted

__all__ = ["GpuProducts", "Product"]

Array = NDArray[Any]
#: Kinds of product that the pattern of a container keeps.
_KEPT = 8


class Product(NamedTuple):
    """One product, ready to run.

    Attributes
    ----------
    run : callable
        ``run(x, weights, out)`` of features (cols, columns), values per edge or None, and an array for the result or None.
    explain : list of str
        Which kernel it is and why.
    """

    run: Callable[[Array, Array | None, Array | None], Array]
    explain: list[str]


class GpuProducts:
    """Products of one operand with features of one width, one for each kind of features and values.

    It holds the operand's arrays, but not what the container keeps, so that the container can keep it.
    """

    def __init__(
        self, function: str, operand: CSROperand, columns: int, reduce: str, precision: str, forced: str | None
    ) -> None:
        self._function, self._columns, self._reduce = function, columns, reduce
        self._precision, self._forced = precision, forced
        self._indptr, self._indices, self._shape, self._nnz = operand.indptr, operand.indices, operand.shape, operand.nnz
        self._values, self._row_scale, self._col_scale = operand.values, operand.row_scale, operand.col_scale
        self._schedule = operand.schedule
        self._backend = backends.family(operand.device, "spmm")
        self._made: dict[Any, Product] = {}

    @classmethod
    def kept(
        cls, function: str, operand: CSROperand, columns: int, reduce: str, precision: str, forced: str | None
    ) -> GpuProducts:
        """What a container keeps for products of this kind, or new ones."""
        made: dict[Any, GpuProducts] = operand.prepared.setdefault("products", {})
        key = (columns, reduce, precision, forced)
        found = made.get(key)
        if found is not None and found._belongs_to(operand):
            return found
        if len(made) >= _KEPT:
            made.clear()
        made[key] = cls(function, operand, columns, reduce, precision, forced)
        return made[key]

    def _belongs_to(self, operand: CSROperand) -> bool:
        """Whether the operand has these very arrays; containers of one pattern may differ in values and scales."""
        mine = (self._indptr, self._values, self._row_scale, self._col_scale)
        theirs = (operand.indptr, operand.values, operand.row_scale, operand.col_scale)
        return all(one is other for one, other in zip(mine, theirs, strict=True))

    def product(self, dtype, acc, weights, heads):
        def run(x, w, out):
            return self._backend.spmm(self._indptr, self._indices, self._shape, x, nnz=self._nnz, acc_dtype=acc, heads=heads, values=w,
              row_scale=self._row_scale, col_scale=self._col_scale, reduce=self._reduce, out=out)
        return run
    def explain(self): return ["kernel csr (forced"]
