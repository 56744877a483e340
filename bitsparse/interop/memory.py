"""Whose memory CuPy allocates from: that of its own pool, or that of a library whose call is being served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bitsparse.interop.devices import require_cupy


class _Lent(threading.local):
    depth = 0


_lent = _Lent()


@contextmanager
def lent_memory(malloc: Callable[[int], Any]) -> Iterator[None]:
    """Allocate with `malloc`, a CuPy allocator over another library's memory, which serves calls that are being captured as well."""
    with require_cupy("lent_memory").cuda.using_allocator(malloc):
        _lent.depth += 1
        try:
            yield
        finally:
            _lent.depth -= 1


def is_lent() -> bool:
    """Whether a call may allocate whenever it likes, also while it is being captured.

    Examples
    --------
    >>> is_lent()
    False
    """
    return _lent.depth > 0
