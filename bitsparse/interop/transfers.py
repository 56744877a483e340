"""Single copies between host memory and a GPU, results on their way back, and arrays inside buffers.

:func:`to_gpu` is the copy behind every ``to_device``. :class:`Downloader` brings results home on a stream of its own;
:class:`bitsparse.interop.Uploader` is its counterpart.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse.errors import DeviceError, ShapeError
from bitsparse.interop import streams
from bitsparse.interop.devices import parse_device, require_cupy
from bitsparse.interop.host import CUPY
from bitsparse.interop.pinned import ALIGNMENT, Bytes, bytes_of, enqueue, is_pinned, pinned_empty

__all__ = ["Download", "Downloader", "offsets_of", "to_gpu", "view"]

#: Smaller arrays go through CuPy's own staging: they need no pieces and must not wait for one.
_SMALL_BYTES = 1 << 20


def view(buffer: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array inside a buffer of bytes, NumPy's or CuPy's.

    Examples
    --------
    >>> view(np.arange(16, dtype=np.uint8), 8, (2, 2), np.uint16).tolist()
    [[2312, 2826], [3340, 3854]]
    """
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return buffer[offset : offset + count].view(dtype).reshape(shape)


def offsets_of(sizes: list[int]) -> tuple[list[int], int]:
    """Where parts of so many bytes start, at multiples of 128 bytes, and the bytes of all.

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

    The source has been read when this returns, unless it is page-locked and ``later`` allows to read it when the stream gets there.

    Raises
    ------
    DeviceError
        The stream is capturing: replays would copy whatever the memory holds by then.
    """
    cupy = require_cupy("to_device")
    with streams.working_on(device, CUPY):
        return _to_gpu(cupy, x, device, later)


def _to_gpu(cupy: Any, x: NDArray[Any], device: str, later: bool) -> Any:
    stream = cupy.cuda.get_current_stream()
    if cupy.cuda.runtime.streamIsCapturing(stream.ptr):
        raise DeviceError(
            f"to_device: {x.nbytes} bytes of host memory were to be copied to {device}, but its stream is capturing; "
            f"move them before the capture begins"
        )
    if not x.flags.c_contiguous or (x.nbytes < _SMALL_BYTES and not is_pinned(x)):
        return cupy.asarray(x)
    # bfloat16 is what not every CuPy allocates
    out = cupy.empty(x.shape, np.uint16 if x.dtype.name == "bfloat16" else x.dtype).view(x.dtype)
    if enqueue(cupy, out.data.ptr, bytes_of(x), stream) and not later:
        event = cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        event.synchronize()
    return out


class Download:
    """A result on its way back: what :meth:`Downloader.download` gives."""

    def __init__(self, array: Any, out: NDArray[Any], staged: NDArray[Any] | None = None, arrived: Any = None) -> None:
        self._array, self._out, self._staged, self._arrived = array, out, staged, arrived
        self.seconds = 0.0

    def hold(self, stream: Any = None) -> None:
        """Later work on the current stream (or `stream`) waits until the array was read, so that it may overwrite it."""
        if self._arrived is not None:
            cupy = sys.modules["cupy"]
            chosen = (
                cupy.cuda.get_current_stream()
                if stream is None
                else streams.stream_at(cupy, streams.pointer_of(stream, "Downloader"))
            )
            chosen.wait_event(self._arrived)

    def wait(self) -> NDArray[Any]:
        """`out` with the values; the host waits. Idempotent."""
        if self._staged is not None:
            self._arrived.synchronize()
            begin = time.perf_counter()
            np.copyto(self._out, self._staged)
            self.seconds = time.perf_counter() - begin
            self._staged = self._array = None
        return self._out


class Downloader:
    """Copies results from a device into host arrays (``numpy.memmap`` too) behind the work that computes them.

    Parameters
    ----------
    device : str
        As for :class:`Uploader`; on ``"cpu"`` results are copied at once.
    slots : int, default 2
        Results on their way at the same time; the oldest is waited for where there are more.
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
            cupy = require_cupy("Downloader")
            with streams.working_on(self.device, CUPY):
                self._stream = (
                    cupy.cuda.Stream(non_blocking=True)
                    if stream is None
                    else streams.stream_at(cupy, streams.pointer_of(stream, "Downloader"))
                )

    def download(self, array: Any, out: NDArray[Any]) -> Download:
        """Enqueue the copy of a C-contiguous array, behind the current stream's work; :meth:`Download.wait` puts it into `out`.

        The array must not be overwritten before it was read: let :meth:`Download.hold` see to that. Its memory is kept.
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
            before = cupy.cuda.Event(disable_timing=True)
            before.record(cupy.cuda.get_current_stream())
            self._stream.wait_event(before)
            if array.nbytes:
                to_host = cupy.cuda.runtime.memcpyDeviceToHost
                cupy.cuda.runtime.memcpyAsync(
                    memory.ctypes.data, array.data.ptr, array.nbytes, to_host, self._stream.ptr
                )
            arrived = cupy.cuda.Event(disable_timing=True)
            arrived.record(self._stream)
        download = Download(array, out, view(memory, 0, array.shape, array.dtype), arrived)
        self._last[slot] = download
        return download

    def close(self) -> None:
        """Wait for everything that is on its way."""
        for download in self._last:
            if download is not None:
                download.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
