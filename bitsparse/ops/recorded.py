"""Calls recorded as one CUDA graph, and the time of a prepared call: by the clock on a CPU, by events on a GPU."""

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

#: Samples, and what they may take together; a sample is as many calls as last this long.
_SAMPLES, _SECONDS, _SAMPLE_MS = 9, 0.25, 2.0
#: Calls recorded behind each other on a GPU, so that the host's share of a call does not count.
_IN_A_GRAPH = 8


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
    """:func:`time_once` between events on the current stream."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / calls


def call_milliseconds(call: Callable[[], object], device: str) -> float:
    """Median milliseconds of a call that has been made before.

    On a GPU it is the time of calls that follow each other in one recorded graph, without the host's share.
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
