"""Indexing and bitwise operators of a BitTensor, which work on packed words where possible."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays import construct
from bitsparse.arrays.inside import assembled, family_of, with_words, working
from bitsparse.backends.params import packed_words
from bitsparse.errors import DTypeError, ShapeError

_FUNCTION = "BitTensor[...]"


def getitem(x: Any, key: Any) -> Any:
    """``x[key]``: see :meth:`bitsparse.BitTensor.__getitem__`."""
    with working(x):
        return _picked(x, _full_key(x.shape, key))


def _picked(x: Any, keys: tuple[Any, ...]) -> Any:
    batch_keys, (row_key, col_key) = keys[:-2], keys[-2:]
    outer_key, packed_key = (row_key, col_key) if x.axis == -1 else (col_key, row_key)
    words = x.words
    # One axis at a time, because NumPy would pair two index arrays; the last axis first, because an integer removes its dimension and
    # so renumbers those after it.
    for at in reversed(range(len(batch_keys))):
        words = words[(slice(None),) * at + (_placed(batch_keys[at], words),)]
    kept = sum(not isinstance(one, int) for one in batch_keys)
    words = words[(slice(None),) * kept + (_placed(outer_key, words),)]
    length, outer = x.shape[x.axis], words.shape[kept]
    shape = (*words.shape[:kept], *((outer, length) if x.axis == -1 else (length, outer)))
    made = with_words(x, interop.aligned(words), shape, x.axis, x.layout, (None, None))
    if not (isinstance(packed_key, slice) and packed_key.indices(length) == (0, length, 1)):
        values, _ = interop.as_array(made.toarray(), _FUNCTION)
        packed_key = _placed(packed_key, values)
        values = values[..., packed_key] if x.axis == -1 else values[..., packed_key, :]
        parts = construct.pack(_FUNCTION, values, x.bits, encoding=x.encoding, axis=x.axis, layout=x.layout)
        words, shape = parts.words, parts.shape
    else:
        words, shape = made.words, made.shape
    affine = _index_affine(x.scale, keys), _index_affine(x.offset, keys)
    return with_words(x, words, shape, x.axis, x.layout, affine)


def _placed(key: Any, beside: Any) -> Any:
    """An index array, moved to the device of the array that it indexes; slices stay as they are."""
    return interop.move(key, interop.device_of(beside)) if isinstance(key, np.ndarray) else key


def _full_key(shape: tuple[int, ...], key: Any) -> tuple[Any, ...]:
    """One checked key per dimension: a slice or a one-dimensional index array, or an int for a batch dimension."""
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [position for position, one in enumerate(keys) if one is Ellipsis]
    if len(dots) > 1:
        raise ShapeError(f"{_FUNCTION}: an index may hold one '...', got {len(dots)}")
    missing = len(shape) - (len(keys) - len(dots))
    if missing < 0:
        raise ShapeError(f"{_FUNCTION}: {len(keys) - len(dots)} indices for {len(shape)} dimensions of shape {shape}")
    position = dots[0] if dots else len(keys)
    keys[position : position + len(dots)] = [slice(None)] * missing
    return tuple(_one_key(one, size, dim - len(shape)) for dim, (one, size) in enumerate(zip(keys, shape, strict=True)))


def _one_key(key: Any, size: int, dim: int) -> Any:
    if isinstance(key, slice):
        return key
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        if not -size <= key < size:
            raise IndexError(f"{_FUNCTION}: index {key} is out of bounds for axis {dim} of {size}")
        if dim >= -2:
            at = int(key) % size
            raise ShapeError(
                f"{_FUNCTION}: index {key} would leave one dimension; keep two with a slice, as in x[..., {at}:{at + 1}"
                f"{', :' * (-1 - dim)}]"
            )
        return int(key)
    if interop.namespace(key) is not np:
        key = key.get()  # bounds are checked on the host
    if not isinstance(key, (list, np.ndarray)):
        kinds = (
            "integers, slices or one-dimensional index arrays" if dim < -2 else "slices or one-dimensional index arrays"
        )
        raise DTypeError(f"{_FUNCTION}: axis {dim} is indexed by {kinds}, got {type(key).__name__}")
    return _index_array(np.asarray(key), size, dim)


def _index_array(index: NDArray[Any], size: int, dim: int) -> NDArray[np.int64]:
    if index.ndim != 1 or (index.size and index.dtype.kind not in "biu"):
        raise DTypeError(
            f"{_FUNCTION}: axis {dim} takes a one-dimensional array of integers or booleans, got {index.ndim}-D {index.dtype}"
        )
    if index.dtype.kind == "b":
        if index.size != size:
            raise ShapeError(f"{_FUNCTION}: a mask of {index.size} elements does not fit axis {dim} of {size}")
        return np.flatnonzero(index)
    if index.size and not (-size <= int(index.min()) and int(index.max()) < size):
        raise IndexError(
            f"{_FUNCTION}: indices reach {int(index.min())}..{int(index.max())}, but axis {dim} has {size}"
        )
    return index.astype(np.int64)


def _index_affine(part: NDArray[np.float32] | None, keys: tuple[Any, ...]) -> NDArray[np.float32] | None:
    """Apply the same index to a scale or offset; its broadcast dimensions stay whole. The result is in C order, as files hold it."""
    if part is None or part.ndim == 0:
        return part
    for dim in range(len(keys) - 1, -1, -1):  # last axis first, because an integer removes its dimension
        key = keys[dim]
        if part.shape[dim] == 1:
            key = 0 if isinstance(key, int) else slice(None)
        part = part[(slice(None),) * dim + (_placed(key, part),)]
    return interop.contiguous(part)


# -- & | ^ ~ of unsigned integers ----------------------------------------------------------------------------------------
def combine(x: Any, y: Any, operation: Any, name: str) -> Any:
    """``x & y`` and similar; the result is packed like ``x`` and has no affine parameters."""
    if not isinstance(y, type(x)):
        return NotImplemented
    if x.shape != y.shape:
        raise ShapeError(
            f"{name}: shapes {x.shape} and {y.shape} differ, and bitwise operators do not broadcast; slice or repeat one"
        )
    if (x.bits, x.encoding) != (y.bits, y.encoding) or x.encoding != "unsigned":
        mine, theirs = f"{x.bits} {x.encoding}", f"{y.bits} {y.encoding}"
        raise DTypeError(
            f"{name}: both operands must be unsigned with the same bits, got {mine} and {theirs}; convert one with BitTensor(x, bits)"
        )
    _check.same_device(name, (x.device, y.device))
    y = y.repack(axis=x.axis, layout=x.layout)
    family = interop.common_family([family_of(x), family_of(y)])
    with working(x):
        words = operation(x.words, y.words)
    return assembled(type(x), words, x.shape, x.bits, x.axis, x.layout, x.encoding, family)


def invert(x: Any) -> Any:
    """``~x``: every bit flipped except the padding, which stays zero."""
    if x.encoding != "unsigned":
        raise DTypeError(f"~: flipping bits is defined for unsigned, got {x.encoding}; use -x")
    length = x.shape[x.axis] * (1 if x.layout == "planes" else x.bits)
    mask = interop.move(construct.prefix_mask(length, packed_words(length, 1, "planes")), x.device)
    with working(x):
        words = x.words ^ mask
    return assembled(type(x), words, x.shape, x.bits, x.axis, x.layout, x.encoding, family_of(x))
