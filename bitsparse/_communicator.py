"""The communicator protocol of the distributed functions, and helpers on top of it: checks, agreement, exchange of small values."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._check import brief, shown
from bitsparse.errors import CommunicationError, ShapeError

Array = NDArray[Any]
Reduction = Literal["sum", "max", "min"]
REDUCTIONS = ("sum", "max", "min")


@runtime_checkable
class Communicator(Protocol):
    """How the functions of :mod:`bitsparse.distributed` exchange data between the processes that work together.

    :func:`from_torch`, :func:`from_mpi` and :func:`local` make communicators; any object with these members is one. Every rank calls the
    same methods in the same order. Arrays are contiguous, and NumPy's or CuPy's on the rank's GPU; work on a GPU is enqueued on CuPy's
    current stream. A plan may call these methods from a thread of its own while it sums, one call at a time.

    Attributes
    ----------
    rank, size : int
        This rank, 0 to size - 1, and the number of ranks.
    engine : str
        The library that moves the bytes: ``"local"``, ``"gloo"``, ``"nccl"`` or ``"mpi"``; a key of :data:`bitsparse.distributed.LINKS`.
    """

    rank: int
    size: int
    engine: str

    def all_gather(self, send: Any, receive: Any) -> None:
        """Collect every rank's `send` in `receive`, which has one more leading axis of length `size`; `send` may be a part of it."""

    def all_to_all_v(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> None:
        """Send ``send_counts[r]`` rows of `send` to each rank r, and receive ``receive_counts[r]`` rows of `receive` from it.

        Both arrays hold their rows in the order of the ranks. A rank may leave out its rows for itself: their count in `send_counts` is
        then 0, and its own rows of `receive` stay as they are.
        """

    def all_reduce(self, array: Any, op: Reduction = "sum") -> None:
        """Reduce over all ranks in place; integers, maxima and minima have the same bits on every rank."""

    def barrier(self) -> None:
        """Wait until every rank has called this."""


class Engine:
    """Base class of the communicators in this package: their name for messages, and checks before every exchange."""

    rank: int
    size: int
    engine: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.engine}, {who(self)}>"

    @contextmanager
    def _during(self, operation: str, kinds: tuple[type[BaseException], ...]) -> Iterator[None]:
        """Turn errors of an engine into a CommunicationError that names the rank and the operation."""
        try:
            yield
        except CommunicationError:
            raise
        except kinds as error:
            raise CommunicationError(
                f"{operation}: {who(self)} lost the others ({self.engine}: {brief(error)}); start all ranks again, this result is none"
            ) from error

    def _checked(self, operation: str, send: Any, receive: Any, rows: tuple[int, int]) -> None:
        """Refuse arrays that do not have the announced numbers of rows, or whose rows differ in shape, dtype or device."""
        for name, array, count in (("send", send, rows[0]), ("receive", receive, rows[1])):
            if array.shape[:1] != (count,) or not array.flags.c_contiguous:
                raise ShapeError(
                    f"{operation}: {name} of {who(self)} has shape {array.shape}{'' if array.flags.c_contiguous else ' with gaps'}, but "
                    f"{count} rows are announced; pass so many, without gaps"
                )
        same = send.shape[1:] == receive.shape[1:] and send.dtype == receive.dtype
        if not same or interop.device_of(send) != interop.device_of(receive):
            raise ShapeError(
                f"{operation}: {who(self)} sends rows of {send.shape[1:]} {send.dtype} on {interop.device_of(send)} but receives "
                f"{receive.shape[1:]} {receive.dtype} on {interop.device_of(receive)}; make them equal"
            )


def kept_rows(rank: int, send_counts: Sequence[int], receive_counts: Sequence[int]) -> slice | None:
    """The rows of `receive` that an exchange leaves as they are, or None if it writes all of them.

    Examples
    --------
    >>> kept_rows(1, [3, 0], [2, 4]), kept_rows(1, [3, 4], [2, 4])
    (slice(2, 6, None), None)
    """
    if send_counts[rank] or not receive_counts[rank]:
        return None
    first = sum(receive_counts[:rank])
    return slice(first, first + receive_counts[rank])


def who(comm: Communicator | Engine) -> str:
    """The rank in words, for messages.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> distributed.local(2).run(who)
    ['rank 0 of 2', 'rank 1 of 2']
    """
    return f"rank {comm.rank} of {comm.size}"


def is_communicator(function: str, comm: Any) -> Any:
    """`comm` itself; raises if it is not a communicator."""
    how = "make one with distributed.from_torch(group), from_mpi(comm) or local(size)"
    return _check.instance(function, "comm", comm, Communicator, "a communicator", how)


def bytes_of(array: Any) -> Any:
    """The bytes of a contiguous array as a one-dimensional view.

    Examples
    --------
    >>> bytes_of(np.array([[1, 2]], np.int16))
    array([1, 0, 2, 0], dtype=uint8)
    """
    return array.reshape(-1).view(np.uint8)


def gathered_values(comm: Communicator, values: Any) -> Array:
    """Give every rank the few numbers of all ranks, as ``(size, count)`` on the CPU; int64 unless they are float64.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> distributed.local(2).run(lambda comm: gathered_values(comm, [comm.rank, 7]))[1]
    array([[0, 7],
           [1, 7]])
    """
    mine = np.ascontiguousarray(values)
    mine = mine if mine.dtype == np.float64 else mine.astype(np.int64)
    there = np.empty((comm.size, *mine.shape), mine.dtype)
    comm.all_gather(mine, there)
    return there


def gathered_parts(comm: Communicator, mine: Any) -> list[Any]:
    """Give every rank the arrays of all ranks (NumPy's or CuPy's), which may differ in their number of rows.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> distributed.local(2).run(lambda comm: gathered_parts(comm, np.arange(1 + comm.rank)))[0]
    [array([0]), array([0, 1])]
    """
    sizes = gathered_values(comm, [len(mine)])[:, 0].tolist()
    there = interop.namespace(mine).zeros((comm.size, max(sizes), *mine.shape[1:]), mine.dtype)
    there[comm.rank, : len(mine)] = mine
    comm.all_gather(there[comm.rank], there)
    return [part[:size] for part, size in zip(there, sizes, strict=True)]


def gathered_text(comm: Communicator, text: str) -> list[str]:
    """Give every rank the texts of all ranks.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> distributed.local(2).run(lambda comm: gathered_text(comm, "ab"[comm.rank]))[0]
    ['a', 'b']
    """
    return [part.tobytes().decode() for part in gathered_parts(comm, np.frombuffer(text.encode(), np.uint8))]


def agree(comm: Communicator, function: str, **facts: Any) -> None:
    """Raise on every rank if the ranks pass different facts, which are values that JSON can hold or NumPy scalars.

    Raises
    ------
    CommunicationError
        The error is the same on all ranks, names both values, and is raised before anything else is exchanged.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> distributed.local(2).run(lambda comm: agree(comm, "example", columns=comm.rank))
    Traceback (most recent call last):
        ...
    bitsparse.errors.CommunicationError: example: columns is 0 on rank 0 but 1 on rank 1; pass the same on every rank
    """
    texts = gathered_text(comm, json.dumps(facts, default=_plain))
    if all(text == texts[0] for text in texts):
        return
    said = [json.loads(text) for text in texts]
    rank = next(r for r, text in enumerate(texts) if text != texts[0])
    # Compared as text, because 1 == 1.0 == True.
    differing = [key for key in said[0] | said[rank] if repr(said[0].get(key)) != repr(said[rank].get(key))]
    name = differing[0]
    raise CommunicationError(
        f"{function}: {name} is {shown(said[0].get(name))} on rank 0 but {shown(said[rank].get(name))} on rank {rank}; pass the same on "
        f"every rank"
    )


def _plain(value: Any) -> Any:
    """A NumPy scalar as Python's; for anything else the name of its type, since the calling function refuses such values itself."""
    return value.item() if isinstance(value, np.generic) else type(value).__name__


@contextmanager
def together(comm: Communicator, function: str) -> Iterator[None]:
    """A context for work that each rank does alone: if it fails on one rank, all ranks raise, so that none waits for that one.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> def read(comm):
    ...     with together(comm, "read"):
    ...         return 1 // comm.rank
    >>> distributed.local(2).run(read)
    Traceback (most recent call last):
        ...
    ZeroDivisionError: integer division or modulo by zero
    """
    error: BaseException | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    failed = gathered_values(comm, [error is not None])[:, 0]
    if error is not None:
        raise error
    if failed.any():
        others = ", ".join(map(str, np.flatnonzero(failed)))
        raise CommunicationError(
            f"{function}: {who(comm)} stops because it failed on rank {others}; its error says why"
        )


def check_timeout(function: str, timeout: float) -> float:
    """The number of seconds that a rank waits for the others, checked and as a float.

    >>> check_timeout("local", 0)
    Traceback (most recent call last):
        ...
    ValueError: local: timeout=0, but ranks wait for each other; pass seconds above 0 and up to ...
    """
    if not 0 < _check.number(function, "timeout", timeout) <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"{function}: timeout={timeout}, but ranks wait for each other; pass seconds above 0 and up to {threading.TIMEOUT_MAX:g}"
        )
    return float(timeout)
