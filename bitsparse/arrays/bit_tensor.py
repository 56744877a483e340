"""BitTensor: integers of 1..32 bits, stored as bit planes or side by side (3D-stacked bit compression, QGTC section 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import construct, sparse_convert, word_operators
from bitsparse.arrays.base import operators
from bitsparse.arrays.inside import Kept
from bitsparse.arrays.packed import Encoding, Layout, PackedArray
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop.arrays import as_host_floats


class BitTensor(PackedArray):
    """Array of ``bits``-bit integers, packed along its last or last but one axis.

    Parameters
    ----------
    arg : array_like, sparse array, BitTensor, tuple
        The data, in the forms of :mod:`scipy.sparse`: integers or booleans of at least two dimensions from any array library; a
        sparse array or ``(data, (row, col))`` or ``(data, indices, indptr)`` with `shape`, which is never densified (duplicates are
        or-ed at 1 bit, otherwise summed); another BitTensor, converted to the other arguments; a shape tuple ``(M, N)`` for zeros. Floats
        are accepted only at ``bits=1``, which keeps their sign (``x >= 0``).
    bits : int, optional
        Bits per value, 1..32. By default the fewest that hold the data (1 for floats and shapes).
    encoding : {"unsigned", "signed", "bipolar"}, optional
        ``"unsigned"`` holds 0..2**bits-1 (default), ``"signed"`` is two's complement, ``"bipolar"`` is one bit for -1 or +1.
    axis : int, default -1
        The packed axis, -1 or -2. A product needs its contraction axis packed: -1 on the left, -2 on the right.
    layout : {"planes", "rows"}
        ``"planes"`` keeps bit ``p`` of all elements together (products); ``"rows"`` keeps whole integers of 1, 2, 4, 8 or 16 bits side by
        side (gathers).
    scale, offset : float or array_like, optional
        Affine parameters, float32: the real value of an integer ``q`` is ``q * scale + offset``. A scalar, one per row ``(..., M, 1)`` or
        one per column ``(..., 1, N)``.
    shape : tuple of int, optional
        Shape of the sparse forms.
    copy : bool, default False
        Copy the words even if those of another BitTensor could be shared.

    Attributes
    ----------
    words : ndarray of uint32
        The packed bits, C-contiguous, 16-byte aligned: ``(..., outer, bits, ceil(L / 128) * 4)`` for planes and
        ``(..., outer, ceil(L * bits / 128) * 4)`` for rows, with L the length of the packed axis. Bit ``b`` of word ``w`` belongs to
        element ``32 w + b`` (planes); bits beyond L are zero. Treat it as read-only: derived data such as `tile_bitmap` is cached.

    Raises
    ------
    ValueError
        Values do not fit the bits and encoding, or an option is unknown.
    ShapeError, DTypeError, DeviceError
        Fewer than two dimensions, a dtype that is not integral, or data on another device.

    Notes
    -----
    A ``torch.nn.Module`` keeps a BitTensor as an ordinary attribute. ``register_buffer`` takes only tensors, such as its `words`;
    ``bitsparse.torch.Buffer`` makes buffers of all parts of an array.

    Examples
    --------
    >>> import numpy as np
    >>> import bitsparse as bs
    >>> x = bs.BitTensor(np.array([[0, 1, 5], [7, 2, 0]]), bits=3)
    >>> x
    <BitTensor shape=(2, 3) bits=3 unsigned axis=-1 layout=planes device=cpu, 96 B (4.00 of float32)>
    >>> x.words.shape
    (2, 3, 4)
    >>> x.toarray()
    array([[0, 1, 5],
           [7, 2, 0]], dtype=uint8)
    >>> x @ x.T
    array([[26,  2],
           [ 2, 53]], dtype=int32)
    """

    __slots__ = ()

    def __init__(
        self,
        arg: Any,
        bits: int | None = None,
        *,
        encoding: Encoding | None = None,
        axis: int | None = None,
        layout: Layout | None = None,
        scale: Any = None,
        offset: Any = None,
        shape: tuple[int, ...] | None = None,
        copy: bool = False,
    ) -> None:
        if isinstance(arg, BitTensor):
            made = construct.from_bit_tensor(arg, bits, encoding, axis, layout, shape, copy)
        else:
            made = construct.build(arg, bits, encoding, axis, layout, shape)
        self._words, self._shape, self._bits, self._axis, self._layout, self._encoding, self._family = made
        inherited = arg if isinstance(arg, BitTensor) else None
        self._scale = self._affine("scale", inherited.scale if inherited is not None and scale is None else scale)
        self._offset = self._affine("offset", inherited.offset if inherited is not None and offset is None else offset)
        self._kept = Kept()

    @classmethod
    def from_words(
        cls,
        words: Any,
        shape: tuple[int, ...],
        bits: int,
        *,
        encoding: Encoding = "unsigned",
        axis: int = -1,
        layout: Layout = "planes",
        scale: Any = None,
        offset: Any = None,
        copy: bool = False,
        check: bool = True,
    ) -> Self:
        """Adopt packed words, without a copy if they are C-contiguous and 16-byte aligned.

        Parameters
        ----------
        words : array_like of uint32 or int32
            Words in the layout described at :class:`BitTensor` (int32 words, as PyTorch holds them, are reinterpreted).
        shape : tuple of int
            Logical shape.
        bits, encoding, axis, layout, scale, offset, copy
            As in the constructor.
        check : bool, default True
            Verify that the padding bits are zero, which reads the words once.

        Raises
        ------
        ShapeError, DTypeError, ValueError
            The words do not have the shape or dtype that the other arguments ask for, or padding bits are set.

        Examples
        --------
        >>> x = bs.BitTensor.from_words(np.array([[[5, 0, 0, 0]]], dtype=np.uint32), (1, 3), bits=1)
        >>> x.toarray()
        array([[1, 0, 1]], dtype=uint8)
        """
        function = "BitTensor.from_words"
        sizes = _check.shape(function, shape)
        bits = _check.bit_count(function, bits)
        encoding_name, layout_name, packed = construct.form_of(function, bits, encoding, layout, axis, len(sizes))
        array, family = interop.as_array(words, function, "words")
        array = construct.checked_words(function, array, sizes, bits, packed, layout_name)
        device = interop.device_of(array)
        with interop.working_on(device, family):
            array = interop.aligned(array.copy() if copy else array)
            clean = not check or backends.family(device, "bits.pack").pad_is_zero(
                array, bits, layout_name, sizes[packed]
            )
        if not clean:
            raise ValueError(
                f"{function}: padding bits beyond element {sizes[packed]} of the packed axis are set; clear them"
            )
        self = cls._make(array, sizes, bits, packed, layout_name, encoding_name, family)
        self._scale = self._affine("scale", scale)
        self._offset = self._affine("offset", offset)
        return self

    @classmethod
    def _make(
        cls,
        words: NDArray[np.uint32],
        shape: tuple[int, ...],
        bits: int,
        axis: int,
        layout: str,
        encoding: str,
        family: interop.Family,
        scale: NDArray[np.float32] | None = None,
        offset: NDArray[np.float32] | None = None,
    ) -> Self:
        """Build a BitTensor without checks, from arguments that are known to fit."""
        self = object.__new__(cls)
        self._words, self._shape, self._bits, self._axis = words, shape, bits, axis
        self._layout, self._encoding, self._family = layout, encoding, family
        self._scale, self._offset = scale, offset
        self._kept = Kept()
        return self

    def _affine(self, name: str, value: Any) -> NDArray[np.float32] | None:
        if value is None:
            return None
        array = as_host_floats(value, "BitTensor", name)
        _check.affine_shape("BitTensor", name, array, self._shape)
        return interop.move(array, self.device)

    def _details(self) -> str:
        return f"bits={self._bits} {self._encoding} axis={self._axis} layout={self._layout}"

    def _rows(self) -> dict[str, object]:
        return {
            "bits": f"{self._bits} ({self._encoding})",
            "packed axis, layout": f"{self._axis}, {self._layout}",
            "density": f"{self.density:.4f}",
        }

    # -- conversions ----------------------------------------------------------------------------------------------
    def _moved(self, move: Callable[[Any], Any]) -> BitTensor:
        # The small arrays first: their copies would have to wait for the copy of the words.
        scale, offset = move(self._scale), move(self._offset)
        return self._with(move(self._words), self._shape, self._axis, self._layout, (scale, offset))

    def toarray(self, dtype: Any = None) -> Any:
        """The stored integers as an ordinary array (`scale` and `offset` are not applied; see :meth:`dequantize`).

        Parameters
        ----------
        dtype : dtype, optional
            By default the smallest dtype that holds every value of these bits and encoding. A narrower one is refused.

        Examples
        --------
        >>> bs.pack_bits(np.array([[1, 0], [1, 1]])).toarray()
        array([[1, 0],
               [1, 1]], dtype=uint8)
        """
        wanted = self.dtype if dtype is None else _check.dtype("toarray", dtype)
        if not construct.holds(wanted, self._bits, self._encoding):
            low, high = _check.limits_of(self._bits, self._encoding)
            raise DTypeError(
                f"toarray: {wanted} cannot hold {self._encoding} values {low}..{high} exactly; pass dtype={self.dtype}"
            )
        with self._working():
            form = {"axis": self._axis, "layout": self._layout, "encoding": self._encoding}
            result = self._backend().unpack(self._words, self._shape, self._bits, **form, dtype=wanted)
            return interop.from_array(result, self._family, "toarray")

    def decoded(self) -> Any:
        """Values for ``+ - * /``: :meth:`dequantize` if there is a scale or offset, else int32 (int64 for 32 unsigned bits)."""
        if self._scale is not None or self._offset is not None:
            return self.dequantize()
        return self.toarray(np.int64 if construct.smallest_dtype(self._bits, self._encoding) == np.uint32 else np.int32)

    def value_limits(self, decoded: Any) -> tuple[int, int]:
        """Bounds of all values that these bits and this encoding can hold."""
        return _check.limits_of(self._bits, self._encoding)

    def dequantize(self, dtype: Any = np.float32) -> Any:
        """Real values ``q * scale + offset``; see :func:`bitsparse.dequantize`."""
        return operators.dequantize(self, dtype)

    def astype(self, dtype: Any) -> Any:
        """An ordinary array of ``dtype``: :meth:`dequantize` for floating dtypes, :meth:`toarray` for integers and bool."""
        wanted = _check.dtype("astype", dtype)
        return self.dequantize(wanted) if wanted.kind not in "iub" else self.toarray(wanted)

    def tocsr(self) -> Any:
        """The integers as :class:`scipy.sparse.csr_array`, without making the dense array; for two dimensions, on the CPU."""
        _check.on_cpu("tocsr", "the BitTensor", self.device)
        if self.ndim != 2:
            raise ShapeError(
                f"tocsr: a BitTensor of shape {self._shape} has {self.ndim} dimensions, but sparse arrays have 2; index a batch first"
            )
        return sparse_convert.words_to_matrix(self)

    def to_scipy(self) -> Any:
        """:meth:`tocsr`, after moving the array to the CPU if need be."""
        return self.to_device("cpu").tocsr()

    def repack(self, *, axis: int | None = None, layout: Layout | None = None) -> BitTensor:
        """The same integers packed along another axis or in another layout; this array itself if nothing changes.

        Examples
        --------
        >>> x = bs.pack_bits(np.eye(3, dtype=int), bits=2)
        >>> x.repack(axis=-2).axis, x.repack(layout="rows").words.shape
        (-2, (3, 4))
        """
        to_axis = self._axis if axis is None else _check.axis("repack", axis, self.ndim)
        to_layout = self._layout if layout is None else _check.layout("repack", layout, self._bits)
        if (to_axis, to_layout) == (self._axis, self._layout):
            return self
        forms = {"axis": self._axis, "layout": self._layout, "to_axis": to_axis, "to_layout": to_layout}
        with self._working():
            words = self._backend().repack(self._words, self._shape, self._bits, **forms)
        return self._with(words, self._shape, to_axis, to_layout)

    def _with(
        self, words: NDArray[np.uint32], shape: tuple[int, ...], axis: int, layout: str, affine: Any = ()
    ) -> BitTensor:
        """A BitTensor of other words with the same bits and encoding, and the same scale and offset unless `affine` is given."""
        scale, offset = affine or (self._scale, self._offset)
        return self._make(words, shape, self._bits, axis, layout, self._encoding, self._family, scale, offset)

    def with_affine(self, scale: Any = None, offset: Any = None) -> BitTensor:
        """The same words with other affine parameters; None removes one."""
        affine = self._affine("scale", scale), self._affine("offset", offset)
        return self._with(self._words, self._shape, self._axis, self._layout, affine)

    @property
    def mT(self) -> BitTensor:
        """The array with its last two axes swapped: a view of the same words whose packed axis is the other one."""
        shape = (*self._shape[:-2], self._shape[-1], self._shape[-2])
        affine = _swapped(self._scale), _swapped(self._offset)
        return self._with(self._words, shape, -3 - self._axis, self._layout, affine)

    @property
    def T(self) -> BitTensor:
        """Transpose of a two-dimensional BitTensor; costs nothing."""
        if self.ndim != 2:
            raise ShapeError(
                f"T: a BitTensor of shape {self._shape} has {self.ndim} dimensions; use .mT to swap the last two axes"
            )
        return self.mT

    def transpose(self) -> BitTensor:
        """:attr:`T`."""
        return self.T

    def __getitem__(self, key: Any) -> BitTensor:
        """Index every dimension independently: by slices and index arrays, and batch dimensions by integers too.

        A slice with step 1 along the axis that is not packed is a view of a two-dimensional BitTensor; everything else copies.
        """
        return word_operators.getitem(self, key)

    # -- bitwise operators stay packed ----------------------------------------------------------------------------
    def __and__(self, other: Any) -> Any:
        return word_operators.combine(self, other, np.bitwise_and, "&")

    def __or__(self, other: Any) -> Any:
        return word_operators.combine(self, other, np.bitwise_or, "|")

    def __xor__(self, other: Any) -> Any:
        return word_operators.combine(self, other, np.bitwise_xor, "^")

    def __invert__(self) -> Any:
        return word_operators.invert(self)

    def __copy__(self) -> BitTensor:
        return self._with(self._words, self._shape, self._axis, self._layout)


def _swapped(affine: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    return affine if affine is None or affine.ndim == 0 else np.swapaxes(affine, -1, -2)
