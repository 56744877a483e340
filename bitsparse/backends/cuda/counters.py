"""Counters by which the blocks of a launch find out which of them is done last."""

from __future__ import annotations

import functools
import threading
from typing import Any

from bitsparse import jit

#: Counters that are set to zero at once, and how many of them are to be left when a capture begins, which cannot make more.
_AT_ONCE, _READY = 4096, 1024


class Counters:
    """Counters in the memory of one GPU, zeros whenever no kernel is at work with them: the block that is done last sets them back.

    Launches on one stream follow each other, so that they share theirs. A launch that is being captured has its own, as graphs may be
    replayed at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Zeros that nobody has yet.
        self._rest: Any = jit.require_cupy("counters").empty(0, "int32")
        self._of_streams: dict[int, Any] = {}
        #: All that there ever were: captured graphs hold their addresses.
        self._kept: list[Any] = []

    def of(self, count: int) -> Any:
        """So many counters at least for a launch on the current stream."""
        cuda = jit.require_cupy("counters").cuda
        stream = cuda.get_current_stream().ptr
        capturing = bool(cuda.runtime.streamIsCapturing(stream))
        with self._lock:
            if capturing:
                return self._taken(count, False)
            found = self._of_streams.get(stream)
            if found is None or found.size < count or self._rest.size < _READY:
                found = self._of_streams[stream] = self._taken(count, True)
            return found

    def _taken(self, count: int, may_wait: bool) -> Any:
        cupy = jit.require_cupy("counters")
        if may_wait and self._rest.size < max(count, _READY):
            self._rest = cupy.zeros(max(count, _AT_ONCE), "int32")
            self._kept.append(self._rest)
            cupy.cuda.get_current_stream().synchronize()  # whatever stream they are used on, they are zeros
        if self._rest.size < count:
            self._kept.append(cupy.zeros(count, "int32"))  # which the captured graph does at every replay
            return self._kept[-1]
        found, self._rest = self._rest[:count], self._rest[count:]
        return found


@functools.cache
def _on(device: int) -> Counters:
    return Counters()


def counters(count: int) -> Any:
    """So many zeros (count,) of int32 at least, of which a kernel must leave zeros: see :class:`Counters`."""
    return _on(jit.require_cupy("counters").cuda.runtime.getDevice()).of(count)
