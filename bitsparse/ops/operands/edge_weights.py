"""Edge weights in the form that GPU kernels take, computed at every call from a matrix's current values."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.arrays.indices import rows_of
from bitsparse.backends.params import Array
from bitsparse.interop import converted
from bitsparse.ops.operands.csr import CSROperand


class EdgeWeights:
    """The values of the edges in another dtype, multiplied by the scales of columns and rows.

    The values of a matrix may be changed in place between calls, while its scales stay the same. If a kernel can take the values as they
    are, nothing is computed. Otherwise every call computes the weights again into memory that was allocated once, with one launch for a
    conversion and one for each kind of scales, so that a captured call computes them too. Weights of frozen values are computed once.

    Parameters
    ----------
    operand : CSROperand
        Its pattern tells which scales belong to an edge; the operand itself is not kept.
    values : array (nnz,) or (nnz, heads), or None
        None means 1 for every edge.
    dtype : dtype
        Dtype of the weights; floating if there are scales.
    col_scale, row_scale : array of float32, optional
        The matrix's scales that become part of the weights; only with values (nnz,).
    counts : array (nnz,), optional
        How often each edge counts.

    Attributes
    ----------
    frozen : bool
        Whether the weights are the same in every call.
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
        """The current weights, computed on the current stream; None if every edge counts once."""
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
