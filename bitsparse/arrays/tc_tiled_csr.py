"""TCTiledCSR: CSR with an index for tensor cores, the columns condensed in windows of rows (TC-GNN section 4.1)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_forms
from bitsparse.arrays.indices import contiguous, converted, devices_of, matrix_shape
from bitsparse.arrays.sparse_adopt import adopt_csr
from bitsparse.arrays.sparse_base import TRANSLATIONS, SparseArray
from bitsparse.arrays.sparse_forms import Pattern
from bitsparse.backends.params import Translation

__all__ = ["TCTiledCSR"]

#: A row in its window is one bit of a 16-bit mask while translating.
_TALLEST = 16


class TCTiledCSR(SparseArray):
    """CSR array that can also be read in windows of rows, each window's columns condensed to those that occur in it.

    The index that condenses the columns is built once: when a kernel or one of the members below first wants it, or at once by
    :func:`bitsparse.graph.translate`.

    Parameters
    ----------
    arg : array_like, sparse array, BitTensor, tuple
        The data, in the forms of :mod:`scipy.sparse`: a sparse array; ``(data, (row, col))`` or ``(data, indices, indptr)`` with `shape`,
        where data may be None (every entry is 1) or of shape (nnz, H); a shape tuple ``(M, N)`` for zeros; a dense array; a BitTensor,
        FRDC or TCTiledCSR. Repeated entries are summed as SciPy does (entries without values are merged); explicit zeros are kept.
        Data in a GPU's memory (CuPy, PyTorch, JAX, :mod:`cupyx.scipy.sparse`) makes an array there.
    window : int, default 16
        Rows per window, 1..16.
    shape : tuple of int, optional
        Shape of the sparse forms.
    pattern : bool, default False
        Drop the values: every stored entry becomes 1. Booleans that are all true are kept as a pattern anyway.
    row_scale, col_scale : array_like of float, optional
        float32 factors, shapes (m,) and (n,): the array is ``diag(row_scale) A diag(col_scale)``. By default those of `arg`.
    index_dtype : {int32, int64}, optional
        By default int64 if a size or the number of entries reaches 2**31, else int32.

    Attributes
    ----------
    indptr, indices : ndarray, shapes (m + 1,) and (nnz,)
        The CSR array: columns ascend in every row. What came in this form is shared, not copied.
    data : ndarray, shape (nnz,) or (nnz, H), or None
        Values in the order of `indices`. Data that came in this order is shared, not copied.
    cols_indptr : ndarray, shape (windows + 1,)
        Where each window's columns start in `cols`.
    cols : ndarray
        The sorted unique columns of each window.
    edge_col : ndarray of uint8, uint16 or int32, shape (nnz,)
        Position of each entry's column among its window's `cols`, in the order of `indices`, in the smallest dtype that holds them all.

    Raises
    ------
    ValueError
        The components contradict each other, or an index is out of range.
    ShapeError, DTypeError, DeviceError
        Not two dimensions, not numbers, or on another device.

    Notes
    -----
    All component arrays are canonical: equal input gives equal arrays. `data` may be changed in place: products read it where it lies, in
    every call and on every device. The other arrays must stay as they are, as more is kept that was made from them.

    Examples
    --------
    >>> import numpy as np
    >>> import bitsparse as bs
    >>> a = bs.TCTiledCSR(np.array([[0, 0, 5], [7, 0, 2]]))
    >>> a.indptr, a.indices, a.data
    (array([0, 1, 3], dtype=int32), array([2, 0, 2], dtype=int32), array([5, 7, 2]))
    >>> a.cols, a.edge_col
    (array([0, 2], dtype=int32), array([1, 0, 1], dtype=uint8))
    >>> a.toarray()
    array([[0, 0, 5],
           [7, 0, 2]])
    """

    #: The component arrays, as `from_arrays` takes them.
    component_names = ("indptr", "indices", "data")

    __slots__ = ("_data", "_indices", "_indptr", "_window")

    _indptr: NDArray[Any]
    _indices: NDArray[Any]
    _data: NDArray[Any] | None
    _window: int

    def __init__(
        self,
        arg: Any,
        *,
        window: int | None = None,
        shape: tuple[int, int] | None = None,
        pattern: bool = False,
        row_scale: Any = None,
        col_scale: Any = None,
        index_dtype: Any = None,
    ) -> None:
        made = sparse_forms.read("TCTiledCSR", arg, shape, index=index_dtype, binary=False, pattern=pattern)
        height = getattr(arg, "window", 16) if window is None and isinstance(arg, TCTiledCSR) else window
        self._window = _check.integer("TCTiledCSR", "window", 16 if height is None else height, 1, _TALLEST)
        device = interop.device_of(made.indptr)
        with interop.working_on(device, made.family):
            self._adopt(made, row_scale, col_scale)
            self._indptr, self._indices = _shared(made.indptr), _shared(made.indices)
            self._data = _shared(made.values) if made.values is not None and not pattern else None

    # -- other ways in ----------------------------------------------------------------------------------------------
    @classmethod
    def from_csr_arrays(
        cls,
        indptr: Any,
        indices: Any,
        shape: tuple[int, int],
        values: Any = None,
        *,
        window: int = 16,
        row_scale: Any = None,
        col_scale: Any = None,
        index_dtype: Any = None,
    ) -> Self:
        """A CSR array; without values it is a pattern. Arrays that are canonical are shared, not copied.

        Examples
        --------
        >>> bs.TCTiledCSR.from_csr_arrays([0, 1, 2], [1, 0], (2, 2)).toarray()
        array([[0, 1],
               [1, 0]], dtype=uint8)
        """
        made = sparse_forms.from_csr("from_csr_arrays", indptr, indices, shape, values, index=index_dtype)
        return cls(made, window=window, row_scale=row_scale, col_scale=col_scale)

    @classmethod
    def from_edges(
        cls,
        rows: Any,
        cols: Any,
        shape: tuple[int, int] | int | None = None,
        *,
        values: Any = None,
        symmetric: bool = False,
        window: int = 16,
        row_scale: Any = None,
        col_scale: Any = None,
        index_dtype: Any = None,
    ) -> Self:
        """An edge list: element ``(rows[e], cols[e])`` for every edge.

        Parameters
        ----------
        rows, cols : array_like of int, shape (E,)
            For ``A @ X`` to gather at row i what node j has, i is the row and j the column.
        shape : tuple of int or int, optional
            By default square, up to the largest index.
        values : array_like, shape (E,) or (E, H), optional
            Summed over repeated edges; without values repeated edges are merged.
        symmetric : bool, default False
            Add every edge reversed.
        window, row_scale, col_scale, index_dtype
            As in the constructor.

        Examples
        --------
        >>> bs.TCTiledCSR.from_edges([0, 1, 1], [2, 0, 0], symmetric=True).toarray()
        array([[0, 1, 1],
               [1, 0, 0],
               [1, 0, 0]], dtype=uint8)
        """
        made = sparse_forms.from_edges("from_edges", rows, cols, shape, values, symmetric, index_dtype)
        return cls(made, window=window, row_scale=row_scale, col_scale=col_scale)

    @classmethod
    def from_arrays(
        cls,
        indptr: Any,
        indices: Any,
        shape: tuple[int, int],
        *,
        window: int = 16,
        data: Any = None,
        row_scale: Any = None,
        col_scale: Any = None,
    ) -> Self:
        """Adopt the arrays of a canonical CSR array (see the class), after checking that they are.

        Raises
        ------
        ValueError
            They are damaged, or columns do not ascend in every row; :meth:`from_csr_arrays` sorts them.
        """
        function = "TCTiledCSR.from_arrays"
        sizes = matrix_shape(function, shape)
        height = _check.integer(function, "window", window, 1, _TALLEST)
        with sparse_forms.working_on((indptr, indices, data)):
            (starts, columns), family = adopt_csr(function, indptr, indices, sizes)
            values, _ = sparse_forms.edge_values(function, data, columns.size)
            _check.same_device(function, devices_of(starts, values))
        made = Pattern(starts, columns, sizes, values, family=family)
        return cls(made, window=height, row_scale=row_scale, col_scale=col_scale)

    # -- components -------------------------------------------------------------------------------------------------
    @property
    def window(self) -> int:
        """Rows per window."""
        return self._window

    @property
    def indptr(self) -> NDArray[Any]:
        """Where each row starts (see the class)."""
        return self._indptr

    @property
    def indices(self) -> NDArray[Any]:
        """Column of each entry."""
        return self._indices

    @property
    def translation(self) -> Translation:
        """The index of windows as kernels load it: `cols_indptr`, `cols` and `edge_col`; built when first asked for, and kept."""
        build = backends.family(self.device, "sparse.build")
        return self._keep(
            TRANSLATIONS,
            lambda: Translation(self._window, *build.translate(self._indptr, self._indices, self._shape, self._window)),
            self._window,
        )

    @property
    def cols_indptr(self) -> NDArray[Any]:
        """Where each window's columns start (see the class)."""
        starts: NDArray[Any] = self.translation.cols_indptr
        return starts

    @property
    def cols(self) -> NDArray[Any]:
        """The sorted unique columns of each window."""
        columns: NDArray[Any] = self.translation.cols
        return columns

    @property
    def edge_col(self) -> NDArray[Any]:
        """Position of each entry's column among its window's columns."""
        positions: NDArray[Any] = self.translation.edge_col
        return positions

    @property
    def data(self) -> NDArray[Any] | None:
        """Values in the order of the CSR array, or None for a pattern; see the class for changing them."""
        return self._data

    @property
    def nnz(self) -> int:
        """Number of stored entries, explicit zeros included (as in SciPy)."""
        return int(self._indices.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the values (uint8 for a pattern); with scales float32, or float64 for float64 values."""
        return self.scaled_dtype(np.dtype(np.uint8) if self._data is None else self._data.dtype)

    @property
    def windows(self) -> int:
        """Number of windows."""
        return -(-self._shape[0] // self._window)

    def tile_count(self, width: int = 8) -> int:
        """Tiles of `window` x `width` that the condensed columns fill: those an instruction of that shape has to visit.

        Examples
        --------
        >>> bs.TCTiledCSR(np.ones((17, 9), dtype=int)).tile_count(8)
        4
        """
        width = _check.integer("tile_count", "width", width, 1)
        with self._working():
            starts = self.cols_indptr.astype(np.int64)
            return int((-((starts[:-1] - starts[1:]) // width)).sum())

    # -- values -----------------------------------------------------------------------------------------------------
    def with_values(self, values: Any) -> Self:
        """The same pattern with other values.

        Parameters
        ----------
        values : array_like, shape (nnz,) or (nnz, H), or None
            In the order of `indices`, copied; None leaves a pattern.

        Raises
        ------
        ValueError
            The array was made from data with repeated entries, to which values in their order do not fit.

        Examples
        --------
        >>> a = bs.TCTiledCSR(np.array([[0, 1], [1, 1]]), pattern=True)
        >>> a.with_values([0.5, 2.0, 3.0]).toarray()
        array([[0. , 0.5],
               [2. , 3. ]])
        """
        if values is not None and self.had_duplicates:
            raise ValueError(
                f"with_values: the data held entries twice, which were merged into {self.nnz}, so that values in its order do not "
                f"fit; sum the values first and build from data without repeated entries"
            )
        with sparse_forms.working_on((values, self)):
            array, family = sparse_forms.edge_values("with_values", values, self.nnz)
            _check.same_device("with_values", devices_of(self._indices, array))
            data = None if array is None else _shared(array.copy())
        return self._with(data=data, family=interop.common_family([self._family, family]))

    def astype(self, dtype: Any) -> Self:
        """The same array with values of `dtype`; a pattern gets ones."""
        wanted = _check.dtype("astype", dtype)
        with self._working():
            ones = interop.namespace(self._indices).ones
            data = ones(self.nnz, np.float32) if self._data is None else self._data
            return self._with(data=converted(data, wanted))

    def _csr_values(self) -> NDArray[Any] | None:
        return self._data

    # -- what the base class asks -----------------------------------------------------------------------------------
    def _pattern(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._indptr, self._indices

    def _kept_arrays(self) -> tuple[NDArray[Any], ...]:
        kept = TRANSLATIONS.get(self._prepared, self._window)
        return () if kept is None else (kept.cols_indptr, kept.cols, kept.edge_col)

    def _of_pattern(self, pattern: Pattern) -> Self:
        return type(self)(pattern, window=self._window)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of :meth:`from_arrays` besides the components and scales."""
        return {"shape": self._shape, "window": self._window}

    def _some_index(self) -> NDArray[Any]:
        return self._indices

    def _csr_values_nbytes(self) -> int:
        return 0 if self._data is None else self._data.nbytes

    def _values_text(self) -> str:
        if self._data is None:
            return "pattern"
        return str(self._data.dtype) + (f" x {self._data.shape[1]}" if self._data.ndim == 2 else "")

    def _describe(self) -> dict[str, str]:
        rows = {"values": self._values_text(), "windows": f"{self.windows:,} of {self._window} rows"}
        if not self._kept_arrays():
            return rows | {"condensed columns": "not built yet"}
        share = self.nnz / (self.cols.size * self._window) if self.cols.size else 0.0
        return rows | {"condensed columns": f"{self.cols.size:,} (filled to {share:.1%})"}

    def __repr__(self) -> str:
        built = " translated" if self._kept_arrays() else ""
        return self._repr(f"{self._values_text()} window={self._window}{built}")


def _shared(values: NDArray[Any]) -> NDArray[Any]:
    """Values as kernels load them: in C order, and on a GPU at an address that suits vectors; themselves if they are."""
    made: NDArray[Any] = contiguous(values)
    return made if interop.namespace(made) is np else interop.aligned(made)
