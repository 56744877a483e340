"""``& | ^ ~`` of unsigned BitTensors, on the packed words."""

from __future__ import annotations

from typing import Any

from bitsparse import _check, interop
from bitsparse.arrays import construct
from bitsparse.arrays.inside import assembled, family_of, working
from bitsparse.backends.params import packed_words
from bitsparse.errors import DTypeError, ShapeError

__all__ = ["combine", "invert"]


def combine(x: Any, y: Any, operation: Any, name: str) -> Any:
    """``x & y`` and its kin; the result is packed as ``x`` and has no affine parameters."""
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
    """``~x``: every bit flipped, padding left zero."""
    if x.encoding != "unsigned":
        raise DTypeError(f"~: flipping bits is defined for unsigned, got {x.encoding}; use -x")
    length = x.shape[x.axis] * (1 if x.layout == "planes" else x.bits)
    mask = interop.move(construct.prefix_mask(length, packed_words(length, 1, "planes")), x.device)
    with working(x):
        words = x.words ^ mask
    return assembled(type(x), words, x.shape, x.bits, x.axis, x.layout, x.encoding, family_of(x))
