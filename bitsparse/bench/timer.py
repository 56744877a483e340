"""Wall-clock timing of two or more functions side by side, so that neither sees a quieter machine than the other."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from bitsparse.ops.recorded import time_once

__all__ = ["Protocol", "time_interleaved", "time_once"]


class Protocol(NamedTuple):
    """How often and how carefully to measure.

    Attributes
    ----------
    warmup : int
        Untimed calls of each function before anything is timed.
    repetitions : int
        Timed samples of each function; the median is reported.
    seconds : float
        Soft limit for one whole measurement; slow functions get fewer samples, but never fewer than three.
    sample_ms : float
        A sample of a fast function is as many back-to-back calls as fill this time, divided by their number.
    pause : float
        Seconds of sleep before each sample: thread pools (OpenBLAS above all) spin for up to 0.1 s after their last task,
        and would take the cores from the function that is measured next.
    """

    warmup: int = 2
    repetitions: int = 15
    seconds: float = 20.0
    sample_ms: float = 20.0
    pause: float = 0.15

    @classmethod
    def quick(cls) -> Protocol:
        """Return a protocol for a first impression: fewer samples, otherwise the same."""
        return cls(warmup=1, repetitions=3, seconds=4.0)


def time_interleaved(functions: Sequence[Callable[[], object]], protocol: Protocol | None = None) -> list[float]:
    """Median milliseconds per call of each function, measured in turns within one run.

    Each round takes one sample of every function, in an order that alternates from round to round. A sample is a pause,
    one untimed call where calls are short enough to afford it (it wakes the function's own thread pool), and the timed
    calls. The garbage collector rests meanwhile.

    Parameters
    ----------
    functions : sequence of callables without arguments
        What is compared; results are dropped at once.
    protocol : Protocol, optional
        Numbers of calls and limits.

    Returns
    -------
    list of float
        Milliseconds, in the order of ``functions``.

    Examples
    --------
    >>> ours, peer = time_interleaved([lambda: sum(range(10)), lambda: sum(range(1000))], Protocol.quick())
    >>> ours < peer
    True
    """
    protocol = protocol or Protocol()
    estimates = []
    for function in functions:
        for _ in range(protocol.warmup):
            function()
        estimates.append(time_once(function))
    calls = [max(1, math.ceil(protocol.sample_ms / max(estimate, 1e-4))) for estimate in estimates]
    wake = [estimate < 200.0 for estimate in estimates]
    round_seconds = sum(
        protocol.pause + estimate * (count + woken) / 1e3
        for estimate, count, woken in zip(estimates, calls, wake, strict=True)
    )
    rounds = max(3, min(protocol.repetitions, int(protocol.seconds / max(round_seconds, 1e-9))))

    samples: list[list[float]] = [[] for _ in functions]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        order = list(range(len(functions)))
        for _ in range(rounds):
            for i in order:
                time.sleep(protocol.pause)
                if wake[i]:
                    functions[i]()
                samples[i].append(time_once(functions[i], calls[i]))
            order.reverse()
    finally:
        if collecting:
            gc.enable()
    return [median(sample) for sample in samples]
