"""Structures of the CUDA sources as :mod:`ctypes` classes, generated from the sources so that no field is declared twice."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from bitsparse.errors import KernelError
from bitsparse.jit.cubins import with_headers

TensorMap = ctypes.c_uint64 * 16
_Params = TypeVar("_Params", bound=ctypes.Structure)

_NUMBERS: dict[str, Any] = {
    "TensorMap": TensorMap,
    "short": ctypes.c_short,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **dict.fromkeys(("unsigned", "u32", "bs_u32"), ctypes.c_uint32),
    **dict.fromkeys(("long long", "i64", "bs_i64"), ctypes.c_int64),
    **dict.fromkeys(("u64", "bs_u64"), ctypes.c_uint64),
}
_COMMENT = re.compile(r"//.*")
_OPTIONAL = re.compile(r"^#if.*?^#endif", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^#.*", re.MULTILINE)
_DECLARATION = re.compile(r"(?:const )?(long long|unsigned (?:char|short)|\w+) ?(.*)", re.DOTALL)
_NAME = re.compile(r"(\*?)(\w+)(?:\[(\w+)(?: - (\d+))?\])?")


def struct(source: str, name: str, *, optional: bool = False) -> type[ctypes.Structure]:
    """The class for ``struct name`` as declared in ``source`` or in a header that it includes.

    Parameters
    ----------
    source : str
        A file of ``cuda_src``.
    name : str
    optional : bool
        Include the fields between ``#if`` and ``#endif``, in this structure and in those that it contains.

    Raises
    ------
    KernelError
        There is no such structure, or it has a field that cannot be passed to a kernel.

    Examples
    --------
    >>> [field for field, *_ in struct("csr/units.cuh", "Units")._fields_]
    ['table', 'pieces', 'whole', 'streams', 'each']
    """
    for header in with_headers(source):
        body = body_of(header, name)
        if body is not None:
            return _class_of(source, header, name, body, optional)
    raise KernelError(f"bitsparse.jit: neither {source} nor its headers declare a struct {name}")


def filled(params: _Params, **fields: Any) -> _Params:
    """A kernel's argument with these fields set: CuPy arrays become addresses, None means no array, and numbers stay as they are.

    Examples
    --------
    >>> filled(struct("csr/units.cuh", "Units")(), table=None, pieces=3).pieces
    3
    """
    for name, value in fields.items():
        setattr(params, name, value.data.ptr if hasattr(type(value), "__cuda_array_interface__") else value)
    return params


def body_of(header: str, name: str) -> str | None:
    """The text between the braces of a structure in a file, without comments."""
    found = re.search(
        rf"^struct (?:\w+\(\d+\) )?{name} {{\n(.*?)^}};", with_headers(header)[header], re.MULTILINE | re.DOTALL
    )
    return None if found is None else _COMMENT.sub("", found[1])


#: One class for each layout, whichever source includes the header, so that structures can contain each other.
_classes: dict[tuple[str, str, bool], tuple[type[ctypes.Structure], list[tuple[str, Any]]]] = {}


def _class_of(source: str, header: str, name: str, body: str, optional: bool) -> type[ctypes.Structure]:
    key = header, name, optional
    if key not in _classes:
        text = _DIRECTIVE.sub("", body) if optional else _OPTIONAL.sub("", body)
        lines = (line.strip() for line in text.split(";"))
        fields = [field for line in lines if line for field in _fields_of(source, line, optional)]
        plain = _class_of(source, header, name, body, False) if optional else None
        if plain is not None and _classes[header, name, False][1] == fields:
            _classes[key] = plain, fields
        else:
            documented = {"__doc__": f"``struct {name}`` of ``{header}``."}
            declared = type(name, (ctypes.Structure,), {"_fields_": fields, "declared": key} | documented)
            _classes[key] = declared, fields
    return _classes[key][0]


def _fields_of(source: str, declaration: str, optional: bool) -> Iterator[tuple[str, Any]]:
    """Names and types of the fields in one declaration, such as ``const float *scale, *offset`` or ``int keys[20]``."""
    matched = _DECLARATION.fullmatch(declaration)
    for each in matched[2].split(",") if matched else ():
        named = _NAME.fullmatch(each.strip())
        if matched is None or named is None:
            raise KernelError(f"bitsparse.jit: {source} declares {declaration!r}, which is not read as a field")
        pointer, field, size, less = named.groups()
        kind = ctypes.c_void_p if pointer else _NUMBERS.get(matched[1]) or struct(source, matched[1], optional=optional)
        yield field, kind * (_constant(source, size) - int(less or 0)) if size else kind


def _constant(source: str, name: str) -> int:
    """The value of a number, or of a constant that the source or a header defines."""
    if name.isdigit():
        return int(name)
    for text in with_headers(source).values():
        found = re.search(rf"(?:#define {name}|constexpr int {name} =) (\d+)", text)
        if found is not None:
            return int(found[1])
    raise KernelError(f"bitsparse.jit: neither {source} nor its headers define {name}")
