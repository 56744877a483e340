"""Save and load, under SciPy's names: plain ``.npz`` files without pickled objects."""

from __future__ import annotations

import json
import os
import zipfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.frdc import FRDC
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError

__all__ = ["load_npz", "save_npz"]

#: Version 2: the values of a TCTiledCSR stand in the order of its CSR array, before in that of its edges.
_FORMAT = "bitsparse-2"
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
        Compress with zlib.

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
            file, _sparse_header(x), x._components() | {"row_scale": x.row_scale, "col_scale": x.col_scale}, compressed
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
    return header | {name: value for name, value in x._settings().items() if name != "shape"}


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
    ValueError
        The file is not of this format, is truncated, or its parts contradict each other.
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
    try:
        with zipfile.ZipFile(file) as archive:
            header = _read_header(archive)
            if header["type"] == "BitTensor":
                return _read_bit_tensor(archive, header)
            return _read_sparse(archive, header)
    except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
        raise ValueError(
            f"load_npz: not a readable bitsparse file ({type(error).__name__}: {error}); write it with save_npz"
        ) from None


def _read_bit_tensor(archive: zipfile.ZipFile, header: dict[str, Any]) -> BitTensor:
    sizes = _check.shape("load_npz", header["shape"])
    bits = _check.bit_count("load_npz", header["bits"])
    encoding = _check.encoding("load_npz", header["encoding"], bits)
    layout = _check.layout("load_npz", header["layout"], bits)
    axis = _check.axis("load_npz", header["axis"], len(sizes))
    words = _read(archive, "words", np.dtype(np.uint32), construct.words_shape(sizes, bits, axis, layout))
    affine = _read_present(archive, ("scale", "offset"), np.dtype(np.float32))
    return BitTensor.from_words(words, sizes, bits, encoding=encoding, axis=axis, layout=layout, **affine)  # type: ignore[arg-type]


def _read_sparse(archive: zipfile.ZipFile, header: dict[str, Any]) -> TCTiledCSR | FRDC:
    cls = _SPARSE[header["type"]]
    sizes = _check.shape("load_npz", header["shape"])
    names = {f"{name}.npy" for name in cls.component_names}
    missing = names - set(archive.namelist()) - {"data.npy"}
    if missing:
        raise ValueError(f"load_npz: the file lacks {', '.join(sorted(missing))}; it is damaged")
    parts = _read_present(archive, cls.component_names, None)
    scales = _read_present(archive, ("row_scale", "col_scale"), np.dtype(np.float32))
    settings = {name: header[name] for name in _FIELDS[header["type"]] if name not in ("shape", "had_duplicates")}
    made = cls.from_arrays(**parts, shape=sizes, **settings, **scales)  # type: ignore[arg-type]
    made.had_duplicates = bool(header.get("had_duplicates", False))
    return made


def _read_present(
    archive: zipfile.ZipFile, names: tuple[str, ...], dtype: np.dtype[Any] | None
) -> dict[str, NDArray[Any]]:
    there = set(archive.namelist())
    return {name: _read(archive, name, dtype, None) for name in names if f"{name}.npy" in there}


def _read_header(archive: zipfile.ZipFile) -> dict[str, Any]:
    if archive.getinfo("header.npy").file_size > _MAX_HEADER:
        raise ValueError("load_npz: the header is larger than any that save_npz writes; the file is damaged or hostile")
    try:
        header = json.loads(str(_read(archive, "header", np.dtype("U"), ())))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"load_npz: the header is not JSON ({error}); the file is damaged") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT or str(header.get("type")) not in _FIELDS:
        found = header.get("format") if isinstance(header, dict) else header
        raise ValueError(
            f"load_npz: format {found!r} is not {_FORMAT!r}; the file comes from another program or a newer release"
        )
    missing = set(_FIELDS[header["type"]]) - header.keys()
    if missing:
        raise ValueError(f"load_npz: the header lacks {', '.join(sorted(missing))}; the file is damaged")
    return header


def _read(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None
) -> NDArray[Any]:
    """One member, whose announced size must equal the archive's before a byte of it is allocated."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            found_shape, fortran, found_dtype = read(stream)
        except ValueError as error:
            raise ValueError(f"load_npz: {name} is not an array of NumPy ({error}); the file is damaged") from None
        if (
            found_dtype.hasobject
            or (dtype is None and found_dtype.kind not in "biuf")
            or (dtype is not None and dtype.kind == "U" and found_dtype.kind != "U")
            or (dtype is not None and dtype.kind != "U" and found_dtype != dtype)
        ):
            raise ValueError(
                f"load_npz: {name} has dtype {found_dtype}, but {_wanted(dtype)} is needed; the file is damaged or hostile"
            )
        if (shape is not None and found_shape != shape) or (fortran and len(found_shape) > 1):
            raise ValueError(
                f"load_npz: {name} has shape {found_shape}, but the header means {shape}; the file is damaged or hostile"
            )
        count = int(np.prod(found_shape, dtype=object)) if found_shape else 1
        payload = info.file_size - stream.tell()
        if count * found_dtype.itemsize != payload:
            raise ValueError(
                f"load_npz: {name} announces {count * found_dtype.itemsize} bytes, but the file holds {payload}; it is damaged"
            )
        data = stream.read(payload)
    if len(data) != payload:
        raise ValueError(f"load_npz: {name} ends after {len(data)} of {payload} bytes; the file is truncated")
    return np.frombuffer(data, dtype=found_dtype).reshape(found_shape)


def _wanted(dtype: np.dtype[Any] | None) -> str:
    return "a number" if dtype is None else "text" if dtype.kind == "U" else str(dtype)
