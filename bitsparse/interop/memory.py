"""The memory that CuPy allocates from: its own pool, or the memory of another library during a call from that library."""

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
    """Let CuPy allocate with `malloc`, an allocator over another library's memory, which also works while a call is captured."""
    with require_cupy("lent_memory").cuda.using_allocator(malloc):
        _lent.depth += 1
        try:
            yield
        finally:
            _lent.depth -= 1


def is_lent() -> bool:
    """Whether a call may allocate at any time, even while it is being captured.

    Examples
    --------
    >>> is_lent()
    False
    """
    return _lent.depth > 0
