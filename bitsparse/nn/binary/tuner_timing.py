"""Time of a prepared call, on a CPU by the clock and on a GPU by events."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from bitsparse.nn.binary.plan import BinaryPlan
from bitsparse.ops.operands.places import working_with

__all__ = ["call_milliseconds", "milliseconds"]

#: Samples, and what they may take together; a sample is as many calls as last this long.
_SAMPLES, _SECONDS, _SAMPLE_MS = 9, 0.25, 2.0
#: Calls recorded behind each other on a GPU, so that the host's share of a call does not count.
_IN_A_GRAPH = 8


def milliseconds(plan: BinaryPlan, x: Any) -> float:
    """Median milliseconds of ``plan(x, out)``, after a first call; see :func:`call_milliseconds`."""
    with working_with(plan.device, x):
        return call_milliseconds(partial(plan, x, plan(x)), plan.device)


def call_milliseconds(call: Callable[[], object], device: str) -> float:
    """Median milliseconds of a call that has been made before.

    On a GPU it is the time of calls that follow each other in one recorded graph, without the host's share.
    """
    if device == "cpu":
        return _on_cpu(call)
    from bitsparse.backends.cuda import graphs  # imported where there is a GPU

    several = graphs.Recorded(lambda: [call() for _ in range(_IN_A_GRAPH)])
    return graphs.milliseconds(several, _SAMPLES, _SAMPLE_MS) / _IN_A_GRAPH


def _on_cpu(call: Callable[[], object]) -> float:
    first = _timed(call, 1)
    calls = max(1, int(_SAMPLE_MS / max(first, 1e-3)))
    samples = max(3, min(_SAMPLES, int(_SECONDS * 1e3 / max(first * calls, 1e-3))))
    return median(_timed(call, calls) for _ in range(samples))


def _timed(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / (1e6 * calls)
