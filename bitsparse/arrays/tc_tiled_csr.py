"""TCTiledCSR: CSR with an index for tensor cores that condenses the columns of each window of rows (TC-GNN section 4.1)."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_convert, sparse_forms
from bitsparse.arrays.base import read_only
from bitsparse.arrays.indices import devices_of
from bitsparse.arrays.sparse_base import TRANSLATIONS, SparseArray
from bitsparse.arrays.sparse_forms import Wanted
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.backends.params import Translation
from bitsparse.errors import DTypeError

#: Largest window: the translation marks the rows of a window in a 16-bit mask.
_TALLEST = 16


class TCTiledCSR(SparseArray):
    """CSR array that can also be read in windows of rows, with each window's columns condensed to those that occur in it.

    The index that condenses the columns is built once: when a kernel or one of the members below first needs it, or immediately by
    :func:`bitsparse.graph.translate`.

    Parameters
    ----------
    arg : array_like, sparse array, BitTensor, tuple
        The data, in the forms of :mod:`scipy.sparse`: a sparse array; ``(data, (row, col))`` or ``(data, indices, indptr)`` with `shape`,
        where data may be None (every entry is 1) or of shape (nnz, H); a shape tuple ``(M, N)`` for zeros; a dense array; a BitTensor,
        FRDC or TCTiledCSR. Repeated entries are summed as in SciPy (entries without values are merged); explicit zeros are kept.
        Data on a GPU (CuPy, PyTorch, JAX, :mod:`cupyx.scipy.sparse`) makes an array on that GPU.
    window : int, default 16
        Rows per window, 1..16.
    shape : tuple of int, optional
        Shape of the sparse forms.
    pattern : bool, default False
        Drop the values: every stored entry becomes 1. Booleans that are all true always become a pattern.
    row_scale, col_scale : array_like of float, optional
        float32 factors, shapes (m,) and (n,): the array is ``diag(row_scale) A diag(col_scale)``. By default the scales of `arg`.
    index_dtype : {int32, int64}, optional
        By default int64 if a size or the number of entries reaches 2**31, else int32.

    Attributes
    ----------
    indptr, indices : ndarray, shapes (m + 1,) and (nnz,)
        The CSR array: columns ascend in every row. Arrays that were passed in this form are shared, not copied.
    data : ndarray, shape (nnz,) or (nnz, H), or None
        Values in the order of `indices`. Data that was passed in this order is shared, not copied.
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
    All component arrays are canonical: equal input gives equal arrays. `data` may be changed in place, since products read it anew in every
    call on every device. The other arrays must not change, because cached results were derived from them.

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
    format = "csr"
    setting_names = ("shape", "window", "had_duplicates")
    holds_bits = False

    __slots__ = ("_window",)

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
        made = sparse_forms.read("TCTiledCSR", arg, shape, Wanted(index_dtype, False, pattern))
        height = getattr(arg, "window", 16) if window is None and isinstance(arg, TCTiledCSR) else window
        self._window = _check.integer("TCTiledCSR", "window", 16 if height is None else height, 1, _TALLEST)
        device = interop.device_of(made.indptr)
        with interop.working_on(device, made.family):
            self._adopt(made, row_scale, col_scale)
            self._indptr, self._indices = _shared(made.indptr), _shared(made.indices)
            self._data = _shared(made.values) if made.values is not None and not pattern else None

    # -- other ways in ----------------------------------------------------------------------------------------------
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
        had_duplicates: bool = False,
    ) -> Self:
        """Adopt the arrays of a CSR array (see the class), after checking that they are canonical.

        Raises
        ------
        ValueError
            The arrays are damaged, or columns do not ascend in every row; :meth:`from_csr_arrays` sorts them.
        """
        made = sparse_forms.from_csr("TCTiledCSR.from_arrays", indptr, indices, shape, data, Wanted(adopt=True))
        made = replace(made, had_duplicates=bool(had_duplicates))
        return cls(made, window=window, row_scale=row_scale, col_scale=col_scale)

    # -- components -------------------------------------------------------------------------------------------------
    window: Final[int] = read_only("_window", "Rows per window.")
    indptr: Final[NDArray[Any]] = read_only("_indptr", "Where each row starts (see the class).")
    indices: Final[NDArray[Any]] = read_only("_indices", "Column of each entry.")
    data: Final[NDArray[Any] | None] = read_only(
        "_data", "Values in the order of the CSR array, or None for a pattern; see the class for changing them."
    )

    @property
    def translation(self) -> Translation:
        """The index of windows for kernels: `cols_indptr`, `cols` and `edge_col`; built on first use and cached."""
        return self._keep(TRANSLATIONS, self._translate, self._window)

    def _translate(self) -> Translation:
        build = backends.family(self.device, "sparse.build")
        made = build.translate(self._indptr, self._indices, self._shape, self._window, checked=True)
        return Translation(self._window, *made)

    cols_indptr: Final[NDArray[Any]] = read_only(
        "translation.cols_indptr", "Where each window's columns start (see the class)."
    )
    cols: Final[NDArray[Any]] = read_only("translation.cols", "The sorted unique columns of each window.")
    edge_col: Final[NDArray[Any]] = read_only(
        "translation.edge_col", "Position of each entry's column among its window's columns."
    )

    @property
    def nnz(self) -> int:
        """Number of stored entries, explicit zeros included (as in SciPy)."""
        return int(self._indices.size)

    @property
    def windows(self) -> int:
        """Number of windows."""
        return -(-self._shape[0] // self._window)

    def tile_count(self, width: int = 8) -> int:
        """Number of tiles of `window` x `width` that the condensed columns fill, which instructions of that shape have to visit.

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
            In the order of `indices`; they are copied. None gives a pattern.

        Raises
        ------
        ValueError
            The array was made from data with repeated entries, so values in the order of that data do not fit.

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

    def astype(self, dtype: Any, casting: str = "unsafe", copy: bool = True) -> Self:
        """The same array with values of `dtype`, as in :meth:`numpy.ndarray.astype`; the values of a pattern are ones.

        Scales are kept beside floats, and multiplied into integers and booleans before these are rounded. With ``copy=False`` the result is
        this array itself if it has that dtype already.
        """
        wanted = _check.dtype("astype", dtype)
        _check.choice("astype", "casting", casting, ("no", "equiv", "safe", "same_kind", "unsafe"))
        if casting != "unsafe" and not np.can_cast(self.dtype, wanted, casting):  # type: ignore[arg-type]
            raise DTypeError(
                f"astype: {self.dtype} does not become {wanted} with casting={casting!r}; pass casting='unsafe'"
            )
        if wanted.kind in "biu" and (self._row_scale is not None or self._col_scale is not None):
            with self._working():
                values = sparse_convert.scaled(self, "astype").values
                return self._with(data=interop.converted(values, wanted), row_scale=None, col_scale=None)
        if not copy and self._data is not None and self._data.dtype == wanted:
            return self
        with self._working():
            ones = interop.namespace(self._indices).ones
            data = ones(self.nnz, np.float32) if self._data is None else self._data
            return self._with(data=interop.converted(data, wanted, copy=True))

    # -- hooks of the base class ------------------------------------------------------------------------------------
    _pattern = property(attrgetter("_indptr", "_indices"))

    def _kept_arrays(self) -> tuple[NDArray[Any], ...]:
        kept = TRANSLATIONS.get(self._prepared, self._window)
        return () if kept is None else (kept.cols_indptr, kept.cols, kept.edge_col)

    def _of_pattern(self, pattern: Pattern) -> Self:
        return type(self)(pattern, window=self._window)

    def _values_text(self) -> str:
        if self._data is None:
            return "pattern"
        return str(self._data.dtype) + (f" x {self._data.shape[1]}" if self._data.ndim == 2 else "")

    def _rows(self) -> dict[str, object]:
        columns = "not built yet"
        if self._kept_arrays():
            share = self.nnz / (self.cols.size * self._window) if self.cols.size else 0.0
            columns = f"{self.cols.size:,} (filled to {share:.1%})"
        windows = f"{self.windows:,} of {self._window} rows"
        return super()._rows() | {"values": self._values_text(), "windows": windows, "condensed columns": columns}

    def _details(self) -> str:
        built = " translated" if self._kept_arrays() else ""
        return f"nnz={self.nnz} {self._values_text()} window={self._window}{built}"


def _shared(values: NDArray[Any]) -> NDArray[Any]:
    """Values as kernels need them: in C order, and on a GPU aligned for vector loads; copied only if they are not so already."""
    made: NDArray[Any] = interop.contiguous(values)
    return made if interop.namespace(made) is np else interop.aligned(made)
