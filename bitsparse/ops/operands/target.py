"""The arrays to which results are written, such as the one behind `out`, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import words_to_overwrite
from bitsparse.backends.params import Array
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.operands.places import same_place


def target_array(
    function: str,
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | None,
    device: str,
    operands: Iterable[Array],
    name: str = "out",
) -> Array:
    """The NumPy or CuPy array behind `out`, which must have exactly this shape, dtype and device; `dtype` None allows any dtype.

    `name` is that of the argument.
    """
    target: Array = interop.writable_array(out, function, name)
    _check.out_array(function, target, shape, target.dtype if dtype is None else dtype, name)
    return _apart(function, target, device, operands, name)


def target_of(
    function: str,
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | None,
    device: str,
    operands: Iterable[Array],
    like: BitTensor | None = None,
    otherwise: str = "Epilogue(bits=...) or another out",
) -> Array:
    """:func:`target_array`, or the words behind `out` if the result is a BitTensor as `like`; `otherwise` names the remedy in an error."""
    if like is None:
        if isinstance(out, BitTensor):
            raise DTypeError(f"{function}: the result is an ordinary array, but out is a BitTensor; pass {otherwise}")
        return target_array(function, out, shape, dtype, device, operands)
    if not isinstance(out, BitTensor):
        raise DTypeError(
            f"{function}: the result is bits, so out must be a BitTensor, got {type(out).__name__}; pass out=None"
        )
    wanted, found = ((one.shape, one.bits, one.axis, one.layout, one.encoding) for one in (like, out))
    if found != wanted:
        raise ShapeError(
            f"{function}: out is (shape, bits, axis, layout, encoding) {found}, but the result is {wanted}"
        )
    for name in ("scale", "offset"):
        mine, theirs = getattr(like, name), getattr(out, name)
        if not (mine is theirs or (mine is not None and theirs is not None and np.array_equal(mine, theirs))):
            raise ValueError(
                f"{function}: out has another {name} than the epilogue writes; make it with_affine(scale, offset)"
            )
    return _apart(function, words_to_overwrite(out), device, operands)


def zeros(space: Any, shape: tuple[int, ...], dtype: np.dtype[Any], target: Array | None) -> Array:
    """Zeros, the result of empty sums, in new memory of NumPy or CuPy or in a C-contiguous `target`.

    Examples
    --------
    >>> zeros(np, (1, 2), np.dtype(np.int32), None)
    array([[0, 0]], dtype=int32)
    """
    made: Array = space.empty(shape, dtype) if target is None else target
    if made.size:
        made.view(np.uint8).fill(0)  # zero in every dtype, even in bfloat16, with which CuPy cannot compute
    return made


def written(run: Callable[[Any], Any], out: Any, like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """The array that ``run(target)`` fills on the GPU of `like`: `out` if it is given, by way of another array if `out` is not aligned."""
    target = out
    if target is None or target.data.ptr % 16:
        target = cast(Any, interop.namespace(like)).empty(shape, dtype)
    run(target)
    if out is not None and target is not out:
        out[...] = target
    return cast(Array, target if out is None else out)


def _apart(function: str, target: Array, device: str, operands: Iterable[Array], name: str = "out") -> Array:
    same_place(function, [(name, interop.device_of(target)), ("the result", device)])
    _check.no_overlap(function, target, *operands, name=name)
    return target
