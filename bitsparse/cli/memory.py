"""The memory that there is, and the refusal of what cannot fit into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bitsparse import jit
from bitsparse._text import size


def available(device: str) -> int | None:
    """Bytes of memory that a device has to give now.

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
    with suppress(AttributeError, OSError, ValueError):  # all there is, as macOS does not tell what is left
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _left_to_container() -> Iterator[int]:
    """What the limit of a container leaves (control groups, version 2), if there is one."""
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        yield int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())


def need_memory(what: str, needed: int) -> None:
    """Refuse work before it begins whose arrays cannot all lie in this machine's memory.

    A system that promises more memory than it has would not refuse them, but end the process halfway.

    Examples
    --------
    >>> need_memory("a matrix of 2 x 2", 16)
    """
    there = available("cpu")
    if there is not None and needed > there:
        raise MemoryError(f"{what} takes at least {size(needed)} of memory, but {size(there)} are left; ask for less")
