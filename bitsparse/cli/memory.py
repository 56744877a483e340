"""Looks up the free memory and refuses work that cannot fit into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bitsparse import jit
from bitsparse._text import size


def available(device: str) -> int | None:
    """Bytes of memory that are free on a device now, None if unknown.

    Examples
    --------
    >>> available("cpu") is None or available("cpu") > 0
    True
    """
    if device != "cpu":
        cupy = jit.require_cupy("bitsparse")
        return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        return min([*free, *_left_to_container()], default=None)
    with suppress(AttributeError, OSError, ValueError):  # all memory, since macOS does not report what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _left_to_container() -> Iterator[int]:
    """The memory left below the limit of a container (control groups, version 2), if it has one."""
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        yield int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())


def need_memory(what: str, needed: int) -> None:
    """Refuse work before it begins if its arrays do not all fit into this machine's memory.

    A system that promises more memory than it has would accept the arrays but end the process halfway.

    Examples
    --------
    >>> need_memory("a matrix of 2 x 2", 16)
    """
    there = available("cpu")
    if there is not None and needed > there:
        raise MemoryError(f"{what} takes at least {size(needed)} of memory, but {size(there)} are left; ask for less")
