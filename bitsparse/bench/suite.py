"""A benchmark suite is a list of cases; this module runs them and makes records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bitsparse.bench.records import Machine, Record
from bitsparse.bench.timer import Protocol, time_interleaved

__all__ = ["Case", "Prepared", "Unavailable", "run_cases"]


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
        What the peer is, with its version.
    params : dict
        Goes into the record as it is.
    bytes : int
        Bytes of operands and result of one call of ours.
    floor_ms, estimate_ms : float, optional
        See :class:`~bitsparse.bench.records.Record`.
    peer_scale : float
        Factor for the peer's time where the two sides do a different amount of the same work; the unscaled time and the
        factor are recorded in the parameters.
    measure : callable, optional
        Measures both sides itself and returns ``(ours_ms, peer_ms)``, in place of timing calls in this process; it may add to ``params``.
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
    """A named case; ``prepare`` makes its data, so that only one case is in memory at a time.

    ``prepare`` may raise :class:`Unavailable` with the reason, as the end of a sentence.
    """

    name: str
    prepare: Callable[[], Prepared] = field(repr=False)


def run_cases(suite: str, cases: Iterable[Case], machine: Machine, protocol: Protocol) -> Iterator[Record]:
    """Prepare, time and record each case in turn."""
    for case in cases:
        ready = case.prepare()
        peer_ms: float | None = None
        if ready.measure is not None:
            ours_ms, peer_ms = ready.measure(protocol)
        elif ready.peer is None:
            (ours_ms,) = time_interleaved([ready.ours], protocol)
        else:
            ours_ms, peer_ms = time_interleaved([ready.ours, ready.peer], protocol)
        params = dict(ready.params)
        if peer_ms is not None and ready.peer_scale != 1.0:
            params |= {"peer_measured_ms": peer_ms, "peer_scale": ready.peer_scale}
            peer_ms *= ready.peer_scale
        yield Record.measured(
            suite,
            case.name,
            params,
            ours_ms,
            ready.peer_name,
            peer_ms,
            ready.bytes,
            machine,
            floor_ms=ready.floor_ms,
            estimate_ms=ready.estimate_ms,
        )
