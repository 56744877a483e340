"""Access to the internals of arrays for the rest of the library: one function for each thing that users need not see."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bitsparse.interop.identity import Contents, contents_of

if TYPE_CHECKING:
    from bitsparse.arrays.base import BitArray
    from bitsparse.arrays.bit_tensor import BitTensor
    from bitsparse.arrays.packed import PackedArray
    from bitsparse.arrays.sparse_base import SparseArray
    from bitsparse.arrays.sparse_merge import Pattern
    from bitsparse.interop import Family
    from bitsparse.interop.kept import Store


Bits = TypeVar("Bits", bound="BitTensor")
Sparse = TypeVar("Sparse", bound="SparseArray")


def family_of(array: BitArray) -> Family:
    """The array library of results computed from `array`."""
    return array._family


def working(array: BitArray) -> AbstractContextManager[Any]:
    """A context that makes the device and stream for work on `array` current."""
    return array._working()


def assembled(cls: type[Bits], *parts: Any) -> Bits:
    """A BitTensor of type `cls` made of these parts without checks: see :class:`bitsparse.arrays.construct.Parts`."""
    return cls._make(*parts)


def with_words(
    x: BitTensor, words: NDArray[Any], shape: tuple[int, ...], axis: int, layout: str, affine: Any = ()
) -> BitTensor:
    """A BitTensor of other words with the bits, encoding and family of `x`, and its scale and offset unless `affine` is given."""
    return x._with(words, shape, axis, layout, affine)


def with_scale(x: BitTensor, scale: Any) -> BitTensor:
    """`x` with another scale, on its device, and no offset. The scale is not checked, so that the host need not wait for it."""
    return with_words(x, x.words, x.shape, x.axis, x.layout, (scale, None))


@lru_cache(maxsize=1024)
def kind_of_bits(*kind: Any) -> tuple[Any, ...]:
    """Shape, bits, axis, layout, encoding, device and family as one tuple; equal kinds give the same object where possible."""
    return kind


@dataclass(slots=True, eq=False)
class Derived:
    """Cached results that were derived from the words of one BitTensor, valid for one version of their memory.

    Attributes
    ----------
    version : int
        Version of the memory's contents.
    bitmap, sums : array or None
        :attr:`PackedArray.tile_bitmap` and :attr:`PackedArray.line_sums`.
    prepared : dict
        Products prepared for this operand on a GPU, keyed by the other operand's kind.
    """

    version: int
    bitmap: NDArray[np.uint32] | None = None
    sums: NDArray[np.int64] | None = None
    prepared: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Kept:
    """Cached results of :func:`kind_of`, :func:`contents_of_words` and :func:`derived_of` for one BitTensor; None until first used."""

    kind: tuple[Any, ...] | None = None
    contents: Contents | None = None
    derived: Derived | None = None


def kind_of(x: PackedArray) -> tuple[Any, ...]:
    """The properties of a right operand on which a product prepared on a GPU depends; cached."""
    kept = x._kept
    if kept.kind is None:
        kept.kind = kind_of_bits(x.shape, x.bits, x.axis, x.layout, x.encoding, x.device, family_of(x))
    return kept.kind


def contents_of_words(x: PackedArray) -> Contents:
    """The record of the memory that holds the words of `x`, with a version that counts changes; BitTensors in that memory share it."""
    kept = x._kept
    if kept.contents is None:
        kept.contents = contents_of(x.words)
    return kept.contents


def derived_of(x: PackedArray) -> Derived:
    """The results derived from the words of `x`; empty again after any BitTensor in that memory was written to."""
    kept = x._kept
    contents, derived = kept.contents or contents_of_words(x), kept.derived
    if derived is None or derived.version != contents.version:
        derived = kept.derived = Derived(contents.version)
    return derived


def words_to_overwrite(x: PackedArray) -> NDArray[Any]:
    """The words of `x`, for a caller that is about to write to them; results derived from them become invalid."""
    contents_of_words(x).changed()
    return x.words


def with_fields(A: Sparse, **fields: Any) -> Sparse:
    """A copy of `A` with some fields replaced, without checks."""
    return A._with(**fields)


def of_result(A: SparseArray, result: Pattern) -> SparseArray:
    """Canonical entries as an array of the type that arithmetic of `A` returns: FRDC for bits of an FRDC, else TCTiledCSR."""
    return A._of_result(result)


def row_blocks(A: Sparse, start: int, stop: int) -> Sparse | None:
    """A view of rows without row scales if they are whole blocks of the format; None if they are not or it has no blocks."""
    return A._row_blocks(start, stop)


def become(A: SparseArray, other: SparseArray) -> None:
    """Replace all fields of `A` by those of `other`; arrays that shared the old pattern or cached results keep them."""
    A._become(other)


def patterns_of(A: Sparse) -> tuple[Sparse, Sparse, NDArray[Any]]:
    """The pattern of `A` and its transpose as arrays without values and scales, and the entry of `A` for each one of the transpose."""
    order, turned = A._turned()
    bare = {"row_scale": None, "col_scale": None, "data": None}
    return with_fields(A, **bare), with_fields(A if turned is None else turned, **bare), order


def scales_of(A: SparseArray) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Row and column factors of `A` themselves; the public properties return copies."""
    return A._row_scale, A._col_scale


def values_and_scales(A: SparseArray) -> tuple[Any, NDArray[Any] | None, NDArray[Any] | None]:
    """The value array of `A` itself, or None, and its row and column factors."""
    return A._data, *scales_of(A)


def store_of(A: SparseArray) -> Store:
    """The cache for the pattern of `A`, which all arrays with that pattern share."""
    return A._prepared


def parts_of(A: SparseArray) -> tuple[Store, tuple[Any, Any], tuple[Any, Any, Any], tuple[int, int]]:
    """The inputs of kernels: cache, canonical CSR ``(indptr, indices)``, values with row and column factors, and shape of `A`."""
    return store_of(A), A._pattern, values_and_scales(A), A.shape
