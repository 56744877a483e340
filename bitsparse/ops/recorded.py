"""Calls recorded as one CUDA graph, and the time of a prepared call, by the clock on a CPU and by events on a GPU."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from bitsparse import jit
from bitsparse.backends.host import get_num_threads, simd_level
from bitsparse.jit import cupy

#: The number of samples, the seconds that they may take together, and the milliseconds of calls that make up one sample.
_SAMPLES, _SECONDS, _SAMPLE_MS = 9, 0.25, 2.0
#: Calls recorded behind each other on a GPU, so that the host's share of a call does not count.
_IN_A_GRAPH = 8


class Recorded:
    """The work that a function enqueues, recorded as a CUDA graph; a call replays it on the current stream.

    The function runs once before it is recorded, which compiles and loads its kernels and allocates whatever is kept per stream.
    All its other memory comes from this graph's own pool, so that no one else gets that memory while the graph can be replayed. The
    function is not kept: what it reads and writes must live as long as the graph is replayed. `held` keeps it alive if the caller does not.
    """

    def __init__(self, function: Callable[[], object], held: object = None) -> None:
        self._held = held
        current = cupy.cuda.get_current_stream()
        self._pool = cupy.cuda.MemoryPool()
        # The stream is kept alive because workspaces are found by its address, which a later stream could get.
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
        """Bytes that were allocated for the recorded calls."""
        return int(self._pool.total_bytes())

    def __call__(self) -> None:
        """Replay the recorded launches on the current stream, without waiting for them."""
        self._graph.launch(cupy.cuda.get_current_stream())


def time_once(function: Callable[[], object], calls: int = 1) -> float:
    """Milliseconds per call of ``calls`` calls in a row.

    Examples
    --------
    >>> time_once(lambda: None, calls=10) >= 0.0
    True
    """
    start = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start) / (1e6 * calls)


def _gpu_once(function: Callable[[], object], calls: int) -> float:
    """Like :func:`time_once`, but measured between two events on the current stream."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / calls


def call_milliseconds(call: Callable[[], object], device: str) -> float:
    """Median milliseconds of a call that has been made before.

    On a GPU the calls follow each other in one recorded graph, so that the host's share does not count.
    """
    if device != "cpu":
        several = Recorded(lambda: [call() for _ in range(_IN_A_GRAPH)])
        _gpu_once(several, 2)  # the first calls may compile, load and allocate
        calls = max(1, min(1000, int(_SAMPLE_MS / max(_gpu_once(several, 5), 1e-3))))
        return median(_gpu_once(several, calls) for _ in range(_SAMPLES)) / _IN_A_GRAPH
    first = time_once(call)
    calls = max(1, int(_SAMPLE_MS / max(first, 1e-3)))
    samples = max(3, min(_SAMPLES, int(_SECONDS * 1e3 / max(first * calls, 1e-3))))
    return median(time_once(call, calls) for _ in range(samples))


def machine(device: str) -> str:
    """What times depend on: the GPU's name, or the processor and its threads."""
    if device != "cpu":
        return jit.capability(int(device[5:])).name
    return f"{platform.machine()} {platform.processor()} {os.cpu_count()} {get_num_threads()} {simd_level()}"
