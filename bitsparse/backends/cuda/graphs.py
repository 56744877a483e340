"""A sequence of launches recorded once and replayed as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from bitsparse.jit import cupy


class Recorded:
    """What a function enqueues, as a graph; calling it replays that on the current stream.

    The function runs once before it is recorded: kernels are compiled and loaded then, and whatever is kept per stream is allocated.
    What it allocates besides comes from a pool of this graph's own, so that no one else gets that memory while the graph can be replayed.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        current = cupy.cuda.get_current_stream()
        self._pool = cupy.cuda.MemoryPool()
        # Kept: workspaces are known by the address of their stream, which another stream could take over.
        self._stream = cupy.cuda.Stream(non_blocking=True)
        current.synchronize()
        with cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            function()
            self._stream.synchronize()
            self._stream.begin_capture()
            try:
                function()
            except BaseException:
                self._stream.end_capture()
                raise
            self._graph: Any = self._stream.end_capture()

    @property
    def nbytes(self) -> int:
        """Bytes that the recorded calls work in, beside what was there before."""
        return int(self._pool.total_bytes())

    def __call__(self) -> None:
        """Replay the recorded launches on the current stream, without waiting for them."""
        self._graph.launch(cupy.cuda.get_current_stream())


def milliseconds(function: Callable[[], object], samples: int, sample_ms: float) -> float:
    """Median time per call, between events around as many calls in a row as last `sample_ms`."""
    stream = cupy.cuda.get_current_stream()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()

    def timed(calls: int) -> float:
        start.record(stream)
        for _ in range(calls):
            function()
        end.record(stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) / calls

    timed(2)  # the first calls may compile, load and allocate
    calls = max(1, min(1000, int(sample_ms / max(timed(5), 1e-3))))
    return median(timed(calls) for _ in range(samples))
