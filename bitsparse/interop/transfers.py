"""Copies between host memory and a GPU: page-locked memory, copies of ordinary memory through pieces of it, and downloads of results.

The copy engine of a GPU reads only page-locked memory. The driver copies other memory into its own buffers first, in a single thread, while
the caller waits. Here several threads fill pieces of page-locked memory while the copy engine empties others.

:func:`to_gpu` is the copy behind every ``to_device``. :class:`Downloader` copies results to the host on a stream of its own;
:class:`bitsparse.interop.Uploader` is its counterpart for the other direction.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._fork import fresh_in_children
from bitsparse.errors import DeviceError, ShapeError
from bitsparse.interop import streams
from bitsparse.interop.devices import CUPY, parse_device, require_cupy

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Alignment of arrays that share a buffer: a multiple of a memory transaction on every device.
ALIGNMENT = 128
#: Bytes of a piece: 70 microseconds of a PCIe 5 link, several times the time to enqueue one.
CHUNK_BYTES = 4 << 20
#: Most pieces in the process, and most threads that fill them (one core copies at a fraction of the rate of such a link).
_CHUNKS, _THREADS = 8, 4
#: Up to this number of pieces, the calling thread fills them alone.
_FEW_CHUNKS = 4

#: Smaller arrays go through CuPy's own staging: they need no pieces and should not wait for one.
_SMALL_BYTES = 1 << 20

Bytes = NDArray[np.uint8]


def pinned_empty(shape: int | tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
    """An uninitialised NumPy array in page-locked memory, which is copied to a GPU at the full rate and without the host's help.

    Page-locking takes milliseconds for each 10 MB and withdraws the memory from all other programs: make few such arrays, and keep them.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype, default uint8

    Raises
    ------
    DeviceError
        CuPy is missing.

    Examples
    --------
    On a machine with a GPU::

        words = interop.pinned_empty((1 << 20, 4), np.uint32)
    """
    cupy = require_cupy("pinned_empty")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = int(np.prod(sizes, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.alloc_pinned_memory(nbytes + ALIGNMENT)
    flat = np.frombuffer(memory, np.uint8, nbytes + ALIGNMENT)  # keeps the memory alive
    start = -flat.ctypes.data % ALIGNMENT
    return flat[start : start + nbytes].view(dtype).reshape(sizes)


def aligned_bytes(nbytes: int, alignment: int = ALIGNMENT) -> Bytes:
    """Zeroed host memory that begins at a multiple of `alignment`."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def is_pinned(array: NDArray[Any]) -> bool:
    """Whether a host array is in page-locked memory, whichever library allocated it."""
    asked = getattr(require_cupy("is_pinned").cuda.pinned_memory, "is_memory_pinned", None)
    return bool(asked is not None and array.nbytes and asked(array.ctypes.data))


def bytes_of(array: NDArray[Any]) -> Bytes:
    """The memory of a C-contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8)


class Chunks:
    """Pieces of page-locked memory that copies use in turn; they are allocated on demand and never freed."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, limit: int = _CHUNKS) -> None:
        self.chunk_bytes, self._limit = chunk_bytes, limit
        self._count = 0
        self._free: deque[tuple[Bytes, Any]] = deque()
        self._lock = threading.Lock()

    def take(self) -> Bytes:
        """A piece that no copy reads any more; waits for the oldest copy if all pieces are in use."""
        with self._lock:
            if self._free and (self._free[0][1] is None or self._count >= self._limit or self._free[0][1].done):
                piece, event = self._free.popleft()
            else:
                piece, event = pinned_empty(self.chunk_bytes), None
                self._count += 1
        if event is not None:
            event.synchronize()
        return piece

    def give(self, piece: Bytes, event: Any) -> None:
        """Return a piece, which may be taken again once ``event`` has happened (None: at once)."""
        with self._lock:
            self._free.append((piece, event))


def cores() -> int:
    """Number of cores that this process may use, if the system tells; else that of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Shared:
    """The pieces and threads that all copies of the process share."""

    def __init__(self) -> None:
        self.lock, self.chunks = threading.Lock(), Chunks()
        self.threads: ThreadPoolExecutor | None = None
        self.workers = max(1, min(_THREADS, cores() - 1))

    def pool(self) -> ThreadPoolExecutor:
        with self.lock:
            if self.threads is None:
                from concurrent.futures import ThreadPoolExecutor  # here, because it makes the package's import slower

                self.threads = ThreadPoolExecutor(self.workers, thread_name_prefix="bitsparse-transfer")
            return self.threads


_shared = _Shared()
# A child of fork() has neither its parent's threads nor its GPU.
fresh_in_children(sys.modules[__name__], _shared=_Shared)


def enqueue(cupy: Any, to: int, source: Bytes, stream: Any, chunks: Chunks | None = None) -> bool:
    """Enqueue a copy of host bytes to a device address, and return whether the source is page-locked and will be read only later.

    Any other source has been read when this returns.
    """
    if not source.size:
        return False
    to_device = cupy.cuda.runtime.memcpyHostToDevice
    if is_pinned(source):
        cupy.cuda.runtime.memcpyAsync(to, source.ctypes.data, source.size, to_device, stream.ptr)
        return True
    chunks = _shared.chunks if chunks is None else chunks
    step = chunks.chunk_bytes

    def send(start: int, piece: Bytes, count: int) -> None:
        cupy.cuda.runtime.memcpyAsync(to + start, piece.ctypes.data, count, to_device, stream.ptr)
        chunks.give(piece, streams.recorded(stream))

    threads = _shared.pool() if source.size > _FEW_CHUNKS * step else None
    filling: deque[tuple[int, Bytes, int, Future[None]]] = deque()
    try:
        for start in range(0, source.size, step):
            part, piece = source[start : start + step], chunks.take()
            if threads is None:
                np.copyto(piece[: part.size], part)
                send(start, piece, part.size)
                continue
            filling.append((start, piece, part.size, threads.submit(np.copyto, piece[: part.size], part)))
            if len(filling) > _shared.workers:
                send(*_filled(filling))
        while filling:
            send(*_filled(filling))
    finally:
        for _, piece, _, future in filling:  # something is left only after an error
            future.exception()
            chunks.give(piece, None)
    return False


def _filled(filling: deque[tuple[int, Bytes, int, Future[None]]]) -> tuple[int, Bytes, int]:
    """The oldest piece, once its thread has filled it."""
    filling[0][3].result()
    start, piece, count, _ = filling.popleft()
    return start, piece, count


# -- arrays inside buffers, and single copies ----------------------------------------------------------------------------
def view(buffer: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """A view of a part of a NumPy or CuPy buffer of bytes as an array.

    Examples
    --------
    >>> view(np.arange(16, dtype=np.uint8), 8, (2, 2), np.uint16).tolist()
    [[2312, 2826], [3340, 3854]]
    """
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return buffer[offset : offset + count].view(dtype).reshape(shape)


def offsets_of(sizes: list[int]) -> tuple[list[int], int]:
    """Start of each part in a buffer, at multiples of 128 bytes, for parts with these sizes; and the total bytes.

    Examples
    --------
    >>> offsets_of([4, 130, 0])
    ([0, 128, 384], 384)
    """
    found, end = [], 0
    for size in sizes:
        found.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return found, end


def to_gpu(x: NDArray[Any], device: str, *, later: bool = False) -> Any:
    """A copy of a host array on ``device`` ("cuda:0"), enqueued on CuPy's current stream there.

    The source has been read when this returns, unless it is page-locked and ``later`` allows reading it when the stream gets there.

    Raises
    ------
    DeviceError
        The stream is capturing; replays would copy whatever the memory holds at that time.
    """
    cupy = require_cupy("to_device")
    with streams.working_on(device, CUPY):
        stream = cupy.cuda.get_current_stream()
        _refuse_capture("to_device", x.nbytes, "move them before the capture begins")
        if not x.flags.c_contiguous or (x.nbytes < _SMALL_BYTES and not is_pinned(x)):
            return cupy.asarray(x)
        # Allocated as uint16, because some versions of CuPy cannot allocate bfloat16.
        out = cupy.empty(x.shape, np.uint16 if x.dtype.name == "bfloat16" else x.dtype).view(x.dtype)
        if enqueue(cupy, out.data.ptr, bytes_of(x), stream) and not later:
            streams.recorded(stream).synchronize()
        return out


def uploaded(x: Any, function: str, dtype: Any = None) -> Any:
    """A small array on CuPy's current GPU, for `function`; an array in host memory is copied there on the current stream.

    Raises
    ------
    DeviceError
        The stream is capturing; replays would copy whatever CuPy's page-locked memory holds at that time.
    """
    if isinstance(x, np.ndarray):
        _refuse_capture(function, x.nbytes, "make the call once before the capture begins, or a plan for it")
    return require_cupy(function).asarray(x, dtype)


def _refuse_capture(function: str, nbytes: int, remedy: str) -> None:
    if streams.is_capturing("cuda"):
        raise DeviceError(
            f"{function}: {nbytes} bytes of host memory were to be copied to a GPU, but its stream is capturing; {remedy}"
        )


@dataclass(eq=False)
class Download:
    """A result that is being copied to the host; returned by :meth:`Downloader.download`."""

    array: Any
    out: NDArray[Any]
    staged: NDArray[Any] | None = None
    arrived: Any = None

    def hold(self, stream: Any = None) -> None:
        """Make later work on the current stream (or `stream`) wait until the array has been read, so that it may overwrite the array."""
        if self.arrived is not None:
            streams.of_caller(stream, "Downloader").wait_event(self.arrived)

    def wait(self) -> NDArray[Any]:
        """Wait on the host, and return `out` with the values; may be called again."""
        if self.staged is not None:
            self.arrived.synchronize()
            np.copyto(self.out, self.staged)
            self.staged = self.array = None
        return self.out


class Downloader(AbstractContextManager["Downloader"]):
    """Copies results from a device into host arrays (also ``numpy.memmap``) after the work that computes them.

    Parameters
    ----------
    device : str
        As for :class:`Uploader`; on ``"cpu"`` results are copied at once.
    slots : int, default 2
        Most results being copied at the same time; one more waits for the oldest.
    stream : optional
        The stream to copy on; by default one of its own.

    Examples
    --------
    >>> out = np.empty(3, np.float32)
    >>> Downloader("cpu").download(np.ones(3, np.float32), out).wait()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, device: Any = "cuda", *, slots: int = 2, stream: Any = None) -> None:
        self.device = parse_device(device, "Downloader")
        if slots < 1:
            raise ValueError(f"Downloader: slots={slots}, but there must be one")
        self._turn = 0
        self._memory: list[Bytes | None] = [None] * slots
        self._last: list[Download | None] = [None] * slots
        if self.device != "cpu":
            with streams.working_on(self.device, CUPY):
                self._stream = streams.for_copies(stream, "Downloader")

    def download(self, array: Any, out: NDArray[Any]) -> Download:
        """Enqueue the copy of a C-contiguous array after the current stream's work; :meth:`Download.wait` puts it into `out`.

        The array must not be overwritten before it has been read; :meth:`Download.hold` ensures that. Its memory is kept alive.
        """
        if array.shape != out.shape or array.dtype != out.dtype:
            raise ShapeError(
                f"Downloader.download: the array has shape {array.shape} and dtype {array.dtype}, but out {out.shape} and "
                f"{out.dtype}; pass an out of the array's"
            )
        if self.device == "cpu":
            np.copyto(out, array)
            return Download(array, out)
        cupy = sys.modules["cupy"]
        if not array.flags.c_contiguous:
            raise ValueError(
                f"Downloader.download: the array of shape {array.shape} has strides {array.strides}, but contiguous memory "
                f"travels; pass cupy.ascontiguousarray(x)"
            )
        slot, self._turn = self._turn, (self._turn + 1) % len(self._last)
        last = self._last[slot]
        if last is not None:
            last.wait()
        with streams.working_on(self.device, CUPY):
            memory = self._memory[slot]
            if memory is None or memory.nbytes < array.nbytes:
                memory = self._memory[slot] = pinned_empty(max(1, array.nbytes + array.nbytes // 8))
            self._stream.wait_event(streams.recorded(cupy.cuda.get_current_stream()))
            if array.nbytes:
                to_host = cupy.cuda.runtime.memcpyDeviceToHost
                cupy.cuda.runtime.memcpyAsync(
                    memory.ctypes.data, array.data.ptr, array.nbytes, to_host, self._stream.ptr
                )
            staged = view(memory, 0, array.shape, array.dtype)
            self._last[slot] = download = Download(array, out, staged, streams.recorded(self._stream))
        return download

    def close(self) -> None:
        """Wait for all copies."""
        for download in self._last:
            if download is not None:
                download.wait()

    def __exit__(self, *exc: object) -> None:
        self.close()
