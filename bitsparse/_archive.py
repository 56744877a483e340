"""Reads arrays from ``.npz`` files and checks each before it allocates memory. Nothing is unpickled and no text is evaluated."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._check import brief, shown
from bitsparse.errors import DTypeError, FileFormatError

#: Errors that Python's zip reader raises for damaged bytes. It also raises `OSError` if a damaged offset makes it seek before the file.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, struct.error, ValueError, OverflowError)
#: Largest factor by which zlib can shrink data.
_MOST_DEFLATE = 1032
_LONGEST_HEADER = 10_000
_CHUNK = 1 << 20
_FIELD = re.compile(
    r"""\s*['"](\w{1,20})['"]\s*:\s*(['"][^'"]{0,20}['"]|True|False|\([\d,\sL]*\)|\[.*\])\s*,?\s*""", re.DOTALL
)
_FREE_BYTES, _BYTES_FOR_EACH = 1 << 26, 256


def most_bytes(size: int) -> int:
    """Most bytes that a file of `size` bytes may unpack to: 64 MiB plus 256 for each of its bytes, or ``BITSPARSE_MAX_BYTES``."""
    named = os.environ.get("BITSPARSE_MAX_BYTES")
    if named is None:
        return _FREE_BYTES + _BYTES_FOR_EACH * size
    if not (named.isascii() and named.isdigit()):
        raise ValueError(f"BITSPARSE_MAX_BYTES is {shown(named)} but must be a whole number of bytes; unset or mend it")
    return int(named)


def unpacks_to(most: int) -> str:
    """The error message for a file that unpacks to more than `most` bytes."""
    return f"it unpacks to more than {most} bytes; if you trust it, set the environment variable BITSPARSE_MAX_BYTES to what it needs"


@contextmanager
def reading(function: str, what: Any = None, remedy: str = "") -> Iterator[None]:
    """Turn any error about the content of a file into a FileFormatError that names function, file, problem and remedy."""
    try:
        yield
    except (ValueError, DTypeError) as error:
        text, place = str(error).removeprefix(f"{function}: "), "" if what is None else f"{what}: "
        raise FileFormatError(f"{function}: {place}{text}{remedy}") from None


def path_or_file(function: str, file: Any, member: str) -> None:
    """Raise TypeError unless `file` is a path or has the method `member`; a DTypeError would be taken for wrong content of a file."""
    if not isinstance(file, (str, os.PathLike)) and (not hasattr(file, member) or isinstance(file, io.TextIOBase)):
        raise TypeError(
            f"{function}: file must be a path or a binary file, got {shown(file)}; wrap bytes in io.BytesIO"
        )


@contextmanager
def opened(function: str, file: str | os.PathLike[str] | IO[bytes]) -> Iterator[Archive]:
    """Open the archive in the file with this path, or in a seekable binary file."""
    path_or_file(function, file, "seek")
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as stream:
            yield Archive(stream)
    else:
        yield Archive(file)


class Archive:
    """The arrays of a ``.npz`` file by name.

    Parameters
    ----------
    stream : seekable binary file

    Raises
    ------
    FileFormatError
        The constructor and every method raise it if the file or the array is damaged or takes more memory than :func:`most_bytes` allows.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        with _damage_named("it is not a readable .npz file"):
            self._size = stream.seek(0, os.SEEK_END)
            self._zip = zipfile.ZipFile(stream)
        self.names = frozenset(name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy"))
        self._most = self._room = most_bytes(self._size)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The array of numbers or text with this name, in native byte order."""
        array = self.read(name)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def find(self, name: str) -> NDArray[Any] | None:
        """The array with this name, or None if there is none."""
        return self[name] if name in self.names else None

    def text(self, name: str, most: int = 1 << 16) -> str:
        """The single text stored under this name, of at most `most` bytes."""
        (text,) = self.texts(name, most, ())
        return text

    def texts(self, name: str, most: int = 1 << 16, shape: tuple[int, ...] | None = None) -> list[str]:
        """The elements of an array of texts, as a list."""
        array = self.read(name, shape=shape, most=most)
        if array.dtype.kind != "U":
            raise FileFormatError(f"{name} has dtype {array.dtype}, but text is needed; it is damaged")
        length, order = array.dtype.itemsize, "be" if array.dtype.str[0] == ">" else "le"
        raw = array.tobytes()
        try:
            return [
                raw[i * length : (i + 1) * length].decode(f"utf-32-{order}").rstrip("\0") for i in range(array.size)
            ]
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{name} is no text ({error.reason}); it is damaged") from None

    def read(
        self, name: str, dtype: Any = None, shape: tuple[int, ...] | None = None, most: int | None = None
    ) -> NDArray[Any]:
        """Read an array after checking its size, and its dtype, shape and limit of `most` bytes if they are given."""
        if name not in self.names:
            raise FileFormatError(f"{name} is missing; the file is damaged or holds something else")
        with _damage_named(f"{name} is damaged"):
            info = self._zip.getinfo(f"{name}.npy")
            self._check_size(name, info)
            with self._zip.open(info) as stream:
                found, sizes, fortran, length = _header(name, stream)
                if dtype is not None and found != dtype:
                    raise FileFormatError(f"{name} has dtype {found}, but {np.dtype(dtype)} is needed; it is damaged")
                if shape is not None and (sizes != shape or (fortran and len(sizes) > 1)):
                    raise FileFormatError(
                        f"{name} has shape {shown(sizes)}, but {shown(shape)} is needed; it is damaged"
                    )
                held = info.file_size - length
                if math.prod(sizes) * found.itemsize != held:
                    raise FileFormatError(
                        f"{name} announces {shown(math.prod(sizes) * found.itemsize)} bytes, but the file holds {held}; it is damaged"
                    )
                if most is not None and held > most:
                    raise FileFormatError(f"{name} holds {held} bytes, where at most {most} make sense; it is damaged")
                content = np.empty(held, np.uint8)
                at = 0
                while part := stream.read(min(_CHUNK, held - at)):
                    content[at : at + len(part)] = np.frombuffer(part, np.uint8)
                    at += len(part)
                if at != held:
                    raise FileFormatError(f"{name} ends after {at} of {held} bytes; the file is truncated")
            return np.ndarray(sizes, found, content, order="F" if fortran else "C")

    def _check_size(self, name: str, info: zipfile.ZipInfo) -> None:
        """Compare the announced size of an array with the bytes in the file and with the limit."""
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileFormatError(f"{name} is compressed in another way than numpy.savez does; write it with that")
        growth = 1 if info.compress_type == zipfile.ZIP_STORED else _MOST_DEFLATE
        if info.compress_size > self._size or info.file_size > growth * (info.compress_size + 1):
            raise FileFormatError(
                f"{name} announces {info.file_size} bytes, but the file holds {min(info.compress_size, self._size)} for it; "
                "it is damaged or truncated"
            )
        self._room -= info.file_size
        if self._room < 0:
            raise FileFormatError(unpacks_to(self._most))


@contextmanager
def _damage_named(what: str) -> Iterator[None]:
    try:
        yield
    except FileFormatError:
        raise
    except _DAMAGE as error:
        raise FileFormatError(f"{what} ({type(error).__name__}: {brief(error)})") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise FileFormatError(f"{what} (an offset in it is beyond its ends)") from None


def npy(name: str, content: bytes) -> NDArray[Any]:
    """The array of numbers in the bytes of a ``.npy`` file.

    Examples
    --------
    >>> import io
    >>> np.save(stream := io.BytesIO(), np.arange(3))
    >>> npy("it", stream.getvalue())
    array([0, 1, 2])
    """
    dtype, sizes, fortran, length = _header(name, io.BytesIO(content))
    if math.prod(sizes) * dtype.itemsize != len(content) - length:
        raise FileFormatError(
            f"{name} announces {shown(sizes)} of {dtype}, but {len(content) - length} bytes are there"
        )
    return np.ndarray(sizes, dtype, content, length, order="F" if fortran else "C").copy()


def _header(name: str, stream: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Dtype, shape, order and length of a ``.npy`` header, which is parsed by a regular expression and never evaluated."""

    def refuse(why: str) -> FileFormatError:
        return FileFormatError(f"{name} is not a plain array ({why}); write it with numpy.savez")

    start = stream.read(12)
    if start[:6] != b"\x93NUMPY" or len(start) < 12 or start[6:8] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise refuse("it does not begin like one")
    old = start[6] == 1
    length = int.from_bytes(start[8 : 10 if old else 12], "little")
    if not 2 < length <= _LONGEST_HEADER:
        raise refuse(f"its header has {length} bytes")
    raw = start[10:] + stream.read(length - 2) if old else stream.read(length)
    fields = _fields(raw.decode("latin-1").strip())
    if set(fields) != {"descr", "fortran_order", "shape"}:
        raise refuse(f"its header is {shown(raw[:80])}")
    descr, shape = fields["descr"][1:-1], fields["shape"]
    if "O" in descr and descr.lstrip("|<>=") == "O":
        raise FileFormatError(f"{name} holds pickled Python objects, which are never loaded; store it as numbers")
    if (
        not re.fullmatch(r"[<>|=]?[biufcSU]\d{1,9}", descr)
        or shape[0] != "("
        or fields["fortran_order"] not in ("True", "False")
    ):
        raise refuse(f"its header is {shown(raw[:80])}")
    try:
        dtype = np.dtype(descr)
        sizes = tuple(int(size.strip().removesuffix("L")) for size in shape[1:-1].split(",") if size.strip())
    except (TypeError, ValueError) as error:
        raise refuse(brief(error)) from None
    if len(sizes) > 32 or math.prod(max(size, 1) for size in sizes) * max(dtype.itemsize, 1) >= 1 << 62:
        raise refuse(f"its shape is {shown(sizes)}")
    if dtype.itemsize == 0 and math.prod(sizes) > _LONGEST_HEADER:
        raise refuse(f"it holds {math.prod(sizes)} empty texts")
    return dtype, sizes, fields["fortran_order"] == "True", (10 if old else 12) + length


def _fields(text: str) -> dict[str, str]:
    """The entries of a header's dict, as text; empty if the text is not such a dict.

    >>> _fields("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }")
    {'descr': "'<f4'", 'fortran_order': 'False', 'shape': '(3, 4)'}
    """
    if not (text.startswith("{") and text.endswith("}")):
        return {}
    found: dict[str, str] = {}
    at, end = 1, len(text) - 1
    while at < end:
        match = _FIELD.match(text, at, end)
        if match is None:
            return {}
        found[match[1]] = match[2]
        at = match.end()
    return found
