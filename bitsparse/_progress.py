"""A progress bar for long work on a terminal, and a stopwatch that divides time into phases."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
#: Seconds of work before progress is shown.
PATIENCE = 2.0


@contextlib.contextmanager
def progress(total: int, unit: str) -> Iterator[Callable[[], object]]:
    """A bar on stderr, or a count if tqdm is not installed, shown only on a terminal and only after two seconds.

    Examples
    --------
    >>> with progress(2, "step") as advance:
    ...     for _ in range(2):
    ...         _ = advance()
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        with _counted(total, unit) as advance:
            yield advance
        return
    with tqdm(total=total, disable=None, delay=PATIENCE, leave=False, unit=unit, file=sys.stderr) as bar:
        yield bar.update


@contextlib.contextmanager
def _counted(total: int, unit: str) -> Iterator[Callable[[], object]]:
    """A line on the terminal that counts finished steps; it is rewritten at most ten times a second and erased at the end."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    done, due = 0, time.monotonic() + PATIENCE

    def advance() -> None:
        nonlocal done, due
        done, now = done + 1, time.monotonic()
        if now >= due:
            due = now + 0.1
            print(f"\r{done} of {total} {unit}s", end="", file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)  # go to the start of the line and erase it


class Stopwatch:
    """A clock that is in exactly one phase at any time, so that its phases add up to its total, to the nanosecond.

    Parameters
    ----------
    phase : str
        The first phase.
    since : int, optional
        When that phase began, as a value of :func:`time.perf_counter_ns`; by default now.

    Examples
    --------
    >>> watch = Stopwatch("reading")
    >>> watch.enter("computing")
    'reading'
    >>> for _ in watch.each("packing", range(3)):
    ...     pass
    >>> list(watch.phases()), sum(watch.phases().values()) == watch.total()
    (['reading', 'computing', 'packing'], True)
    """

    def __init__(self, phase: str, since: int | None = None) -> None:
        self._last = time.perf_counter_ns() if since is None else since
        self._phase, self._phases = phase, {phase: 0}

    def enter(self, phase: str) -> str:
        """Begin `phase` and return the phase before it."""
        now = time.perf_counter_ns()
        self._phases[self._phase] += now - self._last
        self._phases.setdefault(phase, 0)
        before, self._phase, self._last = self._phase, phase, now
        return before

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Within the block the clock is in `phase`; afterwards it returns to the phase before."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def each(self, phase: str, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the same items; the time to make them or wait for them counts as `phase`."""
        waiting = iter(items)
        while True:
            with self.during(phase):
                try:
                    item = next(waiting)
                except StopIteration:
                    return
            yield item

    def phases(self) -> dict[str, int]:
        """Nanoseconds of each phase up to the last change, in the order in which the phases began."""
        return dict(self._phases)

    def total(self) -> int:
        """Nanoseconds from the beginning to the last change of phases."""
        return sum(self._phases.values())
