"""The dense operand of sparse products: ordinary arrays and BitTensors in the form that backends gather, and the dtypes of the sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import family_of
from bitsparse.backends.params import Array, PackedFeatures
from bitsparse.errors import DTypeError, ShapeError

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@dataclass(frozen=True)
class Features:
    """Features of the nodes or edges that are gathered.

    Attributes
    ----------
    data : NumPy or CuPy array, or CodeFeatures
        ``(rows, ...)`` in C order, or words: ``(rows, heads, words)`` with `packed`, ``(rows, 1, words)`` of one bit, or codes.
    shape : tuple of int
        Logical shape: (rows,), (rows, D) or (rows, H, D).
    dtype : dtype
        Dtype of the values: the result of dequantisation, or the smallest dtype of plain integers.
    packed : PackedFeatures or None
    family : Family
    limit : int or None
        Largest absolute value that unpacked integers of few bits can have, if it is below that of their dtype.
    source : BitTensor or None
        The BitTensor that the features come from; `data` are its own words, so that nothing is converted before a kernel is chosen.
    """

    data: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    packed: PackedFeatures | None
    family: interop.Family
    limit: int | None = None
    source: BitTensor | None = None

    @property
    def encoding(self) -> str | None:
        """The encoding of a BitTensor; None for an ordinary array."""
        return None if self.source is None else self.source.encoding

    @property
    def node_scale(self) -> Array | None:
        """The float32 scale (nodes,) of a BitTensor (nodes, features) with one scale per node; else None."""
        scale = None if self.source is None else self.source.scale
        return scale.reshape(-1) if scale is not None and scale.ndim and scale.shape[0] != 1 else None

    @property
    def feature_scale(self) -> Array | None:
        """The scale of a BitTensor if it is not per node: a scalar or (features,)."""
        scale = None if self.source is None else self.source.scale
        return None if scale is None or self.node_scale is not None else scale.reshape(-1 if scale.size != 1 else ())

    @property
    def device(self) -> str:
        """The device of the data."""
        return interop.device_of(self.data)

    @property
    def columns(self) -> int:
        """Values per row, all heads together."""
        return math.prod(self.shape[1:])

    def largest(self, by_data: bool = False) -> int:
        """An upper bound of the absolute values of integers, from the dtype or the bits, or from the data."""
        if self.packed is not None:
            return _check.largest_code(self.packed.bits, self.packed.encoding)
        if self.limit is not None and not by_data:
            return self.limit
        return largest_magnitude(self.data, by_data)


def as_features(function: str, name: str, x: Any) -> Features:
    """Features of an ordinary array of 1 to 3 dimensions, ready to be gathered, or of a BitTensor of 2 or 3, for :func:`gathered`.

    Examples
    --------
    >>> as_features("example", "x", np.zeros((3, 2))).shape
    (3, 2)
    """
    if isinstance(x, BitTensor):
        if x.ndim > 3:
            raise ShapeError(
                f"{function}: {name} has shape {x.shape}, but packed features are (N, D) or (N, heads, D); index a batch first"
            )
        return Features(x.words, x.shape, x.dtype, None, family_of(x), source=x)
    array, family = interop.as_array(x, function, name)
    _check.numeric_dtype(function, name, array.dtype)
    if not 1 <= array.ndim <= 3:
        raise ShapeError(
            f"{function}: {name} has shape {array.shape}, but features are (N,), (N, D) or (N, heads, D); reshape them"
        )
    ready = array.dtype.isnative and array.flags.c_contiguous
    data = array if ready else interop.contiguous(native(array))
    return Features(data, array.shape, data.dtype, None, family)


def matrix(function: str, x: Features) -> tuple[int, int]:
    """The shape of features (nodes, features); refuses batches and single features.

    Examples
    --------
    >>> matrix("example", as_features("example", "x", np.zeros((3, 2))))
    (3, 2)
    """
    if len(x.shape) != 2:
        raise ShapeError(
            f"{function}: x has shape {x.shape}, but features have 2 dimensions (nodes, features); aggregate batches one by one"
        )
    return x.shape[0], x.shape[1]


def plain_features(function: str, name: str, x: Any) -> Features:
    """Like :func:`as_features`, but a BitTensor is unpacked or dequantised to an ordinary array."""
    return unpacked(function, name, as_features(function, name, x))


def unpacked(function: str, name: str, x: Features) -> Features:
    """Features of a BitTensor as an ordinary array of integers, or of real values if it has a scale or an offset."""
    source = x.source
    if source is None:
        return x
    real = source.scale is not None or source.offset is not None
    data = interop.as_array(source.dequantize() if real else source.toarray(), function, name)[0]
    return Features(interop.contiguous(data), x.shape, data.dtype, None, x.family)


def gathered(function: str, x: Features, integers: bool = False) -> Features:
    """Features of a BitTensor as kernels gather them: its integers, or its real values if it has a scale or an offset.

    With `integers`, scale and offset are ignored. The words stay packed if the bits allow the layout ``"rows"`` and scale and offset, if
    any, can be applied by the gather; otherwise they are unpacked here. A caller on a GPU without a kernel for packed words uses
    :func:`unpacked`.

    Examples
    --------
    >>> gathered("example", as_features("example", "x", bs.BitTensor(np.array([[1, 2, 3]]), 2))).packed.bits
    2
    """
    bits = x.source
    if bits is None:
        return x
    affine = bits.scale is not None or bits.offset is not None
    if affine and integers:
        bits, affine = bits.with_affine(), False
        x = replace(x, source=bits)
    parts = _affine_parts(bits) if affine and x.device == "cpu" else None
    if bits.bits not in _check.ROW_LAYOUT_BITS or (affine and parts is None):
        return unpacked(function, "x", x)
    if x.device != "cpu":
        return replace(x, packed=PackedFeatures(bits.bits, bits.encoding, bits.shape[-1]))
    rows = bits.repack(axis=-1, layout="rows")
    words = rows.words.reshape(x.shape[0], x.shape[1] if bits.ndim == 3 else 1, rows.words.shape[-1])
    packed = PackedFeatures(bits.bits, bits.encoding, bits.shape[-1], *(parts or ()))
    return Features(words, x.shape, x.dtype if parts is None else _FLOAT32, packed, x.family)


def native(array: Array) -> Array:
    """The array in the byte order of the machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def largest_magnitude(array: Array, by_data: bool = False) -> int:
    """An upper bound of the absolute values of an integer array, from its dtype or from its data.

    Examples
    --------
    >>> largest_magnitude(np.array([-5, 3], np.int8)), largest_magnitude(np.array([-5, 3], np.int8), by_data=True)
    (128, 5)
    """
    if array.dtype == np.bool_:
        return 1
    if by_data:
        return max(-int(array.min()), int(array.max()), 0) if array.size else 0
    limits = np.iinfo(array.dtype)
    return max(-int(limits.min), int(limits.max))


def exact_accumulator(
    function: str, k: int, dtypes: Iterable[np.dtype[Any]], factors: Callable[[bool], tuple[int, int]]
) -> np.dtype[Any]:
    """int32 or int64 for sums of `k` products, chosen by the dtypes' bounds ``factors(False)``.

    If sums up to these bounds exceed int64, as with 64-bit integers always, the data's bounds ``factors(True)`` decide whether the sum
    fits, but the data never decide its dtype.
    """
    a, b = factors(False)
    if k * a * b >= 1 << 63:
        a, b = factors(True)
        _check.accumulator(function, k, a, b)
        return np.dtype(np.int64)
    wide = any(dtype.itemsize == 8 for dtype in dtypes)
    return np.dtype(np.int64) if wide else _check.accumulator(function, k, a, b)


def sum_dtypes(
    function: str,
    dtype: np.dtype[Any],
    values: Array | None,
    scaled: bool,
    longest: int,
    largest: Callable[[bool], int] | None = None,
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype of the result of a sum over features of `dtype`, and the dtype of its accumulators.

    Floating operands follow NumPy's promotion, and 16-bit floats are summed in float32. Integers without a floating factor are summed
    exactly in int32 or int64, chosen by their `largest` value, or else by their dtype. Integers with a floating factor are summed in
    float32, or in float64 beyond 16 bits.

    Examples
    --------
    >>> few = np.dtype(np.int8)
    >>> sum_dtypes("example", few, None, False, 100), sum_dtypes("example", few, None, True, 100)
    ((dtype('int32'), dtype('int32')), (dtype('float32'), dtype('float32')))
    """
    dtypes = {"features": dtype} if values is None else {"features": dtype, "values": values.dtype}
    if not scaled and all(each.kind in "biu" for each in dtypes.values()):
        features = partial(largest_magnitude, np.empty(0, dtype)) if largest is None else largest

        def factors(by_data: bool) -> tuple[int, int]:
            return 1 if values is None else largest_magnitude(values, by_data), features(by_data)

        acc = exact_accumulator(function, longest, dtypes.values(), factors)
        return acc, acc
    result = promoted(function, **dtypes)
    if dtype.kind in "biu":
        result = np.result_type(result, _FLOAT32)
    return result, compute_dtype(result)


def promoted(function: str, **dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that NumPy promotes these operands to; an error names them.

    Examples
    --------
    >>> promoted("example", x=np.dtype(np.float32), y=np.dtype(np.int64))
    dtype('float64')
    """
    try:
        return np.result_type(*dtypes.values())
    except TypeError:
        operands = " and ".join(f"{name} of {dtype}" for name, dtype in dtypes.items())
        raise DTypeError(f"{function}: {operands} have no common dtype; convert one with astype") from None


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which results of a floating dtype are computed: float64 for float64, and float32 for all others."""
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32


def _affine_parts(x: BitTensor) -> tuple[str, Array, Array] | None:
    """Whether scale and offset vary by "row" or by "column", and both as vectors; None if they vary along both, or by head."""
    scale = np.ones((), np.float32) if x.scale is None else x.scale
    # A missing offset becomes 0, although adding 0 turns -0 into +0: sums begin at +0, so the difference does not show.
    offset = np.zeros((), np.float32) if x.offset is None else x.offset
    if x.ndim != 2 or x.size == 0:
        return None
    sizes = {part.shape for part in (scale, offset) if part.size > 1}
    if not sizes:
        sizes = {(1, x.shape[1])}
    if len(sizes) > 1:
        return None
    shape = sizes.pop()
    scale, offset = (np.ascontiguousarray(np.broadcast_to(part, shape).reshape(-1)) for part in (scale, offset))
    return "column" if shape[0] == 1 else "row", scale, offset
