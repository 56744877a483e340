"""Memory that the calls of a prepared kernel work in, a piece for each stream."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import DTypeLike

from bitsparse import jit

__all__ = ["Workspace", "Workspaces"]


class Workspace(NamedTuple):
    """Memory of a kernel's calls on one stream; a captured graph holds its addresses.

    Attributes
    ----------
    partial : cupy.ndarray
        Sums of pieces of rows, uninitialised.
    arrived : cupy.ndarray of int32
        How many pieces of a row have arrived: zeros between calls.
    """

    partial: Any
    arrived: Any


class Workspaces:
    """A workspace for each stream, allocated by its first call, which then waits for what was prepared on another stream.

    Built when all that calls read has been enqueued on the current stream. The owner's lock is held around :meth:`on`.

    Parameters
    ----------
    shape, dtype
        Of `partial`.
    counters : int
        Elements of `arrived`.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike, counters: int) -> None:
        self._cupy = cupy = jit.require_cupy("workspaces")
        self._shape, self._dtype, self._counters = shape, dtype, counters
        self._spaces: dict[int, Workspace] = {}
        self._made_on = cupy.cuda.get_current_stream().ptr
        self._made = cupy.cuda.Event(disable_timing=True)
        self._made.record()

    def on(self, stream: int) -> Workspace:
        """The workspace of the current stream, whose address is `stream`."""
        return self._spaces.get(stream) or self._first(stream)

    def _first(self, stream: int) -> Workspace:
        cupy, spaces = self._cupy, self._spaces
        if cupy.cuda.runtime.streamIsCapturing(stream):
            # A capture begins after a synchronisation and cannot allocate: it takes over what calls have worked in before.
            if spaces:
                spaces[stream] = spaces.pop(next(iter(spaces)))
                return spaces[stream]
        elif stream != self._made_on:
            cupy.cuda.get_current_stream().wait_event(self._made)
        made = spaces[stream] = Workspace(cupy.empty(self._shape, self._dtype), cupy.zeros(self._counters, "int32"))
        return made
