"""What the sparse containers share: scales, conversions by way of CSR, operators with SciPy's meaning, and how they show themselves."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_convert, sparse_forms
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.display import human_bytes, table
from bitsparse.arrays.indices import converted, gather
from bitsparse.arrays.inside import assembled, scales_of, with_fields
from bitsparse.arrays.operators import operators
from bitsparse.arrays.sparse_forms import Pattern
from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.interop.kept import READY, Slot, Store

__all__ = ["SparseArray"]

CSRArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]

#: NumPy functions that BitArray's operators name, as operators: scipy.sparse overloads these, not the functions.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.mul,
    "divide": operator.truediv,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


#: What formats derive from a pattern.
DERIVED: Slot[Any] = Slot("derived")


class SparseArray(BitArray):
    """Base class of :class:`bitsparse.TCTiledCSR` and :class:`bitsparse.FRDC`; users meet it only in ``isinstance``."""

    __slots__ = ("__weakref__", "_col_scale", "_family", "_prepared", "_row_scale", "_shape", "had_duplicates")

    #: Names of the component arrays.
    component_names: ClassVar[tuple[str, ...]]
    #: Whether the data it was made from held entries twice, so that values in their order would not fit.
    had_duplicates: bool
    _shape: tuple[int, int]
    _row_scale: NDArray[np.float32] | None
    _col_scale: NDArray[np.float32] | None
    #: What was derived from this pattern (its index of windows, its transpose, schedules, tilings) where it lies, for all arrays that
    #: share it; of values only with the component they came from.
    _prepared: Store

    def _adopt(self, made: Pattern, row_scale: Any = None, col_scale: Any = None) -> None:
        """Fields that do not depend on the format; scales given beat those that the data brought along."""
        name = type(self).__name__
        self._shape, self._family, self.had_duplicates = made.shape, made.family, made.had_duplicates
        self._prepared = {}
        device = interop.device_of(made.indptr)
        row_scale = made.row_scale if row_scale is None else row_scale
        col_scale = made.col_scale if col_scale is None else col_scale
        self._row_scale = sparse_forms.scale_vector(name, "row_scale", row_scale, made.shape[0], device)
        self._col_scale = sparse_forms.scale_vector(name, "col_scale", col_scale, made.shape[1], device)

    # -- what each format knows -------------------------------------------------------------------------------------
    @abstractmethod
    def _pattern(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Canonical CSR ``(indptr, indices)``."""

    def _csr_values(self) -> NDArray[Any] | None:
        """Values in row order, or None."""
        return None

    def _kept_arrays(self) -> tuple[NDArray[Any], ...]:
        """What is kept of the format beside the component arrays and counts as its bytes."""
        return ()

    def _keep(self, key: Any, derive: Callable[[], Any]) -> Any:
        """What is derived from the pattern, once for all arrays that share it, and in the order of a GPU's streams."""
        with self._working():
            ready = None if self.device == "cpu" else READY.of(self._prepared, interop.Ready)
            if ready is not None:
                ready.wait()
            kept = DERIVED.get(self._prepared, key)
            if kept is None:
                kept = DERIVED.keep(self._prepared, derive(), key)
                if ready is not None:
                    ready.renew()
            return kept

    def components(self) -> dict[str, NDArray[Any] | None]:
        """The component arrays by name, as `from_arrays` takes them."""
        return {name: getattr(self, f"_{name}") for name in self.component_names}

    @abstractmethod
    def _of_pattern(self, pattern: Pattern) -> Self:
        """An array of this type and settings of another pattern."""

    @classmethod
    @abstractmethod
    def from_csr_arrays(cls, indptr: Any, indices: Any, shape: tuple[int, int], values: Any = None) -> Self:
        """The array of a CSR pattern."""

    def _moved(self, move: Callable[[Any], Any]) -> Self:
        names = (*self.component_names, "row_scale", "col_scale")
        return self._with(prepared={}, **{name: move(getattr(self, f"_{name}")) for name in names})

    def _with(self, **fields: Any) -> Self:
        """The same array with other fields."""
        made = self.__copy__()
        for name, value in fields.items():
            setattr(made, f"_{name}", value)
        return made

    # -- what it is -------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self._shape

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on: where the component arrays are."""
        return interop.device_of(self._some_index())

    @property
    def row_scale(self) -> NDArray[np.float32] | None:
        """One float32 factor per row, or None; a copy, as scales do not change: see :meth:`with_scales`."""
        return None if self._row_scale is None else self._row_scale.copy()

    @property
    def col_scale(self) -> NDArray[np.float32] | None:
        """One float32 factor per column, or None; a copy, as scales do not change: see :meth:`with_scales`."""
        return None if self._col_scale is None else self._col_scale.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of the component arrays and scales, and of a :class:`bitsparse.TCTiledCSR`'s index of windows once it is built."""
        parts = (*self.components().values(), *self._kept_arrays(), self._row_scale, self._col_scale)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """int32, or int64 where a size or count needs it or it was asked for."""
        return self._some_index().dtype

    @abstractmethod
    def _some_index(self) -> NDArray[Any]: ...

    def scaled_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """That of values of `dtype` once the scales are applied."""
        if self._row_scale is None and self._col_scale is None:
            return dtype
        return np.dtype(np.float64 if dtype == np.float64 else np.float32)

    def _csr_bytes(self) -> int:
        """What plain CSR takes for the same content."""
        values = self._csr_values_nbytes()
        return (self._shape[0] + 1 + self.nnz) * self.index_dtype.itemsize + values

    def _csr_values_nbytes(self) -> int:
        return 0

    def _ratios(self) -> tuple[str, str]:
        dense = 4 * self.size
        return (f"{self.nbytes / dense:.3g}" if dense else "-", f"{self.nbytes / self._csr_bytes():.2f}")

    @abstractmethod
    def _describe(self) -> dict[str, str]:
        """Rows of the HTML table that belong to the format."""

    def _repr_html_(self) -> str:
        to_dense, to_csr = self._ratios()
        scales = [name for name, part in (("rows", self._row_scale), ("columns", self._col_scale)) if part is not None]
        rows: dict[str, object] = {
            "shape": self._shape,
            "non-zeros": f"{self.nnz:,}",
            "density": f"{self.density:.3g}",
            **self._describe(),
            "scales": ", ".join(scales) or "none",
            "device": self.device,
            "bytes": human_bytes(self.nbytes),
            "ratio to float32": to_dense,
            "ratio to CSR": to_csr,
        }
        return table(type(self).__name__, rows)

    def _repr(self, details: str) -> str:
        to_dense, to_csr = self._ratios()
        scales = "".join(
            f" {n}" for n, p in (("row_scale", self._row_scale), ("col_scale", self._col_scale)) if p is not None
        )
        return (
            f"<{type(self).__name__} shape={self._shape} nnz={self.nnz} {details}{scales} device={self.device}, "
            f"{human_bytes(self.nbytes)} ({to_dense} of float32, {to_csr} of CSR)>"
        )

    # -- conversions ------------------------------------------------------------------------------------------------
    def csr_arrays(self) -> CSRArrays:
        """``(indptr, indices, values)`` of the canonical CSR array, values in row order or None.

        The scales are not applied. Those of a :class:`bitsparse.TCTiledCSR` are its members themselves; a :class:`bitsparse.FRDC` derives
        the pattern once and keeps it. Treat it as read-only.
        """
        return *self._pattern(), self._csr_values()

    def tocsr(self) -> Any:
        """The array as :class:`scipy.sparse.csr_array`, scales applied. 16-bit floats become float32, which SciPy can hold.

        On a GPU a :class:`cupyx.scipy.sparse.csr_matrix`, which holds booleans and floats only: integers of up to 16 bits and the ones
        of a pattern become float32, wider integers float64.
        """
        with self._working():
            return sparse_convert.to_matrix(self)

    def to_scipy(self) -> Any:
        """:meth:`tocsr`, moved to the CPU if need be."""
        return self.to_device("cpu").tocsr()

    def tocoo(self) -> Any:
        """The array as :class:`scipy.sparse.coo_array`, scales applied; on a GPU as CuPy's, as :meth:`tocsr`."""
        with self._working():
            return self.tocsr().tocoo()

    def toarray(self, dtype: Any = None) -> Any:
        """The dense array, scales applied.

        Parameters
        ----------
        dtype : dtype, optional
            By default :attr:`dtype`.
        """
        wanted = self.dtype if dtype is None else _check.dtype("toarray", dtype)
        with self._working():
            dense = converted(sparse_convert.to_dense(self), wanted, copy=False)
            return interop.from_array(dense, self._family, "toarray")

    def decoded(self) -> Any:
        """:meth:`toarray`: what arithmetic of a dense bitsparse array with this one uses."""
        return self.toarray()

    def to_bit_tensor(self, *, axis: int = -1, layout: str = "planes") -> BitTensor:
        """The elements that are not zero as a 1-bit :class:`bitsparse.BitTensor`; values and scales are left out.

        Examples
        --------
        >>> bs.FRDC(np.eye(3, dtype=int)).to_bit_tensor().toarray()
        array([[1, 0, 0],
               [0, 1, 0],
               [0, 0, 1]], dtype=uint8)
        """
        packed = _check.axis("to_bit_tensor", axis, 2)
        layout = _check.layout("to_bit_tensor", layout, 1)
        with self._working():
            indptr, indices, values = self.csr_arrays()
            made = sparse_forms.bits_only("to_bit_tensor", Pattern(indptr, indices, self._shape, values), True)
            words = backends.family(self.device, "sparse.build").csr_to_words(made.indptr, made.indices, made.shape)
            plain = assembled(BitTensor, words, self._shape, 1, -1, "planes", "unsigned", self._family)
            return plain.repack(axis=packed, layout=layout)  # type: ignore[arg-type]

    # -- parts ------------------------------------------------------------------------------------------------------
    def with_scales(self, row_scale: Any = None, col_scale: Any = None) -> Self:
        """The same array with other scales; None removes one. ``D^-1/2 A D^-1/2`` takes no value per edge.

        Parameters
        ----------
        row_scale : array_like of float, shape (m,), optional
        col_scale : array_like of float, shape (n,), optional

        Examples
        --------
        >>> a = bs.FRDC(np.ones((2, 2), dtype=int)).with_scales(row_scale=[1.0, 0.5])
        >>> a.toarray()
        array([[1. , 1. ],
               [0.5, 0.5]], dtype=float32)
        """
        with self._working():
            rows = sparse_forms.scale_vector("with_scales", "row_scale", row_scale, self._shape[0], self.device)
            cols = sparse_forms.scale_vector("with_scales", "col_scale", col_scale, self._shape[1], self.device)
        return self._with(row_scale=rows, col_scale=cols)

    @property
    def T(self) -> Self:
        """Transpose. Its pattern is derived once and kept; where it is that of the array itself, the two share all that there is of it."""
        turned: _Transpose = self._keep("transpose", self._transpose)
        values = self._csr_values()
        fields: dict[str, Any] = {"row_scale": self._col_scale, "col_scale": self._row_scale, "family": self._family}
        if values is not None:
            with self._working():
                fields["data"] = gather(values, turned.order)
        made: Self = with_fields(self if turned.pattern is None else turned.pattern, **fields)
        made.had_duplicates = self.had_duplicates
        return made

    @property
    def has_symmetric_pattern(self) -> bool:
        """Whether element (i, j) is stored wherever (j, i) is; found out once.

        Examples
        --------
        >>> bs.FRDC(np.array([[0, 1], [1, 0]])).has_symmetric_pattern, bs.FRDC(np.array([[0, 1], [0, 0]])).has_symmetric_pattern
        (True, False)
        """
        turned: _Transpose = self._keep("transpose", self._transpose)
        return turned.pattern is None

    def _transpose(self) -> _Transpose:
        indptr, indices = self._pattern()
        turned, order = sparse_convert.transposed(indptr, indices, self._shape)
        if self._shape[0] == self._shape[1] and all(
            bool((one == other).all()) for one, other in ((turned.indptr, indptr), (turned.indices, indices))
        ):
            return _Transpose(None, order)
        return _Transpose(self._of_pattern(replace(turned, family=self._family)), order)

    def transpose(self) -> Self:
        """:attr:`T`."""
        return self.T

    def copy(self) -> Self:
        """A copy that shares nothing."""
        with self._working():
            return self._moved(lambda part: None if part is None else part.copy())

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        for owner in type(self).__mro__:
            for name in getattr(owner, "__slots__", ()):
                if name != "__weakref__":
                    setattr(made, name, getattr(self, name))
        return made

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    # -- operators --------------------------------------------------------------------------------------------------
    def __matmul__(self, other: Any) -> Any:
        return operators.spmm(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        # x @ A = (A^T @ x^T)^T
        theirs, family = interop.as_array(other, "matmul", "the left operand")
        if theirs.ndim != 2:
            raise ShapeError(
                f"matmul: the left operand has shape {theirs.shape}, but 2 dimensions are needed; pass x[None, :]"
            )
        if (there := interop.device_of(theirs)) != self.device:
            raise DeviceError(
                f"matmul: the left operand is on {there} but the right one on {self.device}; move one of them"
            )
        family = interop.common_family([family, self._family])
        with interop.working_on(self.device, family):
            product = operators.spmm(self.T, interop.contiguous(theirs.T)).T
            # NumPy's libraries adopt a transposed view, those on a GPU need not.
            return interop.from_array(product if there == "cpu" else interop.contiguous(product), family, "matmul")

    def _elementwise(self, operation: Callable[[Any, Any], Any], other: Any, name: str, swap: bool = False) -> Any:
        """What scipy.sparse gives for the same operator: sparse results stay :class:`scipy.sparse.csr_array`. On the CPU."""
        _check.on_cpu(name, "this array", self.device)
        mine, family = _countable(self), interop.NUMPY
        if isinstance(other, SparseArray):
            _check.same_device(name, (self.device, other.device))
            theirs = _countable(other)
        elif hasattr(other, "tocsr"):
            theirs = other.tocsr()
        elif isinstance(other, (bool, int, float, complex, np.generic)):
            theirs = other
        else:
            theirs, family = interop.as_numpy(other, name, "the other operand")
        compute = _OPERATORS[name]
        result = compute(theirs, mine) if swap else compute(mine, theirs)
        if result is NotImplemented:
            raise DTypeError(f"{name}: scipy.sparse has no such operator for {type(other).__name__}")
        if not isinstance(result, np.ndarray):
            return result
        return interop.from_numpy(result, interop.common_family([self._family, family]), name)

    def __neg__(self) -> Any:
        _check.on_cpu("negative", "this array", self.device)
        return -_countable(self)

    # -- pickling ---------------------------------------------------------------------------------------------------
    def __reduce__(self) -> Any:
        here = self.get()
        return rebuilt, (
            type(self),
            here.components(),
            here.settings(),
            *scales_of(here),
            here.had_duplicates,
            self.device,
        )

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `from_arrays` besides the components and scales."""


class _Transpose(NamedTuple):
    """The transpose of a pattern."""

    pattern: Any  # an array of that pattern without values and scales; None: the pattern is symmetric
    order: NDArray[Any]  # entry of the array that each entry of its transpose is


def _countable(x: SparseArray) -> Any:
    """:meth:`SparseArray.tocsr` for arithmetic, where the ones of a pattern are int32, so that sums and differences do not wrap."""
    csr = x.tocsr()
    return csr.astype(np.int32) if csr.dtype == np.uint8 and x.csr_arrays()[2] is None else csr


def rebuilt(
    cls: Any, components: Any, settings: Any, row_scale: Any, col_scale: Any, had_duplicates: Any, device: str = "cpu"
) -> Any:
    """Rebuild through the checks: a pickle may come from elsewhere."""
    made = cls.from_arrays(**components, **settings, row_scale=row_scale, col_scale=col_scale)
    made.had_duplicates = bool(had_duplicates)
    return made.to_device(device)
