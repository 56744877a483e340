"""The steps of a low-bit network: products of codes with weights, and sums of codes, each with the operations that follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse.arrays import BitTensor
from bitsparse.arrays.packed import Layout
from bitsparse.ops import Epilogue

_Array = NDArray[np.float32]


class Grid(NamedTuple):
    """The values that codes stand for, ``step * code + low``; float32 ``(columns,)``."""

    step: _Array
    low: _Array


@dataclass(frozen=True, eq=False)
class Chain:
    """The operations on the integers of a step, column by column; factors of rows come from the graph.

    Attributes
    ----------
    col_scale, bias : ndarray (columns,) of float32
        One factor and one addend, which combine scales, batch norm and the step of the next grid.
    activation : str or None
    bits : int or None
        The bits of the resulting codes; None for floats.
    grid : Grid or None
        The grid of the codes, if the activation does not allow combining it with `col_scale` and `bias`.
    """

    col_scale: _Array
    bias: _Array
    activation: str | None = None
    bits: int | None = None
    grid: Grid | None = None
    _made: dict[tuple[int, str], Epilogue] = field(default_factory=dict, init=False, repr=False)

    def epilogue(self, axis: int = -1, layout: Layout = "planes") -> Epilogue:
        """The epilogue that packs along ``axis`` in ``layout``; every call returns the same object."""
        key = (axis, layout)
        if key not in self._made:
            codes: dict[str, Any] = {}
            if self.bits is not None:
                codes = {"bits": self.bits, "rounding": "nearest", "axis": axis, "layout": layout, "out_scale": 1.0}
                if self.grid is not None:
                    codes |= {"out_scale": self.grid.step[None, :], "out_offset": self.grid.low[None, :]}
            made = Epilogue(
                col_scale=self.col_scale,
                bias=self.bias,
                activation=self.activation,  # type: ignore[arg-type]
                offset_correction=True,
                **codes,
            )
            return self._made.setdefault(key, made)  # the same object for threads that ask at once
        return self._made[key]


@dataclass(frozen=True, eq=False)
class Update:
    """A product of codes with weights.

    Attributes
    ----------
    weights : BitTensor (inputs, outputs)
        Signed integers, without scale and offset.
    chain : Chain
    scaled : bool
        Whether the right-hand factors of the graph, one for each row, multiply the sums.
    constant : ndarray (outputs,) of float32 or None
        An addend for the sums of each row, times the same factor, in units of the result. It stands for the lower ends of the inputs'
        grids.
    """

    weights: BitTensor
    chain: Chain
    scaled: bool = False
    constant: _Array | None = None


@dataclass(frozen=True, eq=False)
class Aggregate:
    """Sums of codes over neighbours, with the left-hand factors of the graph.

    Attributes
    ----------
    columns, bits : int
        The columns and bits of the codes.
    chain : Chain
    offset : ndarray (columns,) of float32 or None
        An addend for every code: the lower ends of their grid, in steps.
    own : bool
        Whether a node's own codes are put beside the result, beginning at the next multiple of 128 columns.
    """

    columns: int
    bits: int
    chain: Chain
    offset: _Array | None = None
    own: bool = False
