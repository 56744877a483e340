"""FRDC: a sparse matrix of bits in 4 x 4 blocks (fine-representing dynamic-coarsening, BitGNN section 3.2)."""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_forms, sparse_merge
from bitsparse.arrays.base import read_only
from bitsparse.arrays.indices import devices_of, index_array, index_dtype, matrix_shape, row_range
from bitsparse.arrays.sparse_base import CSR_FORM, SparseArray
from bitsparse.arrays.sparse_forms import Wanted
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError

#: Rows and columns of a block.
_BLOCK = 4


class FRDC(SparseArray):
    """Sparse array of bits: the non-empty 4 x 4 blocks of each block row, 16 bits each.

    Parameters
    ----------
    arg : array_like, sparse array, BitTensor, tuple
        The data, in any form that :class:`bitsparse.TCTiledCSR` takes. Values must be 0 or 1; repeated entries are or-ed and explicit
        zeros are dropped.
    shape : tuple of int, optional
        Shape of the sparse forms.
    pattern : bool, default False
        Accept any values and store only which ones are not zero.
    row_scale, col_scale : array_like of float, optional
        float32 factors, shapes (m,) and (n,): the array is ``diag(row_scale) A diag(col_scale)``, the factorised weights of BitGNN. By
        default the scales of `arg`.
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
        A value is neither 0 nor 1, the components contradict each other, or an index is out of range.
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
    format = "frdc"
    setting_names = ("shape",)
    holds_bits = True

    __slots__ = ("_nnz", "_tiles")

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
        entries = sparse_forms.read("FRDC", arg, shape, Wanted(index_dtype, True, pattern, blocks=True))
        device = interop.device_of(entries.indptr)
        with interop.working_on(device, entries.family):
            entries = sparse_merge.bits_only("FRDC", entries, pattern)
            self._adopt(entries, row_scale, col_scale)
            self.had_duplicates = False
            blocks = entries.blocks
            if blocks is None:
                blocks = backends.family(device, "sparse.build").frdc(entries.indptr, entries.indices, entries.shape)
            self._indptr, self._indices, self._tiles = blocks
        self._nnz = int(entries.indices.size)

    # -- other ways in ----------------------------------------------------------------------------------------------
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
            The arrays are not the canonical blocks of any pattern of this shape.

        Examples
        --------
        >>> bs.FRDC.from_arrays([0, 1], [0], np.array([0b0010_0001], dtype=np.uint16), (2, 2)).toarray()
        array([[1, 0],
               [0, 1]], dtype=uint8)
        """
        function = "FRDC.from_arrays"
        sizes = matrix_shape(function, shape)
        with sparse_forms.working_on((indptr, indices, tiles)):
            starts, blocks = index_array(function, "indptr", indptr), index_array(function, "indices", indices)
            bits, family = interop.as_array(tiles, function, "tiles")
            device, space = _check.same_device(function, devices_of(starts, blocks, bits)), interop.namespace(bits)
            if bits.dtype != np.uint16 or bits.ndim != 1:
                raise DTypeError(
                    f"{function}: tiles have dtype {bits.dtype} and shape {bits.shape}, but uint16 of one dimension is needed"
                )
            nnz = int(space.bitwise_count(bits).sum(dtype=np.int64))
            dtype = index_dtype(function, sizes, nnz, np.result_type(starts.dtype, blocks.dtype))
            starts, blocks = (space.ascontiguousarray(array, dtype=dtype) for array in (starts, blocks))
            bits = space.ascontiguousarray(bits)
            try:
                # Its result is not needed: the conversion checks that the blocks are canonical.
                backends.family(device, "sparse.build").frdc_to_csr(starts, blocks, bits, sizes)
            except ValueError as error:
                raise ValueError(f"{function}: {error}") from None
            self = object.__new__(cls)
            self._adopt(Pattern(starts, blocks, sizes, family=family), row_scale, col_scale)
        self._indptr, self._indices, self._tiles, self._nnz = starts, blocks, bits, nnz
        return self

    # -- components -------------------------------------------------------------------------------------------------
    indptr: Final[NDArray[Any]] = read_only("_indptr", "Where each block row starts (see the class).")
    indices: Final[NDArray[Any]] = read_only("_indices", "Block columns.")
    tiles: Final[NDArray[np.uint16]] = read_only("_tiles", "Bits of the blocks.")
    nnz: Final[int] = read_only("_nnz", "Number of set bits.")

    def astype(self, dtype: Any, casting: str = "unsafe", copy: bool = True) -> TCTiledCSR:
        """The same array as a :class:`bitsparse.TCTiledCSR` with values of `dtype`, since an FRDC stores no values."""
        return TCTiledCSR(self, index_dtype=self.index_dtype).astype(dtype, casting, copy)

    # -- hooks of the base class ------------------------------------------------------------------------------------
    @property
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

    def _of_result(self, result: Pattern) -> SparseArray:
        is_bits = result.values is None or result.values.dtype == np.bool_
        return self._of_pattern(result) if is_bits else TCTiledCSR(result)

    def _row_blocks(self, start: int, stop: int) -> Self | None:
        if start % _BLOCK or (stop % _BLOCK and stop < self._shape[0]):
            return None
        starts, first, last = row_range(self._indptr, start // _BLOCK, -(-stop // _BLOCK))
        tiles = self._tiles[first:last]
        count = int(interop.namespace(tiles).bitwise_count(tiles).sum(dtype=np.int64))
        arrays = {"indptr": starts, "indices": self._indices[first:last], "tiles": tiles, "nnz": count}
        return self._with(shape=(stop - start, self._shape[1]), prepared={}, **arrays)

    def _rows(self) -> dict[str, object]:
        blocks = self._tiles.size
        share = self._nnz / (blocks * _BLOCK * _BLOCK) if blocks else 0.0
        return super()._rows() | {"values": "bits", "4 x 4 blocks": f"{blocks:,} (filled to {share:.1%})"}

    def _details(self) -> str:
        return f"nnz={self._nnz} blocks={self._tiles.size}"
