"""Ranks as threads of one process, for tests, for experiments, and for machines without PyTorch or MPI."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse._communicator import REDUCTIONS, Engine, Reduction, check_timeout, who
from bitsparse.errors import CommunicationError

_REDUCE = {"sum": "add", "max": "maximum", "min": "minimum"}


class LocalGroup:
    """Ranks that are threads of this process; made by :func:`local`.

    Attributes
    ----------
    size : int
    timeout : float
        Seconds.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self._changed = threading.Condition()
        #: The number of completed meetings, the ranks that wait for the next one, and (`failed`) the first rank that failed.
        self._met, self._present = 0, set[int]()
        self.failed: int | None = None
        self.offers: list[Any] = [None] * self.size

    def __repr__(self) -> str:
        return f"<LocalGroup of {self.size} ranks, timeout {self.timeout:g} s>"

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[LocalCommunicator]:
        """Iterate over the communicators, for callers that start threads themselves."""
        return (LocalCommunicator(self, rank) for rank in range(self.size))

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(comm, *arguments)`` on every rank, each in a thread, and return the results in the order of the ranks.

        If it raises on one rank, the other ranks stop waiting for that rank, and the error of the first rank that failed by itself is
        raised here. Calls are independent of each other, even from several threads at once. Ranks left behind by an interruption end at
        their next meeting.
        """
        here = LocalGroup(self.size, self.timeout)
        results: list[Any] = [None] * self.size
        errors: list[BaseException | None] = [None] * self.size

        def work(comm: LocalCommunicator) -> None:
            try:
                results[comm.rank] = function(comm, *arguments)
            except BaseException as error:
                errors[comm.rank] = error
                here.abort(comm.rank)

        threads = [threading.Thread(target=work, args=(comm,), name=f"rank {comm.rank}") for comm in here]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            here.abort(0)
            raise
        for error in errors:
            if error is not None and not isinstance(error, CommunicationError):
                raise error
        first = None if here.failed is None else errors[here.failed]
        if first is not None:
            raise first
        return results

    def abort(self, rank: int) -> None:
        """Tell the other ranks that this rank will not come any more."""
        with self._changed:
            self.failed = rank if self.failed is None else self.failed
            self._changed.notify_all()

    def meet(self, rank: int, operation: str) -> None:
        """Wait for all ranks, at most for the group's timeout. A meeting to which all came succeeds even if a rank fails right after it."""
        with self._changed:
            meeting = self._met
            self._present.add(rank)
            if len(self._present) == self.size:
                self._met, self._present = meeting + 1, set()
                self._changed.notify_all()
                return
            self._changed.wait_for(lambda: self._met != meeting or self.failed is not None, self.timeout)
            if self._met != meeting:
                return
            missing = ", ".join(str(other) for other in range(self.size) if other not in self._present)
            why = f"rank {self.failed} failed" if self.failed is not None else ""
        raise CommunicationError(
            f"{operation}: rank {rank} of {self.size} waits in vain, as {why or f'rank {missing} did not come within {self.timeout:g} s'}; "
            f"start all ranks again"
        )


class LocalCommunicator(Engine):
    """One rank of a :class:`LocalGroup`."""

    engine = "local"

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def _offer(self, operation: str, offer: Any, array: Any) -> list[Any]:
        """Offer something to the other ranks and return all offers, once all ranks have made theirs and work on `array` has ended."""
        _finish(array)
        self._group.offers[self.rank] = operation, offer
        self._group.meet(self.rank, operation)
        offers = list(self._group.offers)
        for other, (name, _) in enumerate(offers):
            if name != operation:
                raise CommunicationError(
                    f"{operation}: {who(self)} meets rank {other} in {name}; every rank has to call the same functions in the same order"
                )
        return [offered for _, offered in offers]

    def _leave(self, operation: str, array: Any) -> None:
        """Wait until all ranks have read the offers."""
        _finish(array)
        self._group.meet(self.rank, operation)

    def all_gather(self, send: Any, receive: Any) -> None:
        """See :class:`Communicator`."""
        self._checked("all_gather", send[None], receive[:1], (1, min(1, self.size)))
        for rank, theirs in enumerate(self._offer("all_gather", send, send)):
            self._fits("all_gather", rank, theirs, receive[rank])
            receive[rank] = theirs
        self._leave("all_gather", receive)

    def all_to_all_v(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> None:
        """See :class:`Communicator`."""
        self._checked("all_to_all_v", send, receive, (sum(send_counts), sum(receive_counts)))
        place = 0
        for rank, (theirs, counts) in enumerate(self._offer("all_to_all_v", (send, tuple(send_counts)), send)):
            start, count = sum(counts[: self.rank]), counts[self.rank]
            part, target = theirs[start : start + count], receive[place : place + receive_counts[rank]]
            if rank != self.rank or count:
                self._fits("all_to_all_v", rank, part, target)
                target[...] = part
            place += receive_counts[rank]
        self._leave("all_to_all_v", receive)

    def all_reduce(self, array: Any, op: Reduction = "sum") -> None:
        """See :class:`Communicator`; the arrays are combined in the order of the ranks."""
        combine = getattr(interop.namespace(array), _REDUCE[_check.choice("all_reduce", "op", op, REDUCTIONS)])
        offers = self._offer("all_reduce", array, array)
        for rank, theirs in enumerate(offers):
            self._fits("all_reduce", rank, theirs, array)
        total = offers[0]
        for theirs in offers[1:]:
            total = combine(total, theirs)
        total = total.copy()
        self._leave("all_reduce", total)
        array[...] = total

    def barrier(self) -> None:
        """See :class:`Communicator`."""
        self._offer("barrier", None, None)
        self._leave("barrier", None)

    def _fits(self, operation: str, rank: int, theirs: Any, mine: Any) -> None:
        if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
            raise CommunicationError(
                f"{operation}: rank {rank} sends {theirs.shape} {theirs.dtype}, but {who(self)} receives {mine.shape} {mine.dtype}; pass "
                f"the same on every rank"
            )


def _finish(array: Any) -> None:
    # Other threads may read a GPU array only after the work on it has ended.
    if array is not None and not isinstance(array, np.ndarray):
        sys.modules["cupy"].cuda.get_current_stream().synchronize()


def local(size: int, *, timeout: float = 60.0) -> LocalGroup:
    """Make a group of ranks that are threads of this process.

    Parameters
    ----------
    size : int
    timeout : float
        Seconds after which a rank stops waiting for the others.

    Returns
    -------
    LocalGroup
        ``local(4).run(function)`` calls ``function(comm)`` in four threads; iterating over it gives the four communicators.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> def total(comm):
    ...     values = np.array([comm.rank + 1])
    ...     comm.all_reduce(values)
    ...     return int(values[0])
    >>> distributed.local(3).run(total)
    [6, 6, 6]
    """
    size = _check.integer("local", "size", size, 1)
    return LocalGroup(size, check_timeout("local", timeout))
