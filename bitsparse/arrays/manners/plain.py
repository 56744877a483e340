"""Conversions of an array to plain entries, to numbers and to a SciPy matrix that shares its memory, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays import sparse_convert, sparse_forms
from bitsparse.arrays.indices import index_dtype
from bitsparse.arrays.inside import family_of, of_result, scales_of, values_and_scales, with_fields, working
from bitsparse.arrays.sparse_forms import Wanted
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.errors import DeviceError, DTypeError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray


def entries(x: SparseArray, function: str) -> Pattern:
    """The entries of `x`; scales, if there are any, are multiplied into the values."""
    bare = all(scale is None for scale in scales_of(x))
    return sparse_convert.stored(x) if bare else sparse_convert.scaled(x, function)


def is_pattern(x: SparseArray) -> bool:
    """Whether every entry is 1."""
    return all(part is None for part in values_and_scales(x))


def counted(x: SparseArray, function: str) -> Pattern:
    """The entries of `x` with one number each; the ones of a pattern are int32, so that sums and differences do not wrap."""
    made = sparse_convert.scaled(x, function)
    values: Any = made.values
    return replace(made, values=values.astype(np.int32)) if is_pattern(x) else made


def matrix(made: Pattern, function: str) -> Any:
    """A :class:`scipy.sparse.csr_array` that shares the memory; it must not be changed in place."""
    csr = sparse_convert.scipy_csr(function, made, copy=False)
    csr.has_canonical_format = csr.has_sorted_indices = True
    return csr


def on_cpu(x: SparseArray, function: str, remedy: str) -> None:
    """Refuse an array on a GPU with an error that names the function and says what to do instead."""
    if x.device != "cpu":
        raise DeviceError(f"{function}: it is not there on a GPU yet, and the array is on {x.device}; {remedy}")


def wide(*arrays: SparseArray) -> Any:
    """int64 if any of these arrays has int64 indices, else None, which means the smallest dtype that fits."""
    return np.int64 if any(array.index_dtype == np.int64 for array in arrays) else None


def back(x: SparseArray, csr: Any, function: str, *others: SparseArray, canonical: bool = False) -> SparseArray:
    """A compressed SciPy matrix as an array like `x`; booleans stay booleans. It is checked unless known to be `canonical`."""
    family = interop.common_family([family_of(x), *(family_of(other) for other in others)])
    if canonical:
        made = Pattern(csr.indptr, csr.indices, csr.shape, csr.data, family=family)
        return fitted(x, made, function, *others)
    made = sparse_forms.from_csr(function, csr.indptr, csr.indices, csr.shape, csr.data, Wanted(wide(x, *others)))
    if made.values is None:
        made = replace(made, values=np.ones(made.indices.size, np.bool_))
    return of_result(x, replace(made, had_duplicates=False, family=family))


def fitted(x: SparseArray, made: Pattern, function: str, *others: SparseArray) -> SparseArray:
    """Canonical entries as an array like `x`, with int32 indices if they fit and neither `x` nor `others` has int64 ones."""
    dtype = index_dtype(function, made.shape, int(made.indices.size), wide(x, *others))
    starts, columns = (part.astype(dtype, copy=False) for part in (made.indptr, made.indices))
    return of_result(x, replace(made, indptr=starts, indices=columns))


def mapped(x: SparseArray, function: str, operation: Callable[[Any], Any]) -> SparseArray:
    """The same entries with `operation` applied to their values; `operation` must map 0 to 0."""
    with working(x):
        return with_numbers(x, operation(counted(x, function).values))


def with_numbers(x: SparseArray, values: Any) -> SparseArray:
    """The entries of `x` with other values; the result shares the pattern and its cache if the type of `x` holds values."""
    if x.holds_bits:
        return of_result(x, replace(sparse_convert.stored(x), values=values))
    made = with_fields(x, data=values, row_scale=None, col_scale=None)
    made.had_duplicates = False
    return made


def two_sizes(function: str, shape: Any, size: int) -> tuple[int, int]:
    """The two sizes of a shape for `size` elements; one of them may be given as -1."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not all(isinstance(one, (int, np.integer)) for one in sizes):
        raise DTypeError(f"{function}: a shape holds integers, got {tuple(sizes)}")
    if len(sizes) != 2:
        raise ShapeError(f"{function}: sparse arrays have 2 dimensions, got shape {tuple(sizes)}; use .tocoo().reshape")
    rows, cols = (int(one) for one in sizes)
    if rows == -1 and cols > 0:
        rows = size // cols
    elif cols == -1 and rows > 0:
        cols = size // rows
    if min(rows, cols) < 0 or rows * cols != size:
        raise ShapeError(f"{function}: {size} elements do not fit shape {tuple(sizes)}")
    return rows, cols
