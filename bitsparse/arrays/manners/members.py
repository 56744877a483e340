"""The class that gives sparse arrays the members of :class:`scipy.sparse.csr_array`; the other modules of this package implement them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bitsparse.arrays.base import BitArray, operators, restored
from bitsparse.arrays.inside import working
from bitsparse.arrays.manners import elementwise, numpy_functions, picking, products, reductions, reshaping
from bitsparse.arrays.manners.plain import mapped, on_cpu
from bitsparse.errors import DTypeError

P = ParamSpec("P")
R = TypeVar("R")


def member(function: Callable[P, R]) -> Callable[P, R]:
    """A method that calls `function` while the device and stream for work on the array are current."""

    @wraps(function)
    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        array: Any = args[0]
        with working(array):
            return function(*args, **kwargs)

    return method


def _in_place(operation: Callable[[Any, Any], Any], sign: str) -> Any:
    """A method for ``A += B`` that makes a new array of the same class, and raises if the result is of another class."""

    def method(self: Any, other: Any) -> Any:
        result = operation(self, other)
        if type(result) is not type(self):
            raise DTypeError(
                f"{type(self).__name__}: it is not changed in place, and the result of A {sign} other is a {type(result).__name__}; "
                f"write the operator out, as in B = A {sign} other"
            )
        return result

    return method


class Members(BitArray):
    """Members that sparse arrays share with :class:`scipy.sparse.csr_array`, with the same results."""

    __slots__ = ()

    # -- shape and kind ---------------------------------------------------------------------------------------------
    @property
    def size(self: Any) -> int:
        """Number of stored entries, as in SciPy; the number of all elements is the product of :attr:`shape`."""
        return int(self.nnz)

    def __len__(self) -> int:
        raise DTypeError(f"{type(self).__name__}: the length of a sparse array is ambiguous; use .nnz or .shape[0]")

    @property
    def mT(self: Any) -> Any:
        """:attr:`T`, since the array has two dimensions and its values are real."""
        return self.T

    H = mT

    @property
    def has_canonical_format(self) -> bool:
        """True: columns ascend strictly in every row."""
        return True

    has_sorted_indices = has_canonical_format

    def sort_indices(self) -> None:
        """Does nothing, since indices are always sorted."""

    def sorted_indices(self: Any) -> Any:
        """A copy of the array, whose indices are always sorted."""
        return self.copy()

    def sum_duplicates(self) -> None:
        """Does nothing, since no element is stored twice."""

    def prune(self) -> None:
        """Does nothing, since the arrays have no spare room after the entries."""

    eliminate_zeros = member(reshaping.eliminate_zeros)
    setdiag = member(reshaping.set_diagonal)
    resize = member(reshaping.resize)

    def check_format(self: Any, full_check: bool = True) -> None:
        """Check the component arrays again, as when the array was made.

        Raises
        ------
        ValueError
            They have been damaged since then.
        """
        restored(type(self), {**self.components(), **self.settings()}, self.device)

    def reshape(self: Any, *shape: Any, order: str = "C", copy: bool = False) -> Any:
        """The same elements in another shape of two dimensions; one size may be -1.

        Parameters
        ----------
        *shape : int, or a tuple
        order : {"C", "F"}
            Row by row or column by column.
        copy : bool
            As in SciPy; if False, an array that already has this shape is returned itself.

        Examples
        --------
        >>> bs.FRDC(np.eye(2, dtype=int)).reshape(1, -1).toarray()
        array([[1, 0, 0, 1]], dtype=uint8)
        """
        with working(self):
            made = reshaping.reshape(self, shape, order)
        return made.copy() if copy and made is self else made

    # -- elements ---------------------------------------------------------------------------------------------------
    __getitem__ = member(picking.getitem)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise DTypeError(
            f"{type(self).__name__}: single elements are not set, as others may share the pattern; change values in A.data, use "
            f"setdiag, or build the array from A.tolil()"
        )

    # -- arithmetic -------------------------------------------------------------------------------------------------
    def _elementwise(self: Any, operation: Callable[[Any, Any], Any], other: Any, name: str, swap: bool = False) -> Any:
        with working(self):
            return elementwise.elementwise(self, operation, other, name, swap)

    multiply = member(elementwise.product)
    maximum = member(elementwise.maximum)
    minimum = member(elementwise.minimum)
    power = member(elementwise.power)

    def __pow__(self: Any, n: Any) -> Any:
        return self.power(n)

    def __neg__(self: Any) -> Any:
        if self.dtype == np.bool_:
            raise DTypeError("negative: booleans have no negative; use ~A for the opposite")
        return mapped(self, "negative", operator.neg)

    def __abs__(self: Any) -> Any:
        return mapped(self, "abs", abs)

    def __round__(self: Any, ndigits: int = 0) -> Any:
        return mapped(self, "round", lambda values: values.round(ndigits))

    arcsin = member(elementwise.unary("arcsin"))
    arcsinh = member(elementwise.unary("arcsinh"))
    arctan = member(elementwise.unary("arctan"))
    arctanh = member(elementwise.unary("arctanh"))
    ceil = member(elementwise.unary("ceil"))
    deg2rad = member(elementwise.unary("deg2rad"))
    expm1 = member(elementwise.unary("expm1"))
    floor = member(elementwise.unary("floor"))
    log1p = member(elementwise.unary("log1p"))
    rad2deg = member(elementwise.unary("rad2deg"))
    rint = member(elementwise.unary("rint"))
    sign = member(elementwise.unary("sign"))
    sin = member(elementwise.unary("sin"))
    sinh = member(elementwise.unary("sinh"))
    sqrt = member(elementwise.unary("sqrt"))
    tan = member(elementwise.unary("tan"))
    tanh = member(elementwise.unary("tanh"))
    trunc = member(elementwise.unary("trunc"))

    def conj(self: Any, copy: bool = True) -> Any:
        """The array itself or a copy, since its values are real."""
        return self.copy() if copy else self

    conjugate = conj

    @property
    def real(self: Any) -> Any:
        """The array itself, since its values are real."""
        return self

    @property
    def imag(self: Any) -> Any:
        """An array with the same pattern whose values are 0, since values are real."""
        return mapped(self, "imag", lambda values: values ^ values if values.dtype == np.bool_ else values * 0)

    __and__ = __rand__ = member(elementwise.bitwise("&"))
    __or__ = __ror__ = member(elementwise.bitwise("|"))
    __xor__ = __rxor__ = member(elementwise.bitwise("^"))

    __invert__ = member(elementwise.inverted)

    __iadd__ = _in_place(operator.add, "+")
    __isub__ = _in_place(operator.sub, "-")
    __imul__ = _in_place(operator.mul, "*")
    __itruediv__ = _in_place(operator.truediv, "/")
    __imatmul__ = _in_place(operator.matmul, "@")

    # -- products ---------------------------------------------------------------------------------------------------
    def __matmul__(self: Any, other: Any) -> Any:
        if products.is_operand(other):
            with working(self):
                return products.sparse_product(self, other)
        return operators.spmm(self, other)

    def dot(self: Any, other: Any) -> Any:
        """``A @ other``, or ``A * other`` for a scalar."""
        return self * other if isinstance(other, (int, float, np.number)) else self @ other

    def matvec(self: Any, x: Any) -> Any:
        """``A @ x`` for a vector (N,) or dense columns (N, K), as :func:`scipy.sparse.linalg.aslinearoperator` needs it."""
        return self @ x

    def rmatvec(self: Any, x: Any) -> Any:
        """``A.T @ x`` for a vector or dense columns."""
        return self.T @ x

    matmat, rmatmat = matvec, rmatvec

    # -- sums, extremes, counts and diagonals --------------------------------------------------------------------------
    sum = member(reductions.total)
    mean = member(reductions.mean)
    max = member(reductions.extreme("max", "largest element"))
    min = member(reductions.extreme("min", "smallest element"))
    nanmax = member(reductions.extreme("nanmax", "largest element that is not NaN"))
    nanmin = member(reductions.extreme("nanmin", "smallest element that is not NaN"))
    argmax = member(reductions.extreme("argmax", "first largest element"))
    argmin = member(reductions.extreme("argmin", "first smallest element"))
    count_nonzero = member(reductions.count_nonzero)
    getnnz = member(reductions.getnnz)
    nonzero = member(reductions.nonzero)
    diagonal = member(reductions.diagonal)
    trace = member(reductions.trace)

    # -- NumPy ------------------------------------------------------------------------------------------------------
    def __array_ufunc__(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return numpy_functions.of_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = numpy_functions.of_function(func, args, kwargs)
        return super().__array_function__(func, types, args, kwargs) if result is NotImplemented else result

    # -- other formats ----------------------------------------------------------------------------------------------
    def todense(self: Any, order: str | None = None, out: Any = None) -> Any:
        """:meth:`toarray`."""
        return self.toarray(order=order, out=out)

    def asformat(self: Any, format: str | None, copy: bool = False) -> Any:
        """The array in a format of SciPy (CuPy on a GPU): "csr", "csc", "coo", "bsr", "dia", "lil" or "dok"; itself for None.

        Examples
        --------
        >>> bs.FRDC(np.eye(2, dtype=int)).asformat("csc").format
        'csc'
        """
        if format is None or format == self.format:
            return self.copy() if copy else self
        if format not in ("csr", "csc", "coo", "bsr", "dia", "lil", "dok"):
            raise ValueError(
                f"asformat: format must be one of csr, csc, coo, bsr, dia, lil, dok or None, got {format!r}"
            )
        with working(self):
            if format in ("bsr", "dia", "lil", "dok"):
                on_cpu(self, "asformat", f"use A.get().asformat({format!r})")
            return self.tocsr().asformat(format)

    def tocsc(self: Any, copy: bool = False) -> Any:
        """A copy in SciPy's column format, or CuPy's on a GPU as in :meth:`tocsr`; `copy` makes no difference."""
        return self.asformat("csc")

    def tobsr(self: Any, blocksize: tuple[int, int] | None = None, copy: bool = True) -> Any:
        """A copy in SciPy's format of dense blocks, on the CPU only; `copy` makes no difference."""
        on_cpu(self, "tobsr", "use A.get().tobsr()")
        return self.tocsr().tobsr(blocksize=blocksize)

    def todia(self: Any, copy: bool = False) -> Any:
        """A copy in SciPy's format of diagonals, on the CPU only; `copy` makes no difference."""
        return self.asformat("dia")

    def tolil(self: Any, copy: bool = False) -> Any:
        """A copy in SciPy's format of lists, whose elements can be set, on the CPU only; `copy` makes no difference."""
        return self.asformat("lil")

    def todok(self: Any, copy: bool = False) -> Any:
        """A copy in SciPy's dictionary format, on the CPU only; `copy` makes no difference."""
        return self.asformat("dok")
