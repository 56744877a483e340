"""Times and sizes as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time in its own unit, with two or three digits that mean something.

    Examples
    --------
    >>> [duration(each) for each in (0, 0.0000123, 0.00456, 0.0789, 1.25, 382.4)]
    ['0 s', '0.012 ms', '4.6 ms', '79 ms', '1.2 s', '382 s']
    """
    if seconds >= 1 or not seconds:
        return f"{seconds:.{1 if 0 < seconds < 100 else 0}f} s"
    ms = 1000 * seconds
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2g} ms"


def size(nbytes: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point.

    Examples
    --------
    >>> [size(each) for each in (0, 999, 119_136, 8_960_000, 137_400_000_000)]
    ['0 B', '999 B', '119 kB', '8.96 MB', '137 GB']
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}" if nbytes < 1000 * factor else f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} B"
