"""What the rest of the library asks of the arrays and their users need not see: one function for each such question."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from bitsparse.arrays.base import BitArray
    from bitsparse.arrays.bit_tensor import BitTensor
    from bitsparse.arrays.packed import Derived, PackedArray
    from bitsparse.arrays.sparse_base import SparseArray
    from bitsparse.interop import Family
    from bitsparse.interop.identity import Contents
    from bitsparse.interop.kept import Store

__all__ = [
    "assembled",
    "contents_of_words",
    "derived_of",
    "family_of",
    "has_derived",
    "kind_of",
    "pattern_of",
    "scales_of",
    "store_of",
    "values_and_scales",
    "with_fields",
    "with_words",
    "words_to_overwrite",
    "working",
]


Bits = TypeVar("Bits", bound="BitTensor")
Sparse = TypeVar("Sparse", bound="SparseArray")


def family_of(array: BitArray) -> Family:
    """The array library that results computed from `array` come back in."""
    return array._family


def working(array: BitArray) -> AbstractContextManager[Any]:
    """A context with the current device and stream that work on `array` belongs to."""
    return array._working()


def assembled(cls: type[Bits], *parts: Any) -> Bits:
    """The BitTensor of `cls` that consists of these parts, which are believed: see :class:`bitsparse.arrays.construct.Parts`."""
    return cls._make(*parts)


def with_words(
    x: BitTensor, words: NDArray[Any], shape: tuple[int, ...], axis: int, layout: str, affine: Any = ()
) -> BitTensor:
    """A BitTensor of other words with the bits, encoding and family of `x`, and its scale and offset unless others are given."""
    return x._with(words, shape, axis, layout, affine)


def kind_of(x: PackedArray) -> tuple[Any, ...]:
    """All that a product prepared on a GPU depends on in its right operand."""
    return x._kind


def contents_of_words(x: PackedArray) -> Contents:
    """The contents of the memory where the words of `x` lie, with the version that counts changes of it."""
    return x._contents


def derived_of(x: PackedArray) -> Derived:
    """What is kept of the words of `x`; nothing any more once the memory was written to."""
    return x._derived


def has_derived(x: PackedArray) -> bool:
    """Whether anything was ever kept of the words of `x`."""
    return x._derived_kept is not None


def words_to_overwrite(x: PackedArray) -> NDArray[Any]:
    """The words of `x` for somebody who is about to write to them: nothing derived from them is kept any longer."""
    return x._overwrite()


def with_fields(A: Sparse, **fields: Any) -> Sparse:
    """The array `A` with other fields, which are believed."""
    return A._with(**fields)


def pattern_of(A: SparseArray) -> tuple[NDArray[Any], NDArray[Any]]:
    """Canonical CSR ``(indptr, indices)`` of `A`, where they lie."""
    return A._pattern()


def scales_of(A: SparseArray) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Row and column factors of `A` themselves, where the public members give copies."""
    return A._row_scale, A._col_scale


def values_and_scales(A: SparseArray) -> tuple[Any, NDArray[Any] | None, NDArray[Any] | None]:
    """The value array of `A` itself, or None, and its row and column factors."""
    return getattr(A, "_data", None), A._row_scale, A._col_scale


def store_of(A: SparseArray) -> Store:
    """What is kept for the pattern of `A`, by all arrays that share it."""
    return A._prepared
