"""Construction of a BitTensor: one function per form of the constructor's argument, and checks of words from outside."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays import sparse_forms
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import family_of
from bitsparse.arrays.sparse_forms import Wanted
from bitsparse.backends.params import words_shape
from bitsparse.errors import DTypeError, ShapeError

_FUNCTION = "BitTensor"


class Parts(NamedTuple):
    """The fields of a BitTensor except its affine parameters."""

    words: NDArray[np.uint32]
    shape: tuple[int, ...]
    bits: int
    axis: int
    layout: str
    encoding: str
    family: interop.Family


def smallest_dtype(bits: int, encoding: str) -> np.dtype[Any]:
    """The smallest integer dtype that holds every value of these bits and encoding.

    >>> smallest_dtype(9, "signed"), smallest_dtype(1, "bipolar")
    (dtype('int16'), dtype('int8'))
    """
    width = 8 if bits <= 8 else 16 if bits <= 16 else 32
    return np.dtype(f"{'uint' if encoding == 'unsigned' else 'int'}{width}")


def holds(dtype: np.dtype[Any], bits: int, encoding: str) -> bool:
    """Whether ``dtype`` holds every value of these bits and encoding exactly."""
    low, high = _check.limits_of(bits, encoding)
    if dtype.kind == "b":
        return low == 0 and high == 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min) <= low and high <= int(np.iinfo(dtype).max)
    mantissa = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name]
    return max(-low - 1, high) < 1 << mantissa


def checked_words(
    function: str, words: NDArray[Any], shape: tuple[int, ...], bits: int, axis: int, layout: str
) -> NDArray[np.uint32]:
    """Words from outside as uint32, after checking that they are uint32 or int32 and have the shape that the other arguments imply."""
    if words.dtype not in (np.dtype(np.uint32), np.dtype(np.int32)):
        raise DTypeError(
            f"{function}: words have dtype {words.dtype}, but packed words are uint32; use words.view(numpy.uint32)"
        )
    wanted = words_shape(shape, bits, axis, layout)
    if words.shape != wanted:
        raise ShapeError(
            f"{function}: words have shape {words.shape}, but shape {shape} at {bits} bits, axis={axis}, layout={layout!r} takes {wanted}"
        )
    return words.view(np.uint32)


def form_of(function: str, bits: int, encoding: Any, layout: Any, axis: Any, ndim: int) -> tuple[str, str, int]:
    """The checked encoding, layout and packed axis for values of `bits` bits in `ndim` dimensions."""
    encoding = _check.encoding(function, encoding, bits)
    return encoding, _check.layout(function, layout, bits), _check.axis(function, axis, ndim)


def check_dtype(function: str, dtype: np.dtype[Any], bits: int | None) -> None:
    """Refuse dtypes that cannot be packed: all but integers, booleans and, at one bit, floats."""
    _check.numeric_dtype(function, "x", dtype)
    if dtype.kind not in "biu" and bits != 1:
        raise DTypeError(
            f"{function}: x has dtype {dtype}, and floats are packed only at bits=1 (by sign), got bits={bits}; quantize it"
        )


def prefix_mask(ones: int, words: int) -> NDArray[np.uint32]:
    """An array of ``words`` words whose first ``ones`` bits are set.

    >>> prefix_mask(33, 4)
    array([4294967295,          1,          0,          0], dtype=uint32)
    """
    set_bits = np.clip(ones - 32 * np.arange(words, dtype=np.int64), 0, 32)
    return ((np.uint64(1) << set_bits.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)


# -- the forms of the constructor -------------------------------------------------------------------------------------
def build(arg: Any, bits: Any, encoding: Any, axis: Any, layout: Any, shape: Any) -> Parts:
    """Recognise the form of ``arg`` as scipy.sparse does and pack it."""
    spelled = isinstance(arg, tuple) and (len(arg) == 3 or (len(arg) == 2 and isinstance(arg[1], (tuple, list))))
    sparse = (hasattr(arg, "tocoo") and hasattr(arg, "nnz")) or (
        spelled and not all(isinstance(part, (int, np.integer)) for part in arg)
    )
    if shape is not None and not sparse:
        raise DTypeError(
            f"{_FUNCTION}: shape= goes with sparse forms such as (data, (row, col)), got {type(arg).__name__}; reshape the data"
        )
    encoding = "unsigned" if encoding is None else encoding
    axis, layout = -1 if axis is None else axis, "planes" if layout is None else layout
    if sparse:
        return _from_sparse(arg, shape, bits, encoding, axis, layout)
    if isinstance(arg, tuple) and arg and all(isinstance(size, (int, np.integer)) for size in arg):
        return _zeros(arg, bits, encoding, axis, layout)
    _check.not_edges(_FUNCTION, arg)
    return pack(_FUNCTION, arg, bits, encoding=encoding, axis=axis, layout=layout)


def pack(function: str, x: Any, bits: Any, *, encoding: Any, axis: Any, layout: Any, fits: bool = False) -> Parts:
    """Pack an ordinary array after checking that its values fit; with `fits` this is known, and the host need not wait for a GPU."""
    array, family = interop.as_array(x, function)
    _check.at_least_2d(function, "x", array.shape)
    if bits is not None:
        bits = _check.bit_count(function, bits)
    elif array.dtype.kind not in "biu":
        bits = 1
    check_dtype(function, array.dtype, bits)
    device = interop.device_of(array)
    with interop.working_on(device, family):
        if array.dtype.kind in "biu" and not fits:
            bits = _check_values(function, array, bits, _check.choice(function, "encoding", encoding, _check.ENCODINGS))
        encoding, layout, axis = form_of(function, bits, encoding, layout, axis, array.ndim)
        words = backends.family(device, "bits.pack").pack(array, bits, axis=axis, layout=layout, encoding=encoding)
    return Parts(words, array.shape, bits, axis, layout, encoding, family)


def _check_values(function: str, array: NDArray[Any], bits: int | None, encoding: str) -> int:
    """The bit count, inferred if None, after making sure that every value fits."""
    if array.dtype.kind == "b" and encoding == "unsigned":
        return 1 if bits is None else bits
    if interop.device_of(array) == "cpu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    else:
        low, high, _ = backends.family(interop.device_of(array), "bits.pack").minmax(array)  # both in one pass
    if encoding == "bipolar":
        _check.bipolar_values(function, array.size == 0 or (low >= -1 and high <= 1 and bool((array != 0).all())))
        return 1 if bits is None else bits
    if bits is None:
        bits = max(1, high.bit_length()) if encoding == "unsigned" else max(high, -low - 1).bit_length() + 1
        bits = min(bits, _check.MAX_BITS)
    _check.values_fit(function, low, high, bits, encoding)
    return bits


def _zeros(arg: tuple[Any, ...], bits: Any, encoding: Any, axis: Any, layout: Any) -> Parts:
    sizes = _check.shape(_FUNCTION, arg)
    bits = _check.bit_count(_FUNCTION, 1 if bits is None else bits)
    encoding, layout, axis = form_of(_FUNCTION, bits, encoding, layout, axis, len(sizes))
    if encoding == "bipolar":
        raise ValueError(
            f"{_FUNCTION}: encoding='bipolar' has no zero, so shape {sizes} alone cannot be filled; pass an array of -1 and +1"
        )
    words = interop.aligned(np.zeros(words_shape(sizes, bits, axis, layout), dtype=np.uint32))
    return Parts(words, sizes, bits, axis, layout, encoding, interop.NUMPY)


def _from_sparse(arg: Any, shape: Any, bits: Any, encoding: Any, axis: Any, layout: Any) -> Parts:
    if bits is not None:
        bits = _check.bit_count(_FUNCTION, bits)
    if encoding == "bipolar":
        raise ValueError(
            f"{_FUNCTION}: encoding='bipolar' has no zero for the elements a sparse array leaves out; use 'unsigned' or 'signed'"
        )
    wanted = Wanted(binary=bits == 1 and encoding == "unsigned", integers=True)
    made = sparse_forms.read(_FUNCTION, arg, shape, wanted)
    device = interop.device_of(made.indices)
    with interop.working_on(device, made.family):
        ones = interop.namespace(made.indices).ones
        values = ones(made.indices.size, np.bool_) if made.values is None else made.values
        _check.numeric(_FUNCTION, "the sparse array", values, "biu")
        if values.ndim != 1:
            raise ShapeError(
                f"{_FUNCTION}: data has shape {values.shape}, but a BitTensor has one value for each entry; pass one column, as data[:, 0]"
            )
        bits = _check_values(_FUNCTION, values, bits, _check.choice(_FUNCTION, "encoding", encoding, _check.ENCODINGS))
        encoding, layout, axis = form_of(_FUNCTION, bits, encoding, layout, axis, 2)
        rows, cols = (index.astype(np.int64, copy=False) for index in (rows_of(made.indptr), made.indices))
        words = backends.family(device, "sparse.build").pack_coo(
            rows, cols, values, made.shape, bits, axis=axis, layout=layout
        )
        return Parts(interop.aligned(words), made.shape, bits, axis, layout, encoding, made.family)


def from_bit_tensor(x: Any, bits: Any, encoding: Any, axis: Any, layout: Any, shape: Any, copy: bool) -> Parts:
    """The parts of another BitTensor, converted to the bits, encoding, axis and layout that were asked for."""
    if shape is not None and tuple(shape) != x.shape:
        raise ShapeError(f"{_FUNCTION}: shape {tuple(shape)} was asked for, but the BitTensor has shape {x.shape}")
    bits = x.bits if bits is None else _check.bit_count(_FUNCTION, bits)
    pairs = ((encoding, x.encoding), (layout, x.layout), (axis, x.axis))
    encoding, layout, axis = (own if asked is None else asked for asked, own in pairs)
    encoding, layout, axis = form_of(_FUNCTION, bits, encoding, layout, axis, x.ndim)
    if (bits, encoding) != (x.bits, x.encoding):
        packed = pack(_FUNCTION, x.toarray(), bits, encoding=encoding, axis=axis, layout=layout)
        return replace(packed, family=family_of(x))
    moved = x.repack(axis=axis, layout=layout)
    words = moved.words.copy() if copy and moved is x else moved.words
    return Parts(words, x.shape, bits, axis, layout, encoding, family_of(x))
