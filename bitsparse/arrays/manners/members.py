"""The class that gives the sparse arrays the members of :class:`scipy.sparse.csr_array`; what they do is in the modules beside it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse.arrays.base import operators, restored
from bitsparse.arrays.inside import working
from bitsparse.arrays.manners import elementwise, numpy_functions, picking, products, reshaping
from bitsparse.arrays.manners.plain import mapped, on_cpu
from bitsparse.arrays.manners.reduction_members import ReductionMembers
from bitsparse.errors import DTypeError


def _unary(name: str) -> Any:
    def method(self: Any) -> Any:
        with self._working():
            return elementwise.unary(self, name)

    method.__name__ = name
    method.__doc__ = f"``numpy.{name}`` of every value, which leaves zero as it is."
    return method


def _bitwise(sign: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        with self._working():
            return elementwise.bitwise(self, other, sign)

    return method


def _in_place(operation: Callable[[Any, Any], Any], sign: str) -> Any:
    """``A += B`` makes a new array of the same class; whatever else would come out is refused."""

    def method(self: Any, other: Any) -> Any:
        result = operation(self, other)
        if type(result) is not type(self):
            raise DTypeError(
                f"{type(self).__name__}: it is not changed in place, and the result of A {sign} other is a {type(result).__name__}; "
                f"write the operator out, as in B = A {sign} other"
            )
        return result

    return method


class Members(ReductionMembers):
    """Members of a sparse array that :class:`scipy.sparse.csr_array` has too, with the same results."""

    __slots__ = ()

    # -- shape and kind ---------------------------------------------------------------------------------------------
    @property
    def size(self: Any) -> int:
        """Number of stored entries, as in SciPy; that of all elements is the product of :attr:`shape`."""
        return int(self.nnz)

    def __len__(self) -> int:
        raise DTypeError(f"{type(self).__name__}: the length of a sparse array is ambiguous; use .nnz or .shape[0]")

    @property
    def mT(self: Any) -> Any:
        """:attr:`T`."""
        return self.T

    @property
    def H(self: Any) -> Any:
        """:attr:`T`, as values are real."""
        return self.T

    @property
    def has_sorted_indices(self) -> bool:
        """True: columns ascend in every row."""
        return True

    @property
    def has_canonical_format(self) -> bool:
        """True: columns ascend in every row, and none is there twice."""
        return True

    def sort_indices(self) -> None:
        """Nothing, as indices are sorted."""

    def sorted_indices(self: Any) -> Any:
        """A copy."""
        return self.copy()

    def sum_duplicates(self) -> None:
        """Nothing, as no element is stored twice."""

    def prune(self) -> None:
        """Nothing, as no room is kept behind the entries."""

    def eliminate_zeros(self: Any) -> None:
        """Remove entries that are zero, in place. Arrays that share the pattern keep it.

        Examples
        --------
        >>> a = bs.TCTiledCSR(([0, 5], ([0, 1], [0, 1])))
        >>> a.eliminate_zeros()
        >>> a.nnz
        1
        """
        with self._working():
            reshaping.eliminate_zeros(self)

    def setdiag(self: Any, values: Any, k: int = 0) -> None:
        """Set elements ``(i, i + k)``, in place. Arrays that share the pattern keep it; on the CPU.

        Parameters
        ----------
        values : scalar or array_like of one dimension
            Converted to :attr:`dtype`; an array that is shorter sets the first elements.
        k : int, default 0
            Which diagonal.

        Raises
        ------
        DTypeError
            The array has scales, or is on a GPU (DeviceError).

        Examples
        --------
        >>> a = bs.FRDC((2, 3))
        >>> a.setdiag(1)
        >>> a.toarray()
        array([[1, 0, 0],
               [0, 1, 0]], dtype=uint8)
        """
        with self._working():
            reshaping.set_diagonal(self, values, k)

    def resize(self: Any, *shape: Any) -> None:
        """Another shape in place: elements outside of it are gone, and what it has beyond the old one is empty.

        Examples
        --------
        >>> a = bs.FRDC(np.eye(3, dtype=int))
        >>> a.resize(2, 4)
        >>> a.shape, a.nnz
        ((2, 4), 2)
        """
        with self._working():
            reshaping.resize(self, shape)

    def check_format(self: Any, full_check: bool = True) -> None:
        """Check the component arrays again, which were checked when they came in.

        Raises
        ------
        ValueError
            They were damaged since.
        """
        restored(type(self), {**self.components(), **self.settings()}, self.device)

    def reshape(self: Any, *shape: Any, order: str = "C", copy: bool = False) -> Any:
        """The same elements in another shape of two dimensions, where one size may be -1.

        Parameters
        ----------
        *shape : int, or a tuple
        order : {"C", "F"}
            Row by row or column by column.
        copy : bool
            Taken as SciPy does; an array of the same shape is itself without it.

        Examples
        --------
        >>> bs.FRDC(np.eye(2, dtype=int)).reshape(1, -1).toarray()
        array([[1, 0, 0, 1]], dtype=uint8)
        """
        with self._working():
            made = reshaping.reshape(self, shape, order)
        return made.copy() if copy and made is self else made

    # -- elements ---------------------------------------------------------------------------------------------------
    def __getitem__(self: Any, key: Any) -> Any:
        """Rows, columns and elements, as those of :class:`scipy.sparse.csr_array`.

        ``A[2:5]``, ``A[:, cols]``, ``A[mask]`` and ``A[rows][:, cols]`` are arrays of this type with the scales that belong to them (rows
        of an FRDC from one block border to another are views); ``A[i, j]`` and ``A[rows, cols]`` are values, of two dimensions for index
        arrays of two. What has one dimension, ``A[i]`` and ``A[:, j]``, is SciPy's array of one dimension, and is refused on a GPU.

        Raises
        ------
        IndexError
            An index is out of bounds, or of another kind.

        Examples
        --------
        >>> a = bs.TCTiledCSR(np.array([[0, 2, 1], [0, 0, 0], [3, 0, 0]]))
        >>> a[::2, [0, 2]].toarray(), int(a[0, 1]), a[[0, 2], [1, 0]]
        (array([[0, 1],
               [3, 0]]), 2, array([2, 3]))
        """
        with self._working():
            return picking.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise DTypeError(
            f"{type(self).__name__}: single elements are not set, as others may share the pattern; change values in A.data, use "
            f"setdiag, or build the array from A.tolil()"
        )

    # -- arithmetic -------------------------------------------------------------------------------------------------
    def _elementwise(self: Any, operation: Callable[[Any, Any], Any], other: Any, name: str, swap: bool = False) -> Any:
        with self._working():
            return elementwise.elementwise(self, operation, other, name, swap)

    def multiply(self: Any, other: Any) -> Any:
        """Product element by element, ``A * other``."""
        with self._working():
            return elementwise.product(self, other)

    def maximum(self: Any, other: Any) -> Any:
        """The larger of two elements."""
        with self._working():
            return elementwise.larger(self, other, "maximum")

    def minimum(self: Any, other: Any) -> Any:
        """The smaller of two elements."""
        with self._working():
            return elementwise.larger(self, other, "minimum")

    def power(self: Any, n: Any, dtype: Any = None) -> Any:
        """Every element to the power `n`, which is not 0; entries stay where they are."""
        with self._working():
            return elementwise.power(self, n, dtype)

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

    arcsin = _unary("arcsin")
    arcsinh = _unary("arcsinh")
    arctan = _unary("arctan")
    arctanh = _unary("arctanh")
    ceil = _unary("ceil")
    deg2rad = _unary("deg2rad")
    expm1 = _unary("expm1")
    floor = _unary("floor")
    log1p = _unary("log1p")
    rad2deg = _unary("rad2deg")
    rint = _unary("rint")
    sign = _unary("sign")
    sin = _unary("sin")
    sinh = _unary("sinh")
    sqrt = _unary("sqrt")
    tan = _unary("tan")
    tanh = _unary("tanh")
    trunc = _unary("trunc")

    def conj(self: Any, copy: bool = True) -> Any:
        """The array, as its values are real."""
        return self.copy() if copy else self

    conjugate = conj

    @property
    def real(self: Any) -> Any:
        """The array, as its values are real."""
        return self

    @property
    def imag(self: Any) -> Any:
        """Zeros where there are entries, as values are real."""
        return mapped(self, "imag", lambda values: values ^ values if values.dtype == np.bool_ else values * 0)

    __and__ = __rand__ = _bitwise("&")
    __or__ = __ror__ = _bitwise("|")
    __xor__ = __rxor__ = _bitwise("^")

    def __invert__(self: Any) -> Any:
        with self._working():
            return elementwise.inverted(self)

    __iadd__ = _in_place(operator.add, "+")
    __isub__ = _in_place(operator.sub, "-")
    __imul__ = _in_place(operator.mul, "*")
    __itruediv__ = _in_place(operator.truediv, "/")
    __imatmul__ = _in_place(operator.matmul, "@")

    # -- products ---------------------------------------------------------------------------------------------------
    def __matmul__(self: Any, other: Any) -> Any:
        if products.is_operand(other):
            with self._working():
                return products.sparse_product(self, other)
        return operators.spmm(self, other)

    def dot(self: Any, other: Any) -> Any:
        """``A @ other``, and ``A * other`` of a scalar."""
        return self * other if isinstance(other, (int, float, np.number)) else self @ other

    def matvec(self: Any, x: Any) -> Any:
        """``A @ x`` of a vector (N,) or (N, 1): what :func:`scipy.sparse.linalg.aslinearoperator` asks for."""
        return self @ x

    def rmatvec(self: Any, x: Any) -> Any:
        """``A.T @ x`` of a vector."""
        return self.T @ x

    def matmat(self: Any, x: Any) -> Any:
        """``A @ x`` of dense columns (N, K)."""
        return self @ x

    def rmatmat(self: Any, x: Any) -> Any:
        """``A.T @ x`` of dense columns."""
        return self.T @ x

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
        """The array as SciPy's (on a GPU CuPy's) of that format: "csr", "csc", "coo", "bsr", "dia", "lil" or "dok"; None: itself.

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
        """The array in SciPy's format of columns; on a GPU CuPy's, as :meth:`tocsr`. It is a copy anyway."""
        return self.asformat("csc")

    def tobsr(self: Any, blocksize: tuple[int, int] | None = None, copy: bool = True) -> Any:
        """The array in SciPy's format of dense blocks; on the CPU. It is a copy anyway."""
        on_cpu(self, "tobsr", "use A.get().tobsr()")
        return self.tocsr().tobsr(blocksize=blocksize)

    def todia(self: Any, copy: bool = False) -> Any:
        """The array in SciPy's format of diagonals; on the CPU. It is a copy anyway."""
        return self.asformat("dia")

    def tolil(self: Any, copy: bool = False) -> Any:
        """The array in SciPy's format of lists, whose elements can be set; on the CPU. It is a copy anyway."""
        return self.asformat("lil")

    def todok(self: Any, copy: bool = False) -> Any:
        """The array in SciPy's format of a dictionary; on the CPU. It is a copy anyway."""
        return self.asformat("dok")
