"""The communicator on a process group of PyTorch: gloo for arrays in host memory, NCCL for arrays on GPUs."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse._communicator import REDUCTIONS, Engine, Reduction, bytes_of, kept_rows, who
from bitsparse.errors import CommunicationError, DeviceError
from bitsparse.interop.streams import stream_of_torch

#: Addresses of the default stream of CuPy and PyTorch.
_DEFAULT_STREAMS = (0, 1)


class TorchCommunicator(Engine):
    """A process group of ``torch.distributed``; made by :func:`from_torch`."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        # PyTorch keeps its groups until they are destroyed. A reference that keeps one longer sometimes aborts the process at its end.
        self._kept_by_torch = weakref.ref(dist.group.WORLD if group is None else group)
        # Until PyTorch 2.12 it is called all_gather_into_tensor.
        self._all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.backends = _backends(dist, group)
        self.engine = self.backends.get("cuda", self.backends.get("cpu", "gloo"))

    @property
    def _group(self) -> Any:
        group = self._kept_by_torch()
        if group is None:
            raise CommunicationError(
                f"the process group of {who(self)} was destroyed; make another one by init_process_group, and from_torch of it"
            )
        return group

    @contextmanager
    def _on_stream(self, operation: str, *arrays: Any) -> Iterator[list[Any]]:
        """Yield the arrays as tensors over the same memory; on a GPU, CuPy's current stream is also PyTorch's."""
        torch = sys.modules["torch"]
        device = interop.device_of(arrays[0])
        kind = device.partition(":")[0]
        if kind not in self.backends:
            known = ", ".join(f"{where}:{name}" for where, name in self.backends.items())
            raise DeviceError(
                f"{operation}: the arrays of {who(self)} are on {device}, but its process group knows {known}; call "
                f"init_process_group('cpu:gloo,cuda:nccl')"
            )
        errors = (RuntimeError, ValueError)
        if device == "cpu":
            with self._during(operation, errors):
                yield [torch.from_numpy(array) for array in arrays]
            return
        with self._at(int(device[5:]), operation), self._during(operation, errors):
            # No stream is passed, because PyTorch already works on the stream of the arrays.
            yield [torch.from_dlpack(array.__dlpack__(stream=-1)) for array in arrays]

    @staticmethod
    @contextmanager
    def _at(index: int, operation: str) -> Iterator[None]:
        """Make CuPy's current stream on a GPU that of PyTorch, unless it is already."""
        torch = sys.modules["torch"]
        pointer = interop.require_cupy(operation).cuda.get_current_stream().ptr
        is_default = pointer in _DEFAULT_STREAMS
        if torch.cuda.current_device() == index and stream_of_torch(index) == (0 if is_default else pointer):
            yield
            return
        # An external stream with address 0 would be a new stream of PyTorch, which waits for nothing.
        stream = torch.cuda.default_stream(index) if is_default else torch.cuda.ExternalStream(pointer, device=index)
        with torch.cuda.device(index), torch.cuda.stream(stream):
            yield

    def all_gather(self, send: Any, receive: Any) -> None:
        """See :class:`Communicator`."""
        self._checked("all_gather", send[None], receive[:1], (1, 1))
        with self._on_stream("all_gather", bytes_of(send), bytes_of(receive)) as (mine, all_ranks):
            if mine.numel():
                self._all_gather(all_ranks, mine, group=self._group)

    def all_to_all_v(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> None:
        """See :class:`Communicator`."""
        self._checked("all_to_all_v", send, receive, (sum(send_counts), sum(receive_counts)))
        row = int(np.prod(send.shape[1:], dtype=np.int64)) * send.dtype.itemsize
        if not row:
            return
        sent, received = ([count * row for count in counts] for counts in (send_counts, receive_counts))
        with self._on_stream("all_to_all_v", bytes_of(send), bytes_of(receive)) as (mine, theirs):
            if mine.is_cuda:
                self._to_others(mine, sent, theirs, received)
                return
            kept = kept_rows(self.rank, sent, received)
            if kept is None:
                self._dist.all_to_all_single(theirs, mine, received, sent, group=self._group)
                return
            received[self.rank] = 0  # gloo writes without gaps
            came = theirs.new_empty(sum(received))
            self._dist.all_to_all_single(came, mine, received, sent, group=self._group)
            theirs[: kept.start], theirs[kept.stop :] = came[: kept.start], came[kept.start :]

    def _to_others(self, mine: Any, sent: list[int], theirs: Any, received: list[int]) -> None:
        """The exchange by NCCL. Own bytes are copied alongside it, because NCCL uses few blocks per rank and would copy them slowly."""
        sends, receives = list(mine.split(sent)), list(theirs.split(received))
        own, place = sends[self.rank], receives[self.rank]
        sends[self.rank] = receives[self.rank] = mine[:0]
        beside = bool(own.numel())
        work = self._dist.all_to_all(receives, sends, group=self._group, async_op=beside)
        if beside:
            place.copy_(own)
            work.wait()

    def all_reduce(self, array: Any, op: Reduction = "sum") -> None:
        """See :class:`Communicator`."""
        _check.choice("all_reduce", "op", op, REDUCTIONS)
        with self._on_stream("all_reduce", array) as (tensor,):
            self._dist.all_reduce(tensor, getattr(self._dist.ReduceOp, op.upper()), group=self._group)

    def barrier(self) -> None:
        """See :class:`Communicator`. The processes wait for each other, but not for work enqueued on GPUs."""
        with self._during("barrier", (RuntimeError,)):
            self._dist.barrier(group=self._group)


def _backends(dist: Any, group: Any) -> dict[str, str]:
    """The backend for each kind of device."""
    known = [part.split(":") for part in str(dist.get_backend_config(group)).split(",")]
    return {where: name for where, name in known if where in ("cpu", "cuda")}


def from_torch(group: Any = None) -> TorchCommunicator:
    """Make a communicator from a process group of PyTorch, which the caller has made and continues to own.

    Parameters
    ----------
    group : ProcessGroup, optional
        ``torch.distributed.group.WORLD`` by default. A group from ``init_process_group("cpu:gloo,cuda:nccl")`` exchanges arrays on the CPU
        and on GPUs. NCCL alone is not enough, because making plans exchanges arrays in host memory.

    Returns
    -------
    TorchCommunicator

    Raises
    ------
    RuntimeError
        PyTorch has no process group yet.
    DeviceError
        The group carries no arrays in host memory.

    Notes
    -----
    On a GPU, collectives are enqueued on CuPy's current stream, in order with other work there; the host does not wait. The group's own
    ``timeout`` says how long a rank waits for a lost one. With gloo the waiting call raises the error; with NCCL the watchdog ends the
    process (``TORCH_NCCL_ASYNC_ERROR_HANDLING``).

    Examples
    --------
    Started by ``torchrun --nproc-per-node 2``::

        import torch.distributed as dist
        dist.init_process_group("cpu:gloo,cuda:nccl")
        comm = bs.distributed.from_torch(dist.group.WORLD)
    """
    function = "from_torch"
    with _check.needed(function, "torch", "pip install 'bitsparse[torch]'"):
        import torch.distributed as dist
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            f"{function}: torch.distributed has no process group; call init_process_group('cpu:gloo,cuda:nccl') first, under torchrun"
        )
    made = TorchCommunicator(group)
    if "cpu" not in made.backends:
        raise DeviceError(
            f"{function}: the process group knows {made.backends}, but sizes and hashes are agreed on in host memory; call "
            f"init_process_group('cpu:gloo,cuda:nccl')"
        )
    return made
