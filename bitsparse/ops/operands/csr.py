"""Canonical CSR arrays as all sparse functions take them, on the CPU or on a GPU, and the caller's edge order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays.indices import outside
from bitsparse.errors import ShapeError
from bitsparse.interop.kept import READY, Slot, Store

__all__ = ["SCHEDULE", "CSROperand", "fits_heads", "take_rows"]

Array = NDArray[Any]
#: How the kernels of a GPU walk a pattern.
SCHEDULE: Slot[Any] = Slot("schedule")
_LONGEST_ROW: Slot[int] = Slot("longest row")


@dataclass(frozen=True)
class CSROperand:
    """Canonical CSR arrays (columns ascending in each row, no duplicates) and what belongs to them.

    Attributes
    ----------
    indptr, indices : NumPy or CuPy array
        Of one dtype, int32 or int64. `indices` is None in the incidence matrix of rows and edges, whose edge e lies in column e.
    values : array (nnz,) or (nnz, heads) or None
        None for a pattern.
    row_scale, col_scale : array of float32 or None
    shape : tuple of int
    order : array or None
        ``order[e]`` is the caller's position of canonical edge e; None if the caller's order is canonical.
    summed : bool
        Duplicates were summed, so that there are no edges of the caller's any more.
    count : int or None
        Number of edges, where nothing else tells it without a look at the data.
    frozen : bool
        The values belong to this operand alone and do not change any more.
    prepared : Store
        What was prepared for this pattern on a GPU: that of a container which keeps it, else this operand's own.
    """

    indptr: Array
    indices: Array | None
    values: Array | None
    row_scale: NDArray[np.float32] | None
    col_scale: NDArray[np.float32] | None
    shape: tuple[int, int]
    order: Array | None = None
    summed: bool = False
    count: int | None = None
    frozen: bool = False
    prepared: Store = field(default_factory=dict, compare=False, repr=False)

    @property
    def nnz(self) -> int:
        """Number of edges."""
        if self.indices is not None:
            return int(self.indices.size)
        return int(self.indptr[-1]) if self.count is None else self.count

    @cached_property
    def device(self) -> str:
        """Where the arrays are."""
        return interop.device_of(self.indptr)

    @property
    def columns(self) -> Array:
        """Column of each edge, also where an edge is its own column."""
        if self.indices is not None:
            return self.indices
        made: Array = interop.namespace(self.indptr).arange(self.nnz, dtype=self.indptr.dtype)
        return made

    @property
    def longest_row(self) -> int:
        """Most edges in a row; on a GPU it is read back the first time."""
        longest_row = backends.family(self.device, "spmm.spmm").longest_row
        return _LONGEST_ROW.of(self.prepared, lambda: int(longest_row(self.indptr, self.nnz)))

    @property
    def ready(self) -> interop.Ready:
        """When what was prepared on another stream may be read on this one."""
        return READY.of(self.prepared, interop.Ready)

    @property
    def schedule(self) -> Any:
        """How the kernels of a GPU walk the pattern; made once."""
        schedule = backends.family(self.device, "csr.schedule").Schedule
        return SCHEDULE.of(self.prepared, lambda: schedule(self.indptr, self.shape, self.nnz))

    def with_frozen_values(self) -> CSROperand:
        """The same operand with a copy of the values, from which kernels may make what they need once and for all."""
        return self if self.values is None else replace(self, values=self.values.copy(), frozen=True)

    @contextmanager
    def checked(self, function: str) -> Iterator[None]:
        """For kernels of the CPU, which check columns as they read them: their error with the function, the column and the remedy."""
        try:
            yield
        except ValueError:
            self.check_columns(function, self.columns)
            raise

    def check_columns(self, function: str, read: Array) -> None:
        """Refuse columns outside of the matrix among those that are read."""
        if self.device != "cpu" or not read.size or (int(read.min()) >= 0 and int(read.max()) < self.shape[1]):
            return
        what = outside(self.indptr, self.columns, self.shape[1])
        raise ValueError(f"{function}: A is not a sparse matrix: {what}; rebuild A") from None

    @contextmanager
    def division(self, function: str) -> Iterator[dict[str, Any]]:
        """A keyword for kernels that share out the rows: a GPU's schedule, in the order of streams, and nothing on the CPU."""
        if self.device == "cpu":
            with self.checked(function):
                yield {}
            return
        self.ready.wait()
        schedule = self.schedule
        before = schedule.nbytes
        yield {"schedule": schedule}
        if schedule.nbytes != before:  # cut up further for this kernel
            self.ready.renew()

    def edge_values(self, function: str, name: str, given: Array) -> Array:
        """Values per edge, given in the caller's order, in canonical order; the leading size is checked."""
        self.has_edges(function)
        if given.ndim == 0 or given.shape[0] != self.nnz:
            raise ShapeError(
                f"{function}: {name} has shape {given.shape}, but A has {self.nnz} edges; pass one entry per edge, in the order of "
                f"A's CSR arrays"
            )
        return given if self.order is None else take_rows(given, self.order)

    def single_values(self, function: str) -> CSROperand:
        """The operand itself, refused if its edges have several values each."""
        if self.values is not None and self.values.ndim != 1:
            raise ShapeError(
                f"{function}: A has {self.values.shape[1]} values to an edge, but {function} takes one; pick one, as in "
                f"A.with_values(A.csr_arrays()[2][:, 0])"
            )
        return self

    def has_edges(self, function: str) -> None:
        """Refuse an operand whose duplicates were summed, where values per edge come or go."""
        if self.summed:
            raise ValueError(
                f"{function}: A holds duplicate entries, so that an edge has no single position; call A.sum_duplicates() first"
            )

    def to_caller(self, result: Array, out: Array | None) -> Array:
        """A result per edge in the caller's order, into `out` if it is given."""
        if self.order is None:
            return result
        target = interop.namespace(result).empty_like(result) if out is None else out
        _bits_of(target)[self.order] = _bits_of(result)
        return target


def fits_heads(weights: Array, inner: tuple[int, ...]) -> bool:
    """Whether values per edge are one for all heads of features (rows, *inner), or as many as there are heads.

    Examples
    --------
    >>> fits_heads(np.ones(5), (7,)), fits_heads(np.ones((5, 2)), (2, 7)), fits_heads(np.ones((5, 2)), (7,))
    (True, True, False)
    """
    return weights.ndim == 1 or (len(inner) == 2 and weights.shape[1] == inner[0])


def take_rows(array: Array, order: Array) -> Array:
    """``array[order]``, also for bfloat16 on a GPU.

    Examples
    --------
    >>> take_rows(np.array([3, 4, 5]), np.array([2, 0]))
    array([5, 3])
    """
    taken: Array = _bits_of(array)[order]
    return taken if taken.dtype == array.dtype else taken.view(array.dtype)


def _bits_of(array: Array) -> Array:
    """The array itself, or its bits if it is bfloat16 on a GPU, where CuPy copies but does not index such elements."""
    on_gpu = interop.namespace(array) is not np
    return array.view(np.uint16) if on_gpu and array.dtype.name == "bfloat16" else array
