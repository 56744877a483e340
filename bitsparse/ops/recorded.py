"""Calls recorded as one CUDA graph, and the time of a prepared call: by the clock on a CPU, by events on a GPU."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from statistics import median

from bitsparse import jit
from bitsparse.backends.cuda import graphs
from bitsparse.backends.cuda.graphs import Recorded
from bitsparse.backends.host import get_num_threads, simd_level

__all__ = ["Recorded", "call_milliseconds", "machine", "time_once"]

#: Samples, and what they may take together; a sample is as many calls as last this long.
_SAMPLES, _SECONDS, _SAMPLE_MS = 9, 0.25, 2.0
#: Calls recorded behind each other on a GPU, so that the host's share of a call does not count.
_IN_A_GRAPH = 8


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


def call_milliseconds(call: Callable[[], object], device: str) -> float:
    """Median milliseconds of a call that has been made before.

    On a GPU it is the time of calls that follow each other in one recorded graph, without the host's share.
    """
    if device != "cpu":
        several = Recorded(lambda: [call() for _ in range(_IN_A_GRAPH)])
        return graphs.milliseconds(several, _SAMPLES, _SAMPLE_MS) / _IN_A_GRAPH
    first = time_once(call)
    calls = max(1, int(_SAMPLE_MS / max(first, 1e-3)))
    samples = max(3, min(_SAMPLES, int(_SECONDS * 1e3 / max(first * calls, 1e-3))))
    return median(time_once(call, calls) for _ in range(samples))


def machine(device: str) -> str:
    """What times depend on: the GPU's name, or the processor and its threads."""
    if device != "cpu":
        return jit.capability(int(device[5:])).name
    return f"{platform.machine()} {platform.processor()} {os.cpu_count()} {get_num_threads()} {simd_level()}"
