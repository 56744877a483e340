"""What the rest of the library asks of the arrays and their users need not see: one function for each such question."""

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
    """The array library that results computed from `array` come back in."""
    return array._family


def working(array: BitArray) -> AbstractContextManager[Any]:
    """A context with the current device and stream that work on `array` belongs to."""
    return array._working()


def assembled(cls: type[Bits], *parts: Any) -> Bits:
    """The BitTensor of `cls` that consists of these parts, which are not checked: see :class:`bitsparse.arrays.construct.Parts`."""
    return cls._make(*parts)


def with_words(
    x: BitTensor, words: NDArray[Any], shape: tuple[int, ...], axis: int, layout: str, affine: Any = ()
) -> BitTensor:
    """A BitTensor of other words with the bits, encoding and family of `x`, and its scale and offset unless others are given."""
    return x._with(words, shape, axis, layout, affine)


def with_scale(x: BitTensor, scale: Any) -> BitTensor:
    """The words of `x` with a scale on its device and no offset. The scale is not checked, so that the host need not wait for it."""
    return x._with(x._words, x._shape, x._axis, x._layout, (scale, None))


@lru_cache(maxsize=1024)
def kind_of_bits(*kind: Any) -> tuple[Any, ...]:
    """Shape, bits, axis, layout, encoding, device and family as one tuple, for equal kinds the same object where possible."""
    return kind


@dataclass(slots=True, eq=False)
class Derived:
    """What is kept of the words of one BitTensor, as they are in one version of the memory.

    Attributes
    ----------
    version : int
        Of the memory's contents.
    bitmap, sums : array or None
        :attr:`PackedArray.tile_bitmap` and :attr:`PackedArray.line_sums`.
    prepared : dict
        Products prepared for this operand on a GPU, by the other operand's kind.
    """

    version: int
    bitmap: NDArray[np.uint32] | None = None
    sums: NDArray[np.int64] | None = None
    prepared: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Kept:
    """What :func:`kind_of`, :func:`contents_of_words` and :func:`derived_of` found for one BitTensor, each None until it is asked for."""

    kind: tuple[Any, ...] | None = None
    contents: Contents | None = None
    derived: Derived | None = None


def kind_of(x: PackedArray) -> tuple[Any, ...]:
    """All that a product prepared on a GPU depends on in its right operand; kept."""
    kept = x._kept
    if kept.kind is None:
        kept.kind = kind_of_bits(x.shape, x.bits, x.axis, x.layout, x.encoding, x.device, family_of(x))
    return kept.kind


def contents_of_words(x: PackedArray) -> Contents:
    """The contents of the memory where the words of `x` lie, with the version that counts changes: the same for every BitTensor there."""
    kept = x._kept
    if kept.contents is None:
        kept.contents = contents_of(x.words)
    return kept.contents


def derived_of(x: PackedArray) -> Derived:
    """What is kept of the words of `x`; nothing any more once the memory was written to, through whichever BitTensor."""
    version, kept = contents_of_words(x).version, x._kept
    if kept.derived is None or kept.derived.version != version:
        kept.derived = Derived(version)
    return kept.derived


def has_derived(x: PackedArray) -> bool:
    """Whether anything was ever kept of the words of `x`."""
    return x._kept.derived is not None


def words_to_overwrite(x: PackedArray) -> NDArray[Any]:
    """The words of `x` for somebody who is about to write to them: nothing derived from them is kept any longer."""
    contents_of_words(x).changed()
    return x.words


def with_fields(A: Sparse, **fields: Any) -> Sparse:
    """The array `A` with other fields, which are not checked."""
    return A._with(**fields)


def of_result(A: SparseArray, result: Pattern) -> SparseArray:
    """Canonical entries as what arithmetic of `A` gives: bits of an FRDC as an FRDC, everything else as a TCTiledCSR."""
    return A._of_result(result)


def row_blocks(A: Sparse, start: int, stop: int) -> Sparse | None:
    """A view of whole blocks of rows without scales of rows, where the format has such blocks and these rows are some; else None."""
    return A._row_blocks(start, stop)


def become(A: SparseArray, other: SparseArray) -> None:
    """Make of `A` what `other` is, in place: arrays that shared its pattern or kept results keep them as they were."""
    A._become(other)


def patterns_of(A: Sparse) -> tuple[Sparse, Sparse, NDArray[Any]]:
    """The pattern of `A` and its transpose as arrays without values and scales, and which entry of the one each of the other is."""
    order, turned = A._turned()
    bare = {"row_scale": None, "col_scale": None, "data": None}
    return with_fields(A, **bare), with_fields(A if turned is None else turned, **bare), order


def scales_of(A: SparseArray) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Row and column factors of `A` themselves, where the public members give copies."""
    return A._row_scale, A._col_scale


def values_and_scales(A: SparseArray) -> tuple[Any, NDArray[Any] | None, NDArray[Any] | None]:
    """The value array of `A` itself, or None, and its row and column factors."""
    return A._data, *scales_of(A)


def store_of(A: SparseArray) -> Store:
    """What is kept for the pattern of `A`, by all arrays that share it."""
    return A._prepared


def parts_of(A: SparseArray) -> tuple[Store, tuple[Any, Any], tuple[Any, Any, Any], tuple[int, int]]:
    """What kernels read of `A`: what is kept, canonical CSR ``(indptr, indices)``, value array and scales where they lie, and the shape."""
    return store_of(A), A._pattern, values_and_scales(A), A.shape
