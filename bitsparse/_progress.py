"""A bar for long work, where somebody may be watching."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(total: int, unit: str) -> Iterator[Callable[[], object]]:
    """A bar on stderr: only on a terminal, only past two seconds, only if tqdm is installed.

    Examples
    --------
    >>> with progress(2, "step") as advance:
    ...     for _ in range(2):
    ...         _ = advance()
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield lambda: None
        return
    with tqdm(total=total, disable=None, delay=2, leave=False, unit=unit, file=sys.stderr) as bar:
        yield bar.update
