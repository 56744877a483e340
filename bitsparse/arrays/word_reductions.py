"""Sums and counts of the integers of a BitTensor, computed on its packed words by population counts of every plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.inside import assembled, family_of, working
from bitsparse.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from bitsparse.arrays.packed import PackedArray


def total(x: PackedArray, axis: Any, keepdims: Any) -> Any:
    """Implements ``x.sum``."""
    if x.scale is not None or x.offset is not None:
        raise DTypeError(
            "sum: the BitTensor has a scale or an offset, which its integers leave out; use x.dequantize().sum(...) for the real "
            "values, x.with_affine().sum(...) for the integers"
        )
    return _reduced("sum", x, axis, keepdims)


def counts(x: PackedArray, axis: Any, keepdims: Any, function: str = "count_nonzero") -> Any:
    """Implements ``x.count_nonzero``."""
    if x.offset is not None:
        raise DTypeError(
            f"{function}: the BitTensor has an offset, so that stored zeros are not zero; use x.dequantize() for the real values, "
            f"x.with_affine() for the integers"
        )
    return _reduced(function, _marked(x), axis, keepdims)


def all_of(x: PackedArray, axis: Any, keepdims: Any) -> Any:
    """Implements ``x.all``."""
    axes = axes_of("all", axis, x.ndim)
    return counts(x, axis, keepdims, "all") == int(np.prod([x.shape[one] for one in axes], dtype=np.int64))


def _marked(x: PackedArray) -> Any:
    """A 1-bit BitTensor that marks every integer that is not zero."""
    planes, kind = x.repack(layout="planes"), (x.shape, 1, x.axis, "planes", "unsigned", family_of(x))
    with working(x):
        if x.encoding == "bipolar":
            none: Any = assembled(type(x), interop.namespace(planes.words).zeros_like(planes.words), *kind)  # type: ignore[type-var]
            return ~none
        words = planes.words[..., :1, :]
        for plane in range(1, x.bits):
            words = words | planes.words[..., plane : plane + 1, :]
        return assembled(type(x), interop.contiguous(words), *kind)  # type: ignore[type-var]


def axes_of(function: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes to reduce, as non-negative numbers."""
    if axis is None:
        return tuple(range(ndim))
    named = axis if isinstance(axis, tuple) else (axis,)
    found = []
    for one in named:
        if isinstance(one, (bool, np.bool_)) or not isinstance(one, (int, np.integer)):
            raise DTypeError(
                f"{function}: axis must be an integer, a tuple of them or None, got {_check.shown(axis)}; leave it away for all"
            )
        if not -ndim <= one < ndim:
            raise ShapeError(
                f"{function}: axis={one} is out of bounds for {ndim} dimensions; use one in {-ndim}..{ndim - 1}"
            )
        found.append(int(one) % ndim)
    if len(set(found)) != len(found):
        raise ShapeError(f"{function}: axis={axis} names an axis twice; name each once")
    return tuple(found)


def _reduced(function: str, x: Any, axis: Any, keepdims: Any) -> Any:
    """int64 sums: population counts reduce the packed axis, and ordinary sums of these reduce the other axes."""
    axes, ndim = axes_of(function, axis, x.ndim), x.ndim
    keep = _check.flag(function, "keepdims", keepdims)
    wanted = tuple(1 if one in axes else size for one, size in enumerate(x.shape) if keep or one not in axes)
    last = [one for one in axes if one >= ndim - 2]
    if last:
        if len(last) == 1 and last[0] != ndim + x.axis:
            x = x.repack(axis=-3 - x.axis)
        sums = x.line_sums
        packed = ndim + x.axis
        # The axes of `sums` that remain to be reduced; its last axis is the matrix axis that is not packed.
        rest = [len(sums.shape) - 1 if one >= ndim - 2 else one for one in axes if one != packed]
    else:
        sums, _ = interop.as_array(x.toarray(), function)
        rest = list(axes)
    with working(x):
        result = sums.sum(axis=tuple(rest), dtype=np.int64) if rest else sums.copy()
        result = result.reshape(wanted)
        return interop.from_array(result, family_of(x), function) if wanted else result[()]
