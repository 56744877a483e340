"""Threads and SIMD level, the only state of the host backend; every call passes both to the compiled part."""

from __future__ import annotations

import os

from bitsparse import _check
from bitsparse._ext import bits as _ext

_LEVELS = ("scalar", "avx2", "avxvnni", "avx512", "amx")
_MAX_THREADS = 1024


def simd_levels() -> tuple[str, ...]:
    """SIMD levels that this processor supports, from the plainest to the best.

    Examples
    --------
    >>> simd_levels()[0]
    'scalar'
    """
    return tuple(_LEVELS[level] for level in _ext.levels())


def _checked_level(name: str, source: str) -> int:
    if name not in simd_levels():
        raise ValueError(f"{source}: level {name!r} is not available here; choose one of {', '.join(simd_levels())}")
    return _LEVELS.index(name)


def _checked_threads(n: int, source: str) -> int:
    n = _check.integer(source, "the number of threads", n, 1, _MAX_THREADS)
    return n if _ext.has_openmp() and not _forked else 1


def _threads_from_environment() -> int:
    text = os.environ.get("BITSPARSE_NUM_THREADS", "").strip()
    if not text:
        return min(_ext.default_threads(), _MAX_THREADS)
    try:
        n = int(text)
    except ValueError:
        raise ValueError(
            f"BITSPARSE_NUM_THREADS is {text!r} but must be a whole number; unset it or set it to 1 or more"
        ) from None
    return _checked_threads(n, "BITSPARSE_NUM_THREADS")


def _level_from_environment() -> int:
    text = os.environ.get("BITSPARSE_SIMD", "").strip().lower()
    return _checked_level(text, "BITSPARSE_SIMD") if text else _ext.levels()[-1]


#: Each thread that is used gets at least this many elements; 0 uses all threads for any work (tests set it).
work_per_thread = 1 << 15
#: Whether this process was forked from one that had imported bitsparse and may have started threads.
_forked = False
# Both are read from the environment at the first use rather than here: an import that failed would be a traceback on the command line.
_threads: int | None = None
_level: int | None = None


def _in_use() -> tuple[int, int]:
    global _level, _threads
    if _level is None:
        _level = _level_from_environment()
    if _threads is None:
        _threads = _threads_from_environment()
    return _level, _threads


def set_num_threads(n: int) -> None:
    """Use ``n`` threads from now on. Results never depend on it.

    The number stays 1 where threads are unavailable: in a build without OpenMP, and in a process forked from one that had imported
    bitsparse (the fork loses the pool of threads; processes started with "spawn" have their own).

    Raises
    ------
    ValueError, DTypeError
        If ``n`` is below 1 or above 1024, or is not an integer.

    Examples
    --------
    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    global _threads
    _threads = _checked_threads(n, "set_num_threads")


def get_num_threads() -> int:
    """Number of threads that the host backend uses; initially ``BITSPARSE_NUM_THREADS``, or else OpenMP's default.

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return _in_use()[1]


def simd_level() -> str:
    """The SIMD level in use; initially ``BITSPARSE_SIMD``, or else the best one.

    Examples
    --------
    >>> simd_level() in simd_levels()
    True
    """
    return _LEVELS[_in_use()[0]]


def set_simd(level: str | None) -> None:
    """Force a SIMD level, or return to the best one with ``None``. Results never depend on it.

    Raises
    ------
    ValueError
        If the processor does not have that level.

    Examples
    --------
    >>> set_simd("scalar")
    >>> simd_level()
    'scalar'
    >>> set_simd(None)
    """
    global _level
    _level = _ext.levels()[-1] if level is None else _checked_level(level, "set_simd")


def run_on(work: int | None = None) -> tuple[int, int]:
    """The level index and thread count that compiled functions take, for ``work`` elements (or as many steps of similar cost).

    Waking a thread costs microseconds, or a time slice on a busy machine, so small calls run on the caller's thread alone. None stands
    for work of unknown size, which runs on all threads.

    Examples
    --------
    >>> run_on(100)[1]
    1
    """
    level, threads = _level, _threads
    if level is None or threads is None:
        level, threads = _in_use()
    if work is None or not work_per_thread:
        return level, threads
    return level, 1 if work < 2 * work_per_thread else min(threads, work // work_per_thread)


def _serial_after_fork() -> None:
    # A forked child has only the thread that called fork, and a thread that no longer exists may hold the pool's lock.
    global _threads, _forked
    _threads, _forked = 1, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_serial_after_fork)
