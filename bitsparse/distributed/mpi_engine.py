"""The communicator on mpi4py. It makes non-blocking calls and waits for them with a time limit, which MPI itself does not have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse._communicator import REDUCTIONS, Engine, Reduction, bytes_of, check_timeout, who
from bitsparse.errors import CommunicationError

#: Seconds between two tests of a pending call: at first, and at most.
_SOON, _LATER = 1e-5, 1e-3


class MPICommunicator(Engine):
    """A communicator on one of mpi4py; made by :func:`from_mpi`."""

    engine = "mpi"

    def __init__(self, comm: Any, timeout: float) -> None:
        import mpi4py
        from mpi4py import MPI

        self._mpi, self._comm, self._timeout = MPI, comm, timeout
        self._errors = (MPI.Exception, mpi4py.MPI.Exception)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        #: Whether threads other than the main one may exchange.
        self.any_thread = bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)
        #: Calls that timed out, kept with the memory that MPI may still write to.
        self._lost: list[Any] = []

    def _wait(self, operation: str, request: Any, *arrays: Any) -> None:
        """Wait until the call has ended, or raise when the time is over."""
        end, pause = time.monotonic() + self._timeout, _SOON
        while not request.Test():
            if time.monotonic() > end:
                self._lost.append((request, arrays))
                raise CommunicationError(
                    f"{operation}: {who(self)} has waited {self._timeout:g} s for the others; one is lost or elsewhere, start all again"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LATER)

    def _ready(self, array: Any) -> Any:
        """The bytes of an array for MPI, which reads GPU memory directly but knows no streams, so pending GPU work is finished first."""
        if not isinstance(array, np.ndarray):
            interop.require_cupy("from_mpi").cuda.get_current_stream().synchronize()
        return bytes_of(array)

    def all_gather(self, send: Any, receive: Any) -> None:
        """See :class:`Communicator`."""
        self._checked("all_gather", send[None], receive[:1], (1, 1))
        if not send.size:
            return
        # MPI forbids a send buffer inside the receive buffer, hence the copy.
        mine, there = self._ready(send).copy(), self._ready(receive)
        with self._during("all_gather", self._errors):
            self._wait(
                "all_gather",
                self._comm.Iallgather(self._rows(mine, mine.size), self._rows(there, mine.size)),
                mine,
                there,
            )

    def all_to_all_v(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> None:
        """See :class:`Communicator`."""
        self._checked("all_to_all_v", send, receive, (sum(send_counts), sum(receive_counts)))
        row = int(np.prod(send.shape[1:], dtype=np.int64)) * send.dtype.itemsize
        if not row:
            return
        mine, theirs = self._ready(send), self._ready(receive)
        # The unit is a row, not a byte, because MPI counts in 32 bits.
        unit = self._mpi.BYTE.Create_contiguous(row).Commit()
        places, counts = np.cumsum([0, *receive_counts[:-1]]).tolist(), list(receive_counts)
        counts[self.rank] = min(counts[self.rank], send_counts[self.rank])
        try:
            with self._during("all_to_all_v", self._errors):
                request = self._comm.Ialltoallv([mine, list(send_counts), None, unit], [theirs, counts, places, unit])
                self._wait("all_to_all_v", request, mine, theirs)
        finally:
            unit.Free()

    def _rows(self, array: Any, size: int) -> Any:
        """A buffer of `size` bytes from each rank in the form that MPI takes; refused if 32 bits cannot count them."""
        if size < 1 << 31:
            return [array, size, self._mpi.BYTE]
        raise CommunicationError(
            f"all_gather: {who(self)} sends {size} bytes, but MPI counts in 32 bits; use exchange='halo', which counts rows"
        )

    def all_reduce(self, array: Any, op: Reduction = "sum") -> None:
        """See :class:`Communicator`."""
        how = getattr(self._mpi, _check.choice("all_reduce", "op", op, REDUCTIONS).upper())
        self._ready(array)
        with self._during("all_reduce", self._errors):
            self._wait("all_reduce", self._comm.Iallreduce(self._mpi.IN_PLACE, array, how), array)

    def barrier(self) -> None:
        """See :class:`Communicator`."""
        with self._during("barrier", self._errors):
            self._wait("barrier", self._comm.Ibarrier())


def from_mpi(comm: Any, *, timeout: float = 600.0) -> MPICommunicator:
    """Make a communicator from one of mpi4py, such as ``MPI.COMM_WORLD``.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    timeout : float
        Seconds after which a rank stops waiting for the others; MPI itself would wait for ever.

    Returns
    -------
    MPICommunicator

    Notes
    -----
    Arrays on a GPU are passed to MPI in place, which needs an MPI built for CUDA. The host first waits for the stream, and then for the
    exchange.

    Examples
    --------
    Started by ``mpiexec -n 3``::

        from mpi4py import MPI
        comm = bs.distributed.from_mpi(MPI.COMM_WORLD)
    """
    function = "from_mpi"
    with _check.needed(function, "mpi4py", "pip install mpi4py mpich"):
        from mpi4py import MPI
    _check.instance(function, "comm", comm, MPI.Comm, "a communicator of mpi4py's", "pass MPI.COMM_WORLD")
    return MPICommunicator(comm, check_timeout(function, timeout))
