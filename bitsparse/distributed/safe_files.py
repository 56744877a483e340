"""Arrays in files of `safetensors`, with the interface of :mod:`bitsparse._archive`; the package is imported only when needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._check import brief
from bitsparse.errors import FileFormatError

Array = NDArray[Any]


def write(function: str, stream: BinaryIO, arrays: dict[str, Array], texts: dict[str, str]) -> None:
    """Write named arrays, and texts as metadata, into a binary file."""
    with _check.extra(function, "safetensors", "safetensors", "safetensors"):
        from safetensors.numpy import save
    stream.write(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, texts))


class SafeArchive:
    """An open file; made by :func:`opened`."""

    def __init__(self, file: Any) -> None:
        self._file, self.names = file, frozenset(file.keys())

    def text(self, name: str) -> str:
        """The metadata text of this name."""
        texts = self._file.metadata() or {}
        if name not in texts:
            raise FileFormatError(f"{name} is missing; the file is damaged or holds something else")
        return str(texts[name])

    def find(self, name: str) -> Array | None:
        """The array of this name in its own, writable memory, None if there is none."""
        if name not in self.names:
            return None
        array: Array = self._file.get_tensor(name)
        return array if array.flags.writeable else array.copy()


@contextmanager
def opened(function: str, path: Path) -> Iterator[SafeArchive]:
    """Open a file and yield its arrays.

    Raises
    ------
    ImportError
        safetensors is not installed.
    FileFormatError
        The file is damaged, or has a dtype that NumPy does not have.
    """
    with _check.extra(function, "safetensors", "safetensors", "safetensors"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="numpy") as file:
            yield SafeArchive(file)
    except (SafetensorError, TypeError, AttributeError) as error:  # the last two: dtypes unknown to NumPy
        raise FileFormatError(f"it is not a readable file of safetensors ({brief(error)})") from None
