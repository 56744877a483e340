"""Arithmetic, comparisons and bitwise operators of sparse arrays with each other, scalars, SciPy's sparse arrays and dense arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.indices import csr_of, rows_of
from bitsparse.arrays.inside import family_of, of_result, with_fields
from bitsparse.arrays.manners.plain import (
    back,
    counted,
    entries,
    fitted,
    is_pattern,
    mapped,
    matrix,
    with_numbers,
)
from bitsparse.arrays.sparse_convert import stored
from bitsparse.arrays.sparse_merge import Pattern, bits_only, entries_of, kept_entries
from bitsparse.errors import DeviceError, DTypeError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray

_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"})
_MERGED = frozenset({"add", "subtract"})
#: Dtypes of values that the compiled part adds; SciPy adds the others.
_ADDED = frozenset({"float32", "float64", "int32", "uint32", "int64", "uint64"})
_SCALARS = (bool, int, float, complex, np.generic)
#: Comparisons that are True for two elements that neither array stores.
_OF_NOTHING = frozenset({"less_equal", "greater_equal", "equal"})
#: Bitwise operators, and the operations on booleans that they stand for.
_OF_BITS = {"&": "multiply", "|": "maximum", "^": "not_equal"}


def elementwise(x: SparseArray, operation: Callable[[Any, Any], Any], other: Any, name: str, swap: bool = False) -> Any:
    """The result of the same operator in scipy.sparse: sparse ones as arrays like `x`, dense ones in the other operand's family."""
    if isinstance(other, complex) or getattr(getattr(other, "dtype", None), "kind", "") == "c":
        raise DTypeError(f"{name}: the other operand is complex; pass real numbers, as in other.real")
    if x.device != "cpu":
        return _on_gpu(x, operation, other, name, swap)
    made = counted(x, name)
    if is_sparse(other) and not swap and name in _MERGED and (sum_of := _added(x, made, other, name)) is not None:
        return sum_of
    theirs, kin, family = _operand(x, other, name)
    if isinstance(other, _SCALARS) and name == "multiply":  # as in SciPy, but the pattern is shared and not copied
        values: Any = made.values
        return of_result(x, replace(made, values=values * other))
    quick = _compared(x, made, operation, other, name) if isinstance(other, _SCALARS) else None
    if quick is not None:
        return fitted(x, quick, name)
    mine = matrix(made, name)
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
    if isinstance(result, bool):  # SciPy's answer if the shapes differ
        raise ShapeError(f"{name}: shapes {x.shape} and {theirs.shape} differ; sparse arrays do not broadcast")
    if isinstance(result, np.ndarray):
        return interop.from_array(result, interop.common_family([family_of(x), family]), name)
    if isinstance(other, _SCALARS) and name == "divide":
        return of_result(x, replace(made, values=result.data))  # the entries of `x`, whose pattern is shared
    # If SciPy merges two canonical matrices, the result is canonical.
    return back(x, result.tocsr(), name, *kin, canonical=bool(kin) or isinstance(other, _SCALARS))


def _compared(x: SparseArray, made: Pattern, operation: Any, other: Any, name: str) -> Pattern | None:
    """The entries that pass a comparison with a number, if zero does not pass it; None for any other operation."""
    values: Any = made.values
    if name not in _COMPARISONS or bool(operation(np.zeros(1, values.dtype), other)[0]):
        return None
    passed = kept_entries(replace(made, values=None), operation(values, other))
    return replace(passed, values=np.ones(passed.indices.size, np.bool_))


def _added(x: SparseArray, made: Pattern, other: SparseArray, name: str) -> SparseArray | None:
    """The sum or difference without zeros, if both arrays have the same shape and dtype; None otherwise."""
    _check.same_device(name, (x.device, other.device))
    theirs: Any = counted(other, name)
    pair: tuple[Any, Any] = made.values, theirs.values
    dtype = pair[0].dtype
    if made.shape != theirs.shape or dtype != pair[1].dtype or dtype.name not in _ADDED:
        return None
    left, right = entries_of(made), entries_of(theirs)
    if left[0].dtype != right[0].dtype:
        return None
    merge = backends.family("cpu", "sparse.entries").merge
    indptr, indices, values, zeros = merge((*left, pair[0]), (*right, pair[1]), made.shape[1], name == "subtract")
    family = interop.common_family([made.family, theirs.family])
    result = Pattern(indptr, indices, made.shape, values, family=family)
    return fitted(x, kept_entries(result, values != 0) if zeros else result, name, other)


def _operand(x: SparseArray, other: Any, name: str) -> tuple[Any, tuple[Any, ...], interop.Family]:
    """The other operand in a form that SciPy accepts, a tuple with the operand itself if it is one of our arrays, and its family."""
    if is_sparse(other):
        _check.same_device(name, (x.device, other.device))
        return matrix(counted(other, name), name), (other,), interop.NUMPY
    if hasattr(other, "tocsr") and hasattr(other, "nnz") and not isinstance(other, (BitArray, type)):
        return csr_of(name, other), (), interop.NUMPY
    if isinstance(other, _SCALARS):
        return other, (), interop.NUMPY
    if isinstance(other, BitArray):
        other = other.decoded()
    theirs, family = interop.as_numpy(other, name, "the other operand")
    _check.numeric(name, "the other operand", theirs)
    # SciPy cannot add bfloat16.
    return interop.converted(theirs, np.dtype(np.float32)) if theirs.dtype.name == "bfloat16" else theirs, (), family


def is_sparse(x: Any) -> bool:
    """Whether `x` is one of our sparse arrays."""
    return isinstance(x, BitArray) and hasattr(x, "csr_arrays")


# -- on a GPU ---------------------------------------------------------------------------------------------------------
def _on_gpu(x: SparseArray, operation: Any, other: Any, name: str, swap: bool) -> Any:
    if is_sparse(other):
        _check.same_device(name, (x.device, other.device))
        if name in ("divide", "power"):
            raise DeviceError(f"{name}: on a GPU there is none of two sparse arrays, as 0 / 0 is not zero; use A.get()")
        return merged(x, other, name, swap)
    made, space = counted(x, name), interop.namespace(x.csr_arrays()[0])
    values: Any = made.values
    if isinstance(other, _SCALARS):
        zero = np.zeros(1, values.dtype)  # on the host, so that nothing waits for the GPU
        in_numpy = getattr(np, name) if name in ("maximum", "minimum") else operation
        with np.errstate(all="ignore"):
            of_zero = in_numpy(other, zero) if swap else in_numpy(zero, other)
        if of_zero[0] != 0:
            raise DeviceError(
                f"{name}: with {other!r} elements that are not stored would become {of_zero[0]}, which on a GPU is refused; "
                f"write it of A.toarray()"
            )
        if name == "divide":  # as SciPy does, by the inverse in float64
            number: Any = other
            return with_numbers(x, space.multiply(values, 1.0 / number, dtype=np.float64))
        values = operation(other, values) if swap else operation(values, other)
        if values.dtype == np.bool_:
            return fitted(x, kept_entries(replace(made, values=values), values), name)
        return with_numbers(x, values)
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
    if name == "multiply" or (name == "divide" and not swap):
        factors = theirs[rows_of(made.indptr), made.indices]
        # SciPy multiplies by the inverse, so elements that are not stored stay zero, even if they are divided by zero.
        return with_numbers(x, values * (factors if name == "multiply" else space.divide(1, factors)))
    mine = space.zeros(x.shape, values.dtype)
    mine[rows_of(made.indptr), made.indices] = values
    result = operation(theirs, mine) if swap else operation(mine, theirs)
    return interop.from_array(result, interop.common_family([family_of(x), family]), name)


def merged(x: SparseArray, other: SparseArray, name: str, swap: bool = False, bits: bool = False) -> SparseArray:
    """Apply an operation that maps zeros to zero to two arrays on a GPU, and drop zeros from the result; `bits` means on booleans."""
    if x.shape != other.shape:
        raise ShapeError(f"{name}: shapes {x.shape} and {other.shape} differ; sparse arrays do not broadcast")
    if name in _OF_NOTHING:
        raise DeviceError(f"{name}: elements that neither array stores would become True; use the opposite, and ~")
    parts = [_bits(one, name) if bits else _numbers(one, name) for one in (x, other)]
    kinds = [np.dtype(np.bool_ if bits else np.int32) if one.values is None else one.values.dtype for one in parts]
    index, dtype = (
        np.result_type(*(part.dtype for one in parts for part in (one.indptr, one.indices))),
        np.result_type(*kinds),
    )
    operands = [
        (
            one.indptr.astype(index, copy=False),
            one.indices.astype(index, copy=False),
            None if one.values is None else one.values.astype(dtype, copy=False),
        )
        for one in (reversed(parts) if swap else parts)
    ]
    merge = backends.family(x.device, "sparse.merge").merge
    indptr, indices, values = merge(*operands, _OF_BITS.get(name, name), dtype)
    family = interop.common_family([family_of(x), family_of(other)])
    if x.holds_bits or index != x.index_dtype:
        return fitted(x, Pattern(indptr, indices, x.shape, values, family=family), name)
    arrays = {"indptr": indptr, "indices": indices, "data": values, "prepared": {}, "family": family}
    made = with_fields(x, row_scale=None, col_scale=None, **arrays)
    made.had_duplicates = False
    return made


def _numbers(x: SparseArray, name: str) -> Pattern:
    """The entries of `x` with one number each, but those of a pattern without values (:func:`counted` would give them int32 ones)."""
    return entries(x, name) if is_pattern(x) else counted(x, name)


# -- named functions --------------------------------------------------------------------------------------------------
def maximum(x: SparseArray, other: Any) -> Any:
    """Elementwise maximum."""
    return _larger(x, other, "maximum")


def minimum(x: SparseArray, other: Any) -> Any:
    """Elementwise minimum."""
    return _larger(x, other, "minimum")


def _larger(x: SparseArray, other: Any, name: str) -> Any:
    if x.device == "cpu":
        return elementwise(x, lambda mine, theirs: getattr(mine, name)(theirs), other, name)
    return elementwise(x, getattr(interop.namespace(x.csr_arrays()[0]), name), other, name)


def product(x: SparseArray, other: Any) -> Any:
    """Elementwise product ``A * other``; on the CPU by SciPy's ``multiply``, which accepts more shapes than ``*``."""
    if x.device == "cpu":
        return elementwise(x, lambda mine, theirs: mine.multiply(theirs), other, "multiply")
    return elementwise(x, operator.mul, other, "multiply")


def power(x: SparseArray, n: Any, dtype: Any = None) -> Any:
    """Every element to the power `n`, which must not be 0; the pattern stays the same."""
    if not isinstance(n, (int, float, np.number)) or isinstance(n, bool):
        raise DTypeError(f"power: the exponent is a number, got {type(n).__name__}; write it of A.toarray()")
    if n == 0:
        raise DTypeError(
            "power: the power 0 of every element is 1, also where none is stored; use np.ones(A.shape, A.dtype)"
        )

    def raised(values: Any) -> Any:
        values = values if dtype is None else values.astype(_check.dtype("power", dtype))
        if values.dtype == np.bool_:  # NumPy's dtype, which depends on n; CuPy has another one
            values = values.astype((np.ones(1, np.bool_) ** n).dtype)
        return values**n

    return mapped(x, "power", raised)


def unary(name: str) -> Callable[[SparseArray], Any]:
    """A function that applies the NumPy function `name`, which maps 0 to 0, to every value; it refuses the same dtypes as NumPy."""

    def function(x: SparseArray) -> Any:
        try:
            getattr(np, name)(np.zeros(0, x.dtype))
        except TypeError:
            raise DTypeError(
                f"{name}: NumPy has no such function of {x.dtype}; convert first, as in A.astype(float)"
            ) from None
        return mapped(x, name, getattr(interop.namespace(x.csr_arrays()[0]), name))

    function.__name__, function.__doc__ = name, f"``numpy.{name}`` of every value, which leaves zero as it is."
    return function


# -- bits -------------------------------------------------------------------------------------------------------------
def _bits(x: Any, name: str) -> Pattern:
    """The entries of a pattern or an array of booleans, without those that are False."""
    if not is_pattern(x) and x.dtype != np.bool_:
        raise DTypeError(
            f"{name}: the operators of bits take patterns and booleans, got {x.dtype}; compare first, as in A != 0"
        )
    return bits_only(name, stored(x), True)


def _with_ones(made: Pattern) -> Pattern:
    return replace(made, values=interop.namespace(made.indices).ones(made.indices.size, np.bool_))


def bitwise(name: str) -> Callable[[SparseArray, Any], Any]:
    """The operator ``&``, ``|`` or ``^`` for patterns and booleans."""

    def function(x: SparseArray, other: Any) -> Any:
        if not is_sparse(other):
            if not (hasattr(other, "tocsr") and hasattr(other, "nnz") and other.dtype == np.bool_):
                return NotImplemented
            other = x.from_csr_arrays(*_arrays(csr_of(name, other)), pattern=True)
        _check.same_device(name, (x.device, other.device))
        if x.shape != other.shape:
            raise ShapeError(f"{name}: shapes {x.shape} and {other.shape} differ; sparse arrays do not broadcast")
        if x.device != "cpu":
            return merged(x, other, name, bits=True)
        one, two = (matrix(_with_ones(_bits(part, name)), name) for part in (x, other))
        result = {"&": one.multiply, "|": one.maximum, "^": one.__ne__}[name](two)
        return back(x, result, name, other)

    return function


def _arrays(csr: Any) -> tuple[Any, Any, Any, Any]:
    kept = csr.copy()
    kept.sum_duplicates()
    kept.eliminate_zeros()
    return kept.indptr, kept.indices, kept.shape, kept.data


def inverted(x: SparseArray) -> Any:
    """``~x``: True for every element that is not stored, computed on packed bits; for booleans and patterns only."""
    made = _with_ones(_bits(x, "~"))
    packed = fitted(x, made, "~").to_bit_tensor()
    flipped = type(x)(~packed)
    indptr, indices, _ = flipped.csr_arrays()
    ones = interop.namespace(indices).ones(indices.size, np.bool_)
    return fitted(x, Pattern(indptr, indices, x.shape, ones, family=family_of(x)), "~")
