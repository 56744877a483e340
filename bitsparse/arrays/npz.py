"""Save and load, under SciPy's names: plain ``.npz`` files without pickled objects."""

from __future__ import annotations

import json
import os
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._archive import Archive, opened, reading
from bitsparse._check import brief, shown
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.frdc import FRDC
from bitsparse.arrays.indices import matrix_shape
from bitsparse.arrays.npz_version2 import TRANSLATION, csr_of_translation
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError

__all__ = ["load_npz", "save_npz"]

#: Version 3: a TCTiledCSR is a CSR array; version 2 holds its translation instead, and is still read.
_FORMAT, _BEFORE = "bitsparse-3", "bitsparse-2"
#: The header is a short JSON text; a longer one is not ours.
_MAX_HEADER = 65536


#: What the header of each type must name besides its format and type.
_FIELDS = {
    "BitTensor": ("shape", "bits", "axis", "layout", "encoding"),
    "TCTiledCSR": ("shape", "window", "had_duplicates"),
    "FRDC": ("shape",),
}
_SPARSE: dict[str, type[TCTiledCSR] | type[FRDC]] = {"TCTiledCSR": TCTiledCSR, "FRDC": FRDC}


def save_npz(
    file: str | os.PathLike[str] | IO[bytes], x: BitTensor | TCTiledCSR | FRDC, *, compressed: bool = True
) -> None:
    """Write an array to a ``.npz`` file.

    Parameters
    ----------
    file : path or binary file
        As in :func:`numpy.savez`: ``.npz`` is appended to a path without it.
    x : BitTensor, TCTiledCSR or FRDC
        The array.
    compressed : bool, default True
        Compress with zlib. What shrinks more than 256-fold, and is larger than 64 MiB, is read again only with ``BITSPARSE_MAX_BYTES`` set.

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
    if isinstance(x, (SparseArray, BitTensor)):
        x = x.get()  # a file is written from host memory
    if isinstance(x, SparseArray):
        _write(
            file, _sparse_header(x), x.components() | {"row_scale": x.row_scale, "col_scale": x.col_scale}, compressed
        )
        return
    if not isinstance(x, BitTensor):
        raise DTypeError(f"save_npz: x must be a BitTensor, got {type(x).__name__}; pack it first, or use numpy.savez")
    header = {
        "format": _FORMAT,
        "type": "BitTensor",
        "shape": list(x.shape),
        "bits": x.bits,
        "axis": x.axis,
        "layout": x.layout,
        "encoding": x.encoding,
    }
    _write(file, header, {"words": x.words, "scale": x.scale, "offset": x.offset}, compressed)


def _sparse_header(x: SparseArray) -> dict[str, Any]:
    header = {"format": _FORMAT, "type": type(x).__name__, "shape": list(x.shape), "had_duplicates": x.had_duplicates}
    return header | {name: value for name, value in x.settings().items() if name != "shape"}


def _write(file: Any, header: dict[str, Any], parts: dict[str, NDArray[Any] | None], compressed: bool) -> None:
    present: dict[str, Any] = {"header": np.array(json.dumps(header))}
    for name, part in parts.items():
        if part is None:
            continue
        if part.dtype.name == "bfloat16":  # a NumPy file would call it raw bytes
            raise DTypeError(
                f"save_npz: {name} is bfloat16, which .npz files cannot hold; convert it with astype('float32')"
            )
        present[name] = part
    (np.savez_compressed if compressed else np.savez)(file, **present)


def load_npz(file: str | os.PathLike[str] | IO[bytes]) -> BitTensor | TCTiledCSR | FRDC:
    """Read an array written by :func:`save_npz`. Nothing is unpickled, and every field is checked before it is believed.

    Parameters
    ----------
    file : path or seekable binary file

    Raises
    ------
    FileFormatError
        The file is not of this format, is truncated, its parts contradict each other, or it unpacks to more than 64 MiB and 256 bytes for
        each of its own (set the environment variable ``BITSPARSE_MAX_BYTES`` for files that do).
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
    with reading("load_npz", remedy="; write it with save_npz"), opened(file) as archive:
        header = _read_header(archive)
        return _read_bit_tensor(archive, header) if header["type"] == "BitTensor" else _read_sparse(archive, header)


def _read_bit_tensor(archive: Archive, header: dict[str, Any]) -> BitTensor:
    sizes = _check.shape("load_npz", header["shape"])
    bits = _check.bit_count("load_npz", header["bits"])
    encoding = _check.encoding("load_npz", header["encoding"], bits)
    layout = _check.layout("load_npz", header["layout"], bits)
    axis = _check.axis("load_npz", header["axis"], len(sizes))
    words = archive.read("words", np.uint32, construct.words_shape(sizes, bits, axis, layout))
    affine = _read_present(archive, ("scale", "offset"), np.dtype(np.float32))
    return BitTensor.from_words(words, sizes, bits, encoding=encoding, axis=axis, layout=layout, **affine)  # type: ignore[arg-type]


def _read_sparse(archive: Archive, header: dict[str, Any]) -> TCTiledCSR | FRDC:
    cls = _SPARSE[header["type"]]
    sizes = _check.shape("load_npz", header["shape"])
    translated = header["type"] == "TCTiledCSR" and header["format"] == _BEFORE
    names = (*TRANSLATION, "data") if translated else cls.component_names
    missing = set(names) - archive.names - {"data"}
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} missing; the file is damaged")
    parts = _read_present(archive, names, None)
    if translated:
        indptr, indices = csr_of_translation(parts, matrix_shape("load_npz", sizes), header["window"])
        parts = {"indptr": indptr, "indices": indices} | {name: parts[name] for name in ("data",) if name in parts}
    scales = _read_present(archive, ("row_scale", "col_scale"), np.dtype(np.float32))
    settings = {name: header[name] for name in _FIELDS[header["type"]] if name not in ("shape", "had_duplicates")}
    made = cls.from_arrays(**parts, shape=sizes, **settings, **scales)  # type: ignore[arg-type]
    made.had_duplicates = bool(header.get("had_duplicates", False))
    return made


def _read_present(archive: Archive, names: tuple[str, ...], dtype: np.dtype[Any] | None) -> dict[str, NDArray[Any]]:
    found = {name: archive.read(name, dtype) for name in names if name in archive}
    for name, array in found.items():
        _check.numeric("load_npz", name, array)
    return found


def _read_header(archive: Archive) -> dict[str, Any]:
    try:
        header = json.loads(archive.text("header", _MAX_HEADER))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the header is not JSON ({brief(error)}); the file is damaged") from None
    if (
        not isinstance(header, dict)
        or header.get("format") not in [_FORMAT, _BEFORE]
        or header.get("type") not in list(_FIELDS)
    ):
        found = header.get("format") if isinstance(header, dict) else header
        raise ValueError(
            f"format {shown(found)} is not {_FORMAT!r}; the file comes from another program or a newer release"
        )
    missing = set(_FIELDS[header["type"]]) - header.keys()
    if missing:
        raise ValueError(f"the header lacks {', '.join(sorted(missing))}; the file is damaged")
    return header
