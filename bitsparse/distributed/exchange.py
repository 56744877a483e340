"""The rows that a rank's columns ask for: gathered from all ranks whole, or only those that are asked for (halo)."""

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
        #: Which returned rows belong to which own row, (rows, returned rows), by the device.
        self._sums: dict[str, TCTiledCSR] = {}

    def buffer(self, space: Any, inner: tuple[int, ...], dtype: Any) -> Any:
        """Memory for rows of this shape, of NumPy (`space`) or CuPy; every exchange writes all of it."""
        return space.empty((self.slots, *inner), dtype)

    @abstractmethod
    def slots_of(self, columns: Array) -> Array:
        """Where rows of these numbers, which this rank's matrix has as columns, stand in the buffer; ascending as they do."""

    @abstractmethod
    def spread(self, whole: Array) -> Array:
        """What belongs to all rows, in the order of the buffer; 0 in slots that nobody asks for."""

    def __call__(self, rows: Any, out: Any = None) -> Any:
        """The buffer with this rank's rows and what the others send; all ranks call it with rows of one shape and dtype.

        Parameters
        ----------
        rows : NumPy or CuPy array (rows, ...)
            Without gaps.
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
        """The rows of the others into a buffer in which own rows lie already; who makes these there saves copying them."""

    def add_back(self, buffer: Any) -> Any:
        """The reverse, for gradients: each rank's sum of what all ranks have in their slots for its rows.

        Parameters
        ----------
        buffer : array (slots, ...), or BitTensor (slots, D)
            A BitTensor is packed along the features, in the layout "rows", with one scale, the same on every rank.

        Returns
        -------
        array (rows, ...)
            Of the dtype of the buffer, floats added in the order of the ranks (on a GPU, from 32 ranks on, possibly in parts that are added
            in order). Integers of a BitTensor are summed exactly and scaled once, float32.
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
        """What every rank has in its slots for this rank's rows, (returned rows, ...), in the ranks' order."""

    @abstractmethod
    def returned_rows(self) -> TCTiledCSR:
        """The own row of every row that :meth:`back` brings, (returned rows, rows), in host memory; padding has none."""


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

    def buffer(self, space: Any, inner: tuple[int, ...], dtype: Any) -> Any:
        """See :class:`Exchange`. The padding of the own block, which nobody writes, is zero."""
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
    """Own rows, and between them in ascending order those of other ranks that this rank's columns ask for."""

    method = "halo"

    def __init__(self, comm: Communicator, bounds: NDArray[np.int64], ids: Array) -> None:
        """`ids`: the rows asked for, all own ones among them, ascending, where the rows lie; every rank calls this."""
        space: Any = interop.namespace(ids)
        inside = interop.move(space.searchsorted(ids, space.asarray(bounds)), "cpu")
        counts = np.diff(inside).astype(np.int64)
        super().__init__(comm, bounds, int(ids.size), int(inside[comm.rank]))
        self._ids = ids
        #: Rows that come from each rank, and go to each; how many each rank wants of each is told to all.
        self._in = counts.tolist()
        self._out = gathered_values(comm, counts)[:, comm.rank].tolist()
        wanted = np.empty(sum(self._out), np.int64)
        mine = np.ascontiguousarray(interop.move(ids, "cpu"), np.int64)
        comm.all_to_all_v(mine, self._in, wanted, self._out)
        self.returned = wanted.size - self.rows
        # Own rows are copied as they lie; the others ask for these, rank after rank.
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
    """The rows of a pattern that have one entry, in these columns, among rows that have none."""
    indptr = np.concatenate([[0], np.cumsum(has)])
    dtype = index_dtype("add_back", (has.size, width), columns.size)
    return TCTiledCSR.from_arrays(indptr.astype(dtype), columns.astype(dtype), (has.size, width))


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
