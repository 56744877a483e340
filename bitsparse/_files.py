"""Write files completely or not at all, and never through a link that another user planted.

A new file is written in the folder of its target under a name that cannot be guessed. It is opened with ``O_EXCL``, so that it can never be
a link or another user's file. Once its bytes are on the disk, one rename puts it in the target's place.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_new(path: str | os.PathLike[str]) -> BinaryIO:
    """Create a file for reading and writing; `FileExistsError` if the name is taken, even by a dangling link."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666)
    return os.fdopen(handle, "w+b")


def open_plain(path: str | os.PathLike[str], *, write: bool = False, create: bool = False) -> BinaryIO:
    """Open a plain file, which has to exist unless `create`; links, pipes, devices and folders are refused with an `OSError`."""
    access = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
    handle = os.open(path, access | getattr(os, "O_NONBLOCK", 0) | _NO_LINKS, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{str(path)!r} is not a plain file; move it away")
        return os.fdopen(handle, "r+b" if write else "rb")
    except BaseException:
        os.close(handle)
        raise


def open_end(path: str | os.PathLike[str]) -> BinaryIO:
    """Open an existing file for appending, even while other processes append to it; links are refused with an `OSError`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | _NO_LINKS), "ab")


def publish(unfinished: BinaryIO, name: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Rename the open file `name` to `path` once its bytes are on the disk; this replaces whatever had that name, even a link."""
    unfinished.flush()
    os.fsync(unfinished.fileno())
    unfinished.close()
    os.replace(name, path)
    if os.name != "posix":
        return  # other systems cannot open a folder
    folder = os.open(Path(path).parent, os.O_RDONLY | _NO_LINKS & ~getattr(os, "O_NOFOLLOW", 0))
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def replacing(path: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[BinaryIO]:
    """A binary file to write; it takes the place of `path` when the block ends, and is deleted if the block raises.

    The file gets the permissions `mode`, or those of the file that it replaces.
    A target that is neither a plain file nor a link to one is refused.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "answer")
    ...     with replacing(file) as stream:
    ...         _ = stream.write(b"42")
    ...         before = file.exists()
    ...     before, file.read_bytes()
    (False, b'42')
    """
    target = Path(path)
    try:
        old: int | None = target.stat().st_mode
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old):
        raise OSError(f"{str(target)!r} is not a plain file, which alone can be replaced; name another")
    unfinished = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
    try:
        stream = open_new(unfinished)
    except OSError as error:
        error.filename = str(target)  # the name that the caller knows, not the random one
        raise
    try:
        permissions = old if mode is None else mode
        if permissions is not None and os.name == "posix":
            os.fchmod(stream.fileno(), stat.S_IMODE(permissions) & 0o777)
        yield stream
        publish(stream, unfinished, target)
    except BaseException:
        stream.close()
        unfinished.unlink(missing_ok=True)
        raise


def distrust(found: os.stat_result) -> str | None:
    """Why another user may have written a file or folder; None if it belongs to this user or root and nobody else can write to it.

    A folder with the sticky bit, such as ``/tmp``, passes: anybody may create files there, but nobody can replace those of another user.
    """
    if os.name != "posix":
        return None  # on other systems the mode does not tell who may write
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to the user with number {found.st_uid}, and this process runs as {os.geteuid()}"
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}); run chmod go-w on it"
    return None


def keep(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a cache file completely or not at all; errors of the file system are ignored, since a cache is optional."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            write(stream)
    except OSError:
        return
