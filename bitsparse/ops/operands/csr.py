"""Canonical CSR arrays as all sparse functions take them, on the CPU or on a GPU, and the caller's edge order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays.indices import gather, outside
from bitsparse.backends.params import Array, Pattern
from bitsparse.errors import ShapeError
from bitsparse.interop.kept import READY, Slot, Store

T = TypeVar("T")
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
    device : str
        Where the arrays are; asked of `indptr` if it is not given.
    prepared : Store
        What was prepared for this pattern on a GPU: that of a container which keeps it, else this operand's own.
    schedule : Schedule or None
        How the kernels of a GPU walk the pattern; made once.
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
    device: str = ""
    prepared: Store = field(default_factory=dict, compare=False, repr=False)
    schedule: Any = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.device:
            object.__setattr__(self, "device", interop.device_of(self.indptr))
        if self.device != "cpu":
            object.__setattr__(self, "schedule", SCHEDULE.of(self.prepared, self._scheduled))

    def _scheduled(self) -> Any:
        schedule = backends.family(self.device, "csr.schedule").Schedule
        return schedule(self.indptr, self.indices, self.shape, self.nnz)

    @property
    def nnz(self) -> int:
        """Number of edges."""
        if self.indices is not None:
            return int(self.indices.size)
        return int(self.indptr[-1]) if self.count is None else self.count

    @property
    def columns(self) -> Array:
        """Column of each edge, also where an edge is its own column."""
        if self.indices is not None:
            return self.indices
        return interop.namespace(self.indptr).arange(self.nnz, dtype=self.indptr.dtype)

    @cached_property
    def pattern(self) -> Pattern:
        """The pattern alone, as functions of the CPU take it."""
        return Pattern(self.indptr, self.indices, self.shape, self.nnz)

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
    def schedule_bytes(self) -> int:
        """Bytes of the schedule, if there is one."""
        return 0 if self.schedule is None else int(self.schedule.nbytes)

    @property
    def factors(self) -> tuple[Array | None, Array | None, Array | None]:
        """Values and scales of rows and columns, in which arrays over one pattern may differ."""
        return self.values, self.row_scale, self.col_scale

    @property
    def is_scaled(self) -> bool:
        """Whether rows or columns have factors."""
        return self.row_scale is not None or self.col_scale is not None

    def kept(self, slot: Slot[T], make: Callable[[], T], key: Any = None) -> T:
        """What the pattern keeps in a slot; if there is nothing yet it is made, behind what other streams prepare for the pattern."""
        thing = slot.get(self.prepared, key)
        return self._keep(slot, make, key) if thing is None else thing

    def kept_with_factors(self, slot: Slot[tuple[Any, T]], make: Callable[[], T], key: Any = None) -> T:
        """:meth:`kept` together with :attr:`factors`, and made anew for others."""
        mine, held = (self.indptr, self.values, self.row_scale, self.col_scale), slot.get(self.prepared, key)
        if held is None or not same_arrays(held[0], mine):
            held = self._keep(slot, lambda: (mine, make()), key)
        return held[1]

    def _keep(self, slot: Slot[T], make: Callable[[], T], key: Any) -> T:
        self.ready.wait()
        thing = slot.keep(self.prepared, make(), key)
        if self.device != "cpu":
            self.ready.renew()
        return thing

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
    def walked(self, function: str) -> Iterator[Any]:
        """The pattern as functions over its edges take it: the arrays on the CPU, on a GPU its schedule, in the order of streams."""
        if self.device == "cpu":
            with self.checked(function):
                yield Pattern(self.indptr, self.columns, self.shape)
            return
        self.ready.wait()
        schedule = self.schedule
        before = schedule.prepared
        yield schedule
        if schedule.prepared != before:  # cut up further for this kernel
            self.ready.renew()

    def edge_values(self, function: str, name: str, given: Array) -> Array:
        """Values per edge, given in the caller's order, in canonical order; the leading size is checked."""
        self.has_edges(function)
        if given.ndim == 0 or given.shape[0] != self.nnz:
            raise ShapeError(
                f"{function}: {name} has shape {given.shape}, but A has {self.nnz} edges; pass one entry per edge, in the order of "
                f"A's CSR arrays"
            )
        return given if self.order is None else gather(given, self.order)

    def check_features(self, function: str, shape: tuple[int, ...], remedy: str = "transpose A, or check") -> None:
        """Refuse features of another number of rows than there are columns."""
        if shape[0] != self.shape[1]:
            raise ShapeError(
                f"{function}: A has {self.shape[1]} columns but x has {shape[0]} rows (shapes {self.shape} and {shape}); "
                f"{remedy} which graph x belongs to"
            )

    def has_edges(self, function: str) -> None:
        """Refuse an operand whose duplicates were summed, where values per edge come or go."""
        if self.summed:
            raise ValueError(
                f"{function}: A holds duplicate entries, so that an edge has no single position; call A.sum_duplicates() first"
            )

    def to_caller(self, result: Array, out: Array | None) -> Array:
        """A result per edge in the caller's order, into `out` if it is given."""
        if self.order is None and out is None:
            return result
        target = interop.namespace(result).empty_like(result) if out is None else out
        interop.as_bits(target)[... if self.order is None else self.order] = interop.as_bits(result)
        return target


def same_arrays(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether these are the very same arrays, one by one.

    Examples
    --------
    >>> zeros = np.zeros(2)
    >>> same_arrays((zeros, None), (zeros, None)), same_arrays((zeros,), (np.zeros(2),))
    (True, False)
    """
    return all(map(operator.is_, some, others))


def fits_heads(weights: Array, inner: tuple[int, ...]) -> bool:
    """Whether values per edge are one for all heads of features (rows, *inner), or as many as there are heads.

    Examples
    --------
    >>> fits_heads(np.ones(5), (7,)), fits_heads(np.ones((5, 2)), (2, 7)), fits_heads(np.ones((5, 2)), (7,))
    (True, True, False)
    """
    return weights.ndim == 1 or (len(inner) == 2 and weights.shape[1] == inner[0])
