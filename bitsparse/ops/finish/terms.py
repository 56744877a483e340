"""What scales and offsets of two factors add to the epilogue of their product."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.ops.finish.epilogue import Operands

__all__ = ["operand_terms"]


class LeftOperand(Protocol):
    """What the corrections need of the left factor: a BitTensor, or a sparse adjacency with the sums of its rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def scale(self) -> NDArray[np.float32] | None: ...
    @property
    def offset(self) -> NDArray[np.float32] | None: ...
    @property
    def line_sums(self) -> NDArray[np.int64]: ...


def operand_terms(
    function: str, a: LeftOperand, b: BitTensor, correct: bool, names: tuple[str, str] = ("a", "b")
) -> Operands:
    """Scales and offset corrections of the operands, as vectors over rows and columns; messages call them by `names`.

    ``sum_k (sa qa + oa)(sb qb + ob) = sa sb (qa @ qb) + (sa rowsum(qa)) ob + oa (sb colsum(qb) + k ob)``
    """
    row_scale, a_offset = (
        _outer(function, names[0], name, part, -1) for name, part in (("scale", a.scale), ("offset", a.offset))
    )
    col_scale, b_offset = (
        _outer(function, names[1], name, part, -2) for name, part in (("scale", b.scale), ("offset", b.offset))
    )
    a_offset = None if a_offset is not None and not a_offset.any() else a_offset
    b_offset = None if b_offset is not None and not b_offset.any() else b_offset
    if a_offset is None and b_offset is None:
        return Operands(row_scale, col_scale)
    if not correct:
        which = names[0] if a_offset is not None else names[1]
        raise ValueError(
            f"{function}: {which} has an offset, which the product of integers leaves out; pass Epilogue(offset_correction=True), or "
            f"quantize with scheme='symmetric'"
        )
    k = a.shape[-1]
    one = np.float64(1)
    row_term = col_term = None
    if b_offset is not None:
        sums = a.line_sums.astype(np.float64)
        row_term = (sums * (one if row_scale is None else row_scale.astype(np.float64)), b_offset.astype(np.float64))
    if a_offset is not None:
        sums = b.line_sums.astype(np.float64)
        sums = sums * (one if col_scale is None else col_scale.astype(np.float64))
        extra = 0.0 if b_offset is None else k * b_offset.astype(np.float64)
        col_term = (a_offset.astype(np.float64), sums + extra)
    return Operands(row_scale, col_scale, row_term, col_term)


def _outer(
    function: str, which: str, name: str, part: NDArray[np.float32] | None, packed: int
) -> NDArray[np.float32] | None:
    """A scalar or per-outer parameter as a vector over the outer axis; one that varies along the contraction axis is refused."""
    if part is None or part.ndim == 0:
        return part
    if part.shape[packed] != 1:
        raise ValueError(
            f"{function}: {which} has a {name} of shape {part.shape} along the contraction axis, which cannot be taken out of the sum; "
            f"quantize {which} with one {name} per {'row' if packed == -1 else 'column'} or for the whole tensor"
        )
    return np.squeeze(part, axis=packed)
