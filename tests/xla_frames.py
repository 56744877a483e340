"""Hand-built copies of XLA's calls of handlers, for arrays in GPU memory when XLA itself runs without a GPU."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
    cast,
    sizeof,
)
from typing import Any

_EXECUTE = 3
_BUFFER, _STRING = 1, 4


class Extension(Structure):
    _fields_ = (("size", c_size_t), ("kind", c_int), ("next", c_void_p))


class Version(Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class Metadata(Structure):
    _fields_ = (("size", c_size_t), ("version", Version), ("traits", c_uint32))


class Question(Structure):
    _fields_ = (("base", Extension), ("metadata", POINTER(Metadata)))


class _Text(Structure):
    _fields_ = (("start", c_char_p), ("length", c_size_t))


class _Buffer(Structure):
    _fields_ = (
        *(("size", c_size_t), ("extension", c_void_p), ("dtype", c_int)),
        *(("data", c_void_p), ("rank", c_int64), ("dims", c_void_p)),
    )


class _Buffers(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("kinds", c_void_p),
        ("parts", c_void_p),
    )


class _Attributes(Structure):
    _fields_ = (
        *(("size", c_size_t), ("extension", c_void_p), ("count", c_int64)),
        *(("kinds", c_void_p), ("names", c_void_p), ("parts", c_void_p)),
    )


class RawFrame(Structure):
    _fields_ = (
        *(("size", c_size_t), ("extension", c_void_p), ("api", c_void_p), ("context", c_void_p), ("stage", c_int)),
        *(("arguments", _Buffers), ("results", _Buffers), ("attributes", _Attributes)),
    )


class _Error(Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int))


class _Stream(Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p))


class _Device(Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("ordinal", c_int32))


_MAKES_ERROR, _GETS_STREAM, _GETS_DEVICE = (CFUNCTYPE(c_void_p, POINTER(kind)) for kind in (_Error, _Stream, _Device))


class _Api(Structure):
    _fields_ = (
        *(("size", c_size_t), ("extension", c_void_p), ("version", Version), ("internal", c_void_p)),
        *(("error_create", _MAKES_ERROR), ("error_get_message", c_void_p), ("error_destroy", c_void_p)),
        *(("handler_register", c_void_p), ("stream_get", _GETS_STREAM)),
        *((f"other_{number}", c_void_p) for number in range(12)),
        ("device_ordinal_get", _GETS_DEVICE),
    )


class Frame:
    """The C structures of one call of a handler.

    Parameters
    ----------
    text, digest : str
        The two attributes of the call.
    arguments, results : list of int
        Addresses of the arrays.
    stream, gpu : int
        The CUDA stream and the device number that the call reports.
    """

    def __init__(
        self,
        text: str,
        digest: str,
        arguments: list[int],
        results: list[int],
        stream: int,
        gpu: int = 0,
        stage: int = _EXECUTE,
    ) -> None:
        self.errors: list[str] = []
        self._kept: list[Any] = []

        def stream_get(given: Any) -> None:
            given.contents.stream = stream

        def ordinal_get(given: Any) -> None:
            given.contents.ordinal = gpu

        def error_create(given: Any) -> int:
            self.errors.append(given.contents.message.decode())
            return 1

        api = _Api(
            size=sizeof(_Api),
            error_create=_MAKES_ERROR(error_create),
            stream_get=_GETS_STREAM(stream_get),
            device_ordinal_get=_GETS_DEVICE(ordinal_get),
        )
        self._raw = RawFrame(size=sizeof(RawFrame), api=cast(byref(api), c_void_p), stage=stage)
        self._raw.arguments, self._raw.results = self._buffers(arguments), self._buffers(results)
        said = [_Text(part.encode(), len(part)) for part in (text, digest)]
        names = [_Text(part, len(part)) for part in (b"call", b"digest")]
        kinds = (c_int * 2)(_STRING, _STRING)
        self._raw.attributes = _Attributes(
            count=2, kinds=self._at(kinds), names=self._pointers(names), parts=self._pointers(said)
        )
        self.api = api

    def _at(self, thing: Any) -> Any:
        self._kept.append(thing)
        return cast(thing, c_void_p)

    def _pointers(self, things: list[Any]) -> Any:
        self._kept.append(things)
        return self._at((c_void_p * max(1, len(things)))(*map(ctypes.addressof, things)))

    def _buffers(self, addresses: list[int]) -> Any:
        kinds = (c_int * max(1, len(addresses)))(*[_BUFFER] * len(addresses))
        parts = self._pointers([_Buffer(data=address) for address in addresses])
        return _Buffers(count=len(addresses), kinds=self._at(kinds), parts=parts)

    def run(self, handler: int) -> list[str]:
        """Call a handler by its address, and return the error messages that it made."""
        CFUNCTYPE(c_void_p, c_void_p)(handler)(ctypes.addressof(self._raw))
        return self.errors
