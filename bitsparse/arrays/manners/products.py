"""Products of two sparse arrays: SciPy multiplies numbers on the CPU, cuSPARSE floats on a GPU, and our own code everything else."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays import indices, sparse_forms
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.inside import family_of, of_result
from bitsparse.arrays.manners.elementwise import is_sparse
from bitsparse.arrays.manners.picking import turned
from bitsparse.arrays.manners.plain import counted, fitted, matrix
from bitsparse.arrays.sparse_merge import Pattern, kept_entries
from bitsparse.errors import DeviceError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray


def is_operand(other: Any) -> bool:
    """Whether `other` makes a product of two sparse arrays: one of ours, or one of SciPy or CuPy, which have a `format`."""
    if not hasattr(other, "tocsr") or isinstance(other, type):
        return False
    return is_sparse(other) or (hasattr(other, "nnz") and hasattr(other, "format") and not isinstance(other, BitArray))


def sparse_product(x: SparseArray, other: Any, swap: bool = False) -> SparseArray:
    """``x @ other``, or ``other @ x``, of two sparse arrays.

    Booleans give booleans (whether row and column have a common entry), integers give exact sums, and floats the sums of SciPy or cuSPARSE.
    Sums of integers are int32, or int64 if int32 might not hold them, or NumPy's common dtype if that has 64 bits; uint64 and signed
    integers, for which that would be float64, give int64. Sums that are zero are not stored.
    """
    kin: tuple[SparseArray, ...] = ()
    if not is_sparse(other) and x.device != "cpu" and interop.device_of(getattr(other, "data", None)) == x.device:
        other = of_result(x, sparse_forms.read("matmul", other))
    if is_sparse(other):
        _check.same_device("matmul", (x.device, other.device))
        kin, theirs = (other,), counted(other, "matmul")
    elif x.device != "cpu":
        raise DeviceError(f"matmul: {type(other).__name__} is not on {x.device}; wrap it there, as in TCTiledCSR(B)")
    elif len(other.shape) != 2:
        raise ShapeError(
            f"matmul: the other operand is a {type(other).__name__} of shape {other.shape}, but 2 dimensions are needed; pass it with "
            f".toarray(), or with .reshape(-1, 1) or .reshape(1, -1)"
        )
    else:
        csr = indices.csr_of("matmul", other)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        theirs = Pattern(*indices.index_arrays("matmul", csr.indptr, csr.indices), tuple(csr.shape), csr.data)
        _check.numeric("matmul", "the other operand", csr.data)
    left, right = (theirs, counted(x, "matmul")) if swap else (counted(x, "matmul"), theirs)
    if left.shape[1] != right.shape[0]:
        raise ShapeError(
            f"matmul: shapes {left.shape} and {right.shape} do not fit: {left.shape[1]} != {right.shape[0]}"
        )
    left, right = _exact(left, right)
    if x.device != "cpu":
        made = _on_gpu(left, right)
    elif left.values.dtype == right.values.dtype == np.bool_:  # type: ignore[union-attr]
        made = _of_bits(left, right)
    else:
        made = _by_scipy(left, right)
    family = interop.common_family([family_of(x), *map(family_of, kin)])
    return fitted(x, replace(made, family=family), "matmul", *kin)


def _by_scipy(left: Pattern, right: Pattern) -> Pattern:
    """The product of numbers on the CPU."""
    product = indices.without_spare((matrix(left, "matmul") @ matrix(right, "matmul")).tocsr())
    is_wide = product.shape[1] > 8 * product.nnz  # transposing, as below, needs memory for every column
    if is_wide:
        product.sort_indices()
    made = Pattern(product.indptr, product.indices, product.shape, product.data)
    return made if is_wide else turned(turned(made))  # two counting sorts, which are linear in the entries


def _exact(left: Pattern, right: Pattern) -> tuple[Pattern, Pattern]:
    """Both operands in a dtype in which integer sums are exact; booleans and floats stay as they are."""
    pair: tuple[Any, Any] = left.values, right.values
    kinds = {values.dtype.kind for values in pair}
    if "f" in kinds or kinds == {"b"}:
        return left, right
    lengths = left.indptr[1:] - left.indptr[:-1]
    ends = [(values.min(), values.max()) if values.size else (values.sum(), values.sum()) for values in pair]
    longest, *limits = _numbers([lengths.max() if lengths.size else lengths.sum(), *ends[0], *ends[1]])
    first, second = (max(abs(low), abs(high)) for low, high in (limits[:2], limits[2:]))
    bound = max(longest * first * second, first, second)
    common = np.result_type(*(values.dtype for values in pair))
    if common.kind == "f":  # NumPy's answer for uint64 and signed integers
        common = np.dtype(np.int64)
    if bound >= 1 << (64 if common == np.uint64 else 63):
        raise ValueError(
            f"matmul: {longest} products of values up to {first} and {second} might exceed int64; convert one to float64 with astype"
        )
    narrow = np.dtype(np.int32 if bound < 1 << 31 else np.int64)
    dtype = common if common.itemsize == 8 else narrow
    return replace(left, values=pair[0].astype(dtype)), replace(right, values=pair[1].astype(dtype))


def _numbers(scalars: list[Any]) -> list[int]:
    """Integer scalars as Python integers; on a GPU with one transfer to the host."""
    space: Any = interop.namespace(scalars[0])
    if space is np or any(scalar.dtype == np.uint64 for scalar in scalars):  # int64 might not hold uint64
        return [int(scalar) for scalar in scalars]
    found: list[int] = space.stack([scalar.astype(np.int64) for scalar in scalars]).get().tolist()
    return found


def _of_bits(left: Pattern, right: Pattern) -> Pattern:
    """The product of booleans on the CPU, for which only the pattern has to be computed."""
    left, right = _true(left, right)
    lengths = right.indptr[1:] - right.indptr[:-1]
    most = int(lengths[left.indices].sum(dtype=np.int64))
    index = np.int64 if most >= indices.INT32_LIMIT else np.result_type(left.indices.dtype, right.indices.dtype)
    one, two = (tuple(part.astype(index, copy=False) for part in (made.indptr, made.indices)) for made in (left, right))
    starts, columns = backends.family("cpu", "sparse.entries").product(one, two, right.shape[1], most)
    return Pattern(starts, columns, (left.shape[0], right.shape[1]), np.ones(columns.size, np.bool_))


def _true(left: Pattern, right: Pattern) -> tuple[Pattern, Pattern]:
    """The true entries of two arrays of booleans; if both are the same array, it is examined only once."""
    one = _kept(left)
    same = right.values is left.values and right.indices is left.indices and right.indptr is left.indptr
    return one, one if same else _kept(right)


def _kept(made: Pattern) -> Pattern:
    """The entries that are not zero."""
    kept: Any = made.values != 0
    return made if bool(kept.all()) else kept_entries(made, kept)


# -- on a GPU ---------------------------------------------------------------------------------------------------------
def _on_gpu(left: Pattern, right: Pattern) -> Pattern:
    shape, values = (left.shape[0], right.shape[1]), (left.values, right.values)
    kinds = {part.dtype.kind for part in values}  # type: ignore[union-attr]
    if "f" in kinds:
        made = _by_cusparse(left, right)
    else:
        index = np.result_type(*(part.dtype for matrix in (left, right) for part in (matrix.indptr, matrix.indices)))
        multiply = backends.family(interop.device_of(left.indptr), "sparse.products").multiply
        product = multiply(_arrays(left, index), _arrays(right, index), shape[1])
        if product is None:
            left, right = _true(left, right)
            product = multiply(_arrays(left, index), _arrays(right, index), shape[1])
        starts, columns, sums = product
        if kinds == {"b"}:
            return Pattern(starts, columns, shape, sums)
        made = Pattern(starts, columns, shape, sums.view(left.values.dtype))  # type: ignore[union-attr]
    return _kept(made)


def _arrays(made: Pattern, index: np.dtype[Any]) -> tuple[Any, Any, Any]:
    """The arrays with indices in dtype `index`, and integers as signed ones, whose sums have the same bits as unsigned sums."""
    values: Any = made.values
    signed = values.view(f"i{values.dtype.itemsize}") if values.dtype.kind == "u" else values
    return made.indptr.astype(index, copy=False), made.indices.astype(index, copy=False), signed


def _by_cusparse(left: Pattern, right: Pattern) -> Pattern:
    """The product of floats by cuSPARSE through CuPy, with sorted columns."""
    dtype = np.result_type(left.values.dtype, right.values.dtype)  # type: ignore[union-attr]
    try:
        sparse = importlib.import_module("cupyx.scipy.sparse")
        importlib.import_module("cupyx.cusparse")
        one, two = (
            sparse.csr_matrix((part.values.astype(dtype, copy=False), part.indices, part.indptr), shape=part.shape)  # type: ignore[union-attr]
            for part in (left, right)
        )
        product = (one @ two).tocsr()
    except (ImportError, AttributeError) as error:
        raise DeviceError(
            f"matmul: products of two sparse arrays of floats on a GPU are cuSPARSE's, which cannot be called ({_check.brief(error)}); "
            f"install it, as with cupy-cuda13x[ctk], or multiply on the CPU, as in A.get() @ B.get()"
        ) from None
    product.sum_duplicates()
    return Pattern(product.indptr, product.indices, (left.shape[0], right.shape[1]), product.data)
