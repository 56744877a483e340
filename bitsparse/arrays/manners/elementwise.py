"""Arithmetic, comparisons and bitwise operators of the sparse arrays, with each other, scalars, SciPy's and dense arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import family_of, of_result
from bitsparse.arrays.manners.plain import back, counted, fitted, is_pattern, mapped, matrix
from bitsparse.arrays.sparse_merge import Pattern, kept_entries
from bitsparse.errors import DeviceError, DTypeError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray

_SCALARS = (bool, int, float, complex, np.generic)
#: Beyond this a row and a column are not one int64.
_KEYS = 1 << 62


def elementwise(x: SparseArray, operation: Callable[[Any, Any], Any], other: Any, name: str, swap: bool = False) -> Any:
    """What scipy.sparse gives for the same operator. Sparse results are arrays like `x`, dense ones are in the family of the other."""
    if isinstance(other, complex) or getattr(getattr(other, "dtype", None), "kind", "") == "c":
        raise DTypeError(f"{name}: the other operand is complex; pass real numbers, as in other.real")
    if x.device != "cpu":
        return _on_gpu(x, operation, other, name, swap)
    theirs, kin, family = _operand(x, other, name)
    made = counted(x, name)
    if isinstance(other, _SCALARS) and name == "multiply":  # as SciPy does it, but the pattern is shared and not copied
        values: Any = made.values
        return of_result(x, replace(made, values=values * other))
    mine = matrix(made)
    try:
        result = operation(theirs, mine) if swap else operation(mine, theirs)
    except NotImplementedError as error:
        raise DTypeError(f"{name}: {error}; write it of A.toarray()") from None
    except TypeError as error:
        raise DTypeError(f"{name}: scipy.sparse has no such operator for {type(other).__name__} ({error})") from None
    except ValueError as error:
        raise ShapeError(f"{name}: {error}") if getattr(theirs, "shape", x.shape) != x.shape else error from None
    if result is NotImplemented:
        raise DTypeError(f"{name}: scipy.sparse has no such operator for {type(other).__name__}")
    if isinstance(result, np.ndarray):
        return interop.from_array(result, interop.common_family([family_of(x), family]), name)
    if isinstance(other, _SCALARS) and name == "divide":
        return of_result(x, replace(made, values=result.data))  # the entries of `x`, whose pattern is shared
    # Merging two canonical matrices SciPy makes one.
    return back(x, result.tocsr(), name, *kin, canonical=bool(kin) or isinstance(other, _SCALARS))


def _operand(x: SparseArray, other: Any, name: str) -> tuple[Any, tuple[Any, ...], interop.Family]:
    """The other operand as SciPy takes it, the array of ours that it is, and its family."""
    if is_sparse(other):
        _check.same_device(name, (x.device, other.device))
        return matrix(counted(other, name)), (other,), interop.NUMPY
    if hasattr(other, "tocsr") and hasattr(other, "nnz") and not isinstance(other, BitArray):
        return other.tocsr(), (), interop.NUMPY
    if isinstance(other, _SCALARS):
        return other, (), interop.NUMPY
    if isinstance(other, BitArray):
        other = other.decoded()
    theirs, family = interop.as_numpy(other, name, "the other operand")
    return theirs, (), family


def is_sparse(x: Any) -> bool:
    """Whether `x` is one of our sparse arrays."""
    return isinstance(x, BitArray) and hasattr(x, "csr_arrays")


# -- on a GPU ---------------------------------------------------------------------------------------------------------
def _on_gpu(x: SparseArray, operation: Any, other: Any, name: str, swap: bool) -> Any:
    made, space = counted(x, name), interop.namespace(x.csr_arrays()[0])
    if is_sparse(other):
        _check.same_device(name, (x.device, other.device))
        if name in ("divide", "power"):
            raise DeviceError(f"{name}: on a GPU there is none of two sparse arrays, as 0 / 0 is not zero; use A.get()")
        return fitted(x, merged(made, counted(other, name), operation, name, swap), name)
    if isinstance(other, _SCALARS):
        zero = space.zeros(1, made.values.dtype)  # type: ignore[union-attr]
        with np.errstate(all="ignore"):
            of_zero = operation(other, zero) if swap else operation(zero, other)
        if of_zero[0] != 0:
            raise DeviceError(
                f"{name}: with {other!r} elements that are not stored would become {of_zero[0]}, which on a GPU is refused; "
                f"write it of A.toarray()"
            )
        if name == "divide":  # SciPy multiplies with the inverse, in float64
            number: Any = other
            values = made.values.astype(np.float64) * (1.0 / number)  # type: ignore[union-attr]
        else:
            values = operation(other, made.values) if swap else operation(made.values, other)
        result = replace(made, values=values)
        return fitted(x, kept_entries(result, values) if values.dtype == np.bool_ else result, name)
    if hasattr(other, "tocsr") and hasattr(other, "nnz") and not isinstance(other, BitArray):
        raise DeviceError(f"{name}: wrap the other operand on the same GPU, as in TCTiledCSR(B)")
    theirs, family = interop.as_array(
        other.decoded() if isinstance(other, BitArray) else other, name, "the other operand"
    )
    _check.same_device(name, (x.device, interop.device_of(theirs)))
    try:
        theirs = space.broadcast_to(theirs, x.shape)
    except ValueError:
        raise ShapeError(f"{name}: shapes {x.shape} and {theirs.shape} do not fit together") from None
    if name == "multiply":
        values = made.values * theirs[rows_of(made.indptr), made.indices]
        return fitted(x, replace(made, values=values), name)
    mine = space.zeros(x.shape, made.values.dtype)  # type: ignore[union-attr]
    mine[rows_of(made.indptr), made.indices] = made.values
    result = operation(theirs, mine) if swap else operation(mine, theirs)
    return interop.from_array(result, interop.common_family([family_of(x), family]), name)


def merged(left: Pattern, right: Pattern, operation: Any, name: str, swap: bool = False) -> Pattern:
    """An operation of two canonical arrays that leaves zeros zero, without the zeros that it makes. NumPy and CuPy arrays alike.

    Examples
    --------
    >>> a = Pattern(np.array([0, 1]), np.array([2]), (1, 3), np.array([5]))
    >>> b = Pattern(np.array([0, 2]), np.array([0, 2]), (1, 3), np.array([1, -5]))
    >>> made = merged(a, b, np.add, "add")
    >>> made.indices, made.values
    (array([0]), array([1]))
    """
    if left.shape != right.shape:
        raise ShapeError(f"{name}: shapes {left.shape} and {right.shape} differ; sparse arrays do not broadcast")
    space, columns = interop.namespace(left.indptr), left.shape[1]
    if left.shape[0] * columns > _KEYS:
        raise ShapeError(f"{name}: shape {left.shape} has more than 2**62 elements; use A.get()")
    zero = space.zeros(1, np.int8)
    if bool(operation(zero, zero)[0]):
        raise DeviceError(f"{name}: elements that neither array stores would become True; use the opposite, and ~")
    keys = [rows_of(made.indptr).astype(np.int64) * columns + made.indices for made in (left, right)]
    both = space.unique(space.concatenate(keys))
    parts = []
    for made, key in zip((left, right), keys, strict=True):
        values: Any = made.values
        part = space.zeros(both.size, values.dtype)
        part[space.searchsorted(both, key)] = values
        parts.append(part)
    if name == "subtract" and all(part.dtype == np.bool_ for part in parts):
        operation = operator.xor  # which is SciPy's difference of booleans, where NumPy has none
    values = operation(*(parts[::-1] if swap else parts))
    starts = space.zeros(left.shape[0] + 1, np.int64)
    starts[1:] = space.cumsum(space.bincount(both // max(columns, 1), minlength=left.shape[0]))
    made = Pattern(
        starts, both % max(columns, 1), left.shape, values, family=interop.common_family([left.family, right.family])
    )
    return kept_entries(made, values != 0)


# -- named functions --------------------------------------------------------------------------------------------------
def larger(x: SparseArray, other: Any, name: str) -> Any:
    """``maximum`` and ``minimum``."""
    if x.device == "cpu":
        return elementwise(x, lambda mine, theirs: getattr(mine, name)(theirs), other, name)
    return elementwise(x, getattr(interop.namespace(x.csr_arrays()[0]), name), other, name)


def product(x: SparseArray, other: Any) -> Any:
    """``multiply``: on the CPU by SciPy's method, which takes more shapes than ``*``."""
    if x.device == "cpu":
        return elementwise(x, lambda mine, theirs: mine.multiply(theirs), other, "multiply")
    return elementwise(x, operator.mul, other, "multiply")


def power(x: SparseArray, n: Any, dtype: Any) -> Any:
    """``x ** n``, element by element."""
    if not isinstance(n, (int, float, np.number)) or isinstance(n, bool):
        raise DTypeError(f"power: the exponent is a number, got {type(n).__name__}; write it of A.toarray()")
    if n == 0:
        raise DTypeError(
            "power: the power 0 of every element is 1, also where none is stored; use np.ones(A.shape, A.dtype)"
        )

    def raised(values: Any) -> Any:
        values = values if dtype is None else values.astype(_check.dtype("power", dtype))
        # NumPy's powers of booleans are int8, CuPy's int64.
        return (
            values.astype(np.int8) if values.dtype == np.bool_ and isinstance(n, (int, np.integer)) else values
        ) ** n

    return mapped(x, "power", raised)


def unary(x: SparseArray, name: str) -> Any:
    """A function of NumPy's that leaves zero as it is, of every value."""
    return mapped(x, name, getattr(interop.namespace(x.csr_arrays()[0]), name))


# -- bits -------------------------------------------------------------------------------------------------------------
def _bits(x: Any, name: str) -> Pattern:
    """The entries of an array of booleans or a pattern, those that are False left out."""
    if not is_pattern(x) and x.dtype != np.bool_:
        raise DTypeError(
            f"{name}: the operators of bits take patterns and booleans, got {x.dtype}; compare first, as in A != 0"
        )
    indptr, indices, values = x.csr_arrays()
    space = interop.namespace(indices)
    made = Pattern(indptr, indices, x.shape, space.ones(indices.size, np.bool_), family=family_of(x))
    return made if values is None else kept_entries(made, values if values.ndim == 1 else values.any(axis=1))


def bitwise(x: SparseArray, other: Any, name: str) -> Any:
    """``& | ^`` of patterns and booleans."""
    if not is_sparse(other):
        if not (hasattr(other, "tocsr") and hasattr(other, "nnz") and other.dtype == np.bool_):
            return NotImplemented
        other = x.from_csr_arrays(*_arrays(other.tocsr()), pattern=True)
    _check.same_device(name, (x.device, other.device))
    if x.shape != other.shape:
        raise ShapeError(f"{name}: shapes {x.shape} and {other.shape} differ; sparse arrays do not broadcast")
    left, right = _bits(x, name), _bits(other, name)
    if x.device != "cpu":
        operation = {"&": operator.and_, "|": operator.or_, "^": operator.xor}[name]
        return fitted(x, merged(left, right, operation, name), name)
    one, two = matrix(left), matrix(right)
    result = {"&": one.multiply, "|": one.maximum, "^": one.__ne__}[name](two)
    return back(x, result, name, other)


def _arrays(csr: Any) -> tuple[Any, Any, Any, Any]:
    kept = csr.copy()
    kept.sum_duplicates()
    kept.eliminate_zeros()
    return kept.indptr, kept.indices, kept.shape, kept.data


def inverted(x: SparseArray) -> Any:
    """``~x``: every element that is not stored, found on packed bits; booleans and patterns only."""
    made = _bits(x, "~")
    packed = fitted(x, made, "~").to_bit_tensor()
    flipped = type(x)(~packed)
    indptr, indices, _ = flipped.csr_arrays()
    ones = interop.namespace(indices).ones(indices.size, np.bool_)
    return fitted(x, Pattern(indptr, indices, x.shape, ones, family=family_of(x)), "~")
