"""Time of a plan's call, on a CPU by the clock and on a GPU by events."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from bitsparse.nn.binary_plan import BinaryPlan
from bitsparse.ops.places import working_with

__all__ = ["milliseconds"]

#: Samples, and what they may take together; a sample is as many calls as last this long.
_SAMPLES, _SECONDS, _SAMPLE_MS = 9, 0.25, 2.0
#: Calls recorded behind each other on a GPU, so that the host's share of a call does not count.
_IN_A_GRAPH = 8


def milliseconds(plan: BinaryPlan, x: Any) -> float:
    """Median milliseconds of ``plan(x, out)``, after a first call.

    On a GPU it is the time of calls that follow each other in one recorded graph, without the host's share.
    """
    with working_with(plan.device, x):
        out = plan(x)
        if plan.device == "cpu":
            return _on_cpu(plan, x, out)
        from bitsparse.backends.cuda import graphs  # imported where there is a GPU

        several = graphs.Recorded(lambda: [plan(x, out) for _ in range(_IN_A_GRAPH)])
        return graphs.milliseconds(several, _SAMPLES, _SAMPLE_MS) / _IN_A_GRAPH


def _on_cpu(plan: BinaryPlan, x: Any, out: Any) -> float:
    first = _timed(plan, x, out, 1)
    calls = max(1, int(_SAMPLE_MS / max(first, 1e-3)))
    samples = max(3, min(_SAMPLES, int(_SECONDS * 1e3 / max(first * calls, 1e-3))))
    return median(_timed(plan, x, out, calls) for _ in range(samples))


def _timed(plan: BinaryPlan, x: Any, out: Any, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        plan(x, out)
    return (time.perf_counter_ns() - start) / (1e6 * calls)
