"""The scales and correction terms that two factors add to the epilogue of their product."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.backends.params import Array, OperandParams


class Factor(NamedTuple):
    """One factor of a product that is not a BitTensor, with the attributes that :func:`operand_terms` reads.

    Attributes
    ----------
    shape : tuple of int
    scale, offset : ndarray of float32 or None
        A code q stands for ``scale * q + offset``; None counts as 1 and 0.
    line_sums : ndarray
        The sum of each row.
    """

    shape: tuple[int, ...]
    scale: Any = None
    offset: Any = None
    line_sums: Any = None


def operand_terms(
    function: str, a: BitTensor | Factor, b: BitTensor | Factor, correct: bool, names: tuple[str, str] = ("a", "b")
) -> OperandParams:
    """Scales and offset corrections of the operands, as vectors over rows and columns; error messages call the operands by `names`.

    ``sum_k (sa qa + oa)(sb qb + ob) = sa sb (qa @ qb) + (sa rowsum(qa)) ob + oa (sb colsum(qb) + k ob)``
    """
    left, right = names
    m, n = a.shape[-2], b.shape[-1]
    row_scale = _outer(function, left, "scale", a.scale, -1, m)
    a_offset = _not_zero(_outer(function, left, "offset", a.offset, -1, m))
    col_scale = _outer(function, right, "scale", b.scale, -2, n)
    b_offset = _not_zero(_outer(function, right, "offset", b.offset, -2, n))
    if a_offset is None and b_offset is None:
        return OperandParams(row_scale, col_scale)
    if not correct:
        which = left if a_offset is not None else right
        raise ValueError(
            f"{function}: {which} has an offset, which the product of integers leaves out; pass Epilogue(offset_correction=True), or "
            f"quantize with scheme='symmetric'"
        )
    row_term = col_term = None
    if b_offset is not None:
        row_term = (_scaled(a.line_sums, row_scale), b_offset.astype(np.float64))
    if a_offset is not None:
        extra = 0.0 if b_offset is None else a.shape[-1] * b_offset.astype(np.float64)
        col_term = (a_offset.astype(np.float64), _scaled(b.line_sums, col_scale) + extra)
    return OperandParams(row_scale, col_scale, row_term, col_term)


def _scaled(sums: Array, scale: NDArray[np.float32] | None) -> Array:
    """Sums of lines in float64, times their scale if there is one."""
    wide: Array = sums.astype(np.float64)
    return wide if scale is None else wide * scale.astype(np.float64)


def _not_zero(offset: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    """The offset, or None if it is zero everywhere."""
    return offset if offset is not None and offset.any() else None


def _outer(
    function: str, which: str, name: str, part: NDArray[np.float32] | None, packed: int, length: int
) -> NDArray[np.float32] | None:
    """A scale or offset of one element as a scalar, and one per row or column as a vector of `length` elements along the outer axis; one
    that varies along the contraction axis is refused.
    """
    if part is None or part.ndim == 0:
        return part
    if part.size == 1:
        return part.reshape(())
    if part.shape[packed] != 1:
        raise ValueError(
            f"{function}: {which} has a {name} of shape {part.shape} along the contraction axis, which cannot be taken out of the sum; "
            f"quantize {which} with one {name} per {'row' if packed == -1 else 'column'} or for the whole tensor"
        )
    vector = np.squeeze(part, axis=packed)
    return np.broadcast_to(vector, (*vector.shape[:-1], length))
