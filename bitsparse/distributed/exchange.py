"""The rows that a rank's columns ask for: gathered from all ranks whole, or only those that are asked for (halo)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse._communicator import Communicator, gathered_values, who
from bitsparse.errors import ShapeError

Array = NDArray[Any]
Method = Literal["allgather", "halo"]
METHODS = ("allgather", "halo")


class Exchange(ABC):
    """Rows of all ranks in one buffer, ascending by their numbers, so that sums over them take the same order as on one device.

    Attributes
    ----------
    method : {"allgather", "halo"}
    slots : int
        Rows of the buffer.
    own : slice
        Where this rank's rows stand in it.
    received, returned : int
        Rows that come from other ranks, and those that come back for :meth:`add_back`.
    """

    method: Method

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64], slots: int, start: int) -> None:
        self.comm, self.slots = comm, slots
        self.rows = int(bounds[comm.rank + 1] - bounds[comm.rank])
        self.own = slice(start, start + self.rows)
        self.received = self.returned = slots - self.rows

    def buffer(self, like: Any) -> Any:
        """Memory for rows like these, zeros at first: slots that nobody asks for are never written."""
        return interop.namespace(like).zeros((self.slots, *like.shape[1:]), like.dtype)

    @abstractmethod
    def slots_of(self, columns: Array) -> Array:
        """Where rows of these numbers, which this rank's matrix has as columns, stand in the buffer; ascending as they do."""

    @abstractmethod
    def spread(self, whole: Array) -> Array:
        """What belongs to all rows, in the order of the buffer; 0 in slots that nobody asks for."""

    def _checked(self, function: str, rows: Any) -> None:
        if rows.shape[0] != self.rows:
            raise ShapeError(
                f"{function}: x has {rows.shape[0]} rows but {who(self.comm)} has {self.rows}; pass its own rows"
            )

    @abstractmethod
    def __call__(self, rows: Any, out: Any = None) -> Any:
        """The buffer with this rank's rows and what the others send; all ranks call it with rows of one shape and dtype.

        Parameters
        ----------
        rows : NumPy or CuPy array (rows, ...)
            Without gaps.
        out : array (slots, ...), optional
            From :meth:`buffer`.
        """

    def add_back(self, buffer: Any, dtype: Any = None, decode: Callable[[Any], Any] | None = None) -> Any:
        """The reverse, for gradients: each rank's sum of what all ranks have in their slots for its rows, added in the order of the ranks.

        Parameters
        ----------
        buffer : array (slots, ...)
        dtype : dtype, optional
            Of the sums; by default that of what is added.
        decode : callable, optional
            Makes numbers of rows of the buffer before they are added.

        Returns
        -------
        array (rows, ...)
        """
        space: Any = interop.namespace(buffer)
        total: Any = None
        for rows, sent in self.back(buffer):
            part = sent if decode is None else decode(sent)
            if total is None:
                total = space.zeros((self.rows, *part.shape[1:]), part.dtype if dtype is None else dtype)
            if rows is None:
                total += part
            else:
                total[rows] += part  # every row once in each part
        return total

    @abstractmethod
    def back(self, buffer: Any) -> list[tuple[Any, Any]]:
        """What every rank has in its slots for this rank's rows: the rows, None for all of them, and the parts, in the ranks' order."""


class AllGather(Exchange):
    """Blocks of all ranks, each padded to the rows of the largest."""

    method = "allgather"

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64]) -> None:
        self._sizes = np.diff(bounds)
        self._bounds, self._most = bounds, int(self._sizes.max(initial=0))
        super().__init__(comm, bounds, self._most * comm.size, self._most * comm.rank)
        self.received = self.returned = self._most * (comm.size - 1)

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

    def _blocks(self, buffer: Any) -> Any:
        return buffer.reshape(self.comm.size, self._most, *buffer.shape[1:])

    def __call__(self, rows: Any, out: Any = None) -> Any:
        """See :class:`Exchange`."""
        self._checked("allgather", rows)
        out = self.buffer(rows) if out is None else out
        out[self.own] = rows
        blocks = self._blocks(out)
        self.comm.all_gather(blocks[self.comm.rank], blocks)
        return out

    def back(self, buffer: Any) -> list[tuple[Any, Any]]:
        """See :class:`Exchange`."""
        theirs = interop.namespace(buffer).empty_like(buffer)
        counts = [self._most] * self.comm.size
        self.comm.all_to_all_v(buffer, counts, theirs, counts)
        return [(None, part[: self.rows]) for part in self._blocks(theirs)]


class Halo(Exchange):
    """Own rows, and between them in ascending order those of other ranks that this rank's columns ask for."""

    method = "halo"

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64], ids: Array) -> None:
        """`ids`: the rows asked for, all own ones among them, ascending, where the rows lie; every rank calls this."""
        space: Any = interop.namespace(ids)
        inside = interop.move(space.searchsorted(ids, space.asarray(bounds)), "cpu")
        self._in = np.diff(inside).astype(np.int64)
        super().__init__(comm, bounds, int(ids.size), int(inside[comm.rank]))
        self._ids = ids
        asked = gathered_values(comm, self._in)  # how many each rank wants of each
        self._out = asked[:, comm.rank]
        wanted = np.empty(int(self._out.sum()), np.int64)
        mine = np.ascontiguousarray(interop.move(ids, "cpu"), np.int64)
        comm.all_to_all_v(mine, self._in.tolist(), wanted, self._out.tolist())
        self._send = interop.move(wanted - int(bounds[comm.rank]), interop.device_of(ids))
        ends = np.concatenate([[0], np.cumsum(self._out)])
        self.returned = int(ends[-1]) - self.rows
        self._parts = [slice(int(a), int(b)) for a, b in pairwise(ends)]

    def slots_of(self, columns: Array) -> Array:
        """See :class:`Exchange`."""
        return interop.namespace(columns).searchsorted(self._ids, columns)

    def spread(self, whole: Array) -> Array:
        """See :class:`Exchange`."""
        return whole[self._ids]

    def __call__(self, rows: Any, out: Any = None) -> Any:
        """See :class:`Exchange`."""
        self._checked("halo", rows)
        out = self.buffer(rows) if out is None else out
        self.comm.all_to_all_v(_taken(rows, self._send), self._out.tolist(), out, self._in.tolist())
        return out

    def back(self, buffer: Any) -> list[tuple[Any, Any]]:
        """See :class:`Exchange`."""
        space: Any = interop.namespace(buffer)
        theirs = space.empty((int(self._send.size), *buffer.shape[1:]), buffer.dtype)
        self.comm.all_to_all_v(buffer, self._in.tolist(), theirs, self._out.tolist())
        return [(self._send[part], theirs[part]) for part in self._parts]


def _taken(rows: Any, index: Any) -> Any:
    """Rows in the order of `index`, without gaps; bfloat16 as bits, which CuPy indexes."""
    bits = rows.view(np.uint16) if rows.dtype.name == "bfloat16" else rows
    taken = interop.contiguous(bits[index])
    return taken if taken.dtype == rows.dtype else taken.view(rows.dtype)


def ids_asked(columns: Array, rows: slice, nodes: int) -> Array:
    """The numbers of all rows that are asked for as columns, and of the own ones, ascending; by one flag a node, without sorting.

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
