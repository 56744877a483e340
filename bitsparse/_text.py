"""Text for people: times, sizes, and values in messages."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np


def duration(seconds: float) -> str:
    """A time in a suitable unit, with two or three significant digits.

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
    """A number of bytes in the unit that leaves one to three digits before the point.

    Examples
    --------
    >>> [size(each) for each in (0, 999, 119_136, 8_960_000, 137_400_000_000)]
    ['0 B', '999 B', '119 kB', '8.96 MB', '137 GB']
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}" if nbytes < 1000 * factor else f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} B"


class _Short(reprlib.Repr):
    """``repr`` of the first elements and levels only. Subclasses, such as named tuples, are shortened like their base types."""

    def repr1(self, x: Any, level: int) -> str:
        for kind in (tuple, list, set, frozenset, dict):
            if isinstance(x, kind):
                return getattr(self, f"repr_{kind.__name__}")(x, level)
        if isinstance(x, (bytes, bytearray)) and len(x) > self.maxstring:
            return f"{bytes(x[: self.maxstring // 2])!r}... ({len(x)} bytes)"
        if isinstance(x, int) and not -(1 << 128) < x < 1 << 128:  # Python refuses to print integers beyond 4300 digits
            return f"{'-' * (x < 0)}0x{abs(x) >> (abs(x).bit_length() - 32):x}... ({x.bit_length()} bits)"
        if isinstance(x, (np.ndarray, np.void)) and x.dtype.hasobject:
            return f"an array of objects of shape {x.shape}"
        return super().repr1(x, level)


#: Most characters of a value in a message.
_MOST_SHOWN = 240
_short = _Short()
_short.maxlevel, _short.maxstring, _short.maxlong, _short.maxother = 3, 80, 80, 120
_short.maxtuple = _short.maxlist = _short.maxset = _short.maxfrozenset = _short.maxdict = 4


def shown(value: Any) -> str:
    """``repr(value)`` in bounded time and length for error messages, since a user may pass a billion characters or endless nesting.

    >>> shown("exact"), shown([1, 2, 3, 4, 5]), shown(10**5000), len(shown("a" * 10**6))
    ("'exact'", '[1, 2, 3, 4, ...]', '0xc7882004... (16610 bits)', 80)
    """
    text = _short.repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def brief(error: BaseException) -> str:
    """The message of another library's error, cut if it quotes too much of its input."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
