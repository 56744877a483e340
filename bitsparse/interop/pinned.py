"""Page-locked host memory, and copies from ordinary memory to a GPU through pieces of it.

A copy engine reads only page-locked memory. Handed anything else, the driver copies it into its own buffers first, in one thread, and keeps
the caller waiting. Here several threads fill pieces of page-locked memory while the copy engine empties others.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.interop.devices import require_cupy

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["ALIGNMENT", "CHUNK_BYTES", "Chunks", "bytes_of", "enqueue", "is_pinned", "pinned_empty"]

#: Where arrays start that share a buffer: a multiple of a memory transaction on every device.
ALIGNMENT = 128
#: Bytes of a piece: 70 microseconds of a PCIe 5 link, several times what enqueueing one takes.
CHUNK_BYTES = 4 << 20
#: Pieces in the process; at most so many threads fill them (one core copies a fraction of what such a link takes).
_CHUNKS, _THREADS = 8, 4
#: Fewer pieces are filled by the caller alone.
_FEW_CHUNKS = 4

Bytes = NDArray[np.uint8]


def pinned_empty(shape: int | tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
    """An uninitialised NumPy array in page-locked memory, which copies to a GPU at the full rate and without the host's help.

    Page-locking takes milliseconds for each 10 MB and takes the memory from everybody else: make few, and keep them.

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
    flat = np.frombuffer(memory, np.uint8, nbytes + ALIGNMENT)  # keeps the memory
    start = -flat.ctypes.data % ALIGNMENT
    made: NDArray[Any] = flat[start : start + nbytes].view(dtype).reshape(sizes)
    return made


def is_pinned(array: NDArray[Any]) -> bool:
    """Whether a host array lies in page-locked memory, whoever allocated it."""
    asked = getattr(require_cupy("is_pinned").cuda.pinned_memory, "is_memory_pinned", None)
    return bool(asked is not None and array.nbytes and asked(array.ctypes.data))


def bytes_of(array: NDArray[Any]) -> Bytes:
    """The memory of a C-contiguous array as bytes."""
    flat: Bytes = array.reshape(-1).view(np.uint8)
    return flat


class Chunks:
    """Pieces of page-locked memory that copies take in turns; made when they are needed, kept for good."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, limit: int = _CHUNKS) -> None:
        self.chunk_bytes, self._limit = chunk_bytes, limit
        self._count = 0
        self._free: deque[tuple[Bytes, Any]] = deque()
        self._lock = threading.Lock()

    def take(self) -> Bytes:
        """A piece that nothing reads any more; waits for the oldest copy if all are in use."""
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
        """Back, to be taken once ``event`` has happened (None: at once)."""
        with self._lock:
            self._free.append((piece, event))


class _Shared:
    """The pieces and threads of the process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chunks: Chunks | None = None
        self.threads: ThreadPoolExecutor | None = None
        self.workers = 1

    def pool(self) -> ThreadPoolExecutor:
        with self.lock:
            if self.threads is None:
                from concurrent.futures import ThreadPoolExecutor  # which costs an import of the package milliseconds

                cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
                self.workers = max(1, min(_THREADS, cores - 1))
                self.threads = ThreadPoolExecutor(self.workers, thread_name_prefix="bitsparse-transfer")
            return self.threads

    def pieces(self) -> Chunks:
        with self.lock:
            if self.chunks is None:
                self.chunks = Chunks()
            return self.chunks


_shared = _Shared()


def _forget() -> None:
    """A child of fork() has none of its parent's threads, and no GPU."""
    global _shared
    _shared = _Shared()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def enqueue(cupy: Any, to: int, source: Bytes, stream: Any, chunks: Chunks | None = None) -> bool:
    """Enqueue a copy of host bytes to a device address; whether the source will be read only later, because it is page-locked itself.

    Any other source has been read when this returns.
    """
    if not source.size:
        return False
    to_device = cupy.cuda.runtime.memcpyHostToDevice
    if is_pinned(source):
        cupy.cuda.runtime.memcpyAsync(to, source.ctypes.data, source.size, to_device, stream.ptr)
        return True
    chunks = _shared.pieces() if chunks is None else chunks
    step = chunks.chunk_bytes

    def send(start: int, piece: Bytes, count: int) -> None:
        cupy.cuda.runtime.memcpyAsync(to + start, piece.ctypes.data, count, to_device, stream.ptr)
        event = cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        chunks.give(piece, event)

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
        for _, piece, _, future in filling:  # after an error
            future.exception()
            chunks.give(piece, None)
    return False


def _filled(filling: deque[tuple[int, Bytes, int, Future[None]]]) -> tuple[int, Bytes, int]:
    """The oldest piece, once its thread is done with it."""
    filling[0][3].result()
    start, piece, count, _ = filling.popleft()
    return start, piece, count
