"""Exchanges of rows between ranks: each rank gets all rows (all-gather), or only those that its columns ask for (halo)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop, ops
from bitsparse._communicator import Communicator, gathered_values, who
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.arrays.indices import gather, index_dtype
from bitsparse.arrays.inside import with_words
from bitsparse.errors import ShapeError
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.ops.quantized.spmm import sum_of_codes

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
    received, returned : int
        The numbers of rows that come from other ranks, and of rows that come back in :meth:`add_back`.
    """

    method: Method

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64], slots: int, start: int) -> None:
        self.comm, self.slots = comm, slots
        self.rows = int(bounds[comm.rank + 1] - bounds[comm.rank])
        self.own = slice(start, start + self.rows)
        self.received = self.returned = slots - self.rows
        #: For each device, the pattern (rows, returned rows) that adds the returned rows to their own rows.
        self._sums: dict[str, TCTiledCSR] = {}

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

    def add_back(self, buffer: Any) -> Any:
        """The reverse exchange, for gradients: each of this rank's rows becomes the sum of what all ranks hold in its slots.

        Parameters
        ----------
        buffer : array (slots, ...), or BitTensor (slots, D)
            A BitTensor is packed along the features, in the layout "rows", with one scale, the same on every rank.

        Returns
        -------
        array (rows, ...)
            In the dtype of the buffer. Floats are added in the order of the ranks (on a GPU, from 32 ranks on, possibly in parts that are
            added in order). Integers of a BitTensor are summed exactly and scaled once, to float32.
        """
        function = "add_back"
        device = interop.device_of(buffer.words if isinstance(buffer, BitTensor) else buffer)
        if device not in self._sums:
            self._sums[device] = self.returned_rows().T.to_device(device)
        sums = self._sums[device]
        if isinstance(buffer, BitTensor):
            words = self.back(buffer.words)
            codes = ScaledCodes(with_words(buffer, words, (words.shape[0], buffer.shape[1]), -1, buffer.layout))
            return sum_of_codes(function, as_csr(function, sums), codes, None, None, "sum", True)
        returned = self.back(buffer)
        inner = returned.shape[1:]
        total = ops.spmm(sums, returned.reshape(returned.shape[0], math.prod(inner)))
        return total.astype(buffer.dtype, copy=False).reshape(self.rows, *inner)

    @abstractmethod
    def back(self, buffer: Any) -> Any:
        """Get what every rank holds in its slots for this rank's rows, (returned rows, ...), in the order of the ranks."""

    @abstractmethod
    def returned_rows(self) -> TCTiledCSR:
        """A pattern (returned rows, rows) in host memory with the own row of each row that :meth:`back` gets; padding has none."""


class AllGather(Exchange):
    """Gathers the rows of all ranks in blocks, each padded to the size of the largest."""

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

    def buffer(self, space: Any, inner: tuple[int, ...], dtype: Any) -> Any:
        """See :class:`Exchange`. The padding of the own block is zeroed here, since no exchange writes it."""
        buffer = super().buffer(space, inner, dtype)
        buffer[self.own.stop : self.own.start + self._most] = 0
        return buffer

    def bring(self, buffer: Any) -> None:
        """See :class:`Exchange`."""
        blocks = buffer.reshape(self.comm.size, self._most, *buffer.shape[1:])
        self.comm.all_gather(blocks[self.comm.rank], blocks)

    def back(self, buffer: Any) -> Any:
        """See :class:`Exchange`."""
        theirs = interop.namespace(buffer).empty_like(buffer)
        counts = [self._most] * self.comm.size
        self.comm.all_to_all_v(buffer, counts, theirs, counts)
        return theirs

    def returned_rows(self) -> TCTiledCSR:
        """See :class:`Exchange`."""
        own = np.tile(np.arange(self._most) < self.rows, self.comm.size)
        return _one_each(own, np.tile(np.arange(self.rows), self.comm.size), self.rows)


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
        #: Numbers of rows that come from each rank and that go to each rank; all ranks share these counts.
        self._in = counts.tolist()
        self._out = gathered_values(comm, counts)[:, comm.rank].tolist()
        wanted = np.empty(sum(self._out), np.int64)
        mine = np.ascontiguousarray(interop.move(ids, "cpu"), np.int64)
        comm.all_to_all_v(mine, self._in, wanted, self._out)
        self.returned = wanted.size - self.rows
        # Own rows are copied as a whole; `asked_for` are the local numbers of the rows that the other ranks want, rank after rank.
        self._before = sum(self._out[: comm.rank])
        asked_for = np.delete(wanted, slice(self._before, self._before + self.rows)) - int(bounds[comm.rank])
        dtype = np.int32 if self.rows < 1 << 31 else np.int64
        self._send = interop.move(asked_for.astype(dtype), interop.device_of(ids))
        self._to_others = [0 if rank == comm.rank else count for rank, count in enumerate(self._out)]

    def slots_of(self, columns: Array) -> Array:
        """See :class:`Exchange`."""
        return interop.namespace(columns).searchsorted(self._ids, columns)

    def spread(self, whole: Array) -> Array:
        """See :class:`Exchange`."""
        return whole[self._ids]

    def bring(self, buffer: Any) -> None:
        """See :class:`Exchange`."""
        self.comm.all_to_all_v(gather(buffer[self.own], self._send), self._to_others, buffer, self._in)

    def back(self, buffer: Any) -> Any:
        """See :class:`Exchange`."""
        theirs = interop.namespace(buffer).empty((sum(self._out), *buffer.shape[1:]), buffer.dtype)
        self.comm.all_to_all_v(buffer, self._in, theirs, self._out)
        return theirs

    def returned_rows(self) -> TCTiledCSR:
        """See :class:`Exchange`."""
        asked_for, start = interop.move(self._send, "cpu"), self._before
        rows = np.concatenate([asked_for[:start], np.arange(self.rows, dtype=asked_for.dtype), asked_for[start:]])
        return _one_each(np.ones(rows.size, np.bool_), rows, self.rows)


def _one_each(has: NDArray[np.bool_], columns: Array, width: int) -> TCTiledCSR:
    """A pattern whose rows have one entry if `has` says so, else none; `columns` are the columns of these entries."""
    indptr = np.concatenate([[0], np.cumsum(has)])
    dtype = index_dtype("add_back", (has.size, width), columns.size)
    return TCTiledCSR.from_arrays(indptr.astype(dtype), columns.astype(dtype), (has.size, width))


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
