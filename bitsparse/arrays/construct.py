"""How a BitTensor comes to be: one function per form of the constructor, and the checks on words that arrive packed."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays import sparse_convert
from bitsparse.arrays.indices import outside, without_spare
from bitsparse.arrays.inside import family_of
from bitsparse.backends.params import packed_words
from bitsparse.errors import DTypeError, ShapeError

__all__ = [
    "Parts",
    "build",
    "checked_words",
    "coordinates",
    "from_bit_tensor",
    "holds",
    "prefix_mask",
    "smallest_dtype",
    "to_csr",
    "unpickle",
]

_FUNCTION = "BitTensor"
#: Elements decoded at a time when a packed array is read as coordinates.
_CHUNK = 1 << 22


class Parts(NamedTuple):
    """What identifies a BitTensor besides its affine parameters."""

    words: NDArray[np.uint32]
    shape: tuple[int, ...]
    bits: int
    axis: int
    layout: str
    encoding: str
    family: interop.Family

    def of(self, family: interop.Family) -> Parts:
        """The same of another family."""
        return replace(self, family=family)


def smallest_dtype(bits: int, encoding: str) -> np.dtype[Any]:
    """
    >>> smallest_dtype(9, "signed"), smallest_dtype(1, "bipolar")
    (dtype('int16'), dtype('int8'))
    """
    width = 8 if bits <= 8 else 16 if bits <= 16 else 32
    return np.dtype(f"{'uint' if encoding == 'unsigned' else 'int'}{width}")


def holds(dtype: np.dtype[Any], bits: int, encoding: str) -> bool:
    """Whether every value of these bits and encoding is exact in ``dtype``."""
    low, high = _check.limits_of(bits, encoding)
    if dtype.kind == "b":
        return low == 0 and high == 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min) <= low and high <= int(np.iinfo(dtype).max)
    mantissa = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name]
    return max(-low - 1, high) < 1 << mantissa


def words_shape(shape: tuple[int, ...], bits: int, axis: int, layout: str) -> tuple[int, ...]:
    """
    >>> words_shape((5, 200), 3, -1, "planes"), words_shape((5, 200), 4, -2, "rows")
    ((5, 3, 8), (200, 4))
    """
    outer = shape[-3 - axis]
    row = (bits,) if layout == "planes" else ()
    return (*shape[:-2], outer, *row, packed_words(shape[axis], bits, layout))


def checked_words(
    function: str, words: NDArray[Any], shape: tuple[int, ...], bits: int, axis: int, layout: str
) -> NDArray[np.uint32]:
    """Words that arrive from outside: uint32 (or int32, reinterpreted) of exactly the shape that the other arguments mean."""
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


def prefix_mask(ones: int, words: int) -> NDArray[np.uint32]:
    """``words`` words of which the first ``ones`` bits are set.

    >>> prefix_mask(33, 4)
    array([4294967295,          1,          0,          0], dtype=uint32)
    """
    set_bits = np.clip(ones - 32 * np.arange(words, dtype=np.int64), 0, 32)
    return ((np.uint64(1) << set_bits.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)


# -- the forms of the constructor -------------------------------------------------------------------------------------
def build(arg: Any, bits: Any, encoding: Any, axis: Any, layout: Any, shape: Any) -> Parts:
    """Recognise the form of ``arg`` as scipy.sparse does and pack it."""
    sparse = _as_sparse(arg, shape)
    if sparse is None and shape is not None:
        raise DTypeError(
            f"{_FUNCTION}: shape= goes with sparse forms such as (data, (row, col)), got {type(arg).__name__}; reshape the data"
        )
    encoding = "unsigned" if encoding is None else encoding
    axis, layout = -1 if axis is None else axis, "planes" if layout is None else layout
    if sparse is not None:
        return _from_sparse(sparse, bits, encoding, axis, layout)
    if isinstance(arg, tuple) and arg and all(isinstance(size, (int, np.integer)) for size in arg):
        return _zeros(arg, bits, encoding, axis, layout)
    _check.not_edges(_FUNCTION, arg)
    return pack(_FUNCTION, arg, bits, encoding=encoding, axis=axis, layout=layout)


def pack(function: str, x: Any, bits: Any, *, encoding: Any, axis: Any, layout: Any) -> Parts:
    """Pack an ordinary array, after checking that its values fit."""
    array, family = interop.as_array(x, function)
    _check.numeric(function, "x", array)
    _check.at_least_2d(function, "x", array.shape)
    if bits is not None:
        bits = _check.bit_count(function, bits)
    if array.dtype.kind not in "biu":
        bits = 1 if bits is None else bits
        if bits != 1:
            raise DTypeError(
                f"{function}: x has dtype {array.dtype}, and floats are packed only at bits=1 (by sign), got bits={bits}; quantize it"
            )
    device = interop.device_of(array)
    with interop.working_on(device, family):
        if array.dtype.kind in "biu":
            bits = _check_values(function, array, bits, _check.choice(function, "encoding", encoding, _check.ENCODINGS))
        encoding = _check.encoding(function, encoding, bits)
        layout = _check.layout(function, layout, bits)
        axis = _check.axis(function, axis, array.ndim)
        words = backends.family(device, "bits.pack").pack(array, bits, axis=axis, layout=layout, encoding=encoding)
    return Parts(words, array.shape, bits, axis, layout, encoding, family)


def _check_values(function: str, array: NDArray[Any], bits: int | None, encoding: str) -> int:
    """The bit count, inferred if None, after making sure that every value fits."""
    if array.dtype.kind == "b" and encoding == "unsigned":
        return 1 if bits is None else bits
    if interop.device_of(array) == "cpu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    else:
        low, high, _ = backends.family(interop.device_of(array), "bits.pack").minmax(array)  # in one pass
    if encoding == "bipolar":
        _check.bipolar_values(function, array.size == 0 or (low >= -1 and high <= 1 and bool((array != 0).all())))
        return 1 if bits is None else bits
    if bits is None:
        if encoding == "unsigned":
            bits = max(1, high.bit_length())
        else:
            bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + 1
        bits = min(bits, _check.MAX_BITS)
    _check.values_fit(function, low, high, bits, encoding)
    return bits


def _zeros(arg: tuple[Any, ...], bits: Any, encoding: Any, axis: Any, layout: Any) -> Parts:
    sizes = _check.shape(_FUNCTION, arg)
    bits = _check.bit_count(_FUNCTION, 1 if bits is None else bits)
    encoding = _check.encoding(_FUNCTION, encoding, bits)
    if encoding == "bipolar":
        raise ValueError(
            f"{_FUNCTION}: encoding='bipolar' has no zero, so shape {sizes} alone cannot be filled; pass an array of -1 and +1"
        )
    layout = _check.layout(_FUNCTION, layout, bits)
    axis = _check.axis(_FUNCTION, axis, len(sizes))
    words = interop.aligned(np.zeros(words_shape(sizes, bits, axis, layout), dtype=np.uint32))
    return Parts(words, sizes, bits, axis, layout, encoding, interop.NUMPY)


def _as_sparse(arg: Any, shape: Any) -> Any:
    """A scipy.sparse array if ``arg`` is one or spells one, else None."""
    spelled = isinstance(arg, tuple) and (len(arg) == 3 or (len(arg) == 2 and isinstance(arg[1], (tuple, list))))
    if spelled and not all(isinstance(part, (int, np.integer)) for part in arg):
        from scipy import sparse

        try:
            if len(arg) == 2:
                return sparse.coo_array(arg, shape=shape)
            made = sparse.csr_array(arg, shape=shape)
            made.check_format(full_check=True)
            return made
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise ShapeError(
                f"{_FUNCTION}: these components do not form a sparse array of shape {shape} ({error})"
            ) from None
    if hasattr(arg, "tocoo") and hasattr(arg, "nnz"):
        return without_spare(arg)
    return None


def _from_sparse(sparse: Any, bits: Any, encoding: Any, axis: Any, layout: Any) -> Parts:
    if len(sparse.shape) != 2:
        raise ShapeError(
            f"{_FUNCTION}: a sparse array of shape {sparse.shape} has {len(sparse.shape)} dimensions, but 2 are needed; reshape it"
        )
    device = str(sparse.device) if hasattr(sparse, "csr_arrays") else interop.device_of(getattr(sparse, "data", None))
    family = getattr(sparse, "_family", interop.NUMPY if device == "cpu" else interop.CUPY)
    with interop.working_on(device, family):
        read = _entries_of_scipy if device == "cpu" else _entries_on_gpu
        if bits is not None:
            bits = _check.bit_count(_FUNCTION, bits)
        if encoding == "bipolar":
            raise ValueError(
                f"{_FUNCTION}: encoding='bipolar' has no zero for the elements a sparse array leaves out; use 'unsigned' or 'signed'"
            )
        rows, cols, data = read(sparse, bits == 1 and encoding == "unsigned")
        bits = _check_values(_FUNCTION, data, bits, _check.choice(_FUNCTION, "encoding", encoding, _check.ENCODINGS))
        encoding = _check.encoding(_FUNCTION, encoding, bits)
        layout = _check.layout(_FUNCTION, layout, bits)
        axis = _check.axis(_FUNCTION, axis, 2)
        sizes = (int(sparse.shape[0]), int(sparse.shape[1]))
        words = backends.family(device, "sparse.build").pack_coo(
            rows, cols, data, sizes, bits, axis=axis, layout=layout
        )
        return Parts(interop.aligned(words), sizes, bits, axis, layout, encoding, family)


def _or_ed(data: Any, one_bit: bool) -> bool:
    """Whether repeated entries may stay, as setting a bit twice does the same as or-ing them."""
    return bool(one_bit and data.size and int(data.min()) >= 0 and int(data.max()) <= 1)


def _entries_of_scipy(sparse: Any, one_bit: bool) -> tuple[Any, Any, Any]:
    """Rows, columns and values, repeated entries summed unless they are or-ed later."""
    if getattr(sparse, "format", None) == "csr":
        wrong = outside(sparse.indptr, sparse.indices, sparse.shape[1])
        if wrong is not None:
            raise ValueError(f"{_FUNCTION}: {wrong}; the arrays are damaged or belong to another shape")
    given = getattr(sparse, "data", None)
    if isinstance(given, np.ndarray) and not given.dtype.isnative:  # which SciPy holds, but neither sums nor converts
        sparse = copy.copy(sparse)
        sparse.data = given.astype(given.dtype.newbyteorder("="))
    coo = sparse.tocoo()
    data = np.asarray(coo.data)
    _check.numeric(_FUNCTION, "the sparse array", data, "biu")
    if not _or_ed(data, one_bit):
        total = coo.astype(np.int64) if data.dtype.kind == "b" or data.dtype.itemsize < 8 else coo.copy()
        total.sum_duplicates()
        coo, data = total, total.data
    rows, cols = (np.asarray(index, dtype=np.int64) for index in coo.coords)
    return rows, cols, data


def _entries_on_gpu(sparse: Any, one_bit: bool) -> tuple[Any, Any, Any]:
    """The same of a bitsparse array or of CuPy's."""
    if hasattr(sparse, "csr_arrays"):
        rows, cols, data = sparse_convert.coordinates(sparse)
        _check.numeric(_FUNCTION, "the sparse array", data, "biu")
        return rows, cols, data
    coo = sparse.tocoo()
    rows, cols, data = coo.row, coo.col, coo.data
    _check.numeric(_FUNCTION, "the sparse array", data, "biu")
    if _or_ed(data, one_bit) or not data.size:
        return rows, cols, data
    backend, space = backends.family(interop.device_of(data), "sparse.build"), interop.namespace(data)
    order, _ = backend.sort_coordinates(rows, cols, coo.shape)
    rows, cols, data = rows[order], cols[order], data[order]
    first = space.ones(data.size, np.bool_)
    first[1:] = (rows[1:] != rows[:-1]) | (cols[1:] != cols[:-1])
    at = space.flatnonzero(first)
    return rows[at], cols[at], backend.sum_runs(data, at)


def from_bit_tensor(x: Any, bits: Any, encoding: Any, axis: Any, layout: Any, shape: Any, copy: bool) -> Parts:
    """Another BitTensor, converted as asked."""
    if shape is not None and tuple(shape) != x.shape:
        raise ShapeError(f"{_FUNCTION}: shape {tuple(shape)} was asked for, but the BitTensor has shape {x.shape}")
    bits = x.bits if bits is None else _check.bit_count(_FUNCTION, bits)
    encoding = _check.encoding(_FUNCTION, x.encoding if encoding is None else encoding, bits)
    axis = x.axis if axis is None else _check.axis(_FUNCTION, axis, x.ndim)
    layout = _check.layout(_FUNCTION, x.layout if layout is None else layout, bits)
    if (bits, encoding) != (x.bits, x.encoding):
        return pack(_FUNCTION, x.toarray(), bits, encoding=encoding, axis=axis, layout=layout).of(family_of(x))
    moved = x.repack(axis=axis, layout=layout)
    words = moved.words.copy() if copy and moved is x else moved.words
    return Parts(words, x.shape, bits, axis, layout, encoding, family_of(x))


# -- reading ----------------------------------------------------------------------------------------------------------
def coordinates(x: Any) -> tuple[Any, Any, Any]:
    """Values, rows and columns of the non-zero integers where they lie, a chunk of outer slices at a time."""
    plain = x.with_affine() if x.axis == -1 else x.with_affine().T
    length = plain.shape[1]
    step = max(1, _CHUNK // max(length, 1))
    rows, cols, data = [], [], []
    space = interop.namespace(plain.words)
    for start in range(0, plain.shape[0], step):
        chunk, _ = interop.as_array(plain[start : start + step].toarray(), "tocsr")
        row, col = space.nonzero(chunk)
        rows.append(row + start)
        cols.append(col)
        data.append(chunk[row, col])
    joined = [space.concatenate(part) if part else space.empty(0, np.int64) for part in (data, rows, cols)]
    values = joined[0].astype(x.dtype)
    return (values, joined[1], joined[2]) if x.axis == -1 else (values, joined[2], joined[1])


def to_csr(x: Any) -> Any:
    """The non-zero integers as :class:`scipy.sparse.csr_array`."""
    from scipy import sparse

    values, rows, cols = coordinates(x)
    return sparse.coo_array((values, (rows, cols)), shape=x.shape).tocsr()


def unpickle(
    cls: Any, words: Any, shape: Any, bits: Any, axis: Any, layout: Any, encoding: Any, scale: Any, offset: Any
) -> Any:
    """Rebuild through the checks: a pickle may come from elsewhere."""
    return cls.from_words(words, shape, bits, encoding=encoding, axis=axis, layout=layout, scale=scale, offset=offset)
