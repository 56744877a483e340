"""Products of two sparse arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.manners.elementwise import is_sparse
from bitsparse.arrays.manners.plain import back, counted, matrix, on_cpu
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.errors import ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray


def is_operand(other: Any) -> bool:
    """Whether a product with `other` is one of two sparse arrays: ours or SciPy's or CuPy's, which know their format."""
    return is_sparse(other) or (
        hasattr(other, "tocsr")
        and hasattr(other, "nnz")
        and hasattr(other, "format")
        and not isinstance(other, BitArray)
    )


def sparse_product(x: SparseArray, other: Any, swap: bool = False) -> SparseArray:
    """``x @ other``, or ``other @ x``, of two sparse arrays.

    Booleans give booleans (some row and column have an entry in common), integers exact sums, floats what SciPy gives. Sums of integers are
    int32, or int64 where that might not hold them or an operand is of 64 bits.
    """
    on_cpu(
        x,
        "matmul",
        "multiply two sparse arrays on the CPU, as in A.get() @ B.get(), or one with dense features by spmm",
    )
    kin: tuple[SparseArray, ...] = ()
    if is_sparse(other):
        _check.same_device("matmul", (x.device, other.device))
        kin, theirs = (other,), counted(other, "matmul")
    else:
        csr = other.tocsr()
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        theirs = Pattern(csr.indptr, csr.indices, tuple(csr.shape), csr.data)
        _check.numeric("matmul", "the other operand", csr.data)
    left, right = (theirs, counted(x, "matmul")) if swap else (counted(x, "matmul"), theirs)
    if left.shape[1] != right.shape[0]:
        raise ShapeError(
            f"matmul: shapes {left.shape} and {right.shape} do not fit: {left.shape[1]} != {right.shape[0]}"
        )
    left, right = _exact(left, right)
    product = (matrix(left) @ matrix(right)).tocsr()
    return back(x, product, "matmul", *kin)


def _exact(left: Pattern, right: Pattern) -> tuple[Pattern, Pattern]:
    """Both in the dtype in which integer sums are exact; booleans and floats as they are."""
    pair: tuple[Any, Any] = left.values, right.values
    kinds = {values.dtype.kind for values in pair}
    if "f" in kinds or kinds == {"b"}:
        return left, right
    longest = int(np.diff(left.indptr).max(initial=0))
    first, second = (max((abs(int(limit)) for limit in (v.min(), v.max())), default=0) if v.size else 0 for v in pair)
    bound = max(longest * first * second, first, second)
    common = np.result_type(*(values.dtype for values in pair))
    if bound >= 1 << (64 if common == np.uint64 else 63):
        raise ValueError(
            f"matmul: {longest} products of values up to {first} and {second} might exceed int64; convert one to float64 with astype"
        )
    narrow = np.dtype(np.int32 if bound < 1 << 31 else np.int64)
    dtype = common if common.itemsize == 8 and common.kind in "iu" else narrow
    return replace(left, values=pair[0].astype(dtype)), replace(right, values=pair[1].astype(dtype))
