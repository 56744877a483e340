"""Sums, extremes, counts and diagonals, with the results and dtypes of :class:`scipy.sparse.csr_array`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays import sparse_convert
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import family_of
from bitsparse.arrays.manners.picking import elements, turned
from bitsparse.arrays.manners.plain import back, counted, entries, matrix, on_cpu
from bitsparse.arrays.sparse_merge import Pattern, kept_entries, nonzeros
from bitsparse.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray


def one_axis(function: str, axis: Any) -> int | None:
    """0, 1, or None for both."""
    if isinstance(axis, tuple):
        named = [one_axis(function, one) for one in axis]
        if len(set(named)) != len(named) or None in named:
            raise ShapeError(f"{function}: axis={axis} names an axis twice or none")
        return named[0] if len(named) == 1 else None
    if axis is None:
        return None
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise DTypeError(f"{function}: axis must be 0, 1 or None, got {axis!r}")
    if not -2 <= axis < 2:
        raise ShapeError(f"{function}: axis={axis} is out of bounds for 2 dimensions; use 0, 1 or None")
    return int(axis) % 2


def delivered(x: SparseArray, result: Any, function: str, axis: int | None, out: Any, keepdims: bool) -> Any:
    """A scalar or array as its caller wants it: with all dimensions, in `out`, in the family of `x`."""
    if keepdims:
        kept = {None: (1, 1), 0: (1, x.shape[1]), 1: (x.shape[0], 1)}[axis]
        result = interop.namespace(result).asarray(result).reshape(kept)
    if out is not None:
        target = interop.writable_array(out, function)
        if target.shape != result.shape:
            raise ShapeError(f"{function}: out has shape {target.shape}, but the result has {result.shape}")
        target[...] = result
        return out
    return interop.from_array(result, family_of(x), function) if result.ndim else result


# -- sums -------------------------------------------------------------------------------------------------------------
def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In which dtype SciPy sums."""
    if dtype.kind == "u":
        return np.dtype(np.uint64)
    return np.dtype(np.int64) if dtype.kind in "bi" else dtype


def total(x: SparseArray, axis: Any, dtype: Any, out: Any, keepdims: bool) -> Any:
    """``x.sum``."""
    axis, made = one_axis("sum", axis), counted(x, "sum")
    if x.device == "cpu":
        result = matrix(made).sum(axis=axis, dtype=dtype)
    else:
        result = _line_sums(made, axis, sum_dtype(made.values.dtype) if dtype is None else np.dtype(dtype))  # type: ignore[union-attr]
    return delivered(x, result, "sum", axis, out, keepdims)


def mean(x: SparseArray, axis: Any, dtype: Any, out: Any, keepdims: bool) -> Any:
    """``x.mean``."""
    axis, made = one_axis("mean", axis), counted(x, "mean")
    count = x.shape[0] * x.shape[1] if axis is None else x.shape[axis]
    if not count:
        raise ShapeError(f"mean: an array of shape {x.shape} has no elements along axis={axis}")
    if x.device == "cpu":
        result = matrix(made).mean(axis=axis, dtype=dtype)
    else:
        own = made.values.dtype  # type: ignore[union-attr]
        added = np.dtype(np.float64) if own.kind in "biu" else own
        result = _line_sums(made, axis, added) / added.type(count)
        result = result.astype(added if dtype is None else dtype)
    return delivered(x, result, "mean", axis, out, keepdims)


def _line_sums(made: Pattern, axis: int | None, dtype: np.dtype[Any]) -> Any:
    """Sums on a GPU, the same bits in every run."""
    made = turned(made) if axis == 0 else made
    values: Any = made.values
    values = values.astype(dtype)
    space = interop.namespace(values)
    if axis is None:
        return values.sum(dtype=dtype)
    sums = space.zeros(made.shape[0], dtype)
    starts = made.indptr.astype(np.int64)
    filled = space.flatnonzero(starts[1:] > starts[:-1])
    if filled.size:
        build = backends.family(interop.device_of(values), "sparse.build")
        sums[filled] = build.sum_runs(values, starts[:-1][filled])
    return sums


# -- extremes ---------------------------------------------------------------------------------------------------------
def extreme(x: SparseArray, name: str, axis: Any, out: Any, explicit: bool, keepdims: bool) -> Any:
    """``x.max`` and its kin: a scalar, or SciPy's array of one dimension; with all dimensions an array like `x`."""
    axis = one_axis(name, axis)
    if out is not None:
        raise DTypeError(f"{name}: out= is not taken, as in scipy.sparse; assign the result")
    made = Pattern(*_parts(x, name))
    if x.device != "cpu":
        if axis is not None or explicit or name not in ("max", "min"):
            on_cpu(x, name, f"pass axis=None to max or min, or use A.get().{name}(...)")
        return _largest(made, name)
    result = getattr(matrix(made), name)(axis=axis, explicit=explicit)
    if not keepdims:
        return result
    if axis is None:
        return interop.from_array(np.asarray(result).reshape(1, 1), family_of(x), name)
    return back(x, result.reshape((1, -1) if axis == 0 else (-1, 1)).tocsr(), name)


def _parts(x: SparseArray, function: str) -> tuple[Any, Any, tuple[int, int], Any]:
    indptr, indices, values = sparse_convert.scaled(x, function)
    return indptr, indices, x.shape, values


def _largest(made: Pattern, name: str) -> Any:
    values: Any = made.values
    if not made.shape[0] * made.shape[1]:
        raise ShapeError(f"{name}: an array of shape {made.shape} has no elements")
    if not values.size:
        return values.dtype.type(0)
    found = getattr(values, name)()
    space = interop.namespace(values)
    pick = space.maximum if name == "max" else space.minimum
    return found if values.size == made.shape[0] * made.shape[1] else pick(found, values.dtype.type(0))


def place(x: SparseArray, name: str, axis: Any, out: Any, explicit: bool, keepdims: bool) -> Any:
    """``x.argmax`` and ``x.argmin``."""
    axis = one_axis(name, axis)
    on_cpu(x, name, f"use A.get().{name}(...)")
    result = getattr(matrix(Pattern(*_parts(x, name))), name)(axis=axis, explicit=explicit)
    return delivered(x, np.asarray(result)[()] if axis is None else result, name, axis, out, keepdims)


# -- counts -----------------------------------------------------------------------------------------------------------
def counts(x: SparseArray, function: str, axis: Any, stored: bool) -> Any:
    """Entries, stored or not zero, in all, by column (axis 0) or by row (axis 1)."""
    axis, made = one_axis(function, axis), _values_only(x) if stored else not_zero(x, function)
    if axis is None:
        return int(made.indices.size)
    space = interop.namespace(made.indptr)
    by_row = made.indptr[1:] - made.indptr[:-1]
    found = by_row if axis == 1 else space.bincount(made.indices, minlength=x.shape[1])
    return interop.from_array(found.astype(np.int64), family_of(x), function)


def _values_only(x: SparseArray) -> Pattern:
    indptr, indices, values = x.csr_arrays()
    return Pattern(indptr, indices, x.shape, values)


def not_zero(x: SparseArray, function: str) -> Pattern:
    """The entries that are not zero, scales multiplied in, without values."""
    made = entries(x, function)
    if made.values is None:
        return made
    kept: Any = nonzeros(made.values)
    return replace(kept_entries(made, kept if kept.ndim == 1 else kept.any(axis=1)), values=None)


def nonzero(x: SparseArray) -> tuple[Any, Any]:
    """``x.nonzero``."""
    made = not_zero(x, "nonzero")
    pair = rows_of(made.indptr), made.indices.copy()
    return tuple(interop.from_array(part, family_of(x), "nonzero") for part in pair)


# -- diagonals --------------------------------------------------------------------------------------------------------
def diagonal(x: SparseArray, k: Any, function: str = "diagonal") -> Any:
    """Elements ``(i, i + k)`` as a NumPy or CuPy array."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise DTypeError(f"{function}: the number of a diagonal is an integer, got {k!r}")
    if x.device == "cpu":
        return matrix(Pattern(*_parts(x, function))).diagonal(int(k)).astype(x.dtype, copy=False)
    made = entries(x, function)
    first, last = max(0, -int(k)), min(x.shape[0], x.shape[1] - int(k))
    rows = interop.namespace(made.indptr).arange(first, max(first, last), dtype=np.int64)
    return elements(made, rows, rows + int(k))


def trace(x: SparseArray, offset: Any) -> Any:
    """``x.trace``; the ones of a pattern are counted as int64."""
    found = diagonal(x, offset, "trace")
    return found.sum(dtype=np.int64) if found.dtype == np.uint8 and x.csr_arrays()[2] is None else found.sum()
