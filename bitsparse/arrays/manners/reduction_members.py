"""The members of sparse arrays that reduce: sums, extremes, counts and diagonals of :class:`scipy.sparse.csr_array`."""

from __future__ import annotations

from typing import Any

from bitsparse import interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.inside import family_of
from bitsparse.arrays.manners import reductions


class ReductionMembers(BitArray):
    """What a sparse array says about all its elements, its rows or its columns."""

    __slots__ = ()

    def sum(self: Any, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Sum of all elements, of columns (axis 0) or of rows (axis 1).

        Booleans, patterns and integers are summed in 64 bits, floats in their dtype (16-bit ones in float32).

        Examples
        --------
        >>> a = bs.FRDC(np.array([[0, 1, 1], [0, 0, 0]]))
        >>> a.sum(axis=1), int(a.sum())
        (array([2, 0]), 2)
        """
        with self._working():
            return reductions.total(self, axis, dtype, out, keepdims)

    def mean(self: Any, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Mean of all elements, of columns (axis 0) or of rows (axis 1), elements that are not stored included; float64 of integers."""
        with self._working():
            return reductions.mean(self, axis, dtype, out, keepdims)

    def max(self: Any, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False) -> Any:
        """Largest element; along an axis SciPy's array of one dimension, with ``keepdims`` an array like this one.

        With ``explicit`` only stored entries count.
        """
        with self._working():
            return reductions.extreme(self, "max", axis, out, explicit, keepdims)

    def min(self: Any, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False) -> Any:
        """Smallest element; see :meth:`max`."""
        with self._working():
            return reductions.extreme(self, "min", axis, out, explicit, keepdims)

    def nanmax(self: Any, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False) -> Any:
        """Largest element that is not NaN; see :meth:`max`."""
        with self._working():
            return reductions.extreme(self, "nanmax", axis, out, explicit, keepdims)

    def nanmin(self: Any, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False) -> Any:
        """Smallest element that is not NaN; see :meth:`max`."""
        with self._working():
            return reductions.extreme(self, "nanmin", axis, out, explicit, keepdims)

    def argmax(self: Any, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False) -> Any:
        """Where the first largest element is, of all (counted row by row) or along an axis; on the CPU."""
        with self._working():
            return reductions.place(self, "argmax", axis, out, explicit, keepdims)

    def argmin(self: Any, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False) -> Any:
        """Where the first smallest element is; see :meth:`argmax`."""
        with self._working():
            return reductions.place(self, "argmin", axis, out, explicit, keepdims)

    def count_nonzero(self: Any, axis: Any = None) -> Any:
        """Number of elements that are not zero, in all, by column (axis 0) or by row (axis 1)."""
        with self._working():
            return reductions.counts(self, "count_nonzero", axis, False)

    def getnnz(self: Any, axis: Any = None) -> Any:
        """Number of stored entries, in all, by column (axis 0) or by row (axis 1)."""
        with self._working():
            return reductions.counts(self, "getnnz", axis, True)

    def nonzero(self: Any) -> tuple[Any, Any]:
        """Rows and columns of the elements that are not zero."""
        with self._working():
            return reductions.nonzero(self)

    def diagonal(self: Any, k: int = 0) -> Any:
        """Elements ``(i, i + k)``.

        Examples
        --------
        >>> bs.TCTiledCSR(np.array([[1, 2], [0, 3]])).diagonal()
        array([1, 3])
        """
        with self._working():
            return interop.from_array(reductions.diagonal(self, k), family_of(self), "diagonal")

    def trace(self: Any, offset: int = 0) -> Any:
        """Sum of a diagonal."""
        with self._working():
            return reductions.trace(self, offset)
