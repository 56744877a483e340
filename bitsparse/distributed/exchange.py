"""Exchanges of rows between ranks: each rank gets all rows (all-gather), or only those that its columns ask for (halo)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse._communicator import Communicator, gathered_values, who
from bitsparse.arrays.indices import gather
from bitsparse.errors import ShapeError

Array = NDArray[Any]
Method = Literal["allgather", "halo"]
METHODS = ("allgather", "halo")


class Exchange(ABC):
    """Brings rows of all ranks into one buffer, ascending by their numbers, so that sums add them in the same order as on one device.

    Attributes
    ----------
    method : {"allgather", "halo"}
    slots : int
        Rows of the buffer.
    own : slice
        The slots of this rank's rows.
    received : int
        The number of rows that come from other ranks.
    """

    method: Method

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64], slots: int, start: int) -> None:
        self.comm, self.slots = comm, slots
        self.rows = int(bounds[comm.rank + 1] - bounds[comm.rank])
        self.own = slice(start, start + self.rows)
        self.received = slots - self.rows

    def buffer(self, space: Any, inner: tuple[int, ...], dtype: Any) -> Any:
        """Allocate a buffer for rows of this shape, with NumPy or CuPy (`space`); every exchange writes all of it."""
        return space.empty((self.slots, *inner), dtype)

    @abstractmethod
    def slots_of(self, columns: Array) -> Array:
        """The slots of rows whose numbers are columns of this rank's matrix. The slots have the same order as the numbers."""

    @abstractmethod
    def spread(self, whole: Array) -> Array:
        """Bring values of all rows into the order of the buffer, with 0 in unused slots."""

    def __call__(self, rows: Any, out: Any = None) -> Any:
        """Fill the buffer with this rank's rows and those that other ranks send; all ranks call it with rows of one shape and dtype.

        Parameters
        ----------
        rows : NumPy or CuPy array (rows, ...)
            C-contiguous.
        out : array (slots, ...), optional
            From :meth:`buffer`.
        """
        if rows.shape[0] != self.rows:
            raise ShapeError(
                f"{self.method}: x has {rows.shape[0]} rows but {who(self.comm)} has {self.rows}; pass its own rows"
            )
        out = self.buffer(interop.namespace(rows), rows.shape[1:], rows.dtype) if out is None else out
        out[self.own] = rows
        self.bring(out)
        return out

    @abstractmethod
    def bring(self, buffer: Any) -> None:
        """Bring the rows of other ranks into a buffer that already holds the own rows. Rows computed right there need no copy."""


class AllGather(Exchange):
    """Gathers the rows of all ranks in blocks, each padded to the size of the largest."""

    method = "allgather"

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64]) -> None:
        self._sizes = np.diff(bounds)
        self._bounds, self._most = bounds, int(self._sizes.max(initial=0))
        super().__init__(comm, bounds, self._most * comm.size, self._most * comm.rank)
        self.received = self._most * (comm.size - 1)

    def slots_of(self, columns: Array) -> Array:
        """See :class:`Exchange`."""
        space: Any = interop.namespace(columns)
        owner = space.searchsorted(space.asarray(self._bounds[1:]), columns, side="right")
        before = np.arange(self.comm.size, dtype=np.int64) * self._most - self._bounds[:-1]
        return space.asarray(before)[owner] + columns

    def spread(self, whole: Array) -> Array:
        """See :class:`Exchange`."""
        space: Any = interop.namespace(whole)
        spread = space.zeros((self.comm.size, self._most, *whole.shape[1:]), whole.dtype)
        for rank, size in enumerate(self._sizes.tolist()):
            spread[rank, :size] = whole[int(self._bounds[rank]) : int(self._bounds[rank + 1])]
        return spread.reshape(self.slots, *whole.shape[1:])

    def buffer(self, space: Any, inner: tuple[int, ...], dtype: Any) -> Any:
        """See :class:`Exchange`. The padding of the own block is zeroed here, since no exchange writes it."""
        buffer = super().buffer(space, inner, dtype)
        buffer[self.own.stop : self.own.start + self._most] = 0
        return buffer

    def bring(self, buffer: Any) -> None:
        """See :class:`Exchange`."""
        blocks = buffer.reshape(self.comm.size, self._most, *buffer.shape[1:])
        self.comm.all_gather(blocks[self.comm.rank], blocks)


class Halo(Exchange):
    """Brings the rows of other ranks that this rank's columns ask for; the buffer holds them and the own rows in ascending order."""

    method = "halo"

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64], ids: Array) -> None:
        """`ids` are the numbers of the needed rows and of all own rows, ascending, on the device of the rows; every rank calls this."""
        space: Any = interop.namespace(ids)
        inside = interop.move(space.searchsorted(ids, space.asarray(bounds)), "cpu")
        counts = np.diff(inside).astype(np.int64)
        super().__init__(comm, bounds, int(ids.size), int(inside[comm.rank]))
        self._ids = ids
        #: Numbers of rows that come from each rank.
        self._in = counts.tolist()
        going = gathered_values(comm, counts)[:, comm.rank].tolist()
        wanted = np.empty(sum(going), np.int64)
        mine = np.ascontiguousarray(interop.move(ids, "cpu"), np.int64)
        comm.all_to_all_v(mine, self._in, wanted, going)
        # Own rows are copied as a whole; `asked_for` are the local numbers of the rows that the other ranks want, rank after rank.
        before = sum(going[: comm.rank])
        asked_for = np.delete(wanted, slice(before, before + self.rows)) - int(bounds[comm.rank])
        dtype = np.int32 if self.rows < 1 << 31 else np.int64
        self._send = interop.move(asked_for.astype(dtype), interop.device_of(ids))
        self._to_others = [0 if rank == comm.rank else count for rank, count in enumerate(going)]

    def slots_of(self, columns: Array) -> Array:
        """See :class:`Exchange`."""
        return interop.namespace(columns).searchsorted(self._ids, columns)

    def spread(self, whole: Array) -> Array:
        """See :class:`Exchange`."""
        return whole[self._ids]

    def bring(self, buffer: Any) -> None:
        """See :class:`Exchange`."""
        self.comm.all_to_all_v(gather(buffer[self.own], self._send), self._to_others, buffer, self._in)


def ids_asked(columns: Array, rows: slice, nodes: int) -> Array:
    """The ascending numbers of the own rows and of all rows that occur as columns, found by one flag per node, without sorting.

    Examples
    --------
    >>> ids_asked(np.array([5, 0, 5]), slice(2, 4), 7)
    array([0, 2, 3, 5])
    """
    space: Any = interop.namespace(columns)
    asked = space.zeros(nodes, np.bool_)
    asked[columns] = True
    asked[rows] = True
    return space.flatnonzero(asked)
