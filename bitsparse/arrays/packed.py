"""The fields of a BitTensor and the properties computed from them: shape and format, counts, sums, zero tiles."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays import construct, word_reductions
from bitsparse.arrays.base import BitArray, read_only
from bitsparse.arrays.inside import Kept, derived_of

Encoding = Literal["unsigned", "signed", "bipolar"]
Layout = Literal["planes", "rows"]


class PackedArray(BitArray):
    """Base class of :class:`bitsparse.BitTensor`, with its fields and properties."""

    component_names = ("words",)
    scale_names = ("scale", "offset")
    setting_names = ("shape", "bits", "axis", "layout", "encoding")
    adopting = "from_words"

    _words: NDArray[np.uint32]
    _shape: tuple[int, ...]
    _bits: int
    _axis: int
    _layout: str
    _encoding: str
    _scale: NDArray[np.float32] | None
    _offset: NDArray[np.float32] | None
    _kept: Kept
    __slots__ = ("__weakref__", "_family", *__annotations__)  # the fields annotated above

    @abstractmethod
    def repack(self, *, axis: int | None = None, layout: Layout | None = None) -> Self:
        """The same integers packed along another axis or in another layout."""

    def _backend(self) -> Any:
        """The packing functions for the device of the words."""
        return backends.family(self.device, "bits.pack")

    # -- what it is -----------------------------------------------------------------------------------------------
    words: Final[NDArray[np.uint32]] = read_only("_words", "The packed bits (see the class).")
    shape: Final[tuple[int, ...]] = read_only("_shape", "Logical shape: batch dimensions, rows, columns.")
    bits: Final[int] = read_only("_bits", "Bits per value.")
    axis: Final[int] = read_only("_axis", "The packed axis, -1 or -2.")
    layout: Final[str] = read_only("_layout", "``planes`` or ``rows``.")
    encoding: Final[str] = read_only("_encoding", "``unsigned``, ``signed`` or ``bipolar``.")
    scale: Final[NDArray[np.float32] | None] = read_only("_scale", "Affine scale, float32, or None.")
    offset: Final[NDArray[np.float32] | None] = read_only("_offset", "Affine offset, float32, or None.")

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on: where the words are."""
        return interop.device_of(self._words)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest integer dtype that holds every value of these bits and encoding."""
        return construct.smallest_dtype(self._bits, self._encoding)

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

        Little-endian, one bit per tile, planes or-ed (QGTC section 4.3). Built on first use and cached.
        """
        kept = derived_of(self)
        if kept.bitmap is None:
            left = self.repack(axis=-1, layout="planes")
            with self._working():
                kept.bitmap = self._backend().tile_bitmap(left.words, self._shape[-1])
        return kept.bitmap

    @property
    def line_sums(self) -> NDArray[np.int64]:
        """Sum of the integers along the packed axis, int64 ``(..., outer)``, for products with an offset; cached."""
        kept = derived_of(self)
        if kept.sums is None:
            planes = self.repack(layout="planes")
            with self._working():
                kept.sums = self._backend().code_sums(planes.words, self._bits, self._encoding, self._shape[self._axis])
        return kept.sums

    @property
    def tile_density(self) -> float:
        """Share of the 8 x 128 tiles that hold a set bit; a product skips the others."""
        rows, cols = self._shape[-2:]
        tiles = -(-rows // 8) * -(-cols // 128) * math.prod(self._shape[:-2])
        if not tiles:
            return 0.0
        bitmap = self.tile_bitmap
        with self._working():
            return int(np.bitwise_count(bitmap).sum(dtype=np.int64)) / tiles

    # -- reductions -----------------------------------------------------------------------------------------------
    def sum(self, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Any:
        """Sum of the integers as int64; along the last two axes it is computed by counting bits.

        Parameters
        ----------
        axis : int or tuple of int, optional
            All axes by default.
        keepdims : bool, default False

        Raises
        ------
        DTypeError
            There is a scale or an offset.

        Examples
        --------
        >>> x = bs.BitTensor(np.array([[0, 1, 5], [7, 2, 0]]))
        >>> x.sum(axis=0), int(x.sum())
        (array([7, 3, 5]), 15)
        """
        return word_reductions.total(self, axis, keepdims)

    def count_nonzero(self, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Any:
        """Number of integers that are not zero, int64; takes the arguments of :meth:`sum`. An offset is refused.

        Examples
        --------
        >>> bs.BitTensor(np.array([[0, 1, 5], [7, 2, 0]])).count_nonzero(axis=1)
        array([2, 2])
        """
        return word_reductions.counts(self, axis, keepdims)

    def any(self, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Any:
        """Whether any integer is not zero; takes the arguments of :meth:`sum`. An offset is refused."""
        return word_reductions.counts(self, axis, keepdims, "any") > 0

    def all(self, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Any:
        """Whether no integer is zero; takes the arguments of :meth:`sum`. An offset is refused."""
        return word_reductions.all_of(self, axis, keepdims)
