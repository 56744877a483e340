"""Uploads of batches of host arrays to a GPU, which overlap with work there.

:class:`Uploader` copies batch after batch into a few device buffers on a stream of its own: the next batch is copied while the kernels of
the one before run. On a CPU it copies nothing, or joins separate arrays, so that the same pipeline works on both.

For copies and work to overlap, the host calls ``upload(i + 1)``, then the kernels of ``i``, then ``release(i)``. It waits for nothing but
page-locked memory that is still being read.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bitsparse.errors import DeviceError, DTypeError
from bitsparse.interop import streams
from bitsparse.interop.devices import CUPY, parse_device, require_cupy
from bitsparse.interop.transfers import (
    CHUNK_BYTES,
    Bytes,
    Chunks,
    aligned_bytes,
    bytes_of,
    enqueue,
    offsets_of,
    pinned_empty,
)

#: Seconds between checks whether a staging buffer was dropped without an upload.
_LOOK_SECONDS = 0.05


@dataclass(eq=False)
class Upload(AbstractContextManager[Any]):
    """One batch being copied; returned by :meth:`Uploader.upload`. ``with upload as buffer:`` waits and releases.

    Attributes
    ----------
    slot : int
        Number of the uploader's device buffer that holds the batch; always 0 on a CPU.
    nbytes : int
        Bytes from the start of the first source to the end of the last.
    offsets : tuple of int
        Where each source starts.
    buffer : array of uint8
        The whole device buffer; :meth:`wait` returns the bytes of the batch.
    begun, arrived : event or None
        CUDA events at the start and end of the copy on its stream.
    """

    buffer: Any
    offsets: tuple[int, ...]
    nbytes: int
    slot: int = 0
    arrived: Any = None
    begun: Any = None
    free: Callable[[Any], None] | None = None
    released: bool = False

    def wait(self, stream: Any = None) -> Any:
        """The bytes on the device; work enqueued from now on, on the current stream (or `stream`), waits until they are there.

        The host does not wait. For a stream that captures, call this before the capture or replay.
        """
        if self.released:
            raise DeviceError(
                "Upload.wait: the batch was released already, and its memory may hold another; wait first"
            )
        if self.arrived is not None:
            streams.of_caller(stream, "Uploader", self.buffer.device.id).wait_event(self.arrived)
        return self.buffer[: self.nbytes]

    def release(self, stream: Any = None) -> None:
        """Declare that all work that reads the bytes is enqueued on the current stream (or `stream`); a later batch may overwrite them."""
        if not self.released:
            self.released = True
            if self.free is not None:
                self.free(stream)

    def done(self) -> bool:
        """Whether the copy is finished, so that page-locked sources may change."""
        return self.arrived is None or bool(self.arrived.done)

    def synchronize(self) -> None:
        """Wait on the host for the copy."""
        if self.arrived is not None:
            self.arrived.synchronize()

    @property
    def events(self) -> tuple[Any, Any] | None:
        """CuPy events at the start and end of the copy on its stream (with ``timed=True``)."""
        return None if self.begun is None else (self.begun, self.arrived)

    @property
    def ms(self) -> float | None:
        """Milliseconds between the start and end of the copy on the device (with ``timed=True``); waits for the copy."""
        if self.begun is None:
            return None
        self.synchronize()
        return float(sys.modules["cupy"].cuda.get_elapsed_time(self.begun, self.arrived))

    def __enter__(self) -> Any:
        return self.wait()

    def __exit__(self, *exc: object) -> None:
        self.release()


@dataclass(eq=False)
class _Slot:
    """A device buffer: whether it is in use, and the event after which it is free."""

    buffer: Any = None
    used: bool = False
    free: Any = None


@dataclass(eq=False)
class _Staging:
    """A page-locked buffer: a weak reference to the array that was handed out, or the event after which it is free."""

    memory: Bytes
    handed: Any = None
    event: Any = None

    def is_free(self) -> bool:
        if self.handed is not None:
            return self.handed() is None  # the array was dropped without an upload
        return self.event is None or bool(self.event.done)

    def holds(self, address: int) -> bool:
        start = self.memory.ctypes.data
        return self.handed is not None and bool(start <= address < start + self.memory.nbytes)


class Uploader(AbstractContextManager["Uploader"]):
    """Copies batches of host arrays to a device, each into one contiguous buffer, while the device works on the batches before.

    Parameters
    ----------
    device : str
        ``"cuda"``, ``"cuda:1"``, or ``"cpu"``, where a batch that is a single contiguous array is not copied.
    slots : int, default 2
        Number of device buffers, used in turn. Two suffice to overlap the copy of a batch with the work on the one before.
    capacity : int, default 0
        Bytes of each buffer, which grows for a larger batch. If no batch exceeds it, addresses never change, so that a CUDA graph can be
        captured for each slot.
    chunk_bytes : int, default 4 MiB
        Size of the pieces in which memory that is not page-locked is copied.
    timed : bool, default False
        Measure each copy (:attr:`Upload.ms`); an attribute that may be changed between uploads.
    stream : optional
        The stream to copy on, as in :func:`bitsparse.use_stream`; by default one of its own.

    Attributes
    ----------
    grown : int
        How often a buffer was replaced by a larger one.
    moved : int
        Bytes copied so far.

    Examples
    --------
    >>> from bitsparse.interop import view
    >>> up = Uploader("cpu")
    >>> batch = up.upload(np.arange(3, dtype=np.int32), np.ones(2, np.float32))
    >>> with batch as buffer:
    ...     view(buffer, batch.offsets[1], (2,), np.float32)
    array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        device: Any = "cuda",
        *,
        slots: int = 2,
        capacity: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        timed: bool = False,
        stream: Any = None,
    ) -> None:
        self.device = parse_device(device, "Uploader")
        if slots < 1 or capacity < 0 or chunk_bytes < 1:
            raise ValueError(
                f"Uploader: slots={slots}, capacity={capacity}, chunk_bytes={chunk_bytes}; "
                f"there must be a slot and a byte in a chunk, and capacity cannot be negative"
            )
        self.grown = self.moved = 0
        self.timed, self._turn, self._closed = timed, 0, False
        self._given = stream  # keeps the stream alive, since the stream below has only its address
        self._slots = [_Slot() for _ in range(slots)]
        self._staging: list[_Staging] = []
        #: Unfinished copies and their sources, which must live until the copies are done.
        self._reading: list[tuple[Any, list[Bytes]]] = []
        self._lock, self._changed = threading.Lock(), threading.Condition()
        if self.device == "cpu":
            return
        self._chunks = None if chunk_bytes == CHUNK_BYTES else Chunks(chunk_bytes)
        cupy = require_cupy("Uploader")
        with streams.working_on(self.device, CUPY):
            self._stream = streams.for_copies(stream, "Uploader")
            with self._stream:
                for slot in self._slots:
                    slot.buffer = cupy.empty(capacity, np.uint8)

    # -- host side --------------------------------------------------------------------------------------------------
    def staging(self, nbytes: int) -> Bytes:
        """Page-locked bytes to write a batch into, for the next :meth:`upload`, which takes them back.

        Waits while ``slots + 1`` such buffers are being written or copied. It may be called in another thread than uploads. An array that
        is dropped without an upload is free again.
        """
        if self.device == "cpu":
            return aligned_bytes(nbytes)
        with self._changed:
            while True:
                free = [one for one in self._staging if one.is_free()]
                fitting = [one for one in free if one.memory.nbytes >= nbytes]
                if not fitting and len(self._staging) > len(self._slots) and free:
                    self._staging.remove(free[0])  # too small, so a larger one takes its place
                if not fitting and len(self._staging) <= len(self._slots):
                    with streams.working_on(self.device, CUPY):
                        fitting = [_Staging(pinned_empty(max(1, nbytes + nbytes // 8)))]
                    self._staging += fitting
                if fitting:
                    chosen = min(fitting, key=lambda one: one.memory.nbytes)
                    # Made from a buffer object, not as a view of an array: views of `handed` then keep `handed` itself alive.
                    handed = np.frombuffer(chosen.memory.data, np.uint8, nbytes)
                    chosen.handed, chosen.event = weakref.ref(handed), None
                    return handed
                travelling = [one.event for one in self._staging if one.event is not None]
                if not travelling:
                    self._changed.wait(_LOOK_SECONDS)
                    continue
                self._changed.release()
                try:
                    travelling[0].synchronize()
                finally:
                    self._changed.acquire()

    def upload(self, *sources: Any) -> Upload:
        """Enqueue the copy of C-contiguous host arrays, one after the other at multiples of 128 bytes, into the next slot.

        Page-locked sources are copied directly and must not change before :meth:`Upload.done`; all others (also ``numpy.memmap``) are
        read during this call, in pieces. The device, not the host, waits until work on the slot's last batch is done.

        Raises
        ------
        DeviceError
            Every slot holds a batch that is not released, or the uploader is closed.
        DTypeError, ValueError
            A source is not a NumPy array, or not contiguous.
        """
        parts = [_source(source, number) for number, source in enumerate(sources)]
        offsets, total = offsets_of([part.size for part in parts])
        total = offsets[-1] + parts[-1].size if parts else total
        if self.device == "cpu":
            return self._here(parts, tuple(offsets), total)
        cupy = sys.modules["cupy"]
        with self._lock, streams.working_on(self.device, CUPY):
            slot = self._slots[self._turn]
            if self._closed or slot.used:
                what = "it is closed" if self._closed else f"none of its {len(self._slots)} slots was released"
                remedy = (
                    "make another" if self._closed else "call release() on the oldest Upload, or ask for more slots"
                )
                raise DeviceError(f"Uploader.upload: a batch of {total} bytes came, but {what}; {remedy}")
            if slot.free is not None:
                self._stream.wait_event(slot.free)
            if slot.buffer.nbytes < total:
                with self._stream:
                    slot.buffer = cupy.empty(total + total // 8, np.uint8)
                self.grown += 1
            begun = streams.recorded(self._stream, timed=True) if self.timed else None
            for offset, part in zip(offsets, parts, strict=True):
                enqueue(cupy, slot.buffer.data.ptr + offset, part, self._stream, self._chunks)
            arrived = streams.recorded(self._stream, timed=self.timed)
            self._reading = [one for one in self._reading if not one[0].done] + [(arrived, parts)]
            slot.used, number = True, self._turn
            self._turn = (self._turn + 1) % len(self._slots)
            self.moved += sum(part.size for part in parts)
        self._give_back(parts, arrived)
        free = partial(self._free, slot)
        return Upload(slot.buffer, tuple(offsets), total, slot=number, arrived=arrived, begun=begun, free=free)

    def _here(self, parts: list[Bytes], offsets: tuple[int, ...], total: int) -> Upload:
        """A batch for the CPU: a single source itself, or a buffer with copies of all sources."""
        if len(parts) == 1:
            return Upload(parts[0], offsets, total)
        buffer = self.staging(total)
        for offset, part in zip(offsets, parts, strict=True):
            buffer[offset : offset + part.size] = part
        self.moved += sum(part.size for part in parts)
        return Upload(buffer, offsets, total)

    def _give_back(self, parts: list[Bytes], event: Any) -> None:
        """Mark staging buffers among the sources as free once ``event`` has happened."""
        with self._changed:
            for part in parts:
                for one in self._staging:
                    if part.size and one.holds(part.ctypes.data):
                        one.handed, one.event = None, event
            self._changed.notify_all()

    # -- device side ------------------------------------------------------------------------------------------------
    def _free(self, slot: _Slot, stream: Any) -> None:
        """Let later batches overwrite a buffer once the work that is now on the current stream (or `stream`) is done."""
        with streams.working_on(self.device, CUPY):
            event = streams.recorded(streams.of_caller(stream, "Uploader", int(self.device[5:])))
        with self._lock:
            slot.free, slot.used = event, False

    def close(self) -> None:
        """Wait for copies and for work on released batches, and free the memory."""
        with self._lock:
            self._closed = True
            if self.device != "cpu":
                self._stream.synchronize()
                self._reading.clear()
                for slot in self._slots:
                    if slot.free is not None:
                        slot.free.synchronize()
                    slot.buffer = None
            self._staging.clear()

    def __exit__(self, *exc: object) -> None:
        self.close()


def _source(source: Any, number: int) -> Bytes:
    if not isinstance(source, np.ndarray):
        raise DTypeError(
            f"Uploader.upload: source {number} is a {type(source).__name__}, but NumPy arrays travel; pass np.asarray(x)"
        )
    if not source.flags.c_contiguous:
        raise ValueError(
            f"Uploader.upload: source {number} of shape {source.shape} has strides {source.strides}, but contiguous memory "
            f"travels; pass np.ascontiguousarray(x)"
        )
    return bytes_of(np.asarray(source))
