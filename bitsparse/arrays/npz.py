"""``save_npz`` and ``load_npz``, named as in SciPy, for plain ``.npz`` files without pickled objects."""

from __future__ import annotations

import json
import os
from typing import IO, Any

import numpy as np

from bitsparse import _check
from bitsparse._archive import Archive, opened, path_or_file, reading
from bitsparse._check import brief, shown
from bitsparse._files import replacing
from bitsparse.arrays.base import restored
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.frdc import FRDC
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError

_FORMAT = "bitsparse-3"
#: Most bytes of a header. Ours is a short JSON text, so a longer one was not written by this library.
_MAX_HEADER = 65536
Saved = BitTensor | TCTiledCSR | FRDC
_TYPES: dict[str, type[Saved]] = {"BitTensor": BitTensor, "TCTiledCSR": TCTiledCSR, "FRDC": FRDC}
#: Components that a file may lack, and the dtypes of those components that have only one.
_OPTIONAL = ("data", "scale", "offset", "row_scale", "col_scale")
_DTYPES = dict.fromkeys(_OPTIONAL[1:], np.float32) | {"words": np.uint32, "tiles": np.uint16}


def save_npz(file: str | os.PathLike[str] | IO[bytes], x: Saved, *, compressed: bool = True) -> None:
    """Write an array to a ``.npz`` file.

    Parameters
    ----------
    file : path or binary file
        As in :func:`numpy.savez`: ``.npz`` is appended to a path without it. An existing file stays until the new one is complete.
    x : BitTensor, TCTiledCSR or FRDC
        The array.
    compressed : bool, default True
        Compress with zlib. An array of more than 64 MiB that shrinks over 256-fold can be loaded only with ``BITSPARSE_MAX_BYTES`` set.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> bs.save_npz(file, bs.pack_bits(np.eye(2, dtype=int)))
    >>> _ = file.seek(0)
    >>> bs.load_npz(file).toarray()
    array([[1, 0],
           [0, 1]], dtype=uint8)
    """
    _check.instance("save_npz", "x", x, Saved, "a BitTensor", "pack it first, or use numpy.savez")
    _check.flag("save_npz", "compressed", compressed)
    path_or_file("save_npz", file, "write")
    x = x.get()  # a file is written from host memory
    parts = {name: part for name, part in x.components().items() if part is not None}
    for name, part in parts.items():
        if part.dtype.name == "bfloat16":  # NumPy would store it as raw bytes without a type
            raise DTypeError(
                f"save_npz: {name} is bfloat16, which .npz files cannot hold; convert it with astype('float32')"
            )
    kind = next(name for name, cls in _TYPES.items() if isinstance(x, cls))
    header = json.dumps({"format": _FORMAT, "type": kind, **x.settings()})
    write = np.savez_compressed if compressed else np.savez
    if not isinstance(file, (str, os.PathLike)):
        write(file, header=np.array(header), **parts)
        return
    path = os.fspath(file)
    with replacing(path if path.endswith(".npz") else f"{path}.npz") as stream:
        write(stream, header=np.array(header), **parts)


def load_npz(file: str | os.PathLike[str] | IO[bytes]) -> Saved:
    """Read an array written by :func:`save_npz`. Nothing is unpickled, and every field is checked before it is used.

    Parameters
    ----------
    file : path or seekable binary file

    Raises
    ------
    FileFormatError
        The file has another format, is truncated, has parts that contradict each other, or unpacks to more than both 64 MiB and 256 times
        its own size (set the environment variable ``BITSPARSE_MAX_BYTES`` to load such a file).
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> bs.save_npz(file, bs.BitTensor([[5, 0, 2]], scale=0.5))
    >>> _ = file.seek(0)
    >>> bs.load_npz(file).dequantize()
    array([[2.5, 0. , 1. ]], dtype=float32)
    """
    with reading("load_npz", remedy="; write it with save_npz"), opened("load_npz", file) as archive:
        return saved_in("load_npz", archive)


def holds_saved(archive: Archive) -> bool:
    """Whether an archive may have been written by :func:`save_npz`."""
    return "header" in archive


def saved_in(function: str, archive: Archive) -> Saved:
    """The array in an archive that :func:`save_npz` wrote; ValueError or DTypeError if the archive is damaged."""
    cls, settings = _read_header(archive)
    parts: dict[str, Any] = {}
    for name in (*cls.component_names, *cls.scale_names):
        if name in archive or name not in _OPTIONAL:
            parts[name] = archive.read(name, _DTYPES.get(name))
            _check.numeric(function, name, parts[name])
            if not parts[name].flags.c_contiguous:
                raise ValueError(f"{name} is in Fortran order, which save_npz never writes; the file is damaged")
    return restored(cls, parts | settings)


def _read_header(archive: Archive) -> tuple[type[Saved], dict[str, Any]]:
    """The type that the header names, and the settings (shape, bits, ...) that it gives for the array."""
    try:
        header = json.loads(archive.text("header", _MAX_HEADER))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the header is not JSON ({brief(error)}); the file is damaged") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT or header.get("type") not in list(_TYPES):
        found = header.get("format") if isinstance(header, dict) else header
        raise ValueError(
            f"format {shown(found)} is not {_FORMAT!r}; the file comes from another program or a newer release"
        )
    fields = _TYPES[header["type"]].setting_names
    missing = set(fields) - header.keys()
    if missing:
        raise ValueError(f"the header lacks {', '.join(sorted(missing))}; the file is damaged")
    return _TYPES[header["type"]], {name: header[name] for name in fields}
