"""Rows of bits for searches, made from a BitTensor, booleans, or the packed bytes of other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of
from bitsparse.backends.params import Array
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.bits.pack import pack_bits
from bitsparse.ops.bits.packed_bytes import bytes_of, check_rows, with_bytes_reversed, words_of_bytes

METRICS = ("hamming", "jaccard", "dot")
#: The most bits of a row; with more, counts and keys would not fit their integers.
MOST_BITS = 1 << 16
#: The most neighbours of a query.
MOST_NEIGHBOURS = 1024


class Codes(NamedTuple):
    """Rows of bits as words (N, W); `raw` says that they come from bytes, whose bits still have the order of the library that packed them.

    Beside rows that are not raw, bytes are taken to be from :func:`numpy.packbits`.
    """

    words: Array
    length: int
    raw: bool
    device: str
    family: interop.Family

    def like(self, other: Codes) -> Codes:
        """These rows with bits in the order of `other`: if only one of both is `raw`, the bits of every byte are reversed."""
        if self.raw == other.raw:
            return self
        return replace(self, words=with_bytes_reversed(self.words), raw=other.raw)


def as_codes(function: str, name: str, x: Any) -> Codes:
    """The rows of bits in a user's array, checked."""
    if isinstance(x, BitTensor):
        if x.ndim != 2 or x.bits != 1:
            raise ShapeError(
                f"{function}: {name} has {x.ndim} dimensions and {x.bits} bits, but codes are a matrix of single bits; pass pack_bits(x, 1)"
            )
        x = x if x.axis == -1 else x.repack(axis=-1)
        codes = Codes(x.words.reshape(x.shape[0], x.words.shape[-1]), x.shape[1], False, x.device, family_of(x))
    else:
        dtype = getattr(x, "dtype", None)
        if str(dtype).removeprefix("torch.") in ("uint8", "int8"):
            array, family = bytes_of(function, name, x)
            codes = Codes(words_of_bytes(array), 8 * array.shape[1], True, interop.device_of(array), family)
        else:
            array, family = interop.as_array(x, function, name)
            if array.dtype != np.bool_:
                raise DTypeError(
                    f"{function}: {name} has dtype {array.dtype}, but codes are a BitTensor, bool, or uint8 of packed bytes; pass "
                    f"pack_bits({name} > 0, 1), or pack_bits({name}, encoding='bipolar') for the signs of floats"
                )
            check_rows(function, name, array)
            return as_codes(function, name, pack_bits(x, 1))
    if codes.length > MOST_BITS:
        raise ShapeError(
            f"{function}: rows of {name} have {codes.length} bits, but searches take {MOST_BITS}; split the rows"
        )
    return codes


def same_length(function: str, names: tuple[str, str], a: Codes, b: Codes) -> int:
    """The common number of bits of both sides' rows; bytes may have padding bits at the end that the other side does not have."""
    if a.length == b.length:
        return a.length
    short, long = sorted((a, b), key=lambda one: one.length)
    if long.raw and not short.raw and -(-short.length // 8) * 8 == long.length:
        return short.length
    raise ShapeError(
        f"{function}: rows of {names[0]} have {a.length} bits but those of {names[1]} have {b.length}; cut or pad one"
    )


def ones_of(codes: Codes) -> Array:
    """The number of set bits in each row, int32 (N,)."""
    return backends.family(codes.device, "search.nearest").ones_of(codes.words)


def allowed(function: str, ones: Array, mask: Any, device: str) -> Array:
    """The counts of ones, with -1 for rows that `mask` excludes from the search."""
    if mask is None:
        return ones
    array, _ = interop.as_array(mask, function, "mask")
    _check.same_device(function, (device, interop.device_of(array)))
    if array.dtype != np.bool_:
        raise DTypeError(
            f"{function}: mask has dtype {array.dtype}, but it says which rows may be found; pass mask.astype(bool)"
        )
    if tuple(array.shape) != tuple(ones.shape):
        raise ShapeError(
            f"{function}: mask has shape {tuple(array.shape)}, but the database has {ones.shape[0]} rows; pass a bool a row"
        )
    space: Any = interop.namespace(ones)
    return space.where(array, ones, np.int32(-1)).astype(np.int32, copy=False)
