"""Base class of the sparse containers: scales, conversions through CSR, transposes, and operators with SciPy's meaning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_convert, sparse_forms, sparse_merge
from bitsparse.arrays.base import operators, read_only
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.exchange import Exchange
from bitsparse.arrays.indices import gather
from bitsparse.arrays.inside import assembled, become, values_and_scales, with_fields
from bitsparse.arrays.manners.members import Members
from bitsparse.arrays.manners.products import is_operand, sparse_product
from bitsparse.arrays.sparse_forms import Wanted
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.backends.params import Translation
from bitsparse.errors import DeviceError, ShapeError
from bitsparse.interop.kept import READY, Slot, Store

CSRArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]

T = TypeVar("T")


class Transpose(NamedTuple):
    """The transpose of a pattern."""

    pattern: Any  # an array of that pattern without values and scales; None: the pattern is symmetric


#: Slots for what is derived from a pattern: its index of windows for each window height, its transpose, the entry of the pattern that
#: each entry of the transpose is, and the CSR form of FRDC blocks.
TRANSLATIONS: Slot[Translation] = Slot("translations")
_TRANSPOSE: Slot[Transpose] = Slot("transpose")
_ORDER: Slot[NDArray[Any]] = Slot("order of the transpose")
CSR_FORM: Slot[tuple[NDArray[Any], NDArray[Any]]] = Slot("csr")


class SparseArray(Members, Exchange):
    """Base class of :class:`bitsparse.TCTiledCSR` and :class:`bitsparse.FRDC`; users need it only for ``isinstance``."""

    #: Whether the source data had repeated entries, so that values in the order of that data would not fit.
    had_duplicates: bool
    _shape: tuple[int, int]
    _device: str
    _indptr: NDArray[Any]
    _indices: NDArray[Any]
    _data: NDArray[Any] | None
    _row_scale: NDArray[np.float32] | None
    _col_scale: NDArray[np.float32] | None
    #: Cache of what was derived from this pattern (index of windows, transpose, schedules, tilings) on its device, shared by all arrays
    #: with this pattern. Anything derived from values is stored together with the value array it came from.
    _prepared: Store
    __slots__ = ("__weakref__", "_family", *__annotations__)  # the fields annotated above

    scale_names = ("row_scale", "col_scale")
    adopting = "from_arrays"
    #: Whether elements are bits, so that no values are stored.
    holds_bits: ClassVar[bool]

    @abstractmethod
    def __init__(self, arg: Any, *, pattern: bool = False, **options: Any) -> None: ...

    def _adopt(self, made: Pattern, row_scale: Any = None, col_scale: Any = None) -> None:
        """Set the fields that do not depend on the format; scales passed here override those that came with the data."""
        name = type(self).__name__
        self._shape, self._family, self.had_duplicates = made.shape, made.family, made.had_duplicates
        self._prepared, self._data = {}, None
        self._device = device = interop.device_of(made.indptr)
        row_scale = made.row_scale if row_scale is None else row_scale
        col_scale = made.col_scale if col_scale is None else col_scale
        self._row_scale = sparse_forms.scale_vector(name, "row_scale", row_scale, made.shape[0], device)
        self._col_scale = sparse_forms.scale_vector(name, "col_scale", col_scale, made.shape[1], device)

    # -- hooks of the formats ---------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def _pattern(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Canonical CSR ``(indptr, indices)``."""

    def _kept_arrays(self) -> tuple[NDArray[Any], ...]:
        """Cached arrays of the format that count towards `nbytes` besides the component arrays."""
        return ()

    def _keep(self, slot: Slot[T], derive: Callable[[], T], key: Any = None) -> T:
        """Result of `derive`, computed once for all arrays that share the pattern, and in stream order on a GPU."""
        with self._working():
            ready = None if self.device == "cpu" else READY.of(self._prepared, interop.Ready)
            if ready is not None:
                ready.wait()
            kept = slot.get(self._prepared, key)
            if kept is None:
                kept = slot.keep(self._prepared, derive(), key)
                if ready is not None:
                    ready.renew()
            return kept

    @abstractmethod
    def _of_pattern(self, pattern: Pattern) -> Self:
        """An array of another pattern with the type and settings of this one."""

    def _of_result(self, result: Pattern) -> SparseArray:
        """The result of arithmetic on this array as an array, of this type if it can hold the values."""
        return self._of_pattern(result)

    def _row_blocks(self, start: int, stop: int) -> Self | None:
        """A view of rows without `row_scale` if they are whole blocks of the format; None otherwise."""
        return None

    def _become(self, other: SparseArray) -> None:
        for owner in type(self).__mro__:
            for name in getattr(owner, "__slots__", ()):
                if name != "__weakref__":
                    setattr(self, name, getattr(other, name))

    # -- other ways in ----------------------------------------------------------------------------------------------
    @classmethod
    def from_csr_arrays(
        cls,
        indptr: Any,
        indices: Any,
        shape: tuple[int, int],
        values: Any = None,
        *,
        pattern: bool = False,
        index_dtype: Any = None,
        **options: Any,
    ) -> Self:
        """Build from the arrays of a CSR array; without values it is a pattern. Canonical arrays are shared, not copied.

        Parameters
        ----------
        indptr, indices : array_like of int
        shape : tuple of int
        values : array_like, optional
        pattern, index_dtype, **options
            As in the constructor.

        Examples
        --------
        >>> bs.TCTiledCSR.from_csr_arrays([0, 1, 2], [1, 0], (2, 2)).toarray()
        array([[0, 1],
               [1, 0]], dtype=uint8)
        """
        made = sparse_forms.from_csr(
            "from_csr_arrays", indptr, indices, shape, values, Wanted(index_dtype, cls.holds_bits, pattern)
        )
        return cls(made, pattern=pattern, **options)

    def _moved(self, move: Callable[[Any], Any]) -> Self:
        moved = {name: move(part) for name, part in self.components().items()}
        return self._with(prepared={}, device=interop.device_of(moved["indptr"]), **moved)

    def _with(self, **fields: Any) -> Self:
        """The same array with other fields."""
        made = self.__copy__()
        for name, value in fields.items():
            setattr(made, f"_{name}", value)
        return made

    # -- what it is -------------------------------------------------------------------------------------------------
    shape: Final[tuple[int, int]] = read_only("_shape", "(rows, columns).")

    device: Final[str] = read_only("_device", '``"cpu"``, or ``"cuda:0"`` and so on: where the component arrays are.')

    @property
    def row_scale(self) -> NDArray[np.float32] | None:
        """A copy of the float32 factors of rows, or None; :meth:`with_scales` makes an array with other ones."""
        return None if self._row_scale is None else self._row_scale.copy()

    @property
    def col_scale(self) -> NDArray[np.float32] | None:
        """A copy of the float32 factors of columns, or None; :meth:`with_scales` makes an array with other ones."""
        return None if self._col_scale is None else self._col_scale.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of the component arrays and scales, and of a :class:`bitsparse.TCTiledCSR`'s index of windows once it is built."""
        return super().nbytes + sum(part.nbytes for part in self._kept_arrays())

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """int32, or int64 if a size or count needs it or the user asked for it."""
        return self._indices.dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values, or uint8 without values; with scales float32, or float64 for float64 values."""
        return self.scaled_dtype(np.dtype(np.uint8) if self._data is None else self._data.dtype)

    def scaled_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype that values of `dtype` have once the scales are applied."""
        if self._row_scale is None and self._col_scale is None:
            return dtype
        return np.dtype(np.float64 if dtype == np.float64 else np.float32)

    def _rows(self) -> dict[str, object]:
        return {"non-zeros": f"{self.nnz:,}", "density": f"{self.density:.3g}"}

    def _other_forms(self) -> dict[str, int]:
        values = 0 if self._data is None else self._data.nbytes
        return super()._other_forms() | {"CSR": (self._shape[0] + 1 + self.nnz) * self.index_dtype.itemsize + values}

    # -- conversions ------------------------------------------------------------------------------------------------
    def csr_arrays(self) -> CSRArrays:
        """``(indptr, indices, values)`` of the canonical CSR array, with values in row order or None.

        Scales are not applied. A :class:`bitsparse.TCTiledCSR` returns its own component arrays; a :class:`bitsparse.FRDC` derives the
        pattern once and caches it. Treat the arrays as read-only.
        """
        return *self._pattern, self._data

    def tocsr(self, copy: bool = False) -> Any:
        """The array as :class:`scipy.sparse.csr_array`, with scales applied. 16-bit floats become float32, which SciPy can hold.

        The result never shares memory with the array, whatever `copy` says. On a GPU it is a :class:`cupyx.scipy.sparse.csr_matrix`, which
        holds only booleans and floats: integers of up to 16 bits and the ones of a pattern become float32, wider integers float64.
        """
        with self._working():
            return sparse_convert.to_matrix(self)

    def tocoo(self, copy: bool = False) -> Any:
        """A copy as :class:`scipy.sparse.coo_array`, with scales applied; on a GPU CuPy's, as in :meth:`tocsr`."""
        with self._working():
            return self.tocsr().tocoo()

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
            made = sparse_merge.bits_only("to_bit_tensor", sparse_convert.stored(self), True)
            words = backends.family(self.device, "sparse.build").csr_to_words(made.indptr, made.indices, made.shape)
            plain = assembled(BitTensor, words, self._shape, 1, -1, "planes", "unsigned", self._family)
            return plain.repack(axis=packed, layout=layout)  # type: ignore[arg-type]

    # -- parts ------------------------------------------------------------------------------------------------------
    def with_scales(self, row_scale: Any = None, col_scale: Any = None) -> Self:
        """The same array with other scales; None removes one. ``D^-1/2 A D^-1/2`` then needs no value per edge.

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
        """Transpose. Its pattern is derived once and cached; if the pattern is symmetric, the two arrays share it and its cache."""
        moved: list[Any] = []
        turned = self._keep(_TRANSPOSE, lambda: self._transpose(moved)).pattern
        fields: dict[str, Any] = {"row_scale": self._col_scale, "col_scale": self._row_scale, "family": self._family}
        if self._data is not None:
            with self._working():
                fields["data"] = moved[0] if moved else gather(self._data, self._turned_order())
        made: Self = with_fields(self if turned is None else turned, **fields)
        made.had_duplicates = self.had_duplicates
        return made

    @property
    def has_symmetric_pattern(self) -> bool:
        """Whether element (i, j) is stored whenever (j, i) is; computed once.

        Examples
        --------
        >>> bs.FRDC(np.array([[0, 1], [1, 0]])).has_symmetric_pattern, bs.FRDC(np.array([[0, 1], [0, 0]])).has_symmetric_pattern
        (True, False)
        """
        return self._keep(_TRANSPOSE, self._transpose).pattern is None

    def _turned(self) -> tuple[NDArray[Any], Any]:
        """:meth:`_turned_order`, and an array of the transposed pattern without values and scales, or None if it is symmetric."""
        return self._turned_order(), self._keep(_TRANSPOSE, self._transpose).pattern

    def _turned_order(self) -> NDArray[Any]:
        """For each entry of the transpose, the number of that entry in this array."""
        return self._keep(_ORDER, self._find_order)

    def _find_order(self) -> NDArray[Any]:
        build = backends.family(self._device, "sparse.build")
        starts, rows, order = build.transpose_csr(*self._pattern, self._shape)
        if _TRANSPOSE.get(self._prepared) is None:
            _TRANSPOSE.keep(self._prepared, self._transpose_of(Pattern(starts, rows, self._shape[::-1])))
        return order

    def _transpose(self, moved: list[Any] | None = None) -> Transpose:
        """The transpose of the pattern; transposed values are appended to `moved`, and on a GPU the order is cached too."""
        values = self._data if moved is not None else None
        turned, order = sparse_convert.transposed(*self._pattern, values, self._shape)
        if order is not None:
            _ORDER.keep(self._prepared, order)
        if moved is not None and values is not None:
            moved.append(turned.values)
        return self._transpose_of(turned)

    def _transpose_of(self, turned: Pattern) -> Transpose:
        same = turned.indices is self._pattern[1]
        return Transpose(None if same else self._of_pattern(replace(turned, values=None, family=self._family)))

    def transpose(self, axes: tuple[int, int] | None = None, copy: bool = False) -> Self:
        """:attr:`T`, or a copy of it; `axes` must be None or (1, 0)."""
        if axes is not None and tuple(axes) != (1, 0):
            raise ValueError(f"transpose: axes must be (1, 0), the only transpose there is, got {axes}")
        return self.T.copy() if copy else self.T

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        become(made, self)
        return made

    # -- operators --------------------------------------------------------------------------------------------------
    def __rmatmul__(self, other: Any) -> Any:
        if is_operand(other):
            with self._working():
                return sparse_product(self, other, swap=True)
        # x @ A = (A^T @ x^T)^T
        theirs, family = interop.as_array(other, "matmul", "the left operand")
        if theirs.ndim not in (1, 2):
            raise ShapeError(f"matmul: the left operand has shape {theirs.shape}, not 1 or 2 dimensions; reshape it")
        if (there := interop.device_of(theirs)) != self.device:
            raise DeviceError(
                f"matmul: the left operand is on {there} but the right one on {self.device}; move one of them"
            )
        family = interop.common_family([family, self._family])
        with interop.working_on(self.device, family):
            turned = self.T
            # Values are passed apart from the pattern: they are a new array in every call, but what is prepared for the pattern is reused.
            columns, values = interop.contiguous(theirs.T), values_and_scales(turned)[0]
            product = operators.spmm(with_fields(turned, data=None), columns, values=values).T
            # Libraries on the CPU can adopt a transposed view; those on a GPU may not.
            return interop.from_array(product if there == "cpu" else interop.contiguous(product), family, "matmul")
