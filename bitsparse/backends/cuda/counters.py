"""Counters by which the blocks of a launch find out which of them finishes last."""

from __future__ import annotations

import functools
import threading
from typing import Any

from bitsparse import jit

#: How many counters are allocated at once, and how many must stay in reserve for captures, during which no new ones can be prepared.
_AT_ONCE, _READY = 4096, 1024


class Counters:
    """Counters in the memory of one GPU. They are zero whenever no kernel uses them: the block that finishes last resets them.

    Launches on one stream run one after another, so they share their counters. A launch that is being captured gets its own, since graphs
    may be replayed at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Counters that are not assigned yet.
        self._rest: Any = jit.require_cupy("counters").empty(0, "int32")
        self._of_streams: dict[int, Any] = {}
        #: All counters ever allocated, since captured graphs hold their addresses.
        self._kept: list[Any] = []

    def of(self, count: int) -> Any:
        """At least `count` counters for a launch on the current stream."""
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
            cupy.cuda.get_current_stream().synchronize()  # they must be zero on whichever stream uses them
        if self._rest.size < count:
            self._kept.append(cupy.zeros(count, "int32"))  # captured, so every replay zeroes them again
            return self._kept[-1]
        found, self._rest = self._rest[:count], self._rest[count:]
        return found


@functools.cache
def _on(device: int) -> Counters:
    return Counters()


def counters(count: int) -> Any:
    """At least `count` int32 zeros, which a kernel must reset to zero after use; see :class:`Counters`."""
    return _on(jit.require_cupy("counters").cuda.runtime.getDevice()).of(count)
