"""Locks that allow one run at a time on a runner and to a file. The system frees a file's lock when the holding process ends."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from bitsparse._files import open_plain
from bitsparse._fork import fresh_in_children
from bitsparse.errors import LockError

#: The most bytes of a lock file that are read; it is shorter.
_MOST = 1024


class Turn:
    """The right to run on one object. A copy is an independent right."""

    _lock: threading.Lock

    def __init__(self) -> None:
        fresh_in_children(self, _lock=threading.Lock)

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()

    @contextmanager
    def taken(self, function: str) -> Iterator[None]:
        """Hold the right within the block, or raise LockError if this or another thread holds it already."""
        lock = self._lock  # a child that forks within the block has another one
        if not lock.acquire(blocking=False):
            raise LockError(
                f"{function}: this runner is in the middle of another run; wait until it ends, or take copy.copy(runner) for each thread"
            )
        try:
            yield
        finally:
            lock.release()


class RunLock:
    """The right to write a file, held by one run at a time, in this process or another one.

    ``PATH.lock`` is locked with ``flock``, which the system releases at once if the process is killed. So no lock is ever stale, and a lock
    file that was left behind is taken over. The file says which run holds the lock, which tells ranks of one run from another run.

    Parameters
    ----------
    function : str
        The public function, for errors.
    path : Path
        The file that the run writes.

    Raises
    ------
    LockError
        Another run holds the lock, or something else has the lock's name. Nothing was changed.
    OSError
        The folder cannot be written to, or its file system has no locks.
    """

    def __init__(self, function: str, path: Path) -> None:
        try:
            import fcntl
        except ModuleNotFoundError:
            raise LockError(
                f"{function}: this system has no file locks that end with the process that holds them (flock), so {str(path)!r} is not "
                f"safe from other runs; run without a file to go on from"
            ) from None
        self._name = Path(f"{path}.lock")
        self._owner = os.getpid()
        while True:
            self._stream = _opened(function, self._name)
            try:
                try:
                    fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LockError(
                        f"{function}: {str(path)!r} is being written by {_holder(self._stream) or 'another program'}; wait until it "
                        f"ends, or name another file"
                    ) from None
                if not self._is_there():  # its owner deleted it after this run had opened it and before it was locked
                    self._stream.close()
                    continue
                if _holder(self._stream) is None:
                    raise LockError(
                        f"{function}: {str(self._name)!r} is no lock of bitsparse's; move it away, or name another file"
                    )
                now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
                about = {"bitsparse": "run", "pid": self._owner, "host": socket.gethostname(), "since": now}
                self._stream.truncate(0)
                self._stream.seek(0)
                self._stream.write(json.dumps(about).encode())
                self._stream.flush()
            except BaseException:
                self._stream.close()
                raise
            return

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._stream.fileno()), os.stat(self._name, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give up the right. A second call does nothing, and a call in a forked child, which shares the lock, does not affect the owner."""
        if not self._stream.closed and os.getpid() == self._owner:
            import fcntl

            if self._is_there():
                self._name.unlink()  # still locked here, so it cannot be the file of another run
            fcntl.flock(self._stream, fcntl.LOCK_UN)  # closing is not enough while a forked child has it open
        self._stream.close()


def _opened(function: str, name: Path) -> BinaryIO:
    """Open a plain file, which is created if it does not exist; links are not followed."""
    try:
        return open_plain(name, write=True, create=True)
    except OSError as error:
        if not name.is_symlink() and (name.is_file() or not name.exists()):
            raise
        raise LockError(f"{function}: {str(name)!r} is not a plain file ({error}); move it away") from None


def _holder(stream: BinaryIO) -> str | None:
    """A description of the run that wrote the lock file; None if it was not a run of bitsparse."""
    stream.seek(0)
    data = stream.read(_MOST)
    if not data:
        return "another run"  # it has not written its name yet, or was killed before it did
    try:
        about = json.loads(data)
        if about["bitsparse"] != "run":
            return None
        return f"process {int(about['pid'])} on {str(about['host'])[:100]!r}, since {str(about['since'])[:40]}"
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
