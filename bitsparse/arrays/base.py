"""Base class of all bitsparse arrays: operators, copies between devices, and the protocols by which other libraries see an array."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from numbers import Number
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays import display, exact
from bitsparse.errors import DTypeError, ShapeError


class Operators:
    """Public functions of a higher layer that the array types call, for ``@`` and `dequantize`.

    This is the only hook for such calls. :mod:`bitsparse.ops` fills it when ``import bitsparse`` imports it.
    """

    __slots__ = ("dequantize", "matmul", "spmm")

    matmul: Callable[[Any, Any], Any]
    spmm: Callable[..., Any]
    dequantize: Callable[[Any, Any], Any]


operators = Operators()
#: Operators whose integer results could overflow, and are therefore computed by :mod:`bitsparse.arrays.exact`.
_EXACT = ("add", "subtract", "multiply", "negative")


#: NumPy functions that accept these arrays: the number of arguments, and what each computes.
_OF_NUMPY: dict[Any, tuple[int, Callable[..., Any]]] = {
    np.shape: (1, lambda a: a.shape),
    np.ndim: (1, lambda a: a.ndim),
    np.size: (1, lambda a: a.size),
    np.transpose: (1, lambda a: a.T),
    np.copy: (1, lambda a: a.copy()),
    np.dot: (2, operator.matmul),
}

#: NumPy functions that call the array's method of this name, if it has one, with their other arguments.
_REDUCTIONS: dict[Any, str] = {np.sum: "sum", np.any: "any", np.all: "all", np.count_nonzero: "count_nonzero"}


def _is_operand(other: Any) -> bool:
    """Whether the other operand is an array, including sparse arrays of other libraries."""
    return interop.is_array_like(other) or (hasattr(other, "tocsr") and not isinstance(other, type))


def _operator(operation: Callable[[Any, Any], Any], name: str, *, swap: bool = False, arrays_only: bool = False) -> Any:
    """The method of an operator; with `arrays_only`, Python compares identities if the other operand is neither array nor number."""

    def method(self: BitArray, other: Any) -> Any:
        if arrays_only and not (isinstance(other, Number) or _is_operand(other)):
            return NotImplemented
        return self._elementwise(operation, other, name, swap)

    return method


def read_only(field: str, doc: str) -> Any:
    """A property of an array that shows one of its fields."""
    return property(operator.attrgetter(field), doc=doc)


class BitArray(ABC):
    """Base class of the array types; users need it only for ``isinstance``."""

    __slots__ = ()

    # ndarray @ A and csr_array @ A must reach A.__rmatmul__ instead of treating A as an object scalar.
    __array_ufunc__ = None
    __array_priority__ = 1000.0
    __hash__ = None  # type: ignore[assignment]  # == is elementwise, as in NumPy

    #: Names of the component arrays, of the scales, of the settings that describe both, and of the constructor that adopts all of
    #: these after checks.
    component_names: ClassVar[tuple[str, ...]]
    scale_names: ClassVar[tuple[str, ...]]
    setting_names: ClassVar[tuple[str, ...]]
    adopting: ClassVar[str]

    _family: interop.Family

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of integers."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Smallest NumPy dtype that holds every value."""

    @property
    def nbytes(self) -> int:
        """Bytes of the component arrays and scales."""
        return sum(part.nbytes for part in self.components().values() if part is not None)

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Number of elements that are not zero."""

    @abstractmethod
    def toarray(self, dtype: Any = None) -> Any:
        """The integers as an ordinary array."""

    @abstractmethod
    def decoded(self) -> Any:
        """The values that arithmetic with ordinary arrays uses."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements, zeros included."""
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        """Share of the elements that are not zero; 0.0 for an empty array."""
        elements = math.prod(self.shape)
        return self.nnz / elements if elements else 0.0

    @property
    @abstractmethod
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on: where the component arrays are."""

    @property
    def family(self) -> str:
        """Array library of results computed from this array alone: the library of the data that it was made from.

        An array of NumPy data that moves to a GPU belongs to CuPy, and the other way round.
        """
        name = self._family.name
        return name if name not in ("numpy", "cupy") else "numpy" if self.device == "cpu" else "cupy"

    def components(self) -> dict[str, Any]:
        """The component arrays and scales by name; None for those that the array does not have."""
        return {name: getattr(self, f"_{name}") for name in (*self.component_names, *self.scale_names)}

    def settings(self) -> dict[str, Any]:
        """The settings that describe the components: the other keyword arguments of `from_words` or `from_arrays`."""
        return {name: getattr(self, name) for name in self.setting_names}

    @abstractmethod
    def _moved(self, move: Callable[[Any], Any]) -> Self:
        """The same array with every component replaced by ``move(component)``; ``move`` must accept None."""

    def to_device(self, device: Any, *, stream: Any = None) -> Self:
        """The same array on ``device`` ("cpu", "cuda", "cuda:1"); itself if it is there already.

        Large arrays go to a GPU through page-locked memory, piece by piece.

        Parameters
        ----------
        device : str
        stream : optional
            A CUDA stream to copy on, as in :func:`bitsparse.use_stream`. The copy overlaps with work on other streams, which must wait
            for it before they read the array, and must finish with the array before it is dropped. Components in page-locked memory
            (``interop.pinned_empty``) are read in stream order, so they must not change until the copy is done.

        Raises
        ------
        DeviceError
            There is no such device, CuPy is missing, or the stream is capturing.
        """
        target = interop.parse_device(device, "to_device")
        if target == self.device:
            return self
        with interop.moving(self.device if target == "cpu" else target, self._family, stream):
            return self._moved(lambda part: interop.move(part, target, later=stream is not None))

    def get(self) -> Self:
        """The same array on the CPU (CuPy's name for it)."""
        return self.to_device("cpu")

    def copy(self) -> Self:
        """A copy that shares nothing."""
        with self._working():
            return self._moved(lambda part: None if part is None else part.copy())

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def __reduce__(self) -> Any:
        here = self.get()
        return restored, (type(self), {**here.components(), **here.settings()}, self.device)

    # -- text and HTML ----------------------------------------------------------------------------------------------
    @abstractmethod
    def _details(self) -> str:
        """The part of ``repr`` that describes the format."""

    @abstractmethod
    def _rows(self) -> dict[str, object]:
        """Rows of the HTML table that describe the format."""

    def _other_forms(self) -> dict[str, int]:
        """Bytes that other forms of the same content would take, for comparison."""
        return {"float32": 4 * math.prod(self.shape)}

    def __repr__(self) -> str:
        return display.line(self, self._details(), self._other_forms())

    def _repr_html_(self) -> str:
        return display.table(self, self._rows(), self._other_forms())

    def _working(self) -> AbstractContextManager[Any]:
        """A context that makes the device and stream for work on this array current."""
        return interop.working_on(self.device, self._family)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        raise DTypeError(
            f"{type(self).__name__}: iterating would unpack rows one by one; iterate over .toarray() or slice, as in x[i:j]"
        )

    def __bool__(self) -> bool:
        raise ValueError(
            f"{type(self).__name__}: the truth value of an array of shape {self.shape} is ambiguous; use .nnz or .toarray()"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # As with scipy.sparse, NumPy sees one opaque object and never dense data; so `csr_array @ A` finds A.__rmatmul__.
        if dtype is not None and np.dtype(dtype) != np.dtype(object):
            raise DTypeError(
                f"{type(self).__name__}: implicit conversion to a dense {np.dtype(dtype)} array is refused; call .toarray()"
            )
        opaque = np.empty((), dtype=object)
        opaque[()] = self
        return opaque

    def __dlpack__(self, **options: Any) -> Any:
        raise DTypeError(
            f"{type(self).__name__}: it is not exported through DLPack, where its packed or sparse parts would pass for values; export "
            f".toarray(), or one of {', '.join(f'.{name}' for name in self.component_names)}"
        )

    __dlpack_device__ = __dlpack__

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        member = _REDUCTIONS.get(func)
        if member is not None and hasattr(self, member) and args and args[0] is self:
            return getattr(self, member)(*args[1:], **kwargs)
        count, meaning = _OF_NUMPY.get(func, (-1, None))
        # numpy.dot of arrays with more than two dimensions differs from matmul.
        flat = func is not np.dot or all(len(getattr(arg, "shape", ())) <= 2 for arg in args)
        if meaning is not None and len(args) == count and flat and not kwargs:
            return meaning(*args)
        name = f"{func.__module__}.{func.__name__}"
        raise DTypeError(
            f"{name}: an operand is a {type(self).__name__}, of which NumPy would make an array of objects; pass it with .toarray(), "
            f"or use its operators and bitsparse's functions (matmul, concat, save_npz, ...)"
        )

    # -- operators ------------------------------------------------------------------------------------------------
    def __matmul__(self, other: Any) -> Any:
        return operators.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return operators.matmul(other, self)

    def _elementwise(self, operation: Callable[[Any, Any], Any], other: Any, name: str, swap: bool = False) -> Any:
        """Decode, compute with NumPy or CuPy, and return an array of the ordinary operand's library (QGTC section 5).

        Sums, differences and products of integers are exact: int32, or int64 if int32 cannot hold them.
        """
        theirs: Any
        mine, family = interop.as_array(self.decoded(), name)
        if isinstance(other, (bool, int, float, complex)):
            theirs = other  # NumPy lets a Python scalar take the array's dtype
        else:
            theirs, their_family = interop.as_array(
                other.decoded() if isinstance(other, BitArray) else other, name, "the other operand"
            )
            if theirs.dtype.kind not in "fc":  # NumPy computes with all floats and complex numbers
                _check.numeric(name, "the other operand", theirs)
            if theirs.ndim or self.device == "cpu":
                _check.same_device(name, (self.device, interop.device_of(theirs)))
            try:
                np.broadcast_shapes(mine.shape, theirs.shape)
            except ValueError:
                raise ShapeError(
                    f"{name}: shapes {mine.shape} and {theirs.shape} do not broadcast; sizes must be equal, or 1 in one of them"
                ) from None
            family = interop.common_family([family, their_family])
        with interop.working_on(self.device, family):
            if name in _EXACT and exact.is_integral(mine) and exact.is_integral(theirs):
                limits = (
                    self.value_limits(mine),
                    other.value_limits(theirs) if isinstance(other, BitArray) else exact.limits_of_operand(theirs),
                )
                pairs = ((mine, limits[0]), (theirs, limits[1]))
                (left, first), (right, second) = pairs[::-1] if swap else pairs
                result = exact.computed(name, operation, left, right, (first, second))
            else:
                result = operation(theirs, mine) if swap else operation(mine, theirs)
            if self.device == "cpu":
                result = np.asarray(result)
            return interop.from_array(result, family, name)

    def value_limits(self, decoded: Any) -> tuple[int, int]:
        """Lower and upper bound of the integers that :meth:`decoded` returned."""
        return exact.limits_of_operand(decoded)

    __add__ = _operator(operator.add, "add")
    __radd__ = _operator(operator.add, "add", swap=True)
    __sub__ = _operator(operator.sub, "subtract")
    __rsub__ = _operator(operator.sub, "subtract", swap=True)
    __mul__ = _operator(operator.mul, "multiply")
    __rmul__ = _operator(operator.mul, "multiply", swap=True)
    __truediv__ = _operator(operator.truediv, "divide")
    __rtruediv__ = _operator(operator.truediv, "divide", swap=True)
    __lt__ = _operator(operator.lt, "less")
    __le__ = _operator(operator.le, "less_equal")
    __gt__ = _operator(operator.gt, "greater")
    __ge__ = _operator(operator.ge, "greater_equal")
    __eq__ = _operator(operator.eq, "equal", arrays_only=True)
    __ne__ = _operator(operator.ne, "not_equal", arrays_only=True)

    def _not_in_place(self, other: Any) -> Any:
        """Refuse ``A += B``, which would bind the name `A` to an array of another type."""
        name = type(self).__name__
        raise DTypeError(
            f"{name}: it is not changed in place, and results of arithmetic are ordinary or scipy.sparse arrays; write the operator out, "
            f"as in B = A + other"
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __imatmul__ = _not_in_place

    def __neg__(self) -> Any:
        return self._elementwise(operator.mul, -1, "negative")


def restored(cls: type[BitArray], parts: dict[str, Any], device: str = "cpu") -> Any:
    """Rebuild an array with all checks, because a pickle or a file may come from an unknown source."""
    return getattr(cls, cls.adopting)(**parts).to_device(device)
