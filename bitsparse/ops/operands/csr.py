"""The sparse operand of all sparse functions: canonical CSR arrays on the CPU or on a GPU, and the caller's order of the edges."""

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
#: How GPU kernels walk a pattern.
SCHEDULE: Slot[Any] = Slot("schedule")
_LONGEST_ROW: Slot[int] = Slot("longest row")


@dataclass(frozen=True)
class CSROperand:
    """Canonical CSR arrays (columns ascending in each row, no duplicates), with values, scales and what was prepared for them.

    Attributes
    ----------
    indptr, indices : NumPy or CuPy array
        Both int32 or both int64. `indices` is None for an incidence matrix of rows and edges, in which edge e lies in column e.
    values : array (nnz,) or (nnz, heads) or None
        None for a pattern.
    row_scale, col_scale : array of float32 or None
    shape : tuple of int
    order : array or None
        ``order[e]`` is the caller's position of canonical edge e; None if the caller's order is canonical.
    summed : bool
        Whether duplicates were summed, so that the caller's edges no longer correspond to entries.
    count : int or None
        Number of edges, needed if `indices` is None, so that the data need not be read.
    frozen : bool
        Whether the values belong to this operand alone and will not change.
    device : str
        Device of the arrays; by default that of `indptr`.
    prepared : Store
        What was prepared for this pattern: the store of the container that holds the pattern, or else this operand's own store.
    schedule : Schedule or None
        How GPU kernels walk the pattern, made once; None on the CPU.
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
        """The column of each edge, also for an incidence matrix."""
        if self.indices is not None:
            return self.indices
        return interop.namespace(self.indptr).arange(self.nnz, dtype=self.indptr.dtype)

    @cached_property
    def pattern(self) -> Pattern:
        """The pattern without values, in the form that CPU functions take."""
        return Pattern(self.indptr, self.indices, self.shape, self.nnz)

    @property
    def longest_row(self) -> int:
        """The largest number of edges in a row; on a GPU it is copied to the host once."""
        longest_row = backends.family(self.device, "spmm.spmm").longest_row
        return _LONGEST_ROW.of(self.prepared, lambda: int(longest_row(self.indptr, self.nnz)))

    @property
    def ready(self) -> interop.Ready:
        """Tells when this stream may read what was prepared on another one."""
        return READY.of(self.prepared, interop.Ready)

    @property
    def schedule_bytes(self) -> int:
        """Bytes of the schedule, if there is one."""
        return 0 if self.schedule is None else int(self.schedule.nbytes)

    @property
    def factors(self) -> tuple[Array | None, Array | None, Array | None]:
        """Values, row scales and column scales: what may differ between matrices that share a pattern."""
        return self.values, self.row_scale, self.col_scale

    @property
    def is_scaled(self) -> bool:
        """Whether rows or columns have scales."""
        return self.row_scale is not None or self.col_scale is not None

    def kept(self, slot: Slot[T], make: Callable[[], T], key: Any = None) -> T:
        """What `slot` keeps for the pattern. If it is empty, `make` fills it, after this stream has waited for what others prepared."""
        thing = slot.get(self.prepared, key)
        return self._keep(slot, make, key) if thing is None else thing

    def kept_with_factors(self, slot: Slot[tuple[Any, T]], make: Callable[[], T], key: Any = None) -> T:
        """:meth:`kept` for what also depends on :attr:`factors`; it is made again if these are other arrays than before."""
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
        """The same operand with its own copy of the values, so that kernels may rearrange them once instead of at every call."""
        return self if self.values is None else replace(self, values=self.values.copy(), frozen=True)

    @contextmanager
    def checked(self, function: str) -> Iterator[None]:
        """Run CPU kernels, which check columns as they read them; their ValueError is raised with function, column and remedy."""
        try:
            yield
        except ValueError:
            self.check_columns(function, self.columns)
            raise

    def check_columns(self, function: str, read: Array) -> None:
        """Refuse the operand if any of the columns `read` lies outside the matrix; on a GPU the kernels check this themselves."""
        if self.device != "cpu" or not read.size or (int(read.min()) >= 0 and int(read.max()) < self.shape[1]):
            return
        what = outside(self.indptr, self.columns, self.shape[1])
        raise ValueError(f"{function}: A is not a sparse matrix: {what}; rebuild A") from None

    @contextmanager
    def walked(self, function: str) -> Iterator[Any]:
        """The pattern for functions over edges: its arrays on the CPU, or its schedule on a GPU, ordered between streams."""
        if self.device == "cpu":
            with self.checked(function):
                yield Pattern(self.indptr, self.columns, self.shape)
            return
        self.ready.wait()
        schedule = self.schedule
        before = schedule.prepared
        yield schedule
        if (
            schedule.prepared != before
        ):  # the kernel made the schedule cut rows in another way, for which other streams must wait
            self.ready.renew()

    def edge_values(self, function: str, name: str, given: Array) -> Array:
        """Values of the edges, from the caller's order to canonical order; checks their number."""
        self.has_edges(function)
        if given.ndim == 0 or given.shape[0] != self.nnz:
            raise ShapeError(
                f"{function}: {name} has shape {given.shape}, but A has {self.nnz} edges; pass one entry per edge, in the order of "
                f"A's CSR arrays"
            )
        return given if self.order is None else gather(given, self.order)

    def check_features(self, function: str, shape: tuple[int, ...], remedy: str = "transpose A, or check") -> None:
        """Refuse features whose number of rows differs from the matrix's number of columns."""
        if shape[0] != self.shape[1]:
            raise ShapeError(
                f"{function}: A has {self.shape[1]} columns but x has {shape[0]} rows (shapes {self.shape} and {shape}); "
                f"{remedy} which graph x belongs to"
            )

    def has_edges(self, function: str) -> None:
        """Refuse an operand whose duplicates were summed; for functions that take or return a value for each edge."""
        if self.summed:
            raise ValueError(
                f"{function}: A holds duplicate entries, so an edge has no single position; call A.sum_duplicates() first"
            )

    def to_caller(self, result: Array, out: Array | None) -> Array:
        """A result per edge in the caller's order, written to `out` if it is given."""
        if self.order is None and out is None:
            return result
        target = interop.namespace(result).empty_like(result) if out is None else out
        interop.as_bits(target)[... if self.order is None else self.order] = interop.as_bits(result)
        return target


def same_arrays(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether both tuples hold the same objects.

    Examples
    --------
    >>> zeros = np.zeros(2)
    >>> same_arrays((zeros, None), (zeros, None)), same_arrays((zeros,), (np.zeros(2),))
    (True, False)
    """
    return all(map(operator.is_, some, others))


def fits_heads(weights: Array, inner: tuple[int, ...]) -> bool:
    """Whether each edge has one value for all heads of features (rows, *inner), or one value per head.

    Examples
    --------
    >>> fits_heads(np.ones(5), (7,)), fits_heads(np.ones((5, 2)), (2, 7)), fits_heads(np.ones((5, 2)), (7,))
    (True, True, False)
    """
    return weights.ndim == 1 or (len(inner) == 2 and weights.shape[1] == inner[0])
