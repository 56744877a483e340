"""Reshaping, triangles, and operations that change an array in place."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.indices import matrix_shape, rows_of
from bitsparse.arrays.inside import become, of_result, scales_of, with_fields
from bitsparse.arrays.manners.plain import back, counted, entries, fitted, matrix, two_sizes
from bitsparse.arrays.sparse_convert import stored
from bitsparse.arrays.sparse_merge import kept_entries, occupied
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import as_bits, converted

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray

_KEYS = 1 << 62


def reshape(x: SparseArray, shape: Any, order: str) -> SparseArray:
    """``x.reshape``; it need not sort, because entries that are in row-major order stay in that order."""
    if order not in ("C", "F"):
        raise ValueError(f"reshape: order must be 'C' or 'F', got {order!r}")
    size = x.shape[0] * x.shape[1]
    rows, cols = two_sizes("reshape", shape, size)
    if order == "F":
        return reshape(x.T, (cols, rows), "C").T
    if (rows, cols) == x.shape:
        return x
    if size > _KEYS:
        raise ShapeError(f"reshape: shape {x.shape} has more than 2**62 elements")
    made = entries(x, "reshape")
    space = interop.namespace(made.indptr)
    places = rows_of(made.indptr).astype(np.int64) * x.shape[1] + made.indices
    starts = space.zeros(rows + 1, np.int64)
    starts[1:] = space.cumsum(space.bincount(places // max(cols, 1), minlength=rows))
    values = None if made.values is None else made.values.copy()
    moved = replace(made, indptr=starts, indices=places % max(cols, 1), shape=(rows, cols), values=values)
    return fitted(x, moved, "reshape")


def triangle(x: SparseArray, k: Any, lower: bool, function: str) -> SparseArray:
    """The entries on and below (or above) diagonal `k`; scales are multiplied in, dtype and heads of the values stay."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise DTypeError(f"{function}: the number of a diagonal is an integer, got {k!r}")
    made = entries(x, function)
    above = made.indices.astype(np.int64) - rows_of(made.indptr)
    return of_result(x, kept_entries(made, above <= int(k) if lower else above >= int(k)))


def _no_scales(x: SparseArray, function: str) -> None:
    if any(scale is not None for scale in scales_of(x)):
        raise DTypeError(
            f"{function}: the array has factors of rows or columns, beside which its values do not change alone; pass "
            f"TCTiledCSR(A.tocsr()), which has them multiplied in"
        )


def set_diagonal(x: SparseArray, values: Any, k: int = 0) -> None:
    """Set elements ``(i, i + k)`` in place. Other arrays that share the pattern keep it as it was.

    Parameters
    ----------
    values : scalar or array_like of one dimension
        Numbers that :attr:`dtype` holds; an array shorter than the diagonal sets its first elements.
    k : int, default 0
        Number of the diagonal.

    Raises
    ------
    DTypeError
        The array has scales.
    ValueError
        The array holds integers, and a value is a fraction or beyond them.

    Examples
    --------
    >>> a = bs.FRDC((2, 3))
    >>> a.setdiag(1)
    >>> a.toarray()
    array([[1, 0, 0],
           [0, 1, 0]], dtype=uint8)
    """
    _no_scales(x, "setdiag")
    k = _check.integer("setdiag", "k", k, min(0, 1 - x.shape[0]), max(0, x.shape[1] - 1))
    there = x.device != "cpu"
    given = interop.as_array(values, "setdiag", "values")[0] if there else interop.as_host(values, "setdiag", "values")
    _check.numeric("setdiag", "values", given)
    if x.holds_bits and not bool(((given == 0) | (given == 1)).all()):
        raise ValueError("setdiag: bits hold only 0 and 1; use TCTiledCSR(A) for other values")
    if given.ndim > 1:
        raise ShapeError(
            f"setdiag: values has shape {given.shape}, but a diagonal has one dimension; pass values.ravel()"
        )
    _held_by(x, given)
    if there:
        become(x, _with_diagonal(x, given, k))
        return
    dtype = x.dtype
    csr = matrix(counted(x, "setdiag"), "setdiag").astype(
        np.float32 if dtype.kind not in "biuf" or dtype == np.float16 else dtype
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy warns that the pattern changes, which is intended
            csr.setdiag(given.astype(csr.dtype), k)
    except ValueError as error:
        raise ShapeError(f"setdiag: {error}") from None
    csr.sum_duplicates()
    if x.holds_bits:
        csr = csr.astype(np.bool_)
    made = back(x, csr, "setdiag")
    values = made.csr_arrays()[2]
    become(x, made if values is None else with_fields(made, data=converted(values, dtype, copy=True)))


def _held_by(x: SparseArray, values: Any) -> None:
    """Refuse values that are not among the integers that `x` holds, to which a conversion would change them."""
    if x.dtype.kind not in "iu" or x.holds_bits or not values.size:
        return
    if values.dtype.name == "bfloat16":
        values = converted(values, np.dtype(np.float32))
    low, high, limits = values.min().item(), values.max().item(), np.iinfo(x.dtype)
    whole = values.dtype.kind != "f" or bool((values == interop.namespace(values).rint(values)).all())
    if not (whole and limits.min <= low and high <= limits.max):
        raise ValueError(
            f"setdiag: values in {low}..{high} are not all integers of {x.dtype}; convert first, as in A = A.astype(float)"
        )


def _with_diagonal(x: SparseArray, given: Any, k: int) -> SparseArray:
    """The result of :func:`set_diagonal` on a GPU, built from coordinates."""
    made = entries(x, "setdiag")
    if made.values is not None and made.values.ndim == 2:
        raise ShapeError("setdiag: the edges have several values each; pick one with with_values")
    space = interop.namespace(made.indptr)
    first, last = max(0, -k), min(x.shape[0], x.shape[1] - k)
    count = last - first if given.ndim == 0 else min(last - first, int(given.size))
    at = space.arange(first, first + count, dtype=np.int64)
    rows, cols = rows_of(made.indptr).astype(np.int64), made.indices.astype(np.int64)
    kept = (cols - rows != k) | (rows >= first + count)
    dtype = np.dtype(np.bool_) if x.holds_bits else x.dtype
    old = space.ones(rows.size, dtype) if made.values is None else converted(made.values, dtype)
    new = space.empty(count, dtype)
    new[...] = space.asarray(given if given.ndim == 0 else given.ravel()[:count]).astype(dtype)
    data = space.concatenate([as_bits(old)[kept], as_bits(new)]).view(dtype)
    coordinates = space.concatenate([rows[kept], at]), space.concatenate([cols[kept], at + k])
    build = type(x)((data, coordinates), shape=x.shape, index_dtype=x.index_dtype)
    if made.values is not None and build.csr_arrays()[2] is None:  # all are True, as in a pattern
        build = with_fields(build, data=space.ones(build.nnz, dtype))
    return with_fields(build, family=made.family)


def eliminate_zeros(x: SparseArray) -> None:
    """Remove entries that are zero, in place. Other arrays that share the pattern keep it as it was.

    Examples
    --------
    >>> a = bs.TCTiledCSR(([0, 5], ([0, 1], [0, 1])))
    >>> a.eliminate_zeros()
    >>> a.nnz
    1
    """
    whole = stored(x)
    if whole.values is None:
        return
    kept = occupied(whole.values)
    if bool(kept.all()):
        return
    row_scale, col_scale = scales_of(x)
    become(x, of_result(x, replace(kept_entries(whole, kept), row_scale=row_scale, col_scale=col_scale)))


def resize(x: SparseArray, *shape: Any) -> None:
    """Change the shape in place: elements outside the new shape are dropped, and new rows and columns are empty.

    Examples
    --------
    >>> a = bs.FRDC(np.eye(3, dtype=int))
    >>> a.resize(2, 4)
    >>> a.shape, a.nnz
    ((2, 4), 2)
    """
    _no_scales(x, "resize")
    rows, cols = matrix_shape("resize", shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    cut = x[: min(rows, x.shape[0]), : min(cols, x.shape[1])]
    made, space = entries(cut, "resize"), interop.namespace(x.csr_arrays()[0])
    starts = space.empty(rows + 1, made.indptr.dtype)
    starts[: made.indptr.size], starts[made.indptr.size :] = made.indptr, made.indptr[-1]
    become(x, fitted(x, replace(made, indptr=starts, shape=(rows, cols)), "resize"))
