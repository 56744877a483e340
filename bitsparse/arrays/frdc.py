"""FRDC: a sparse matrix of bits in 4 x 4 blocks (fine-representing dynamic-coarsening, BitGNN section 3.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays import sparse_forms
from bitsparse.arrays.indices import matrix_shape
from bitsparse.arrays.sparse_adopt import adopt_blocks
from bitsparse.arrays.sparse_base import CSR_FORM, SparseArray
from bitsparse.arrays.sparse_forms import Pattern
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR

__all__ = ["FRDC"]

_BLOCK = 4


class FRDC(SparseArray):
    """Sparse array of bits: the non-empty 4 x 4 blocks of each block row, 16 bits each.

    Parameters
    ----------
    arg : array_like, sparse array, BitTensor, tuple
        The data, in the forms that :class:`bitsparse.TCTiledCSR` takes. Values must be 0 or 1; repeated entries are or-ed and explicit
        zeros dropped.
    shape : tuple of int, optional
        Shape of the sparse forms.
    pattern : bool, default False
        Accept any values and keep which are not zero.
    row_scale, col_scale : array_like of float, optional
        float32 factors, shapes (m,) and (n,): the array is ``diag(row_scale) A diag(col_scale)``, the factorised weights of BitGNN. By
        default those of `arg`.
    index_dtype : {int32, int64}, optional
        By default int64 if a size or the number of entries reaches 2**31, else int32.

    Attributes
    ----------
    indptr : ndarray, shape (ceil(m / 4) + 1,)
        Where each block row starts.
    indices : ndarray
        Block columns, ascending in each block row.
    tiles : ndarray of uint16
        Bit ``4 r + c`` of a tile is element (r, c) of its block. No tile is empty, and bits beyond the shape are zero.

    Raises
    ------
    ValueError
        Values are neither 0 nor 1, the components contradict each other, or an index is out of range.
    ShapeError, DTypeError, DeviceError
        Not two dimensions, not numbers, or on another device.

    Notes
    -----
    All component arrays are canonical: equal input gives equal arrays. Treat them as read-only.

    Examples
    --------
    >>> import numpy as np
    >>> import bitsparse as bs
    >>> a = bs.FRDC(np.eye(5, dtype=int))
    >>> a.indptr, a.indices, a.tiles
    (array([0, 1, 2], dtype=int32), array([0, 1], dtype=int32), array([33825,     1], dtype=uint16))
    """

    #: The component arrays, as `from_arrays` takes them.
    component_names = ("indptr", "indices", "tiles")

    __slots__ = ("_indices", "_indptr", "_nnz", "_tiles")

    _indptr: NDArray[Any]
    _indices: NDArray[Any]
    _tiles: NDArray[np.uint16]
    _nnz: int

    def __init__(
        self,
        arg: Any,
        *,
        shape: tuple[int, int] | None = None,
        pattern: bool = False,
        row_scale: Any = None,
        col_scale: Any = None,
        index_dtype: Any = None,
    ) -> None:
        made = sparse_forms.read("FRDC", arg, shape, index=index_dtype, binary=True, pattern=pattern)
        device = interop.device_of(made.indptr)
        with interop.working_on(device, made.family):
            made = replace(sparse_forms.bits_only("FRDC", made, pattern), had_duplicates=False)
            self._adopt(made, row_scale, col_scale)
            self._indptr, self._indices, self._tiles = backends.family(device, "sparse.build").frdc(
                made.indptr, made.indices, made.shape
            )
        self._nnz = int(made.indices.size)

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
        row_scale: Any = None,
        col_scale: Any = None,
        index_dtype: Any = None,
    ) -> Self:
        """The bits of a CSR array; values, if there are any, as in the constructor.

        Examples
        --------
        >>> bs.FRDC.from_csr_arrays([0, 1, 2], [1, 0], (2, 2)).toarray()
        array([[0, 1],
               [1, 0]], dtype=uint8)
        """
        made = sparse_forms.from_csr(
            "from_csr_arrays", indptr, indices, shape, values, index=index_dtype, binary=True, pattern=pattern
        )
        return cls(made, pattern=pattern, row_scale=row_scale, col_scale=col_scale)

    @classmethod
    def from_edges(
        cls,
        rows: Any,
        cols: Any,
        shape: tuple[int, int] | int | None = None,
        *,
        symmetric: bool = False,
        row_scale: Any = None,
        col_scale: Any = None,
        index_dtype: Any = None,
    ) -> Self:
        """An edge list: bit ``(rows[e], cols[e])`` for every edge; see :meth:`bitsparse.TCTiledCSR.from_edges`.

        Examples
        --------
        >>> bs.FRDC.from_edges([0, 1, 1], [2, 0, 0], (2, 3)).toarray()
        array([[0, 0, 1],
               [1, 0, 0]], dtype=uint8)
        """
        made = sparse_forms.from_edges("from_edges", rows, cols, shape, None, symmetric, index_dtype)
        return cls(made, row_scale=row_scale, col_scale=col_scale)

    @classmethod
    def from_arrays(
        cls,
        indptr: Any,
        indices: Any,
        tiles: Any,
        shape: tuple[int, int],
        *,
        row_scale: Any = None,
        col_scale: Any = None,
    ) -> Self:
        """Adopt component arrays (see the class), after checking that they are canonical.

        Raises
        ------
        ValueError
            They are not what the blocks of any pattern of this shape are.

        Examples
        --------
        >>> bs.FRDC.from_arrays([0, 1], [0], np.array([0b0010_0001], dtype=np.uint16), (2, 2)).toarray()
        array([[1, 0],
               [0, 1]], dtype=uint8)
        """
        function = "FRDC.from_arrays"
        sizes = matrix_shape(function, shape)
        with sparse_forms.working_on((indptr, indices, tiles)):
            adopted, family, nnz = adopt_blocks(function, indptr, indices, tiles, sizes)
            self = object.__new__(cls)
            self._adopt(Pattern(adopted[0], adopted[1], sizes, family=family), row_scale, col_scale)
        (self._indptr, self._indices, self._tiles), self._nnz = adopted, nnz
        return self

    # -- components -------------------------------------------------------------------------------------------------
    @property
    def indptr(self) -> NDArray[Any]:
        """Where each block row starts (see the class)."""
        return self._indptr

    @property
    def indices(self) -> NDArray[Any]:
        """Block columns."""
        return self._indices

    @property
    def tiles(self) -> NDArray[np.uint16]:
        """Bits of the blocks."""
        return self._tiles

    @property
    def nnz(self) -> int:
        """Number of set bits."""
        return self._nnz

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, or float32 with scales."""
        return self.scaled_dtype(np.dtype(np.uint8))

    def astype(self, dtype: Any) -> TCTiledCSR:
        """The same array as a :class:`bitsparse.TCTiledCSR` with values of `dtype`, since bits hold none."""
        return TCTiledCSR(self).astype(dtype)

    # -- what the base class asks -----------------------------------------------------------------------------------
    def _pattern(self) -> tuple[NDArray[Any], NDArray[Any]]:
        kept = CSR_FORM.get(self._prepared)
        if kept is None:
            build = backends.family(self.device, "sparse.build")
            kept = self._keep(
                CSR_FORM, lambda: build.frdc_to_csr(self._indptr, self._indices, self._tiles, self._shape)
            )
        return kept

    def _of_pattern(self, pattern: Pattern) -> Self:
        return type(self)(pattern)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of :meth:`from_arrays` besides the components and scales."""
        return {"shape": self._shape}

    def _some_index(self) -> NDArray[Any]:
        return self._indices

    def _describe(self) -> dict[str, str]:
        blocks = self._tiles.size
        share = self._nnz / (blocks * _BLOCK * _BLOCK) if blocks else 0.0
        return {"values": "bits", "4 x 4 blocks": f"{blocks:,} (filled to {share:.1%})"}

    def __repr__(self) -> str:
        return self._repr(f"blocks={self._tiles.size}")
