"""Sums, extremes, counts and diagonals, with the same results and dtypes as :class:`scipy.sparse.csr_array`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_convert
from bitsparse.arrays.indices import gather, rows_of
from bitsparse.arrays.inside import family_of, patterns_of, scales_of
from bitsparse.arrays.manners import extremes
from bitsparse.arrays.manners.picking import of_dense, one_value_each, turned
from bitsparse.arrays.manners.plain import back, counted, entries, is_pattern, matrix, on_cpu
from bitsparse.arrays.sparse_merge import Pattern, bits_only, occupied
from bitsparse.arrays.word_reductions import axes_of
from bitsparse.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray


def one_axis(function: str, axis: Any) -> int | None:
    """0, 1, or None for both."""
    axes = axes_of(function, axis, 2)
    if not axes:  # NumPy would reduce nothing then; SciPy has no such result
        raise ShapeError(f"{function}: axis=() names no axis; pass 0, 1, or None for both")
    return axes[0] if len(axes) == 1 else None


def delivered(x: SparseArray, result: Any, function: str, axis: int | None, out: Any, keepdims: bool) -> Any:
    """A result in the form that the caller asked for: with all dimensions, in `out`, or in the family of `x`."""
    if keepdims:
        kept = {None: (1, 1), 0: (1, x.shape[1]), 1: (x.shape[0], 1)}[axis]
        result = interop.namespace(result).asarray(result).reshape(kept)
    if out is not None:
        target = interop.writable_array(out, function)
        if target.shape != result.shape:
            raise ShapeError(f"{function}: out has shape {target.shape}, but the result has {result.shape}")
        if not np.can_cast(result.dtype, target.dtype, "same_kind"):
            raise DTypeError(
                f"{function}: out has dtype {target.dtype}, to which the result, {result.dtype}, is not rounded; pass {result.dtype}"
            )
        _check.writable(function, target)
        target[...] = result
        return out
    return interop.from_array(result, family_of(x), function) if result.ndim else result


# -- sums -------------------------------------------------------------------------------------------------------------
def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which SciPy sums values of `dtype`."""
    if dtype.kind == "u":
        return np.dtype(np.uint64)
    return np.dtype(np.int64) if dtype.kind in "bi" else dtype


def total(x: SparseArray, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Sum of all elements, of each column (axis 0) or of each row (axis 1).

    Booleans, patterns and integers are summed in 64 bits, floats in their own dtype (16-bit floats in float32). With a `dtype` elements
    are converted first, as NumPy does, and SciPy from 1.18 on.

    Examples
    --------
    >>> a = bs.FRDC(np.array([[0, 1, 1], [0, 0, 0]]))
    >>> a.sum(axis=1), int(a.sum())
    (array([2, 0]), 2)
    """
    axis = one_axis("sum", axis)
    if axis == 1 and dtype is None:
        return delivered(x, _sums_of_rows(x), "sum", axis, out, keepdims)
    made = counted(x, "sum")
    if x.device == "cpu":
        found = matrix(made, "sum")
        sums = found.sum(axis) if dtype is None else found.astype(dtype, copy=False).sum(axis).astype(dtype)
    else:
        values: Any = made.values
        sums = _line_sums(x, made, axis, sum_dtype(values.dtype) if dtype is None else np.dtype(dtype))
    return delivered(x, sums, "sum", axis, out, keepdims)


def _sums_of_rows(x: SparseArray) -> Any:
    """The sum of each row; for a pattern, this is the length of the row."""
    if is_pattern(x):
        indptr, _, _ = x.csr_arrays()
        return interop.namespace(indptr).subtract(indptr[1:], indptr[:-1], dtype=np.int64)
    made = sparse_convert.scaled(x, "sum")
    return backends.family(x.device, "sparse.entries").row_sums(made.indptr, made.values)


def mean(x: SparseArray, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Mean of all elements, of each column (axis 0) or row (axis 1), with those that are not stored; float64 for integers."""
    axis, made = one_axis("mean", axis), counted(x, "mean")
    count = _element_count(x, "mean", axis)
    if x.device == "cpu":
        result = matrix(made, "mean").mean(axis=axis, dtype=dtype)
    else:
        values: Any = made.values
        own = values.dtype
        added = np.dtype(np.float64) if own.kind in "biu" else own
        result = _line_sums(x, made, axis, added) / added.type(count)
        result = result.astype(added if dtype is None else dtype)
    return delivered(x, result, "mean", axis, out, keepdims)


def _line_sums(x: SparseArray, made: Pattern, axis: int | None, dtype: np.dtype[Any]) -> Any:
    """Sums of the entries `made` of `x` on a GPU, bitwise equal in every run; 16-bit floats are added as float32."""
    values: Any = made.values
    if axis is None:
        return values.sum(dtype=dtype)
    starts = made.indptr
    if axis == 0 and x.holds_bits:
        other = turned(made)
        starts, values = other.indptr, other.values
    elif axis == 0:  # the transpose is cached
        _, pattern, order = patterns_of(x)
        starts, values = pattern.csr_arrays()[0], gather(values, order)
    added = np.dtype(np.float32) if dtype == np.float16 else dtype
    row_sums = backends.family(x.device, "sparse.entries").row_sums
    return row_sums(starts, values.astype(added, copy=False)).astype(dtype, copy=False)


def _element_count(x: SparseArray, function: str, axis: int | None) -> int:
    """How many elements each result is made of; refuses none, of which there is no mean and no extreme."""
    count = x.shape[0] * x.shape[1] if axis is None else x.shape[axis]
    if not count:
        raise ShapeError(
            f"{function}: an array of shape {x.shape} has no elements along axis={axis}; leave empty arrays out, or pass another axis"
        )
    return count


# -- extremes ---------------------------------------------------------------------------------------------------------
def _extreme(x: SparseArray, name: str, axis: Any, out: Any, explicit: bool, keepdims: bool) -> Any:
    """``x.max`` and similar: a scalar, or a one-dimensional sparse array of SciPy; with `keepdims` an array like `x`."""
    axis = one_axis(name, axis)
    if out is not None:
        raise DTypeError(f"{name}: out= is not taken, as in scipy.sparse; assign the result")
    _element_count(x, name, axis)
    made = sparse_convert.scaled(x, name)
    if x.device != "cpu":
        if explicit or (axis is not None and not (keepdims and name in ("max", "min"))):
            on_cpu(x, name, f"pass keepdims=True to max or min, or use A.get().{name}(...)")
        if axis is None:
            found = _largest(made, name)
            return of_dense(x, found.reshape(1, 1)) if keepdims else found
        return of_dense(x, extremes.of_lines(made, axis, name).reshape((1, -1) if axis == 0 else (-1, 1)))
    result = getattr(matrix(made, name), name)(axis=axis, explicit=explicit)
    if not keepdims:
        return result
    if axis is None:
        return interop.from_array(np.asarray(result).reshape(1, 1), family_of(x), name)
    return back(x, result.reshape((1, -1) if axis == 0 else (-1, 1)).tocsr(), name)


def _largest(made: Pattern, name: str) -> Any:
    values: Any = made.values
    if not values.size:
        return values.dtype.type(0)
    space = interop.namespace(values)
    if name.startswith("nan"):
        numbers = values[~space.isnan(values)] if values.dtype.kind == "f" else values
        found = getattr(numbers, name[3:])() if numbers.size else values[0]
        pick = space.fmax if name == "nanmax" else space.fmin
    else:
        found, pick = getattr(values, name)(), space.maximum if name == "max" else space.minimum
    return found if values.size == made.shape[0] * made.shape[1] else pick(found, values.dtype.type(0))


def _place(x: SparseArray, name: str, axis: Any, out: Any, explicit: bool, keepdims: bool) -> Any:
    """``x.argmax`` and ``x.argmin``."""
    axis = one_axis(name, axis)
    _element_count(x, name, axis)
    if x.device != "cpu":
        if explicit or out is not None:
            on_cpu(x, name, f"leave explicit= and out= away, or use A.get().{name}(...)")
        found = extremes.places(sparse_convert.scaled(x, name), axis, name)
        return delivered(x, found, name, axis, None, keepdims)
    result = getattr(matrix(sparse_convert.scaled(x, name), name), name)(axis=axis, explicit=explicit)
    return delivered(x, np.asarray(result)[()] if axis is None else result, name, axis, out, keepdims)


def extreme(name: str, what: str) -> Callable[..., Any]:
    """Make the function ``max``, ``min``, ``nanmax``, ``nanmin``, ``argmax`` or ``argmin``; `what` is for its docstring."""
    compute = _place if name.startswith("arg") else _extreme

    def function(
        x: SparseArray, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False
    ) -> Any:
        return compute(x, name, axis, out, explicit, keepdims)

    function.__name__ = function.__qualname__ = name
    if compute is _place:
        function.__doc__ = f"Where the {what} is, of all (counted row by row) or along an axis."
    else:
        function.__doc__ = (
            f"The {what}; along an axis SciPy's array of one dimension, with ``keepdims`` an array like this one.\n\n"
            "With ``explicit`` only stored entries count."
        )
    return function


# -- counts -----------------------------------------------------------------------------------------------------------
def count_nonzero(x: SparseArray, axis: Any = None) -> Any:
    """Number of elements that are not zero: in total, by column (axis 0) or by row (axis 1)."""
    return _counts(x, "count_nonzero", axis, False)


def getnnz(x: SparseArray, axis: Any = None) -> Any:
    """Number of stored entries: in total, by column (axis 0) or by row (axis 1)."""
    return _counts(x, "getnnz", axis, True)


def _counts(x: SparseArray, function: str, axis: Any, stored: bool) -> Any:
    axis = one_axis(function, axis)
    if x.device != "cpu" and not stored and axis != 0:
        return _counts_on_gpu(x, function, axis)
    made = sparse_convert.stored(x) if stored else not_zero(x, function)
    if axis is None:
        return int(made.indices.size)
    space = interop.namespace(made.indptr)
    by_row = made.indptr[1:] - made.indptr[:-1]
    found = by_row if axis == 1 else space.bincount(made.indices, minlength=x.shape[1])
    return interop.from_array(found.astype(np.int64), family_of(x), function)


def _counts_on_gpu(x: SparseArray, function: str, axis: int | None) -> Any:
    """Number of elements that are not zero, in total or by row, counted without picking the entries first."""
    made = entries(x, function)
    if made.values is None:
        return int(made.indices.size) if axis is None else interop.from_array(_sums_of_rows(x), family_of(x), function)
    kept = occupied(made.values)
    if axis is None:
        return int(kept.sum())
    sums = backends.family(x.device, "sparse.entries").row_sums(made.indptr, kept)
    return interop.from_array(sums, family_of(x), function)


def not_zero(x: SparseArray, function: str) -> Pattern:
    """The pattern of the entries that are not zero once scales are multiplied in."""
    return bits_only(function, entries(x, function), True)


def nonzero(x: SparseArray) -> tuple[Any, Any]:
    """Rows and columns of the elements that are not zero."""
    made = not_zero(x, "nonzero")
    pair = rows_of(made.indptr), made.indices.copy()
    return tuple(interop.from_array(part, family_of(x), "nonzero") for part in pair)


# -- diagonals --------------------------------------------------------------------------------------------------------
def diagonal(x: SparseArray, k: int = 0) -> Any:
    """Elements ``(i, i + k)``.

    Examples
    --------
    >>> bs.TCTiledCSR(np.array([[1, 2], [0, 3]])).diagonal()
    array([1, 3])
    """
    return interop.from_array(_on_diagonal(x, k, "diagonal"), family_of(x), "diagonal")


def _on_diagonal(x: SparseArray, k: Any, function: str) -> Any:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise DTypeError(f"{function}: the number of a diagonal is an integer, got {k!r}")
    indptr, indices, values = x.csr_arrays()
    if any(scale is not None for scale in scales_of(x)):
        values = sparse_convert.scaled(x, function).values
    if values is not None and values.ndim == 2:
        raise one_value_each(values.shape[1])
    found = backends.family(x.device, "sparse.entries").diagonal(indptr, indices, values, x.shape, int(k))
    if x.device == "cpu":  # adding 0 turns -0.0 into 0.0, as SciPy's sum does
        found = (found + found.dtype.type(0)).astype(x.dtype, copy=False)
    return found


def trace(x: SparseArray, offset: int = 0) -> Any:
    """Sum of a diagonal; the ones of a pattern are counted as int64."""
    found = _on_diagonal(x, offset, "trace")
    return found.sum(dtype=np.int64) if found.dtype == np.uint8 and x.csr_arrays()[2] is None else found.sum()
