"""The fields of a BitTensor, and what can be read off them: shape and format, counts, sums, zero tiles."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays import construct
from bitsparse.arrays.base import BitArray
from bitsparse.interop.identity import Contents, contents_of

__all__ = ["Derived", "Encoding", "Layout", "PackedArray", "kind_of_bits"]

Encoding = Literal["unsigned", "signed", "bipolar"]
Layout = Literal["planes", "rows"]


@lru_cache(maxsize=1024)
def kind_of_bits(*kind: Any) -> tuple[Any, ...]:
    """Shape, bits, axis, layout, encoding, device and family as one tuple, for equal kinds the same object where possible."""
    return kind


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

    __slots__ = ("bitmap", "prepared", "sums", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.bitmap: NDArray[np.uint32] | None = None
        self.sums: NDArray[np.int64] | None = None
        self.prepared: dict[Any, Any] = {}

    def prepare(self, key: Any, product: Any, most: int) -> None:
        """Keep a product, beside at most so many others."""
        if len(self.prepared) >= most:
            self.prepared.clear()
        self.prepared[key] = product


class PackedArray(BitArray):
    """Base class of :class:`bitsparse.BitTensor`, with its fields and properties."""

    __slots__ = (
        "__weakref__",
        "_axis",
        "_bits",
        "_contents_kept",
        "_derived_kept",
        "_encoding",
        "_family",
        "_kind_kept",
        "_layout",
        "_offset",
        "_scale",
        "_shape",
        "_words",
    )

    _words: NDArray[np.uint32]
    _shape: tuple[int, ...]
    _bits: int
    _axis: int
    _layout: str
    _encoding: str
    _scale: NDArray[np.float32] | None
    _offset: NDArray[np.float32] | None
    _kind_kept: tuple[Any, ...] | None
    _contents_kept: Contents | None
    _derived_kept: Derived | None

    @abstractmethod
    def repack(self, *, axis: int | None = None, layout: Layout | None = None) -> Self:
        """The same integers packed along another axis or in another layout."""

    @property
    def _kind(self) -> tuple[Any, ...]:
        """What a product prepared on a GPU depends on in its right operand; kept."""
        if self._kind_kept is None:
            self._kind_kept = kind_of_bits(
                *(self._shape, self._bits, self._axis, self._layout, self._encoding),
                self.device,
                self._family,
            )
        return self._kind_kept

    @property
    def _contents(self) -> Contents:
        """The contents of the memory of the words, the same for every BitTensor that lies there."""
        if self._contents_kept is None:
            self._contents_kept = contents_of(self._words)
        return self._contents_kept

    @property
    def _derived(self) -> Derived:
        """What is kept of the words; nothing any more once the memory was written to, through whichever BitTensor."""
        version = self._contents.version
        if self._derived_kept is None or self._derived_kept.version != version:
            self._derived_kept = Derived(version)
        return self._derived_kept

    def _overwrite(self) -> NDArray[np.uint32]:
        """The words, for somebody who is about to write to them: nothing that was derived from the memory holds any more."""
        self._contents.changed()
        return self._words

    def _backend(self) -> Any:
        """The packing functions of the device where the words are."""
        return backends.family(self.device, "bits.pack")

    # -- what it is -----------------------------------------------------------------------------------------------
    @property
    def words(self) -> NDArray[np.uint32]:
        """The packed bits (see the class)."""
        return self._words

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: batch dimensions, rows, columns."""
        return self._shape

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on: where the words are."""
        return interop.device_of(self._words)

    @property
    def bits(self) -> int:
        """Bits per value."""
        return self._bits

    @property
    def axis(self) -> int:
        """The packed axis, -1 or -2."""
        return self._axis

    @property
    def layout(self) -> str:
        """``"planes"`` or ``"rows"``."""
        return self._layout

    @property
    def encoding(self) -> str:
        """``"unsigned"``, ``"signed"`` or ``"bipolar"``."""
        return self._encoding

    @property
    def scale(self) -> NDArray[np.float32] | None:
        """Affine scale, float32, or None."""
        return self._scale

    @property
    def offset(self) -> NDArray[np.float32] | None:
        """Affine offset, float32, or None."""
        return self._offset

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest integer dtype that holds every value of these bits and encoding."""
        return construct.smallest_dtype(self._bits, self._encoding)

    @property
    def nbytes(self) -> int:
        """Bytes of words, scale and offset."""
        return sum(part.nbytes for part in (self._words, self._scale, self._offset) if part is not None)

    @property
    def nnz(self) -> int:
        """Number of integers that are not zero (all of them for bipolar)."""
        if self._encoding == "bipolar":
            return self.size
        with self._working():
            return int(self._backend().count_nonzero(self._words, self._bits, self._layout, self._shape[self._axis]))

    @property
    def tile_bitmap(self) -> NDArray[np.uint32]:
        """Which 8 x 128 tiles of this left operand hold a set bit: uint32 ``(..., ceil(M / 8), ceil(ceil(K / 128) / 32))``.

        Little-endian, one bit per tile, planes or-ed (QGTC section 4.3). Built on first use and kept.
        """
        kept = self._derived
        if kept.bitmap is None:
            left = self.repack(axis=-1, layout="planes")
            with self._working():
                kept.bitmap = self._backend().tile_bitmap(left.words, self._shape[-1])
        return kept.bitmap

    @property
    def line_sums(self) -> NDArray[np.int64]:
        """Sum of the integers along the packed axis, int64 ``(..., outer)``; an offset's correction needs it. Kept."""
        kept = self._derived
        if kept.sums is None:
            planes = self.repack(layout="planes")
            with self._working():
                kept.sums = self._backend().code_sums(planes.words, self._bits, self._encoding, self._shape[self._axis])
        return kept.sums

    @property
    def tile_density(self) -> float:
        """Share of the 8 x 128 tiles that hold a set bit; a product skips the others."""
        rows, cols = self._shape[-2:]
        tiles = -(-rows // 8) * -(-cols // 128) * int(np.prod(self._shape[:-2], dtype=np.int64))
        if not tiles:
            return 0.0
        bitmap = self.tile_bitmap
        with self._working():
            return int(np.bitwise_count(bitmap).sum(dtype=np.int64)) / tiles
