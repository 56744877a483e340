"""Weights of edges as kernels on a GPU take them, made of a matrix's values as these are at every call."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays.indices import rows_of
from bitsparse.backends.params import Array
from bitsparse.interop import converted
from bitsparse.ops.operands.csr import CSROperand


class EdgeWeights:
    """Values of the edges in another dtype, with the scales of columns and rows in them.

    The values of a matrix may be changed in place between calls, while its scales stay as they are. Where a kernel takes values as they
    lie, there is nothing to do. Elsewhere every call writes them again, into memory that was allocated once, by one launch for a
    conversion and one for each kind of scales, so that a captured call does so as well. Frozen values are written once.

    Parameters
    ----------
    operand : CSROperand
        Whose pattern tells the scales of an edge; it is not held.
    values : array (nnz,) or (nnz, heads), or None
        None is one for every edge.
    dtype : dtype
        Floating if there are scales.
    col_scale, row_scale : array of float32, optional
        Those of the matrix which become part of the weights; for values (nnz,).
    counts : array (nnz,), optional
        How often each edge counts.

    Attributes
    ----------
    frozen : bool
        The weights are the same in every call.
    """

    def __init__(
        self,
        operand: CSROperand,
        values: Array | None,
        dtype: Any,
        col_scale: Array | None = None,
        row_scale: Array | None = None,
        counts: Array | None = None,
    ) -> None:
        self._values, self._dtype = values, np.dtype(dtype)
        self._factors: list[Array] = [] if counts is None else [converted(counts, self._dtype)]
        if col_scale is not None:
            self._factors.append(converted(col_scale, self._dtype)[operand.columns])
        if row_scale is not None:
            self._factors.append(converted(row_scale, self._dtype)[rows_of(operand.indptr)])
        self._space: Any = interop.namespace(operand.indptr)
        self._room: Array | None = None
        if values is None:
            for factor in self._factors:
                self._room = factor if self._room is None else interop.aligned(self._room * factor)
            self._factors = []
        elif self._factors or interop.aligned(converted(values, self._dtype)) is not values:
            self._room = self._space.empty(values.shape, self._dtype)
            if operand.frozen:
                self._write(values, self._room)
        self.frozen = operand.frozen or values is None

    def now(self) -> Any:
        """The weights of a call, on the current stream; None where every edge counts once."""
        values, room = self._values, self._room
        if room is None:
            return values
        if values is not None and not self.frozen:
            self._write(values, room)
        return room

    def _write(self, values: Array, room: Any) -> None:
        factors = self._factors
        if factors and values.dtype == room.dtype:
            self._space.multiply(values, factors[0], out=room)
            factors = factors[1:]
        elif "bfloat16" in (values.dtype.name, room.dtype.name):  # CuPy does not convert it
            room[...] = converted(values, room.dtype)
        else:
            room[...] = values
        for factor in factors:
            self._space.multiply(room, factor, out=room)
