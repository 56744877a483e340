"""A benchmark suite is a list of cases; this module times their functions side by side and makes records.

Functions are timed side by side so that none of them sees a quieter machine than the others.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from bitsparse.bench.records import Machine, Record
from bitsparse.ops.recorded import time_once


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
        A sample of a fast function is the mean of as many back-to-back calls as fill this time.
    pause : float
        Seconds of sleep before each sample. Thread pools, above all OpenBLAS's, spin for up to 0.1 s after their last task
        and would otherwise take cores from the next function.
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
    one untimed call to wake the function's own thread pool if calls are short enough, and the timed calls. The garbage
    collector is off meanwhile.

    Parameters
    ----------
    functions : sequence of callables without arguments
        The functions to compare; their results are dropped at once.
    protocol : Protocol, optional
        Numbers of calls, and limits.

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


class Unavailable(Exception):
    """Raised by a case that this machine cannot run: an instruction set, a device or a library is missing."""


@dataclass
class Prepared:
    """A case with its data in memory, ready to be timed.

    Attributes
    ----------
    ours, peer : callable without arguments
        One call of each side; ``peer`` may be ``None``.
    peer_name : str or None
        Name of the peer, with its version.
    params : dict
        Copied into the record.
    bytes : int
        Bytes of operands and result of one call of ours.
    floor_ms, estimate_ms : float, optional
        See :class:`~bitsparse.bench.records.Record`.
    peer_scale : float
        Factor for the peer's time if the two sides do different amounts of the same work; the parameters then record the
        unscaled time and the factor.
    measure : callable, optional
        Measures both sides itself and returns ``(ours_ms, peer_ms)``, instead of timing calls in this process; it may add to ``params``.
        ``peer_ms`` is None if there is no peer.
    """

    ours: Callable[[], object]
    peer: Callable[[], object] | None
    peer_name: str | None
    params: dict[str, Any]
    bytes: int
    floor_ms: float | None = None
    estimate_ms: float | None = None
    peer_scale: float = 1.0
    measure: Callable[[Protocol], tuple[float, float | None]] | None = None


@dataclass(frozen=True)
class Case:
    """A named case; its data are made only by ``prepare``, so that one case is in memory at a time.

    ``prepare`` may raise :class:`Unavailable` with the reason, worded as the end of a sentence.
    """

    name: str
    prepare: Callable[[], Prepared] = field(repr=False)


def run_cases(suite: str, cases: Iterable[Case], machine: Machine, protocol: Protocol) -> Iterator[Record]:
    """Prepare, time and record each case in turn."""
    for case in cases:
        ready = case.prepare()
        if ready.measure is not None:
            ours_ms, peer_ms = ready.measure(protocol)
        else:
            sides = [side for side in (ready.ours, ready.peer) if side is not None]
            ours_ms, peer_ms, *_ = (*time_interleaved(sides, protocol), None)
        params = dict(ready.params)
        if peer_ms is not None and ready.peer_scale != 1.0:
            params |= {"peer_measured_ms": peer_ms, "peer_scale": ready.peer_scale}
            peer_ms *= ready.peer_scale
        limits = {"floor_ms": ready.floor_ms, "estimate_ms": ready.estimate_ms}
        yield Record(suite, case.name, params, ours_ms, ready.peer_name, peer_ms, ready.bytes, machine, **limits)
