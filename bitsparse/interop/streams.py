"""The GPU and stream of a call's work: the device of its data, and PyTorch's current stream for tensors, else CuPy's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bitsparse._check import shown
from bitsparse.errors import DTypeError
from bitsparse.interop.devices import Family, require_cupy

_NOTHING = nullcontext()


class _Chosen(threading.local):
    depth = 0


_chosen = _Chosen()


@contextmanager
def use_stream(stream: Any) -> Iterator[None]:
    """Enqueue bitsparse's work on the caller's CUDA stream, whatever library the operands belong to.

    Without this, work on PyTorch tensors goes to PyTorch's current stream, and all other work to CuPy's current stream.

    Parameters
    ----------
    stream : int, or an object with `ptr`, `cuda_stream` or `__cuda_stream__`
        The address of a ``cudaStream_t``, or a stream of CuPy, PyTorch or CUDA Python. It must stay alive inside the block.

    Examples
    --------
    On a machine with a GPU, with operands `a` and `b` there::

        with bs.use_stream(torch.cuda.Stream()):
            y = a @ b

    >>> with bs.use_stream(-1):
    ...     pass
    Traceback (most recent call last):
    ...
    bitsparse.errors.DTypeError: use_stream: stream must be the address of a CUDA stream or a stream object of CuPy or PyTorch, got -1
    """
    pointer = pointer_of(stream, "use_stream")
    cupy = require_cupy("use_stream")
    _chosen.depth += 1
    try:
        with stream_at(cupy, pointer):
            yield
    finally:
        _chosen.depth -= 1


class _Foreign:
    """A stream known by its address, wrapped in CUDA's stream protocol."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


def stream_at(cupy: Any, pointer: int) -> Any:
    """A CuPy stream object for the stream at an address."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Foreign(pointer))
    return cupy.cuda.ExternalStream(pointer)  # before CuPy 14


def pointer_of(stream: Any, function: str) -> int:
    """The address of a stream that is given as an address or as an object of CuPy, PyTorch or CUDA Python."""
    for name in ("ptr", "cuda_stream"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < 0:
        raise DTypeError(
            f"{function}: stream must be the address of a CUDA stream or a stream object of CuPy or PyTorch, got {shown(stream)}"
        )
    return stream


def of_caller(stream: Any, function: str, gpu: int = -1) -> Any:
    """A caller's stream, in any form of :func:`pointer_of`, as a CuPy stream; for None the current stream of `gpu` (-1: current GPU)."""
    cupy = sys.modules["cupy"]
    return cupy.cuda.get_current_stream(gpu) if stream is None else stream_at(cupy, pointer_of(stream, function))


def for_copies(stream: Any, function: str) -> Any:
    """The caller's stream for copies, or a new one that waits for no other stream."""
    return require_cupy(function).cuda.Stream(non_blocking=True) if stream is None else of_caller(stream, function)


def recorded(stream: Any, *, timed: bool = False) -> Any:
    """An event recorded after everything that is enqueued on a CuPy stream so far."""
    event = sys.modules["cupy"].cuda.Event(disable_timing=not timed)
    event.record(stream)
    return event


def working_on(device: str, family: Family) -> AbstractContextManager[Any]:
    """A context that makes the device and stream for work on data of ``family`` on ``device`` CuPy's current ones."""
    if device == "cpu":
        return _NOTHING
    cupy = require_cupy("bitsparse")  # another library's array may be the first on a GPU
    index = int(device[5:])
    switch = None if cupy.cuda.runtime.getDevice() == index else cupy.cuda.Device(index)
    pointer = None
    if family.name == "torch" and not _chosen.depth:
        wanted = stream_of_torch(index)
        if switch is not None or wanted != cupy.cuda.get_current_stream().ptr:
            pointer = wanted
    if switch is None and pointer is None:
        return _NOTHING
    return switched(cupy, switch, pointer)


def stream_of_torch(index: int) -> int:
    """The address of PyTorch's current stream on a GPU; as every call needs it, this avoids making PyTorch's stream object."""
    torch = sys.modules["torch"]
    address = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(torch.cuda.current_stream(index).cuda_stream if address is None else address(index))


def stream_for_torch(index: int) -> int:
    """The address of the stream on which work on PyTorch's tensors runs: that of :func:`use_stream`, else PyTorch's current one."""
    return int(sys.modules["cupy"].cuda.get_current_stream(index).ptr) if _chosen.depth else stream_of_torch(index)


def is_capturing(device: str) -> bool:
    """Whether CuPy's current stream on ``device`` is capturing a CUDA graph.

    Examples
    --------
    >>> is_capturing("cpu")
    False
    """
    if device == "cpu":
        return False
    cupy = sys.modules["cupy"]
    return bool(cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr))


@contextmanager
def moving(device: str, family: Family, stream: Any = None) -> Iterator[None]:
    """As :func:`working_on`, but on the caller's stream if one is given."""
    with working_on(device, family), nullcontext() if stream is None else use_stream(stream):
        yield


class Ready:
    """Lets streams wait for cached results that were prepared on another stream; on the CPU there is nothing to wait for.

    A capture begins after a synchronisation and cannot include events of other streams, so nothing waits while a stream is capturing.
    """

    __slots__ = ("_event", "_known")

    def __init__(self) -> None:
        self._event: Any = None
        self._known: set[int] = set()

    def wait(self) -> None:
        """Make the current stream wait before it reads what was prepared."""
        if self._event is None:
            return
        cupy = sys.modules["cupy"]
        stream = cupy.cuda.get_current_stream()
        if stream.ptr not in self._known and not cupy.cuda.runtime.streamIsCapturing(stream.ptr):
            stream.wait_event(self._event)
            self._known.add(stream.ptr)

    def renew(self) -> None:
        """Record that the current stream, after :meth:`wait`, has prepared something."""
        cupy = sys.modules["cupy"]
        stream = cupy.cuda.get_current_stream()
        if not cupy.cuda.runtime.streamIsCapturing(stream.ptr):
            self._event, self._known = recorded(stream), {stream.ptr}


def current_gpu() -> Callable[[], int]:
    """The function that returns the number of CuPy's current device, for code that calls it often."""
    return sys.modules["cupy"].cuda.runtime.getDevice


@contextmanager
def switched(cupy: Any, switch: Any, pointer: int | None) -> Iterator[None]:
    """A context that changes CuPy's current device, stream or both; None leaves one as it is."""
    with _NOTHING if switch is None else switch, _NOTHING if pointer is None else stream_at(cupy, pointer):
        yield
